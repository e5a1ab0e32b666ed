//! Dividing one resource fairly among sibling queues.
//!
//! 1. Every queue gets what it deserves, as far as it asks for it:
//!    `min(deserved, requested, limit)`. Where the queues together deserve more than there is (a
//!    node is down), they get it in proportion to what they deserve.
//! 2. The surplus goes to the queues of the highest priority first, among equal priorities by
//!    weight, never beyond what a queue asks for or may have. What a satisfied queue leaves goes to
//!    the others of its priority, then downwards.
//!
//! All arithmetic is exact, in integers. The surplus is handed out in whole `unit`s as far as that
//! goes, because a job that needs a whole GPU gains nothing from a share of 2.67 of them; what
//! rounding leaves goes by largest remainder, ties to the earlier queue, so the result is a
//! function of the input alone.

/// What one queue asks of a division. Amounts are in the resource's smallest step (a thousandth of
/// a GPU, a MiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The queue gets this much, if it asks for it, before anything else is handed out.
    pub deserved: u64,
    /// All that the queue's work could use: running and pending.
    pub requested: u64,
    /// The queue never gets more; `u64::MAX` for no limit.
    pub limit: u64,
    /// Surplus goes to higher priorities first.
    pub priority: i32,
    /// Part of the surplus among queues of the same priority; 0 means none of it.
    pub weight: u32,
    /// Recent use, decayed, in millionths of the whole resource ([`super::decay`]).
    pub usage_ppm: u32,
}

/// How surplus is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Surplus is handed out in multiples of this, as far as possible; at least 1.
    pub unit: u64,
    /// How much recent use counts against a queue, in percent: at 0 not at all, at 100 a queue that
    /// has recently used twice its part of the surplus gets nothing of it.
    pub usage_percent: u32,
}

/// Greater weights count as this.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// Greater strengths of recent use count as this.
pub const MAX_USAGE_PERCENT: u32 = 10_000;

impl Claim {
    fn cap(&self) -> u64 {
        self.requested.min(self.limit)
    }

    fn weight(&self) -> u128 {
        u128::from(self.weight.min(MAX_WEIGHT))
    }
}

/// The share of each claim, in the order of `claims`. The sum is at most `capacity`, and no share
/// exceeds what its claim requests or its limit.
pub fn divide(capacity: u64, division: Division, claims: &[Claim]) -> Vec<u64> {
    let caps: Vec<u64> = claims.iter().map(Claim::cap).collect();
    let entitled: Vec<u64> = claims.iter().map(|claim| claim.deserved.min(claim.cap())).collect();
    let mut shares = vec![0; claims.len()];

    let everyone: Vec<usize> = (0..claims.len()).collect();
    let by_deserved = |open: &[usize]| open.iter().map(|&i| u128::from(claims[i].deserved)).collect();
    let mut left = fill(capacity, division.unit, everyone, &entitled, &by_deserved, &mut shares);

    let mut priorities: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    for priority in priorities {
        let bucket = (0..claims.len()).filter(|&i| claims[i].priority == priority).collect();
        let by_weight = |open: &[usize]| weights_after_usage(claims, open, division.usage_percent);
        left = fill(left, division.unit, bucket, &caps, &by_weight, &mut shares);
    }
    shares
}

/// The weights of the claims `open`, less what recent use takes away.
///
/// With W' the queue's part of the open weights, U' its recent use of the whole resource and k the
/// strength, the weight is max(0, W' + k (W' - U')); here multiplied by the sum of weights, by 100
/// and by a million to stay in integers.
fn weights_after_usage(claims: &[Claim], open: &[usize], usage_percent: u32) -> Vec<u128> {
    let total: u128 = open.iter().map(|&i| claims[i].weight()).sum();
    let strength = u128::from(usage_percent.min(MAX_USAGE_PERCENT));
    let reduced = |&i: &usize| {
        let full = claims[i].weight() * (100 + strength) * 1_000_000;
        if full == 0 { 0 } else { full.saturating_sub(strength * u128::from(claims[i].usage_ppm) * total) }
    };
    let weights: Vec<u128> = open.iter().map(reduced).collect();
    // Use above all parts would leave the surplus to no queue; then it goes by weight alone.
    if weights.iter().all(|&weight| weight == 0) {
        return open.iter().map(|&i| claims[i].weight()).collect();
    }
    weights
}

/// Raises `shares` of the queues `open` towards `caps` by weight until `left` is handed out;
/// returns what remains.
///
/// Water filling: a queue that would reach its cap in this round gets its cap, and the others
/// divide again what that leaves them. Each round satisfies at least one queue or is the last.
fn fill(
    mut left: u64,
    unit: u64,
    mut open: Vec<usize>,
    caps: &[u64],
    weigh: &dyn Fn(&[usize]) -> Vec<u128>,
    shares: &mut [u64],
) -> u64 {
    loop {
        open.retain(|&i| shares[i] < caps[i]);
        let weights = weigh(&open);
        let total: u128 = weights.iter().sum();
        if left == 0 || total == 0 {
            return left;
        }
        let round = left;
        let mut satisfied = false;
        for (&i, &weight) in open.iter().zip(&weights) {
            let room = caps[i] - shares[i];
            if scale(round, weight, total).0 >= room {
                shares[i] += room;
                left -= room;
                satisfied = true;
            }
        }
        if !satisfied {
            return hand_out(left, unit.max(1), &open, &weights, caps, shares);
        }
    }
}

/// The last round: no queue reaches its cap. Whole units by weight, then the rest by largest
/// remainder.
fn hand_out(
    mut left: u64,
    unit: u64,
    open: &[usize],
    weights: &[u128],
    caps: &[u64],
    shares: &mut [u64],
) -> u64 {
    let total: u128 = weights.iter().sum();
    let mut remainders = Vec::new();
    let round = left;
    for (&i, &weight) in open.iter().zip(weights).filter(|(_, weight)| **weight > 0) {
        let (exact, fraction) = scale(round, weight, total);
        let whole = exact / unit * unit;
        shares[i] += whole;
        left -= whole;
        remainders.push((exact - whole, fraction, i));
    }
    remainders.sort_by(|a, b| (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2)));
    loop {
        let before = left;
        for &(_, _, i) in &remainders {
            let step = unit.min(left).min(caps[i] - shares[i]);
            shares[i] += step;
            left -= step;
        }
        if left == 0 || left == before {
            return left;
        }
    }
}

/// `amount * weight / total`, rounded down, and the remainder of that division. Weights are below
/// 2^64 (see [`MAX_WEIGHT`] and [`MAX_USAGE_PERCENT`]; what a queue deserves is one, too), so the
/// product fits.
fn scale(amount: u64, weight: u128, total: u128) -> (u64, u128) {
    let product = u128::from(amount) * weight;
    ((product / total) as u64, product % total)
}
