//! What is known of one metric of one run, in a few numbers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rule::Trouble;

/// Values that are looked at together, so that one outlier is no trouble.
const WINDOW: usize = 16;
/// A value that is better by less than this part of the best one is no progress.
const PROGRESS: f64 = 0.001;

#[derive(Debug)]
pub(crate) struct Series {
    last: f64,
    first_step: u64,
    step: u64,
    lowest: Best,
    highest: Best,
    window: VecDeque<f64>,
    /// The lowest mean and the highest median of a whole window so far.
    lowest_mean: f64,
    highest_median: f64,
    /// When the last value came, on the clock of the caller; `None` while all were there before.
    heard: Option<Duration>,
}

/// The best value so far, and the step of the last one that was progress.
#[derive(Clone, Copy, Debug)]
struct Best {
    value: f64,
    step: u64,
}

impl Series {
    pub(crate) fn new(step: u64) -> Series {
        Series {
            last: f64::NAN,
            first_step: step,
            step,
            lowest: Best { value: f64::INFINITY, step },
            highest: Best { value: f64::NEG_INFINITY, step },
            window: VecDeque::with_capacity(WINDOW),
            lowest_mean: f64::INFINITY,
            highest_median: f64::NEG_INFINITY,
            heard: None,
        }
    }

    /// Whether a value of this step is of a run that has begun anew: it goes back by more than half
    /// of the steps so far. One that continues from a checkpoint goes back by less.
    pub(crate) fn begins_anew(&self, step: u64) -> bool {
        step < self.first_step + self.step.saturating_sub(self.first_step) / 2
    }

    /// Silence counts from `now` on, if it counts.
    pub(crate) fn is_heard(&mut self, now: Duration) {
        self.heard = self.heard.map(|_| now);
    }

    /// Takes a value that came at `now`; `None` for one that was there before.
    pub(crate) fn add(&mut self, step: u64, value: f64, now: Option<Duration>) {
        (self.last, self.step) = (value, step);
        self.heard = now.or(self.heard);
        if !value.is_finite() {
            return;
        }
        if self.lowest.value.is_infinite() || value < self.lowest.value - PROGRESS * self.lowest.value.abs() {
            self.lowest = Best { value, step };
        }
        if self.highest.value.is_infinite()
            || value > self.highest.value + PROGRESS * self.highest.value.abs()
        {
            self.highest = Best { value, step };
        }
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(value);
        if self.window.len() == WINDOW {
            self.lowest_mean = self.lowest_mean.min(self.mean());
            self.highest_median = self.highest_median.max(self.median());
        }
    }

    pub(crate) fn last(&self) -> (u64, f64) {
        (self.step, self.last)
    }

    /// What is wrong, in words; `None` if it is not.
    pub(crate) fn is_in(&self, trouble: Trouble, now: Duration) -> Option<String> {
        let full = self.window.len() == WINDOW;
        match trouble {
            Trouble::StopsFalling { steps } => self.since(self.lowest, steps, "lowest"),
            Trouble::StopsRising { steps } => self.since(self.highest, steps, "highest"),
            Trouble::Diverges if !self.last.is_finite() => Some(format!("it is {}", self.last)),
            Trouble::Diverges => {
                let (mean, lowest) = (self.mean(), self.lowest_mean);
                let far = full && mean > lowest + lowest.abs();
                far.then(|| format!("the mean of {WINDOW} values is {mean:.4}, and was {lowest:.4}"))
            }
            Trouble::DropsBy { part } => {
                let (median, highest) = (self.median(), self.highest_median);
                let far = full && highest > 0.0 && median < (1.0 - part) * highest;
                far.then(|| format!("the median of {WINDOW} values is {median:.4}, and was {highest:.4}"))
            }
            Trouble::Above(bound) => (self.last > bound).then(|| format!("it is {}", self.last)),
            Trouble::Below(bound) => (self.last < bound).then(|| format!("it is {}", self.last)),
            Trouble::SilentFor(time) => {
                let silent = now.saturating_sub(self.heard?);
                (silent >= time).then(|| format!("no value has come for {} s", silent.as_secs()))
            }
        }
    }

    fn since(&self, best: Best, steps: u64, word: &str) -> Option<String> {
        let since = self.step.saturating_sub(best.step);
        (since >= steps).then(|| format!("its {word} value is {} of step {}", best.value, best.step))
    }

    fn mean(&self) -> f64 {
        self.window.iter().sum::<f64>() / self.window.len() as f64
    }

    fn median(&self) -> f64 {
        let mut values: Vec<f64> = self.window.iter().copied().collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}
