//! From the text of an amount or a time to an integer, and one of two ways to write a number.

use std::fmt::Display;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::WrittenError;

/// Reads a time such as `30min` or `1h`, or a number of milliseconds.
pub(crate) fn time_ms<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Option::<Written>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Written::Number(ms)) => Ok(Some(ms)),
        Some(Written::Text(text)) => parse_time_ms(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

fn parse_time_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time such as 90s, 30min or 2h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(unit_ms).ok_or_else(wrong)
}

/// A field with its name.
type Named<T> = (&'static str, Option<T>);

/// What is said, in one form or the other.
pub(super) fn either<T, E: Display>(
    (field, text): Named<String>,
    (exact_field, exact): Named<T>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, WrittenError> {
    match (text, exact) {
        (Some(_), Some(_)) => Err(WrittenError::Twice(field, exact_field)),
        (None, exact) => Ok(exact),
        (Some(text), None) => {
            let wrong =
                |what: E| WrittenError::Text { field, text: shortened(&text), what: what.to_string() };
            read(&text).map(Some).map_err(wrong)
        }
    }
}

/// Of thousandths that 32 bits hold.
pub(super) fn either_small(
    written: Named<String>,
    (exact_field, exact): Named<u32>,
) -> Result<Option<u32>, WrittenError> {
    let (field, text) = (written.0, written.1.as_deref().unwrap_or_default().to_owned());
    let milli = either(written, (exact_field, exact.map(u64::from)), |text| decimal(text, 3))?;
    let too_much = |_| WrittenError::TooMuch { field, text: shortened(&text) };
    milli.map(|milli| u32::try_from(milli).map_err(too_much)).transpose()
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What a text should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("number such as 12 or 2.5, with up to {digits} digits after the point")]
    Decimal { digits: usize },
    #[error("time such as 20ms, 500us or 1.5s, in whole microseconds")]
    Wait,
    #[error("percentage such as 99% or 99.95%")]
    Percent,
    #[error("amount of memory in whole MiB, such as 512MiB, 64GiB or 1.5TiB")]
    Memory,
    #[error("date such as 2026-12-01, nor a time such as 2026-12-01T08:30:00Z, since 1970")]
    Moment,
}

/// A decimal number without a sign in units of its last digit: of three, `0.5` is 500.
pub fn decimal(text: &str, digits: usize) -> Result<u64, TextError> {
    let wrong = TextError::Decimal { digits };
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let numeric = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !numeric(whole) || !numeric(part) || part.len() > digits {
        return Err(wrong);
    }
    format!("{whole}{part:0<digits$}").parse().map_err(|_| wrong)
}

/// `64GiB`, in MiB.
pub(super) fn memory_mib(text: &str) -> Result<u64, TextError> {
    const DIGITS: usize = 6;
    let units = [("MiB", 1), ("GiB", 1 << 10), ("TiB", 1 << 20)];
    let split = units.iter().find_map(|&(unit, mib)| Some((text.strip_suffix(unit)?.trim_end(), mib)));
    let (number, unit_mib) = split.ok_or(TextError::Memory)?;
    let millionths = decimal(number, DIGITS).map_err(|_| TextError::Memory)?;
    let millionths = u128::from(millionths) * unit_mib;
    let mib = millionths / 1_000_000;
    let is_whole = mib * 1_000_000 == millionths;
    u64::try_from(mib).ok().filter(|_| is_whole).ok_or(TextError::Memory)
}

/// Milliseconds since 1970 of a day's beginning in UTC, `2026-12-01`, or of a time as of RFC 3339,
/// `2026-12-01T08:30:00+01:00`.
pub fn moment_ms(text: &str) -> Result<u64, TextError> {
    let midnight = |date: Date| date.to_zoned(TimeZone::UTC).map(|midnight| midnight.timestamp());
    // Not `parse`, which would read a date from a time as well, and ignore the rest.
    let parsed = text.parse::<Timestamp>().or_else(|_| Date::strptime("%Y-%m-%d", text).and_then(midnight));
    parsed.ok().and_then(|at| u64::try_from(at.as_millisecond()).ok()).ok_or(TextError::Moment)
}
