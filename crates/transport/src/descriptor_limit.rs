//! How many descriptors a process may have.

/// Lets this process open as many files as it may, and says how many those are: sockets, shared
/// memory and events are one each, and the usual limit is for programs that call `select`.
pub fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one structure, or leaves it as it is.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return DESCRIPTORS_USUAL;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the call reads one structure. Where it fails the limit stays as it was.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
        limit = raised;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// The limit that a process has where nothing else is said.
const DESCRIPTORS_USUAL: usize = 1024;
