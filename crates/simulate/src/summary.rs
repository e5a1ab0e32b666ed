//! Means and deviations.

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
}
