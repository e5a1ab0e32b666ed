//! Tables of Poisson distributions.

/// The largest mean, which is chosen here: its table has some ten thousand entries.
pub(crate) const MEAN_MAX: f64 = 400_000.0;

/// Where a probability is so small beside the largest that a word of 32 bits never hits it.
const NEGLIGIBLE: f64 = 1e-18;

/// A cumulative distribution over the values that occur.
pub(crate) struct Table {
    /// The value that the first entry stands for.
    pub(crate) first: u64,
    pub(crate) cumulative: Vec<f64>,
}

impl Table {
    pub(crate) fn new(mean: f64) -> Table {
        let mode = mean.floor();
        let mut below: Vec<f64> = Vec::new();
        let (mut value, mut weight) = (mode, 1.0);
        while value > 0.0 && weight > NEGLIGIBLE {
            weight *= value / mean;
            value -= 1.0;
            below.push(weight);
        }
        let first = mode as u64 - below.len() as u64;
        let mut weights: Vec<f64> = below.into_iter().rev().chain([1.0]).collect();
        (value, weight) = (mode, 1.0);
        while weight > NEGLIGIBLE {
            value += 1.0;
            weight *= mean / value;
            weights.push(weight);
        }
        let total: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let cumulative = weights.iter().map(|weight| {
            sum += weight;
            sum / total
        });
        Table { first, cumulative: cumulative.collect() }
    }

    /// The table as the device has it: the first value, then the entries.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let entries = self.cumulative.iter().flat_map(|value| value.to_le_bytes());
        self.first.to_le_bytes().into_iter().chain(entries).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_distributions_mean_and_variance() {
        for mean in [0.001, 0.5, 1.0, 7.0, 1234.5, MEAN_MAX] {
            let table = Table::new(mean);
            let (mut last, mut sum, mut squares) = (0.0, 0.0, 0.0);
            for (at, &cumulative) in table.cumulative.iter().enumerate() {
                let (value, probability) = ((table.first + at as u64) as f64, cumulative - last);
                sum += value * probability;
                squares += (value - mean).powi(2) * probability;
                last = cumulative;
            }
            assert!((sum / mean - 1.0).abs() < 1e-9, "{mean}: {sum}");
            assert!((squares / mean - 1.0).abs() < 1e-6, "{mean}: {squares}");
        }
    }
}
