//! Instructions that look across lanes, on arrays of 32 words. Entries of lanes that are not active
//! mean nothing.

use sluice_ir::{ReduxOp, ShuffleMode, VoteKind};

use crate::context::LANES;

type Words = [u32; LANES];

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// All bits set in the words of `active`.
pub(crate) unsafe extern "C" fn union(words: *const Words, active: u32) -> u32 {
    // SAFETY: compiled code passes arrays of its warp's scratch, in this function and in all below.
    let words = unsafe { &*words };
    lanes_of(active).fold(0, |union, lane| union | words[lane])
}

/// `shfl.sync` (PTX ISA, "shfl.sync"): the results of active lanes to `out`. Returns the lanes
/// whose source is in range.
pub(crate) unsafe extern "C" fn shuffle(
    values: *const Words,
    lanes: *const Words,
    clamps: *const Words,
    active: u32,
    mode: u32,
    out: *mut Words,
) -> u32 {
    // SAFETY: see `union`. The result may take the place of an operand, which is why that is
    // copied.
    let (values, lanes, clamps, out) = unsafe { (*values, *lanes, *clamps, &mut *out) };
    let mut inside = 0;
    for lane in lanes_of(active) {
        let (source, is_inside) = shuffle_source(mode, lane as u32, lanes[lane], clamps[lane]);
        inside |= u32::from(is_inside) << lane;
        out[lane] = values[source as usize & 31];
    }
    inside
}

/// The lane that `lane` reads, and whether it is the one it asked for.
pub(crate) fn shuffle_source(mode: u32, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max = (lane & segment) | (clamp & !segment);
    let min = lane & segment;
    let (source, is_inside) = match mode {
        mode if mode == ShuffleMode::Up as u32 => {
            (lane.wrapping_sub(b), lane as i32 - b as i32 >= max as i32)
        }
        mode if mode == ShuffleMode::Down as u32 => (lane + b, lane + b <= max),
        mode if mode == ShuffleMode::Butterfly as u32 => (lane ^ b, lane ^ b <= max),
        _ => (min | (b & !segment), (min | (b & !segment)) <= max),
    };
    if is_inside { (source, true) } else { (lane, false) }
}

/// `vote.sync` where lanes have different member masks. Predicates come out as bits in the first
/// word of `out`.
pub(crate) unsafe extern "C" fn vote(
    members: *const Words,
    predicate: u32,
    active: u32,
    kind: u32,
    out: *mut Words,
) {
    // SAFETY: see `shuffle`.
    let (members, out) = unsafe { (*members, &mut *out) };
    if kind == VoteKind::Ballot as u32 {
        lanes_of(active).for_each(|lane| out[lane] = predicate & members[lane] & active);
        return;
    }
    let holds = |lane: &usize| {
        let members = members[*lane] & active;
        let votes = predicate & members;
        match kind {
            kind if kind == VoteKind::All as u32 => votes == members,
            kind if kind == VoteKind::Any as u32 => votes != 0,
            _ => votes == 0 || votes == members,
        }
    };
    out[0] = lanes_of(active).filter(holds).fold(0, |bits, lane| bits | 1 << lane);
}

/// `match.sync`: masks of equal values to `out`; returns the lanes whose whole group is equal.
pub(crate) unsafe extern "C" fn matching(
    members: *const Words,
    values: *const [u64; LANES],
    active: u32,
    is_all: u32,
    out: *mut Words,
) -> u32 {
    // SAFETY: see `shuffle`.
    let (members, values, out) = unsafe { (*members, &*values, &mut *out) };
    let mut all = 0;
    for lane in lanes_of(active) {
        let group = members[lane] & active;
        let equal = lanes_of(group)
            .filter(|&other| values[other] == values[lane])
            .fold(0, |bits, other| bits | 1u32 << other);
        all |= u32::from(equal == group) << lane;
        out[lane] = if is_all == 0 || equal == group { equal } else { 0 };
    }
    all
}

/// `redux.sync`: the reduction over each lane's group to `out`.
pub(crate) unsafe extern "C" fn redux(
    values: *const Words,
    members: *const Words,
    active: u32,
    op: u32,
    out: *mut Words,
) {
    // SAFETY: see `shuffle`.
    let (values, members, out) = unsafe { (*values, *members, &mut *out) };
    let mut known = (0, 0);
    for lane in lanes_of(active) {
        let group = members[lane] & active;
        if known.0 != group {
            let result = lanes_of(group).map(|lane| values[lane]).reduce(|a, b| combine(op, a, b));
            known = (group, result.unwrap_or(0));
        }
        out[lane] = known.1;
    }
}

fn combine(op: u32, a: u32, b: u32) -> u32 {
    let signed = |pick: fn(i32, i32) -> i32| pick(a as i32, b as i32) as u32;
    match REDUX_OPS[op as usize] {
        ReduxOp::Add => a.wrapping_add(b),
        ReduxOp::And => a & b,
        ReduxOp::Or => a | b,
        ReduxOp::Xor => a ^ b,
        ReduxOp::MinS => signed(i32::min),
        ReduxOp::MaxS => signed(i32::max),
        ReduxOp::MinU => a.min(b),
        ReduxOp::MaxU => a.max(b),
        ReduxOp::FMin => float_extreme(a, b, true, false),
        ReduxOp::FMax => float_extreme(a, b, false, false),
        ReduxOp::FMinNan => float_extreme(a, b, true, true),
        ReduxOp::FMaxNan => float_extreme(a, b, false, true),
    }
}

/// The operations by the number that compiled code passes.
const REDUX_OPS: [ReduxOp; 12] = [
    ReduxOp::Add,
    ReduxOp::And,
    ReduxOp::Or,
    ReduxOp::Xor,
    ReduxOp::MinS,
    ReduxOp::MaxS,
    ReduxOp::MinU,
    ReduxOp::MaxU,
    ReduxOp::FMin,
    ReduxOp::FMax,
    ReduxOp::FMinNan,
    ReduxOp::FMaxNan,
];

/// Minimum or maximum of floats given by their bits, zeros ordered; a NaN loses, or wins.
fn float_extreme(a: u32, b: u32, is_min: bool, nan_wins: bool) -> u32 {
    const NAN: u32 = 0x7fff_ffff;
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    match (x.is_nan(), y.is_nan()) {
        (false, false) => {}
        (true, true) => return NAN,
        _ if nan_wins => return NAN,
        (true, false) => return b,
        (false, true) => return a,
    }
    let is_first_less = x.total_cmp(&y).is_lt();
    if is_first_less == is_min { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        let whole = 31;
        assert_eq!(shuffle_source(ShuffleMode::Down as u32, 30, 4, whole), (30, false));
        assert_eq!(shuffle_source(ShuffleMode::Down as u32, 3, 4, whole), (7, true));
        assert_eq!(shuffle_source(ShuffleMode::Up as u32, 3, 4, 0), (3, false));
        assert_eq!(shuffle_source(ShuffleMode::Up as u32, 7, 4, 0), (3, true));
        assert_eq!(shuffle_source(ShuffleMode::Butterfly as u32, 5, 16, whole), (21, true));
        // Width 8: segment mask 0x18.
        let eighths = 0x1800 | 7;
        assert_eq!(shuffle_source(ShuffleMode::Index as u32, 13, 2, whole | 0x1800), (10, true));
        assert_eq!(shuffle_source(ShuffleMode::Down as u32, 13, 4, eighths | 0x18), (13, false));
        assert_eq!(shuffle_source(ShuffleMode::Up as u32, 13, 4, 0x1800), (9, true));
        assert_eq!(shuffle_source(ShuffleMode::Up as u32, 10, 4, 0x1800), (10, false));
    }
}
