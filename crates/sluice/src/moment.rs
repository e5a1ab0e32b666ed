//! Points in time as people write them. Everything is UTC, as in bills and invoices.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};
use sluice_api::written;

/// A point in time, in milliseconds since 1970: `2026-11-01` (its midnight),
/// `2026-11-01T08:30:00Z`, or the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn from_ms(ms: u64) -> Moment {
        Moment(ms)
    }

    pub(crate) fn ms(self) -> u64 {
        self.0
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        if let Ok(ms) = text.parse() {
            return Ok(Moment(ms));
        }
        let wrong = |_| format!("{text:?} is no moment such as 2026-11-01 or 2026-11-01T08:30:00Z");
        written::moment_ms(text).map(Moment).map_err(wrong)
    }
}

/// A month, such as `2026-11`: from its beginning until that of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Month {
    pub(crate) from: Moment,
    pub(crate) until: Moment,
}

impl FromStr for Month {
    type Err = String;

    fn from_str(text: &str) -> Result<Month, String> {
        let first = Date::strptime("%Y-%m-%d", format!("{text}-01")).ok();
        let begins = |date: Date| date.to_string().parse::<Moment>().ok();
        let month = first.and_then(|first| {
            let next = first.checked_add(1.month()).ok()?;
            Some(Month { from: begins(first)?, until: begins(next)? })
        });
        month.ok_or_else(|| format!("{text:?} is no month such as 2026-11"))
    }
}

/// ISO 8601, to the second.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        write!(f, "{}", at.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_have_their_own_lengths() {
        for (text, from, until) in [
            ("2026-11", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2028-02", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            ("2026-12", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            let month: Month = text.parse().unwrap();
            assert_eq!((month.from.to_string(), month.until.to_string()), (from.into(), until.into()));
        }
        for text in ["", "2026", "2026-13", "2026-11-01", "11-2026", "1969-12"] {
            assert!(text.parse::<Month>().is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_dates_or_times() {
        for (text, ms, shown) in [
            ("0", 0, "1970-01-01T00:00:00Z"),
            ("2000-02-29", 951_782_400_000, "2000-02-29T00:00:00Z"),
            ("2026-02-28T23:59:59Z", 1_772_323_199_000, "2026-02-28T23:59:59Z"),
            ("2026-03-01T02:00:00+02:00", 1_772_323_200_000, "2026-03-01T00:00:00Z"),
        ] {
            let moment: Moment = text.parse().unwrap();
            assert_eq!((moment.ms(), moment.to_string().as_str()), (ms, shown), "{text}");
        }
        for text in
            ["", "yesterday", "2026-02-30", "1969-12-31", "2026-03-01T25:00:00Z", "2026-03-01T12:00:00"]
        {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }
}
