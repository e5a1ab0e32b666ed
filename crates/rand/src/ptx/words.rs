//! Kernels of the generators whose sequences can be continued in many places at once.

use sluice_library_base::writer::{Class, Register, Source, Writer, emit};

use super::{low, wide};
use crate::engine::{STREAMS, mrg, xorwow};

/// The multipliers and the steps of the keys of Philox4x32 (J. K. Salmon and others, "Parallel
/// random numbers: as easy as 1, 2, 3", SC 2011), and its number of rounds.
const PHILOX_FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const PHILOX_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const PHILOX_ROUNDS: u32 = 10;

/// Philox4x32-10: word `n` is word `n mod 4` of the block with the number `n / 4` as the counter
/// and the seed as the key.
///
/// Parameters: the results' address, their count, the words of the first block that lie before
/// them, the first block's number, the number of blocks, the seed.
pub(crate) fn philox(name: &str) -> Source {
    let mut writer = Writer::new(name);
    let w = &mut writer;
    let [results, count, before, first, blocks, seed] = w.params();
    w.each_of_thread('x', blocks, |w, block| {
        let number = w.add(first, block);
        let words = philox_block(w, number, seed);
        for (place, word) in words.into_iter().enumerate() {
            let four = w.binary("shl.b64", block, 2);
            let index = w.binary("sub.s64", four, before);
            let index = w.add(index, place);
            let is_behind = w.compare("ge.s64", index, 0);
            let is_before = w.compare("lt.s64", index, count);
            let is_wanted = w.both(is_behind, is_before);
            w.when(is_wanted, |w| {
                let at = w.address(results, index, 4);
                emit!(w, "st.global.u32 [{at}], {word}");
            });
        }
    });
    writer.finish()
}

/// The four words of a block.
fn philox_block(w: &mut Writer, number: Register, seed: Register) -> [Register; 4] {
    let high = |w: &mut Writer, value: Register| {
        let shifted = w.binary("shr.u64", value, 32);
        low(w, shifted)
    };
    let zero = w.register(Class::B32);
    emit!(w, "mov.u32 {zero}, 0");
    let mut counter = [low(w, number), high(w, number), zero, zero];
    let mut key = [low(w, seed), high(w, seed)];
    for round in 0..PHILOX_ROUNDS {
        if round > 0 {
            key = [0, 1].map(|at| w.binary("add.u32", key[at], PHILOX_STEPS[at]));
        }
        let product = |w: &mut Writer, at: usize| {
            let factor = PHILOX_FACTORS[at];
            (w.binary("mul.hi.u32", counter[2 * at], factor), w.binary("mul.lo.u32", counter[2 * at], factor))
        };
        let (high0, low0) = product(w, 0);
        let (high1, low1) = product(w, 1);
        let mixed = |w: &mut Writer, product: Register, word: Register, key: Register| {
            let sum = w.binary("xor.b32", product, word);
            w.binary("xor.b32", sum, key)
        };
        let first = mixed(w, high1, counter[1], key[0]);
        let third = mixed(w, high0, counter[3], key[1]);
        counter = [first, low1, third, low0];
    }
    counter
}

/// Writes a loop over the results of each stream, with its state in registers.
///
/// Parameters: the results' address, their count, the bytes from one to the next, the position of
/// the first one, the states' address.
fn streams(name: &str, step: impl Fn(&mut Writer, [Register; 6]) -> Register) -> Source {
    let mut writer = Writer::new(name);
    let w = &mut writer;
    let [results, count, distance, position, states] = w.params();
    let all = w.integer(STREAMS as i64);
    w.each_of_thread('x', all, |w, stream| {
        // The first result of this stream.
        let behind = w.binary("sub.s64", stream, position);
        let first = w.binary("and.b64", behind, STREAMS - 1);
        let has_results = w.compare("lt.s64", first, count);
        w.when(has_results, |w| {
            let place = w.address(states, stream, 4);
            let offset = |word: usize| word as u64 * STREAMS * 4;
            let state = std::array::from_fn(|word| {
                let value = w.register(Class::B32);
                emit!(w, "ld.global.u32 {value}, [{place}+{}]", offset(word));
                value
            });
            w.each(first, count, STREAMS, |w, index| {
                let result = step(w, state);
                let at = w.multiply_add(index, distance, results);
                emit!(w, "st.global.u32 [{at}], {result}");
            });
            for (word, value) in state.into_iter().enumerate() {
                emit!(w, "st.global.u32 [{place}+{}], {value}", offset(word));
            }
        });
    });
    writer.finish()
}

/// XORWOW, see [`xorwow`].
pub(crate) fn xorwow(name: &str) -> Source {
    streams(name, |w, [x, y, z, u, v, counter]| {
        let shifted = w.binary("shr.u32", x, 2);
        let t = w.binary("xor.b32", x, shifted);
        let shifted = w.binary("shl.b32", t, 1);
        let t = w.binary("xor.b32", t, shifted);
        let shifted = w.binary("shl.b32", v, 4);
        let new = w.binary("xor.b32", v, shifted);
        let new = w.binary("xor.b32", new, t);
        for (to, value) in [(x, y), (y, z), (z, u), (u, v), (v, new)] {
            w.assign(to, value);
        }
        emit!(w, "add.u32 {counter}, {counter}, {}", xorwow::WEYL);
        w.binary("add.u32", new, counter)
    })
}

/// MRG32k3a, see [`mrg`]: the words are `z`, from 1 to `m1`.
pub(crate) fn mrg(name: &str) -> Source {
    streams(name, |w, [a0, a1, a2, b0, b1, b2]| {
        // plus * x - minus * y, without a negative intermediate result.
        let next = |w: &mut Writer, x: Register, plus: u64, y: Register, minus: u64, modulus: u64| {
            let (x, y) = (wide(w, x), wide(w, y));
            let modulus = w.integer(modulus as i64);
            let complement = w.binary("sub.s64", modulus, y);
            let product = w.binary("mul.lo.u64", complement, minus);
            let sum = w.multiply_add(x, plus, product);
            w.binary("rem.u64", sum, modulus)
        };
        let a = next(w, a1, mrg::A12, a0, mrg::A13, mrg::M1);
        let b = next(w, b2, mrg::A21, b0, mrg::A23, mrg::M2);
        let (new_a, new_b) = (low(w, a), low(w, b));
        for (to, value) in [(a0, a1), (a1, a2), (a2, new_a), (b0, b1), (b1, b2), (b2, new_b)] {
            w.assign(to, value);
        }
        let difference = w.binary("sub.s64", a, b);
        let is_positive = w.compare("gt.s64", difference, 0);
        let wrapped = w.add(difference, mrg::M1);
        let z = w.select(is_positive, difference, wrapped);
        low(w, z)
    })
}
