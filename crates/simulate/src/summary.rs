//! Means, deviations and percentiles.

use std::collections::BTreeMap;

use serde::Serialize;

/// One figure over several seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    /// Standard deviation of the sample; 0 for one seed.
    pub sd: f64,
    pub per_seed: BTreeMap<u64, f64>,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = (u64, f64)>) -> Spread {
        let per_seed: BTreeMap<u64, f64> = values.into_iter().collect();
        let values: Vec<f64> = per_seed.values().copied().collect();
        let (mean, sd) = mean_and_deviation(&values);
        Spread { mean, sd, per_seed }
    }
}

/// Both 0 for no values.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
    (mean, deviation)
}

/// The value that `percent` of the ascending values do not exceed (nearest rank); 0 for no values.
pub(crate) fn percentile(ascending: &[f64], percent: f64) -> f64 {
    let rank = (ascending.len() as f64 * percent / 100.0).ceil() as usize;
    ascending.get(rank.saturating_sub(1).min(ascending.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Jain's index of fairness: 1 where all are equal, 1/n where one has everything; 1 for no values.
pub(crate) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_over_seeds() {
        let spread = Spread::of([(42, 1.0), (43, 3.0)]);
        assert_eq!((spread.mean, spread.sd), (2.0, 2f64.sqrt()));
        assert_eq!(Spread::of([(1, 5.0)]).sd, 0.0);
        assert_eq!(Spread::of([]).mean, 0.0);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [50.0, 95.0, 99.0, 100.0, 0.0].map(|percent| percentile(&values, percent)),
            [50.0, 95.0, 99.0, 100.0, 1.0]
        );
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn jain_is_between_one_and_one_nth() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain(&[]), 1.0);
    }
}
