//! Calendars: times of the week, by the clocks of some place.
//!
//! A time that clocks skip when they are put forward is the moment of the jump; one that they show
//! twice is the first of the two. So nothing begins twice on a day, and where one time of day ends
//! something and begins something else, the two neither overlap nor leave a gap.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

/// When something holds, week by week.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Calendar {
    /// Whose clocks count.
    pub zone: Zone,
    /// It holds during each of them.
    pub times: Vec<Hours>,
}

/// A time of some days of the week.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hours {
    /// The days on which it begins; every day unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<Vec<Day>>,
    pub from: TimeOfDay,
    /// On the next day if that is earlier than `from`.
    pub until: TimeOfDay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    const ALL: [Day; 7] = [Day::Mon, Day::Tue, Day::Wed, Day::Thu, Day::Fri, Day::Sat, Day::Sun];

    fn of(weekday: Weekday) -> Day {
        Day::ALL[weekday.to_monday_zero_offset() as usize]
    }
}

/// What is wrong about a calendar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    #[error(
        "its calendar is of {0:?}, which is no time zone that this release knows: a name such as Europe/Berlin, or a distance \
         from UTC such as +05:30"
    )]
    Zone(String),
    #[error("its calendar has no times, so it would never hold")]
    Empty,
    #[error("its calendar has more than {TIMES_MAX} times")]
    TooMany,
    #[error("a time from {0} has no days, so it would never hold; leave `days` out for every day")]
    NoDays(TimeOfDay),
    #[error("a time is from {0} until {0}, which is no time at all; the whole day is from 00:00 until 24:00")]
    NoTime(TimeOfDay),
    #[error("a time is from 24:00, which is 00:00 of the next day")]
    FromMidnight,
}

/// Of one calendar.
const TIMES_MAX: usize = 16;

impl Calendar {
    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), CalendarError> {
        if self.zone.0.zone.is_none() {
            return Err(CalendarError::Zone(self.zone.0.name.chars().take(64).collect()));
        }
        if self.times.is_empty() {
            return Err(CalendarError::Empty);
        }
        if self.times.len() > TIMES_MAX {
            return Err(CalendarError::TooMany);
        }
        for hours in &self.times {
            if hours.days.as_ref().is_some_and(Vec::is_empty) {
                return Err(CalendarError::NoDays(hours.from));
            }
            if hours.from == hours.until {
                return Err(CalendarError::NoTime(hours.from));
            }
            if hours.from == TimeOfDay::END {
                return Err(CalendarError::FromMidnight);
            }
        }
        Ok(())
    }

    /// When it holds: all that is in `from_ms..until_ms` in whole or in part, from a moment until
    /// before another, in milliseconds since 1970. In no order; they may touch and overlap. Never
    /// in an unknown zone.
    pub fn spans(&self, from_ms: u64, until_ms: u64) -> Vec<(u64, u64)> {
        let Some(zone) = &self.zone.0.zone else { return Vec::new() };
        // What began on an earlier day may continue: a day's time, and what clocks are put forward
        // or back by.
        let mut date = date_of(zone, from_ms).saturating_sub(2.days());
        let last = date_of(zone, until_ms).saturating_add(1.day());
        let mut spans = Vec::new();
        while date <= last {
            let today = self.times.iter().filter(|hours| hours.is_of(date));
            let held = today.filter_map(|hours| span(zone, date, hours));
            spans.extend(held.filter(|&(begin, end)| begin < end && begin < until_ms && from_ms < end));
            match date.tomorrow() {
                Ok(tomorrow) => date = tomorrow,
                Err(_) => break,
            }
        }
        spans
    }
}

impl Hours {
    fn is_of(&self, date: Date) -> bool {
        self.days.as_ref().is_none_or(|days| days.contains(&Day::of(date.weekday())))
    }
}

/// A time zone of the IANA database that this release carries, such as `Europe/Berlin`, or a fixed
/// distance from UTC, such as `+05:30`. [`Calendar::check`] says so if it is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, examples("Europe/Berlin")))]
pub struct Zone(NamedZone);

#[derive(Clone, Debug)]
struct NamedZone {
    name: String,
    zone: Option<TimeZone>,
}

/// Not that of the system: servers of one database, and bills made on different days, agree.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The date at a moment.
fn date_of(zone: &TimeZone, at_ms: u64) -> Date {
    let moment = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    zone.to_datetime(moment.unwrap_or(Timestamp::MAX)).date()
}

/// When hours that begin on a date begin and end.
fn span(zone: &TimeZone, date: Date, hours: &Hours) -> Option<(u64, u64)> {
    let over = if hours.until <= hours.from { date.tomorrow().ok()? } else { date };
    Some((moment(zone, date, hours.from)?, moment(zone, over, hours.until)?))
}

fn moment(zone: &TimeZone, date: Date, time: TimeOfDay) -> Option<u64> {
    let date = if time == TimeOfDay::END { date.tomorrow().ok()? } else { date };
    let (hour, minute) = (time.0 / 60 % 24, time.0 % 60);
    let shown = zone.to_ambiguous_timestamp(date.at(hour as i8, minute as i8, 0, 0));
    let is_skipped = matches!(shown.offset(), AmbiguousOffset::Gap { .. });
    // The first of two moments; of a time that is skipped, one after the jump.
    let mut moment = shown.compatible().ok()?;
    if is_skipped {
        let after = moment.checked_add(1.millisecond()).ok()?;
        moment = zone.preceding(after).next()?.timestamp();
    }
    // Nothing here is older than 1970; what began before continues.
    Some(u64::try_from(moment.as_millisecond()).unwrap_or(0))
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

impl From<String> for Zone {
    fn from(name: String) -> Zone {
        let zone = match name.as_bytes().first() {
            Some(b'+' | b'-') => offset(&name).map(TimeZone::fixed),
            _ => ZONES.get(&name).ok(),
        };
        Zone(NamedZone { name, zone })
    }
}

/// `+05:30`: up to a day.
fn offset(text: &str) -> Option<Offset> {
    let (sign, rest) = text.split_at_checked(1)?;
    let seconds = i32::from(rest.parse::<TimeOfDay>().ok()?.0) * 60;
    Offset::from_seconds(if sign == "-" { -seconds } else { seconds }).ok()
}

impl From<Zone> for String {
    fn from(zone: Zone) -> String {
        zone.0.name
    }
}

/// Minutes since midnight as a clock shows them, `08:30`; `24:00` is the end of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$", examples("08:30")))]
pub struct TimeOfDay(u16);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no time of day from 00:00 to 24:00, such as 08:30")]
pub struct TimeOfDayError(String);

impl TimeOfDay {
    const END: TimeOfDay = TimeOfDay(24 * 60);
}

impl FromStr for TimeOfDay {
    type Err = TimeOfDayError;

    fn from_str(text: &str) -> Result<TimeOfDay, TimeOfDayError> {
        let number = |digits: &str| {
            let two = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
            digits.parse::<u16>().ok().filter(|_| two)
        };
        let parts = text.split_once(':').and_then(|(hour, minute)| number(hour).zip(number(minute)));
        let time =
            parts.filter(|&(_, minute)| minute < 60).map(|(hour, minute)| TimeOfDay(hour * 60 + minute));
        time.filter(|time| *time <= TimeOfDay::END)
            .ok_or_else(|| TimeOfDayError(text.chars().take(16).collect()))
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = TimeOfDayError;

    fn try_from(text: String) -> Result<TimeOfDay, TimeOfDayError> {
        text.parse()
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> String {
        time.to_string()
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn calendar(zone: &str, times: Value) -> Calendar {
        serde_json::from_value(json!({ "zone": zone, "times": times })).unwrap()
    }

    fn ms(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_millisecond() as u64
    }

    /// The spans of some days, as UTC shows them.
    fn spans(calendar: &Calendar, from: &str, until: &str) -> Vec<(String, String)> {
        let shown = |ms: u64| {
            let moment = Timestamp::from_millisecond(ms as i64).unwrap();
            moment.strftime("%d %H:%M").to_string()
        };
        let mut spans = calendar.spans(ms(from), ms(until));
        spans.sort_unstable();
        spans.into_iter().map(|(begin, end)| (shown(begin), shown(end))).collect()
    }

    fn pairs<const N: usize>(expect: [(&str, &str); N]) -> Vec<(String, String)> {
        expect.map(|(begin, end)| (begin.to_owned(), end.to_owned())).to_vec()
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        // 2026-11-27 is a Friday; Berlin is an hour ahead of UTC in winter.
        let night =
            calendar("Europe/Berlin", json!([{ "days": ["fri"], "from": "20:00", "until": "08:00" }]));
        let week = ("2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z");
        assert_eq!(spans(&night, week.0, week.1), pairs([("27 19:00", "28 07:00")]));
        let saturday = ("2026-11-28T06:59:59Z", "2026-11-28T07:00:00Z");
        assert_eq!(spans(&night, saturday.0, saturday.1).len(), 1, "it goes on");
        assert_eq!(spans(&night, "2026-11-28T07:00:00Z", "2026-11-28T08:00:00Z"), []);
        let weekend =
            calendar("+05:30", json!([{ "days": ["sat", "sun"], "from": "00:00", "until": "24:00" }]));
        let expect = pairs([("27 18:30", "28 18:30"), ("28 18:30", "29 18:30")]);
        assert_eq!(spans(&weekend, week.0, week.1), expect);
    }

    #[test]
    fn clocks_that_are_put_forward_or_back_tear_nothing() {
        // New York skips 02:00 to 03:00 on 8 March 2026 (07:00 UTC), and shows 01:00 to 02:00 twice
        // on 1 November (05:00 and 06:00 UTC).
        let check = |from: &str, until: &str, day: &str, expect: &[(&str, &str)]| {
            let calendar = calendar("America/New_York", json!([{ "from": from, "until": until }]));
            let noon = |hour: &str| format!("2026-{day}T{hour}:00:00Z");
            let expect: Vec<_> = expect.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect();
            assert_eq!(spans(&calendar, &noon("05"), &noon("10")), expect, "{from} to {until} on {day}");
        };
        check("01:30", "02:30", "03-08", &[("08 06:30", "08 07:00")]);
        check("02:30", "03:30", "03-08", &[("08 07:00", "08 07:30")]);
        check("02:00", "03:00", "03-08", &[]);
        check("02:15", "02:45", "03-08", &[]);
        check("00:30", "01:30", "11-01", &[("01 04:30", "01 05:30")]);
        check("01:30", "02:30", "11-01", &[("01 05:30", "01 07:30")]);
        check("22:00", "02:00", "03-08", &[("08 03:00", "08 07:00")]);
        check("20:00", "08:00", "11-01", &[("01 00:00", "01 13:00")]);
    }

    #[test]
    fn a_day_and_its_night_leave_nothing_out_and_share_nothing() {
        let (from, until) = (ms("2026-01-01T00:00:00Z"), ms("2027-01-01T00:00:00Z"));
        for zone in
            ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "-03:30"]
        {
            for (day, night) in
                [("08:00", "20:00"), ("02:30", "14:00"), ("02:15", "02:45"), ("01:30", "01:31")]
            {
                let mut all = calendar(zone, json!([{ "from": day, "until": night }])).spans(from, until);
                all.extend(calendar(zone, json!([{ "from": night, "until": day }])).spans(from, until));
                all.sort_unstable();
                assert!(all[0].0 <= from && all.last().unwrap().1 >= until);
                let torn = all.windows(2).find(|pair| pair[0].1 != pair[1].0);
                assert_eq!(torn, None, "{zone} {day} {night}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |times: Value, words: &str| {
            let error = calendar("UTC", times.clone()).check().unwrap_err().to_string();
            assert!(error.contains(words), "{times}: {error}");
        };
        check(json!([]), "no times");
        check(json!([{ "days": [], "from": "08:00", "until": "09:00" }]), "no days");
        check(json!([{ "from": "08:00", "until": "08:00" }]), "from 08:00 until 08:00");
        check(json!([{ "from": "24:00", "until": "08:00" }]), "24:00");
        check(json!(vec![json!({ "from": "08:00", "until": "09:00" }); 17]), "more than 16");
        for zone in ["Mars/Olympus", "", "+5", "+25:00", "local", "+aa:bb", "+"] {
            let calendar = calendar(zone, json!([{ "from": "08:00", "until": "09:00" }]));
            assert_eq!(calendar.check(), Err(CalendarError::Zone(zone.into())));
            assert_eq!(calendar.spans(0, 1 << 40), []);
        }
        for time in ["8:00", "24:01", "08:60", "", "08", "+8:00", "0800", "é:00"] {
            assert!(time.parse::<TimeOfDay>().is_err(), "{time}");
        }
    }

    #[test]
    fn moments_beyond_all_calendars_are_no_trouble() {
        let always = calendar("Europe/Berlin", json!([{ "from": "00:00", "until": "24:00" }]));
        assert!(always.check().is_ok());
        assert!(always.spans(0, 1).contains(&(0, 23 * 3_600_000)), "what began before 1970 goes on");
        assert_eq!(always.spans(u64::MAX - 1, u64::MAX), []);
    }
}
