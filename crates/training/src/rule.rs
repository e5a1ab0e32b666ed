//! Rules: one sentence each.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use wildmatch::WildMatch;

/// What must not happen to a metric. Its name may have `*` for any text.
///
/// ```
/// # use sluice_training::Rule;
/// let rule: Rule = "train/*loss stops falling for 500 steps".parse().unwrap();
/// assert_eq!(rule.to_string(), "train/*loss stops falling for 500 steps");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(crate) metric: WildMatch,
    pub(crate) trouble: Trouble,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    StopsFalling { steps: u64 },
    StopsRising { steps: u64 },
    Diverges,
    DropsBy { part: f64 },
    Above(f64),
    Below(f64),
    SilentFor(Duration),
}

/// A sentence that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no rule; rules are: METRIC stops falling for N steps, METRIC stops rising for N steps, METRIC diverges, \
     METRIC drops by P%, METRIC above X, METRIC below X, METRIC silent for TIME (such as 90s, 10min, 2h)"
)]
pub struct RuleError(String);

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let trouble = words.split_first().and_then(|(_, said)| trouble(said));
        match (words.first(), trouble) {
            (Some(metric), Some(trouble)) => {
                Ok(Rule { metric: WildMatch::new(metric), trouble, text: words.join(" ") })
            }
            _ => Err(RuleError(text.into())),
        }
    }
}

fn trouble(words: &[&str]) -> Option<Trouble> {
    let count = |number: &str| number.parse().ok().filter(|count| *count > 0);
    let value = |number: &str| number.parse::<f64>().ok().filter(|value| value.is_finite());
    Some(match words {
        ["stops", "falling", "for", number, "steps"] => Trouble::StopsFalling { steps: count(number)? },
        ["stops", "rising", "for", number, "steps"] => Trouble::StopsRising { steps: count(number)? },
        ["diverges"] => Trouble::Diverges,
        ["drops", "by", percent] => {
            let percent = value(percent.strip_suffix('%')?)?;
            Trouble::DropsBy { part: (percent > 0.0 && percent < 100.0).then_some(percent / 100.0)? }
        }
        ["above", number] => Trouble::Above(value(number)?),
        ["below", number] => Trouble::Below(value(number)?),
        ["silent", "for", time] => Trouble::SilentFor(duration(time)?),
        _ => return None,
    })
}

fn duration(text: &str) -> Option<Duration> {
    let units = [("min", 60), ("s", 1), ("h", 3600)];
    let (number, unit) = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let seconds = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

impl Rule {
    /// Whether it is about values that do not come, which a watch alone can see.
    pub fn is_about_silence(&self) -> bool {
        matches!(self.trouble, Trouble::SilentFor(_))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_rules() {
        let of = |text: &str| text.parse::<Rule>().unwrap().trouble;
        assert_eq!(of("loss stops falling for 500 steps"), Trouble::StopsFalling { steps: 500 });
        assert_eq!(of("accuracy  stops rising for 20 steps"), Trouble::StopsRising { steps: 20 });
        assert_eq!(of("loss diverges"), Trouble::Diverges);
        assert_eq!(of("tokens_per_s drops by 30%"), Trouble::DropsBy { part: 0.3 });
        assert_eq!(
            (of("drift above 0.2"), of("x below -1e3")),
            (Trouble::Above(0.2), Trouble::Below(-1000.0))
        );
        assert_eq!(of("loss silent for 10min"), Trouble::SilentFor(Duration::from_secs(600)));
    }

    #[test]
    fn other_sentences_are_refused_with_all_forms() {
        for wrong in [
            "",
            "loss",
            "loss stops",
            "loss stops falling for 0 steps",
            "loss drops by 100%",
            "loss drops by 5",
            "loss above NaN",
            "loss silent for 0s",
            "loss silent for 10",
            "diverges",
        ] {
            let error = wrong.parse::<Rule>().expect_err(wrong).to_string();
            assert!(error.contains("stops falling for N steps"), "{error}");
        }
    }
}
