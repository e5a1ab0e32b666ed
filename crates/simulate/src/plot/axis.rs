//! Where a value stands on a chart, and which values are written beside it.

/// One direction of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    pub label: String,
    min: f64,
    max: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Round values between `min` and `max`, which it may widen to the next ones; `unit` follows
    /// each number.
    pub fn linear(label: &str, min: f64, max: f64, unit: &str) -> Axis {
        let (min, max) = if max > min { (min, max) } else { (min, min + 1.0) };
        let step = round_step((max - min) / 5.0);
        let (first, last) = ((min / step + 1e-9).floor(), (max / step - 1e-9).ceil());
        let decimals = if step >= 1.0 { 0 } else { (-step.log10()).ceil() as usize };
        let count = (last - first) as usize + 1;
        let ticks = (0..count).map(|index| {
            let value = (first + index as f64) * step;
            (value, format!("{}{unit}", number(value, decimals)))
        });
        Axis {
            label: label.into(),
            min: first * step,
            max: last * step,
            logarithmic: false,
            ticks: ticks.collect(),
        }
    }

    /// Makes a linear axis that ends exactly at `min` and `max`.
    pub fn between(label: &str, min: f64, max: f64, unit: &str) -> Axis {
        let mut axis = Axis::linear(label, min, max, unit);
        if max > min {
            (axis.min, axis.max) = (min, max);
            axis.ticks.retain(|(value, _)| (min..=max).contains(value));
        }
        axis
    }

    /// Converts the axis to values that are `factor` times as large: its ticks in days, its values
    /// in hours.
    pub fn scaled(mut self, factor: f64) -> Axis {
        (self.min, self.max) = (self.min * factor, self.max * factor);
        self.ticks.iter_mut().for_each(|(value, _)| *value *= factor);
        self
    }

    /// Powers of ten that hold `min` and `max`, both above zero; `unit` follows each number.
    pub fn powers(label: &str, min: f64, max: f64, unit: &str) -> Axis {
        let (first, last) = (min.log10().floor() as i32, max.log10().ceil() as i32);
        let powers: Vec<f64> = (first..=last.max(first + 1)).map(|power| 10f64.powi(power)).collect();
        let decimals = |value: f64| if value < 1.0 { -value.log10().floor() as usize } else { 0 };
        let ticks = powers.iter().map(|&value| (value, format!("{}{unit}", number(value, decimals(value)))));
        Axis {
            label: label.into(),
            min: powers[0],
            max: powers[powers.len() - 1],
            logarithmic: true,
            ticks: ticks.collect(),
        }
    }

    /// Logarithmic seconds, with times that people say.
    pub fn seconds(label: &str, max_s: f64) -> Axis {
        const SAID: [(f64, &str); 11] = [
            (1.0, "1 s"),
            (10.0, "10 s"),
            (60.0, "1 min"),
            (600.0, "10 min"),
            (3600.0, "1 h"),
            (21_600.0, "6 h"),
            (86_400.0, "1 d"),
            (604_800.0, "1 w"),
            (2_592_000.0, "30 d"),
            (31_536_000.0, "1 y"),
            (315_360_000.0, "10 y"),
        ];
        let last = SAID.iter().position(|(value, _)| *value >= max_s).unwrap_or(SAID.len() - 1).max(2);
        Axis {
            label: label.into(),
            min: SAID[0].0,
            max: SAID[last].0,
            logarithmic: true,
            ticks: SAID[..=last].iter().map(|(value, text)| (*value, (*text).into())).collect(),
        }
    }

    /// 0 to 1 along the axis; values beyond its ends stand at the ends.
    pub(super) fn place(&self, value: f64) -> f64 {
        let along = if self.logarithmic {
            (value.max(self.min).ln() - self.min.ln()) / (self.max.ln() - self.min.ln())
        } else {
            (value - self.min) / (self.max - self.min)
        };
        along.clamp(0.0, 1.0)
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, &str)> {
        self.ticks.iter().map(|(value, text)| (self.place(*value), text.as_str()))
    }

    /// On a logarithmic axis what is too small stands at its beginning.
    pub(super) fn shows(&self, value: f64) -> bool {
        (self.logarithmic || value >= self.min) && value <= self.max
    }
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(power * 10.0)
}

/// Thousands apart, as people write them: 18,000.
pub fn number(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let zero = text.chars().all(|character| matches!(character, '0' | '.'));
    let sign = if value < 0.0 && !zero { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let check = |min, max, expect: &[&str]| {
            let axis = Axis::linear("", min, max, " %");
            assert_eq!(axis.ticks().map(|(_, text)| text.trim_end_matches(" %")).collect::<Vec<_>>(), expect);
        };
        check(0.0, 100.0, &["0", "20", "40", "60", "80", "100"]);
        check(61.0, 97.2, &["60", "70", "80", "90", "100"]);
        check(0.0, 0.31, &["0.0", "0.1", "0.2", "0.3", "0.4"]);
        check(0.0, 17_500.0, &["0", "5,000", "10,000", "15,000", "20,000"]);
        check(5.0, 5.0, &["5.0", "5.2", "5.4", "5.6", "5.8", "6.0"]);
    }

    #[test]
    fn powers_of_ten_hold_both_ends() {
        let ticks = |min, max| {
            let axis = Axis::powers("", min, max, "");
            axis.ticks().map(|(at, text)| format!("{text} at {at}")).collect::<Vec<_>>()
        };
        assert_eq!(
            ticks(0.02, 3.0),
            ["0.01 at 0", "0.1 at 0.3333333333333333", "1 at 0.6666666666666666", "10 at 1"]
        );
        assert_eq!(ticks(1.0, 1.0), ["1 at 0", "10 at 1"]);
    }

    #[test]
    fn ends_can_be_given() {
        let axis = Axis::between("", 70.0, 130.0, "");
        assert_eq!(axis.ticks().map(|(_, text)| text).collect::<Vec<_>>(), ["80", "100", "120"]);
        assert_eq!((axis.place(70.0), axis.place(130.0)), (0.0, 1.0));
    }

    #[test]
    fn places_run_from_0_to_1() {
        let axis = Axis::linear("", 0.0, 100.0, "");
        assert_eq!([axis.place(-5.0), axis.place(25.0), axis.place(1e9)], [0.0, 0.25, 1.0]);
        let axis = Axis::seconds("", 4000.0);
        assert_eq!((axis.place(0.0), axis.place(21_600.0)), (0.0, 1.0));
        assert!((axis.place(60.0) - 0.41).abs() < 0.01);
    }

    #[test]
    fn numbers_as_people_write_them() {
        let check = |value, decimals, expect| assert_eq!(number(value, decimals), expect);
        check(1234567.0, 0, "1,234,567");
        check(-1234.56, 1, "-1,234.6");
        check(0.0, 2, "0.00");
        check(-0.001, 1, "0.0");
        check(999.0, 0, "999");
    }
}
