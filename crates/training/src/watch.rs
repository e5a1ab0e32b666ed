//! Rules over all metrics of all runs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rule::Rule;
use crate::series::Series;
use crate::{Point, name};

/// Metrics of all runs that are followed; further ones are not.
const SERIES_MAX: usize = 10_000;

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// The rule's sentence.
    pub rule: String,
    pub run: String,
    pub metric: String,
    /// The last step and value.
    pub step: u64,
    pub value: f64,
    /// For people: which metric of which run, at which step, and what is wrong.
    pub message: String,
}

/// Applies rules to points. Times are since any moment that the caller chooses.
#[derive(Debug)]
pub struct Watch {
    rules: Vec<Rule>,
    series: BTreeMap<(String, String), (Series, Vec<bool>)>,
}

impl Watch {
    pub fn new(rules: Vec<Rule>) -> Watch {
        Watch { rules, series: BTreeMap::new() }
    }

    /// Takes a value that came at `now`. An alert is given when a rule breaks, and again only after
    /// it was kept in between.
    pub fn take(&mut self, point: &Point, now: Duration) -> Vec<Alert> {
        let key = (point.run.clone(), point.metric.clone());
        let is_followed = self.rules.iter().any(|rule| rule.metric.matches(&point.metric));
        if !is_followed || (self.series.len() >= SERIES_MAX && !self.series.contains_key(&key)) {
            return Vec::new();
        }
        let count = self.rules.len();
        let (series, broken) = self
            .series
            .entry(key.clone())
            .or_insert_with(|| (Series::new(point.step, now), vec![false; count]));
        series.add(point.step, point.value, now);
        judge(&self.rules, &key, series, broken, now)
    }

    /// Looks for metrics of which no value came; to be called now and then.
    pub fn silence(&mut self, now: Duration) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (key, (series, broken)) in &mut self.series {
            alerts.extend(judge(&self.rules, key, series, broken, now));
        }
        alerts
    }

    /// The metrics that a rule is about and that have been seen.
    pub fn followed(&self) -> usize {
        self.series.len()
    }
}

fn judge(
    rules: &[Rule],
    (run, metric): &(String, String),
    series: &Series,
    broken: &mut [bool],
    now: Duration,
) -> Vec<Alert> {
    let mut alerts = Vec::new();
    for (rule, broken) in rules.iter().zip(broken).filter(|(rule, _)| rule.metric.matches(metric)) {
        let wrong = series.is_in(rule.trouble, now);
        if let Some(wrong) = wrong.as_ref().filter(|_| !*broken) {
            let (step, value) = series.last();
            let message = format!("{metric} of {run}, step {step}: {wrong} ({rule})");
            let (run, metric) = (name(run), name(metric));
            alerts.push(Alert { rule: rule.to_string(), run, metric, step, value, message });
        }
        *broken = wrong.is_some();
    }
    alerts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps at which alerts came for values of steps 0, 10, 20, ...
    fn alerts(rule: &str, values: impl IntoIterator<Item = f64>) -> Vec<u64> {
        let mut watch = Watch::new(vec![rule.parse().unwrap()]);
        let mut steps = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let point = Point::new("run", "loss", index as u64 * 10, value);
            steps.extend(watch.take(&point, Duration::ZERO).iter().map(|alert| alert.step));
        }
        steps
    }

    fn falling(from: f64, count: usize) -> impl Iterator<Item = f64> {
        (0..count).map(move |index| from * 0.9f64.powi(index as i32))
    }

    #[test]
    fn a_loss_that_stalls_is_said_once_and_again_after_progress() {
        let rule = "loss stops falling for 50 steps";
        assert_eq!(alerts(rule, falling(4.0, 100)), [0u64; 0]);
        let stalls = falling(4.0, 10).chain([2.0; 20]);
        assert_eq!(alerts(rule, stalls), [140]);
        let twice = falling(4.0, 10).chain([2.0; 20]).chain([0.1]).chain([2.0; 20]);
        assert_eq!(alerts(rule, twice), [140, 350]);
        let slow = (0..100).map(|index| 1.0 - 1e-7 * f64::from(index));
        assert_eq!(alerts(rule, slow), [50], "that is no progress");
    }

    #[test]
    fn a_loss_diverges() {
        assert_eq!(alerts("loss diverges", [1.0, f64::NAN, f64::NAN, 1.0]), [10]);
        assert_eq!(
            alerts("loss diverges", falling(4.0, 40).chain([0.3]).chain(falling(0.05, 9))),
            [0u64; 0],
            "an outlier"
        );
        let grows = falling(4.0, 40).chain((0..40).map(|index| 0.1 * 1.2f64.powi(index)));
        assert_eq!(alerts("loss diverges", grows).len(), 1);
        assert_eq!(
            alerts("loss diverges", (0..200).map(|index| -f64::from(index))),
            [0u64; 0],
            "it falls below zero"
        );
    }

    #[test]
    fn a_throughput_drops() {
        let drops = [100.0; 30].into_iter().chain([60.0; 30]);
        assert_eq!(alerts("loss drops by 30%", drops.clone()), [380], "when the median has");
        assert_eq!(alerts("loss drops by 50%", drops), [0u64; 0]);
        let pause = [100.0; 30].into_iter().chain([0.0; 3]).chain([100.0; 30]);
        assert_eq!(alerts("loss drops by 30%", pause), [0u64; 0], "a short pause, as for a validation");
    }

    #[test]
    fn values_cross_bounds_and_stay_away() {
        assert_eq!(alerts("loss above 2", [1.0, 3.0, 4.0, 1.0, 3.0]), [10, 40]);
        assert_eq!(alerts("loss below 2", [1.0, 3.0, 1.5]), [0, 20]);
        assert_eq!(alerts("accuracy above 2", [3.0]), [0u64; 0], "another metric");
        let mut watch = Watch::new(vec!["l* silent for 10s".parse().unwrap()]);
        let at = Duration::from_secs;
        assert_eq!(watch.take(&Point::new("a", "loss", 1, 1.0), at(5)), []);
        assert_eq!(watch.silence(at(14)), []);
        assert_eq!(watch.silence(at(15)).len(), 1);
        assert_eq!(watch.silence(at(60)), [], "said once");
        watch.take(&Point::new("a", "loss", 2, 1.0), at(61));
        assert_eq!(watch.silence(at(71)).len(), 1);
    }

    #[test]
    fn more_metrics_than_there_is_room_for_are_left_out() {
        let mut watch = Watch::new(vec!["* above 0".parse().unwrap()]);
        for number in 0..SERIES_MAX + 5 {
            watch.take(&Point::new("r", &format!("m{number}"), 0, 0.0), Duration::ZERO);
        }
        assert_eq!(watch.followed(), SERIES_MAX);
        assert_eq!(watch.take(&Point::new("r", "m0", 1, 1.0), Duration::ZERO).len(), 1);
    }
}
