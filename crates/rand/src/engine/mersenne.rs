//! MT19937 (M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8, 1998), with the
//! initialisation that its authors published in 2002.

/// Words of the state.
pub(crate) const WORDS: usize = 624;

/// The distance of the recurrence's second operand.
pub(crate) const MIDDLE: usize = 397;

fn init(seed: u32) -> [u32; WORDS] {
    let mut state = [seed; WORDS];
    for at in 1..WORDS {
        let last = state[at - 1];
        state[at] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(at as u32);
    }
    state
}

/// The state from a seed: the authors' `init_genrand` for one of 32 bits, and `init_by_array` of
/// its two words for one of more.
pub(crate) fn state(seed: u64) -> [u32; WORDS] {
    let Err(_) = u32::try_from(seed) else { return init(seed as u32) };
    let key = [seed as u32, (seed >> 32) as u32];
    let mut state = init(19_650_218);
    let mut at = 1;
    let wrap = |state: &mut [u32; WORDS], at: usize| {
        if at + 1 < WORDS {
            return at + 1;
        }
        state[0] = state[WORDS - 1];
        1
    };
    for round in 0..WORDS {
        let last = state[at - 1] ^ (state[at - 1] >> 30);
        let place = round % key.len();
        state[at] =
            (state[at] ^ last.wrapping_mul(1_664_525)).wrapping_add(key[place]).wrapping_add(place as u32);
        at = wrap(&mut state, at);
    }
    for _ in 0..WORDS - 1 {
        let last = state[at - 1] ^ (state[at - 1] >> 30);
        state[at] = (state[at] ^ last.wrapping_mul(1_566_083_941)).wrapping_sub(at as u32);
        at = wrap(&mut state, at);
    }
    state[0] = 0x8000_0000;
    state
}
