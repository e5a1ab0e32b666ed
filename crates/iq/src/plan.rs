//! When a pool is full, from how its load has grown.
//!
//! The load of a day is the 95th percentile of its hours: what capacity has to carry, without the
//! one hour that no plan is made for. Growth is the median of the slopes between all pairs of days
//! (Theil and Sen), which weekends and single days do not bend; its bounds are those of Sen 1968 at
//! 95 %. What a day needs is the trend and the nine of ten days that lie below it.

use serde::Serialize;

/// The part of a day's hours that its load covers.
const HOURS_COVERED: f64 = 0.95;
/// The part of the days that the plan covers.
const DAYS_COVERED: f64 = 0.9;
/// Fewer days say too little about growth.
pub const DAYS_MIN: usize = 14;
/// Quantile of the normal distribution for bounds of 95 %.
const BOUNDS: f64 = 1.96;
/// Beyond this a date says nothing.
const FAR_DAYS: f64 = 3650.0;
/// What is held and not used counts as free to reclaim with this reserve, as right-sizing keeps
/// one.
const RESERVE: f64 = 1.1;

/// What a pool carried in one hour, in GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hour {
    /// Hours since 1970.
    pub hour: u64,
    pub reserved: f64,
    pub used: f64,
}

/// A span of days from now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Days {
    pub earliest: f64,
    pub likely: f64,
    /// None if the growth may as well be none.
    pub latest: Option<f64>,
}

/// How a pool fills.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// How many days it is drawn from.
    pub days: usize,
    pub capacity: f64,
    /// GPUs that the last day needs.
    pub load: f64,
    /// GPUs in 30 days, with bounds of 95 %.
    pub growth: [f64; 3],
    /// When the load reaches the capacity; none if it does not grow.
    pub full: Option<Days>,
    /// GPUs that the last day of the horizon needs.
    pub load_ahead: f64,
    /// GPUs that are missing then, rounded up.
    pub missing: u64,
    /// Instead of more GPUs: by how much GPUs would be promised beyond what there is.
    pub overcommit: f64,
    /// Instead of more GPUs: how many were held and not used in the last 7 days, in the mean.
    pub reclaimable: f64,
}

/// Looks this many days ahead of the last hour. There are to be [`DAYS_MIN`] days at least; hours
/// that are not there count as empty.
pub fn plan(hours: &[Hour], capacity: f64, horizon_days: f64) -> Option<Plan> {
    let loads = loads(hours);
    if loads.len() < DAYS_MIN {
        return None;
    }
    let slopes = slopes(&loads);
    let [low, slope, high] = bounds(&slopes, loads.len());
    let residuals = |slope: f64| -> Vec<f64> {
        let mut all: Vec<f64> =
            loads.iter().enumerate().map(|(day, load)| load - slope * day as f64).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let last = (loads.len() - 1) as f64;
    let needed = |slope: f64, day: f64| quantile(&residuals(slope), DAYS_COVERED) + slope * day;
    let load = needed(slope, last);
    // The bounds are lines through what the last day needs.
    let until_full = |slope: f64| match (capacity - load) / slope {
        _ if load >= capacity => Some(0.0),
        days if slope > 0.0 && days <= FAR_DAYS => Some(days),
        _ => None,
    };
    let full = until_full(slope).map(|likely| Days {
        earliest: until_full(high).unwrap_or(likely).min(likely),
        likely,
        latest: until_full(low).map(|latest| latest.max(likely)),
    });
    let load_ahead = (load + slope * horizon_days).max(0.0);
    let recent = hours.iter().filter(|hour| hour.hour + 7 * 24 > hours.last().map_or(0, |last| last.hour));
    let idle: f64 = recent.map(|hour| (hour.reserved - RESERVE * hour.used).max(0.0)).sum();
    Some(Plan {
        days: loads.len(),
        capacity,
        load,
        growth: [low, slope, high].map(|slope| 30.0 * slope),
        full,
        load_ahead,
        missing: (load_ahead - capacity).max(0.0).ceil() as u64,
        overcommit: if capacity > 0.0 { (load_ahead / capacity).max(1.0) } else { 1.0 },
        reclaimable: idle / (7.0 * 24.0),
    })
}

/// How far off earlier plans were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanErrors {
    /// How many plans were looked at, each made from the days before it.
    pub plans: usize,
    /// How many days ahead they looked.
    pub ahead_days: usize,
    /// The mean of how far the load that came was from the planned one, in GPUs.
    pub error: f64,
    /// The days in which the load grows by as much; none if it does not grow.
    pub error_days: Option<f64>,
}

/// How many days ahead plans are tested.
const TESTED_DAYS: usize = 28;
/// Days from one tested plan to the next.
const TEST_EVERY: usize = 7;

/// Makes plans as of earlier days, one a week, and compares what they said with what came. None
/// where the history is too short for one such plan.
pub fn plan_errors(hours: &[Hour]) -> Option<PlanErrors> {
    let (first, last) = (hours.first()?.hour.div_ceil(24), (hours.last()?.hour + 1) / 24);
    let until = |day: u64| &hours[..hours.partition_point(|hour| hour.hour < day * 24)];
    let days = last.saturating_sub(first) as usize;
    let now = plan(hours, f64::MAX, 0.0)?;
    let tested = (DAYS_MIN..).step_by(TEST_EVERY).take_while(|day| day + TESTED_DAYS <= days);
    let errors: Vec<f64> = tested
        .filter_map(|day| {
            let (made, came) = (first + day as u64, first + (day + TESTED_DAYS) as u64);
            let planned = plan(until(made), f64::MAX, TESTED_DAYS as f64)?.load_ahead;
            Some((planned - plan(until(came), f64::MAX, 0.0)?.load).abs())
        })
        .collect();
    let plans = errors.len();
    let error = errors.iter().sum::<f64>() / plans as f64;
    let per_day = now.growth[1] / 30.0;
    let error_days = (per_day > 0.0).then(|| error / per_day);
    (plans > 0).then_some(PlanErrors { plans, ahead_days: TESTED_DAYS, error, error_days })
}

/// GPUs hour by hour without a gap, as forecasts take them.
pub fn dense(hours: &[Hour]) -> Vec<f64> {
    let (Some(first), Some(last)) = (hours.first(), hours.last()) else { return Vec::new() };
    let mut all = vec![0.0; (last.hour - first.hour + 1) as usize];
    hours.iter().for_each(|hour| all[(hour.hour - first.hour) as usize] += hour.reserved);
    all
}

/// How many whole days of history there are.
pub fn whole_days(hours: &[Hour]) -> usize {
    loads(hours).len()
}

/// The load of each whole day, in order.
fn loads(hours: &[Hour]) -> Vec<f64> {
    let (Some(first), Some(last)) = (hours.first(), hours.last()) else { return Vec::new() };
    // A day that has not ended, or that began before the history, would look like less load.
    let (first, end) = (first.hour.div_ceil(24), (last.hour + 1) / 24);
    let mut days = vec![[0.0; 24]; end.saturating_sub(first) as usize];
    for hour in hours {
        let day = (hour.hour / 24).checked_sub(first).and_then(|day| days.get_mut(day as usize));
        if let Some(day) = day {
            day[(hour.hour % 24) as usize] += hour.reserved;
        }
    }
    let load = |mut day: [f64; 24]| {
        day.sort_by(f64::total_cmp);
        quantile(&day, HOURS_COVERED)
    };
    days.into_iter().map(load).collect()
}

/// Of a sorted list, between its elements where it falls between two.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Between all pairs of days, sorted.
fn slopes(loads: &[f64]) -> Vec<f64> {
    let pairs = |later: usize| {
        (0..later).map(move |earlier| (loads[later] - loads[earlier]) / (later - earlier) as f64)
    };
    let mut slopes: Vec<f64> = (1..loads.len()).flat_map(pairs).collect();
    slopes.sort_by(f64::total_cmp);
    slopes
}

/// The lower bound, the median and the upper bound.
fn bounds(slopes: &[f64], days: usize) -> [f64; 3] {
    let days = days as f64;
    let deviation = (days * (days - 1.0) * (2.0 * days + 5.0) / 18.0).sqrt();
    let off = BOUNDS * deviation / 2.0 / slopes.len() as f64;
    [0.5 - off, 0.5, 0.5 + off].map(|part| quantile(slopes, part.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Working days with a load, weekends with a third of it, nights with a tenth.
    fn weeks(days: u64, load: impl Fn(f64) -> f64) -> Vec<Hour> {
        let hour = |hour: u64| {
            let (day, of_day) = (hour / 24, hour % 24);
            let part =
                if day % 7 >= 5 { 0.33 } else { 1.0 } * if (8..20).contains(&of_day) { 1.0 } else { 0.1 };
            let reserved = load(hour as f64 / 24.0) * part;
            Hour { hour, reserved, used: reserved / 2.0 }
        };
        (0..days * 24).map(hour).collect()
    }

    #[test]
    fn a_pool_that_grows_is_full_when_its_working_days_are() {
        let hours = weeks(90, |day| 4.0 + 0.05 * day);
        let plan = plan(&hours, 16.0, 90.0).unwrap();
        // 4 + 0.05 x day is 16 on day 240, which is 150 days from the end.
        let full = plan.full.unwrap();
        assert!((130.0..170.0).contains(&full.likely), "{plan:?}");
        assert!(full.earliest <= full.likely && full.latest.is_none_or(|latest| latest >= full.likely));
        assert!((1.2..1.8).contains(&plan.growth[1]), "{plan:?}");
        assert!((12.0..14.0).contains(&plan.load_ahead) && plan.missing == 0, "{plan:?}");
        let small = super::plan(&hours, 10.0, 90.0).unwrap();
        assert_eq!(small.missing, small.load_ahead.ceil() as u64 - 10);
        assert!((small.overcommit - small.load_ahead / 10.0).abs() < 1e-9);
        assert!(small.reclaimable > 1.0);
    }

    #[test]
    fn a_pool_that_does_not_grow_is_never_full() {
        let plan = plan(&weeks(60, |_| 5.0), 8.0, 90.0).unwrap();
        assert_eq!((plan.full, plan.missing), (None, 0));
        assert!((plan.load - 5.0).abs() < 0.1, "{plan:?}");
        let full = super::plan(&weeks(60, |_| 9.0), 8.0, 90.0).unwrap().full.unwrap();
        assert_eq!((full.earliest, full.likely), (0.0, 0.0));
    }

    #[test]
    fn earlier_plans_are_compared_with_what_came() {
        let steady = plan_errors(&weeks(120, |day| 4.0 + 0.05 * day)).unwrap();
        // Plans of days 14, 21, ... 91, each 28 days ahead.
        assert_eq!((steady.plans, steady.ahead_days), (12, 28));
        assert!(steady.error < 0.5, "{steady:?}");
        assert!(steady.error_days.is_some_and(|days| days < 10.0), "{steady:?}");
        // Growth that begins in the middle was not foreseen.
        let turned = plan_errors(&weeks(120, |day| 4.0 + 0.1 * (day - 60.0).max(0.0))).unwrap();
        assert!(turned.error > 2.0 * steady.error, "{turned:?}");
        assert_eq!(plan_errors(&weeks(41, |_| 4.0)), None);
        assert_eq!(plan_errors(&[]), None);
    }

    #[test]
    fn hours_in_which_nothing_was_held_are_there() {
        let hour = |hour, reserved| Hour { hour, reserved, used: 0.0 };
        assert_eq!(dense(&[hour(5, 1.0), hour(7, 2.0)]), [1.0, 0.0, 2.0]);
        assert_eq!((dense(&[]).len(), whole_days(&[hour(0, 1.0), hour(47, 1.0)])), (0, 2));
    }

    #[test]
    fn little_history_is_no_plan() {
        assert_eq!(plan(&weeks(13, |day| day), 8.0, 30.0), None);
        assert_eq!(plan(&[], 8.0, 30.0), None);
    }

    #[test]
    fn one_wild_day_does_not_make_growth() {
        let mut hours = weeks(60, |_| 5.0);
        for hour in &mut hours[50 * 24..51 * 24] {
            hour.reserved = 80.0;
        }
        assert_eq!(plan(&hours, 8.0, 90.0).unwrap().full, None);
    }

    proptest! {
        #[test]
        fn growth_is_within_its_bounds_and_more_load_is_never_full_later(
            noise in prop::collection::vec(-1.0f64..1.0, 60),
            growth in 0.0f64..0.2,
            more in 0.0f64..3.0,
        ) {
            let with = |extra: f64| weeks(60, |day| 5.0 + extra + growth * day + noise[day as usize % 60]);
            let (less, more) = (plan(&with(0.0), 20.0, 90.0).unwrap(), plan(&with(more), 20.0, 90.0).unwrap());
            for plan in [&less, &more] {
                prop_assert!(plan.growth[0] <= plan.growth[1] && plan.growth[1] <= plan.growth[2]);
            }
            prop_assert!(more.load >= less.load - 1.0);
        }
    }
}
