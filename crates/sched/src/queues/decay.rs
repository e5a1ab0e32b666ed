//! What a queue has used of late, forgotten by half-lives, in integers: the same on every machine.

/// Time in milliseconds since whatever the caller counts from. This crate has no clock.
pub type Millis = u64;

/// Use over time of one resource, where use of `half_life` ago counts half.
///
/// The level is kept as the exponentially weighted mean of the use, so constant use of `a` tends to
/// `a`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecayedUse {
    /// The mean in 2^-16 of the resource's smallest step, as of `at`.
    level: u128,
    at: Millis,
}

impl DecayedUse {
    /// The mean at `now`, if `use_now` has been used ever since the last call. Times that run
    /// backwards count as no time.
    pub fn advance(&mut self, now: Millis, half_life: Millis, use_now: u64) -> u64 {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let kept = u128::from(remaining(passed, half_life));
        let target = u128::from(use_now) << 16;
        self.level = ((self.level * kept) >> 32) + ((target * (ONE - kept)) >> 32);
        self.level()
    }

    /// Adds that `used` was used from one moment until another, both in the past, as
    /// [`DecayedUse::advance`] would have counted it.
    pub fn recall(&mut self, half_life: Millis, (from, until): (Millis, Millis), used: u64) {
        let kept = |since: Millis| u128::from(remaining(self.at.saturating_sub(since), half_life));
        let part = kept(until).saturating_sub(kept(from.min(until)));
        self.level += ((u128::from(used) << 16) * part) >> 32;
    }

    /// Returns this use for a clock that was set back to `now`.
    pub(super) fn not_after(self, now: Millis) -> DecayedUse {
        DecayedUse { at: self.at.min(now), ..self }
    }

    /// The mean as of the last call of [`DecayedUse::advance`].
    pub fn level(&self) -> u64 {
        (self.level >> 16) as u64
    }
}

/// 1.0 with 32 fractional bits.
const ONE: u128 = 1 << 32;

/// `2^(-passed / half_life)` with 32 fractional bits, at most [`ONE`].
fn remaining(passed: Millis, half_life: Millis) -> u64 {
    let half_life = half_life.max(1);
    let halvings = passed / half_life;
    if halvings >= 32 {
        return 0;
    }
    // The fraction of a half-life, with 32 bits; bit k from the top stands for a factor 2^(-2^-k).
    let fraction = (u128::from(passed % half_life) << 32) / u128::from(half_life);
    // Factors carry 62 bits; the first is 2^-1, and each next one is the square root of the one
    // before.
    let (mut factor, mut kept) = (1u128 << 61, 1u128 << 62);
    for bit in (0..32).rev() {
        factor = (factor << 62).isqrt();
        if fraction >> bit & 1 == 1 {
            kept = (kept * factor) >> 62;
        }
    }
    (kept >> (30 + halvings)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_a_half_life_ago_counts_half() {
        let mut used = DecayedUse::default();
        assert_eq!(used.advance(0, 1000, 8000), 0, "no time has passed yet");
        assert_eq!(used.advance(1000, 1000, 8000), 4000);
        assert_eq!(used.advance(2000, 1000, 8000), 6000);
        assert_eq!(used.advance(4000, 1000, 0), 1500);
        assert_eq!(used.advance(3000, 1000, 0), 1500, "time does not run backwards");
    }

    #[test]
    fn what_is_recalled_counts_as_if_it_had_been_seen() {
        let (mut seen, mut recalled) = (DecayedUse::default(), DecayedUse::default());
        for (at, used_until_then) in [(1_000, 0), (4_000, 8000), (9_000, 0), (12_000, 3000), (20_000, 0)] {
            seen.advance(at, 5_000, used_until_then);
        }
        recalled.advance(20_000, 5_000, 0);
        recalled.recall(5_000, (9_000, 12_000), 3000);
        recalled.recall(5_000, (1_000, 4_000), 8000);
        recalled.recall(5_000, (7_000, 6_000), 8000);
        assert!(seen.level().abs_diff(recalled.level()) <= 1, "{seen:?} and {recalled:?}");
    }

    #[test]
    fn the_remaining_part_follows_the_power_of_two() {
        for (passed, half_life) in
            [(0, 5), (1, 3), (7, 10), (1, 1_000_000), (86_399_999, 86_400_000), (31, 1)]
        {
            let exact = (-(passed as f64) / half_life as f64).exp2();
            let got = remaining(passed, half_life) as f64 / ONE as f64;
            assert!((exact - got).abs() < 1e-8, "{passed} of {half_life}: {got}, not {exact}");
        }
        assert_eq!(remaining(u64::MAX, 0), 0);
    }

    #[test]
    fn many_small_steps_agree_with_one_large_step() {
        let (mut fine, mut coarse) = (DecayedUse::default(), DecayedUse::default());
        for step in 1..=10_000u64 {
            fine.advance(step * 10, 50_000, 12_000);
        }
        let (fine, coarse) = (fine.advance(100_000, 50_000, 12_000), coarse.advance(100_000, 50_000, 12_000));
        assert!(fine.abs_diff(coarse) <= 2, "{fine} and {coarse}");
    }
}
