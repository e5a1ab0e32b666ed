//! The kernel of MT19937, whose state advances by all of its words at once.

use sluice_library_base::writer::{Class, Register, Source, Writer, emit};

use crate::engine::mersenne::{MIDDLE, WORDS};

/// Threads of the one block: the words that can be advanced without one another.
pub(crate) const THREADS: u32 = (WORDS - MIDDLE) as u32;

/// Parameters: the results' address, their count, the state's address, the words of the state that
/// are used already, the states from which results come.
pub(crate) fn source(name: &str) -> Source {
    let mut writer = Writer::new(name);
    let w = &mut writer;
    let [results, count, state, used, states] = w.params();
    let shared = w.shared("words", WORDS as u32 * 4);
    let thread = w.special("tid.x");
    let (zero, all) = (w.integer(0), w.integer(WORDS as i64));
    w.each(thread, all, THREADS, |w, word| {
        let (from, to) = (w.address(state, word, 4), w.address(shared, word, 4));
        let value = w.register(Class::B32);
        emit!(w, "ld.global.u32 {value}, [{from}]");
        emit!(w, "st.shared.u32 [{to}], {value}");
    });
    w.barrier();
    let end = w.add(used, count);
    w.each(zero, states, 1, |w, number| {
        let is_next = w.compare("gt.s64", number, 0);
        w.when(is_next, |w| advance(w, shared, thread));
        // Words are counted from the first one of the first state.
        let start = w.binary("mul.lo.s64", number, WORDS);
        let first = w.binary("max.s64", start, used);
        let last = w.add(start, WORDS);
        let last = w.binary("min.s64", last, end);
        let own = w.add(first, thread);
        w.each(own, last, THREADS, |w, at| {
            let word = w.binary("sub.s64", at, start);
            let index = w.binary("sub.s64", at, used);
            let (from, to) = (w.address(shared, word, 4), w.address(results, index, 4));
            let value = w.register(Class::B32);
            emit!(w, "ld.shared.u32 {value}, [{from}]");
            let value = temper(w, value);
            emit!(w, "st.global.u32 [{to}], {value}");
        });
        w.barrier();
    });
    w.each(thread, all, THREADS, |w, word| {
        let (from, to) = (w.address(shared, word, 4), w.address(state, word, 4));
        let value = w.register(Class::B32);
        emit!(w, "ld.shared.u32 {value}, [{from}]");
        emit!(w, "st.global.u32 [{to}], {value}");
    });
    writer.finish()
}

/// Advances the state by all of its words, as many at a time as there are threads: a word needs the
/// old one behind it, and the one at the distance of the middle, which an earlier part has made.
fn advance(w: &mut Writer, shared: Register, thread: Register) {
    let (words, threads) = (WORDS as u64, u64::from(THREADS));
    for start in (0..words).step_by(THREADS as usize) {
        let word = w.add(thread, start);
        let is_own = w.compare("lt.s64", word, words.min(start + threads));
        // Both halves of the branch use registers that exist before it.
        let zero = w.register(Class::B32);
        emit!(w, "mov.u32 {zero}, 0");
        let new = w.variable(zero);
        w.when(is_own, |w| {
            let load = |w: &mut Writer, distance: u64| {
                let at = w.add(word, distance);
                let is_behind = w.compare("ge.s64", at, words);
                let wrapped = w.add(at, -(words as i64));
                let at = w.select(is_behind, wrapped, at);
                let at = w.address(shared, at, 4);
                let value = w.register(Class::B32);
                emit!(w, "ld.shared.u32 {value}, [{at}]");
                value
            };
            let (own, next, middle) = (load(w, 0), load(w, 1), load(w, MIDDLE as u64));
            let top = w.binary("and.b32", own, 0x8000_0000_u32);
            let rest = w.binary("and.b32", next, 0x7fff_ffff_u32);
            let y = w.binary("or.b32", top, rest);
            let half = w.binary("shr.u32", y, 1);
            let odd = w.binary("and.b32", next, 1);
            let factor = w.binary("mul.lo.u32", odd, 0x9908_b0df_u32);
            let sum = w.binary("xor.b32", middle, half);
            let sum = w.binary("xor.b32", sum, factor);
            w.assign(new, sum);
        });
        w.barrier();
        w.when(is_own, |w| {
            let at = w.address(shared, word, 4);
            emit!(w, "st.shared.u32 [{at}], {new}");
        });
        w.barrier();
    }
}

fn temper(w: &mut Writer, word: Register) -> Register {
    let mut y = word;
    for (shift, distance, mask) in [
        ("shr.u32", 11, u32::MAX),
        ("shl.b32", 7, 0x9d2c_5680),
        ("shl.b32", 15, 0xefc6_0000),
        ("shr.u32", 18, u32::MAX),
    ] {
        let shifted = w.binary(shift, y, distance);
        let masked = w.binary("and.b32", shifted, mask);
        y = w.binary("xor.b32", y, masked);
    }
    y
}
