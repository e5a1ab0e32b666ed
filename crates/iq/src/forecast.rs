//! What comes in the next hours, from the hours of the last weeks.
//!
//! An hour is forecast from the same hour of the week, in the last eight weeks, of which each
//! counts less than the one after it, and from the hours beside it. The whole is scaled to what the
//! last week was beside what it would have been forecast as, which follows growth. Seasonal naive,
//! the hour a week before, is what forecasts are compared with: it repeats the noise of one week.

use serde::Serialize;

const DAY: usize = 24;
const WEEK: usize = 7 * DAY;
/// Weeks that are looked at, and how much less each counts than the one after it.
const WEEKS_MAX: usize = 8;
const WEEK_BEFORE: f64 = 0.7;
/// The part of the hour itself beside that of both hours next to it.
const OWN_HOUR: f64 = 0.5;
/// How far one week may move the level, both ways.
const LEVEL_MAX: f64 = 1.5;
/// Fewer hours are no week to repeat.
pub const HOURS_MIN: usize = WEEK;

/// Forecasts a number of hours after the history, hour by hour. None with less than a week of it.
pub fn forecast(hours: &[f64], ahead: usize) -> Option<Vec<f64>> {
    if hours.len() < HOURS_MIN {
        return None;
    }
    let level = match hours.len() >= 2 * WEEK {
        true => {
            let (before, last) = hours.split_at(hours.len() - WEEK);
            let expected: f64 = repeated(before, WEEK).iter().sum();
            let ratio = last.iter().sum::<f64>() / expected.max(f64::MIN_POSITIVE);
            if expected > 0.0 { ratio.clamp(1.0 / LEVEL_MAX, LEVEL_MAX).sqrt() } else { 1.0 }
        }
        false => 1.0,
    };
    Some(repeated(hours, ahead).into_iter().map(|value| value * level).collect())
}

/// The weighted means of the same hours of earlier weeks.
fn repeated(hours: &[f64], ahead: usize) -> Vec<f64> {
    let count = hours.len();
    let weeks = (count / WEEK).clamp(1, WEEKS_MAX);
    // The profile of one week: the hour 0 is the first one that is forecast.
    let mean = |hour: usize| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for week in 1..=weeks {
            let Some(at) = (count + hour).checked_sub(week * WEEK).filter(|at| *at < count) else { continue };
            let weight = WEEK_BEFORE.powi(week as i32);
            sum += weight * hours[at];
            weights += weight;
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    };
    let profile: Vec<f64> = (0..WEEK).map(mean).collect();
    let smooth = |hour: usize| {
        let beside = profile[(hour + WEEK - 1) % WEEK] + profile[(hour + 1) % WEEK];
        OWN_HOUR * profile[hour % WEEK] + (1.0 - OWN_HOUR) / 2.0 * beside
    };
    (0..ahead).map(|hour| smooth(hour % WEEK)).collect()
}

/// Seasonal naive: the same hour of the week before.
pub fn naive(hours: &[f64], ahead: usize) -> Option<Vec<f64>> {
    let last = hours.get(hours.len().checked_sub(WEEK)?..)?;
    Some(last.iter().copied().cycle().take(ahead).collect())
}

/// Mean absolute errors over held-out weeks, and how many weeks these were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    pub weeks: usize,
    pub error: f64,
    pub naive_error: f64,
}

/// Forecasts each whole week after the first two from the hours before it.
pub fn accuracy(hours: &[f64]) -> Accuracy {
    let mut found = Accuracy::default();
    let mut errors = [0.0, 0.0];
    for begin in (2 * WEEK..).step_by(WEEK).take_while(|begin| begin + WEEK <= hours.len()) {
        let (before, rest) = hours.split_at(begin);
        let [Some(ours), Some(naive)] = [forecast(before, WEEK), naive(before, WEEK)] else { continue };
        found.weeks += 1;
        for (sum, forecast) in errors.iter_mut().zip([ours, naive]) {
            *sum += forecast.iter().zip(rest).map(|(one, other)| (one - other).abs()).sum::<f64>();
        }
    }
    let all = (found.weeks * WEEK).max(1) as f64;
    [found.error, found.naive_error] = errors.map(|sum| sum / all);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals with working hours, weekends, growth of a part per week, and noise.
    fn arrivals(weeks: usize, growth: f64, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let hour = |hour: usize| {
            let working = (hour / DAY) % 7 < 5 && (8..20).contains(&(hour % DAY));
            let level = if working { 20.0 } else { 3.0 };
            level * (1.0 + growth).powf(hour as f64 / WEEK as f64) * (0.5 + noise())
        };
        (0..weeks * WEEK).map(hour).collect()
    }

    #[test]
    fn forecasts_are_nearer_than_the_week_before() {
        for (growth, seed) in [(0.0, 1), (0.05, 2), (0.15, 3), (-0.05, 4)] {
            let found = accuracy(&arrivals(12, growth, seed));
            assert_eq!(found.weeks, 10);
            assert!(found.error < 0.95 * found.naive_error, "growth {growth}: {found:?}");
        }
    }

    #[test]
    fn weekends_stay_weekends() {
        let hours = arrivals(4, 0.0, 9);
        let ahead = forecast(&hours, WEEK).unwrap();
        let (monday, saturday) = (ahead[12], ahead[5 * DAY + 12]);
        assert!(monday > 3.0 * saturday, "{monday} {saturday}");
    }

    #[test]
    fn less_than_a_week_is_no_forecast_and_an_idle_pool_stays_idle() {
        assert_eq!(forecast(&vec![1.0; WEEK - 1], 5), None);
        assert_eq!(naive(&vec![1.0; WEEK - 1], 5), None);
        assert_eq!(forecast(&vec![0.0; 3 * WEEK], 2), Some(vec![0.0; 2]));
        assert_eq!(accuracy(&[]), Accuracy::default());
    }
}
