//! Rules over all metrics of all runs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rule::{Rule, Trouble};
use crate::series::Series;
use crate::{Point, name};

/// Metrics of all runs that are followed; further ones are not.
const SERIES_MAX: usize = 10_000;

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// The rule's sentence.
    pub rule: String,
    /// Empty where no run has had the metric.
    pub run: String,
    pub metric: String,
    /// The last step and value.
    pub step: u64,
    pub value: f64,
    /// For people: which metric of which run, at which step, and what is wrong.
    pub message: String,
}

/// Applies rules to points. Times are since the beginning of the watch.
#[derive(Debug)]
pub struct Watch {
    rules: Vec<Rule>,
    series: BTreeMap<(String, String), Judged>,
    /// Silence of metrics that have not come counts from then.
    since: Duration,
    /// By rule: it was said that its metric has not come.
    is_missed: Vec<bool>,
}

#[derive(Debug)]
struct Judged {
    series: Series,
    /// By rule.
    broken: Vec<bool>,
}

impl Watch {
    pub fn new(rules: Vec<Rule>) -> Watch {
        let is_missed = vec![false; rules.len()];
        Watch { rules, series: BTreeMap::new(), since: Duration::ZERO, is_missed }
    }

    /// Takes a value that came at `now`; without a time, one that was there before, whose silence
    /// is no trouble. An alert is given when a rule breaks, and again only after it was kept in
    /// between. A run whose steps begin anew is judged anew.
    pub fn take(&mut self, point: &Point, now: Option<Duration>) -> Vec<Alert> {
        let key = (point.run.clone(), point.metric.clone());
        let is_followed = self.rules.iter().any(|rule| rule.metric.matches(&point.metric));
        if !is_followed || (self.series.len() >= SERIES_MAX && !self.series.contains_key(&key)) {
            return Vec::new();
        }
        let new = || Judged { series: Series::new(point.step), broken: vec![false; self.rules.len()] };
        let judged = self.series.entry(key.clone()).or_insert_with(new);
        if judged.series.begins_anew(point.step) {
            *judged = new();
        }
        judged.series.add(point.step, point.value, now);
        judged.judge(&self.rules, &key, now.unwrap_or_default())
    }

    /// Looks for metrics of which no value came; to be called now and then.
    pub fn silence(&mut self, now: Duration) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (key, judged) in &mut self.series {
            alerts.extend(judged.judge(&self.rules, key, now));
        }
        for (rule, is_missed) in self.rules.iter().zip(&mut self.is_missed) {
            let Trouble::SilentFor(time) = rule.trouble else { continue };
            let metric = rule.metric.to_string();
            let has_come = self.series.keys().any(|(_, known)| *known == metric);
            let is_silent = !metric.contains('*') && !has_come && now.saturating_sub(self.since) >= time;
            if is_silent && !*is_missed {
                let message = format!("{metric}: no value has come ({rule})");
                let (rule, run) = (rule.to_string(), String::new());
                alerts.push(Alert { rule, run, metric, step: 0, value: f64::NAN, message });
            }
            *is_missed = is_silent;
        }
        alerts
    }

    /// Silence so far does not count: what is watched did not run.
    pub fn rested(&mut self, now: Duration) {
        self.since = now;
        self.series.values_mut().for_each(|judged| judged.series.is_heard(now));
    }

    /// The rules that are broken by the last values.
    pub fn broken(&self) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (key, judged) in &self.series {
            for (rule, _) in self.rules.iter().zip(&judged.broken).filter(|(_, broken)| **broken) {
                alerts.extend(judged.alert(rule, key, Duration::ZERO));
            }
        }
        alerts
    }

    /// The metrics that a rule is about and that have been seen.
    pub fn followed(&self) -> usize {
        self.series.len()
    }
}

impl Judged {
    fn judge(&mut self, rules: &[Rule], key: &(String, String), now: Duration) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.metric.matches(&key.1)) {
            let alert = self.alert(rule, key, now);
            let was_broken = std::mem::replace(&mut self.broken[index], alert.is_some());
            alerts.extend(alert.filter(|_| !was_broken));
        }
        alerts
    }

    /// `None` if the rule is kept.
    fn alert(&self, rule: &Rule, (run, metric): &(String, String), now: Duration) -> Option<Alert> {
        let wrong = self.series.is_in(rule.trouble, now)?;
        let (step, value) = self.series.last();
        let message = format!("{metric} of {run}, step {step}: {wrong} ({rule})");
        let (run, metric) = (name(run), name(metric));
        Some(Alert { rule: rule.to_string(), run, metric, step, value, message })
    }
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
            steps.extend(watch.take(&point, Some(Duration::ZERO)).iter().map(|alert| alert.step));
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
        assert_eq!(watch.take(&Point::new("a", "loss", 1, 1.0), Some(at(5))), []);
        assert_eq!(watch.silence(at(14)), []);
        assert_eq!(watch.silence(at(15)).len(), 1);
        assert_eq!(watch.silence(at(60)), [], "said once");
        watch.take(&Point::new("a", "loss", 2, 1.0), Some(at(61)));
        assert_eq!(watch.silence(at(71)).len(), 1);
    }

    #[test]
    fn more_metrics_than_there_is_room_for_are_left_out() {
        let mut watch = Watch::new(vec!["* above 0".parse().unwrap()]);
        for number in 0..SERIES_MAX + 5 {
            watch.take(&Point::new("r", &format!("m{number}"), 0, 0.0), None);
        }
        assert_eq!(watch.followed(), SERIES_MAX);
        assert_eq!(watch.take(&Point::new("r", "m0", 1, 1.0), None).len(), 1);
    }

    #[test]
    fn silence_counts_while_something_runs() {
        let at = Duration::from_secs;
        let mut watch = Watch::new(vec!["loss silent for 10s".parse().unwrap()]);
        assert_eq!(watch.silence(at(9)), []);
        let missed = watch.silence(at(10));
        assert_eq!((missed.len(), missed[0].run.as_str()), (1, ""), "nothing has come at all");
        assert_eq!(watch.silence(at(30)), [], "said once");
        watch.take(&Point::new("old", "loss", 9, 1.0), None);
        assert_eq!(watch.silence(at(60)), [], "it was there before");
        watch.take(&Point::new("new", "loss", 1, 1.0), Some(at(60)));
        watch.rested(at(100));
        assert_eq!(watch.silence(at(109)), []);
        assert_eq!(watch.silence(at(110)).len(), 1);
    }

    #[test]
    fn a_run_that_begins_anew_is_judged_anew() {
        let mut watch = Watch::new(vec!["loss diverges".parse().unwrap()]);
        let mut alerts = 0;
        for _ in 0..3 {
            for step in 0..100 {
                let point = Point::new("r", "loss", step, 10.0 / (step + 1) as f64);
                alerts += watch.take(&point, None).len();
            }
        }
        assert_eq!(alerts, 0);
        for step in 90..200 {
            alerts += watch.take(&Point::new("r", "loss", step, 5.0), None).len();
        }
        assert_eq!(alerts, 1, "it continues from a checkpoint, and diverges");
    }

    #[test]
    fn what_is_broken_now_is_known() {
        let mut watch = Watch::new(vec!["drift above 0.2".parse().unwrap()]);
        watch.take(&Point::new("r", "drift", 1, 0.3), None);
        assert_eq!(watch.broken().len(), 1);
        watch.take(&Point::new("r", "drift", 2, 0.05), None);
        assert_eq!(watch.broken(), []);
    }
}
