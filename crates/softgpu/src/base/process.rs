//! The process that uses the driver.

/// A name that no other process has for its files in a common folder.
pub(crate) fn unique_name() -> String {
    // Each worker may be the first process of a namespace, so that numbers are not unique.
    let nanoseconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{}-{}", std::process::id(), nanoseconds.map_or(0, |time| time.as_nanos()))
}
