//! Contents of buffers and columns.

use sluice_ptx::Type;

use crate::expression::{Names, Value, evaluate};
use crate::literal;

/// SplitMix64 (Steele, Lea, Flood 2014), for contents and for the fuzzer's choices.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit.max(1) as u64) as usize
    }

    /// A value of this type: bits anyhow, with a share of small numbers and edges.
    pub fn value(&mut self, ty: Type) -> u64 {
        let mask = literal::mask(ty);
        if ty.is_float() {
            return match self.below(4) {
                0 => self.bits() & mask,
                _ => literal::from_value(
                    ty,
                    Value::Float((self.bits() as i32 >> self.below(31)) as f64 / 16.0),
                ),
            };
        }
        let bits = match self.below(4) {
            0 => self.below(9) as u64,
            1 => [u64::MAX, mask >> 1, (mask >> 1) + 1, u64::MAX - 1][self.below(4)],
            _ => self.bits() >> self.below(64),
        };
        bits & mask
    }
}

/// The elements that `text` describes, at most `count` of them. `names` gives what expressions
/// refer to, for an index.
pub fn elements<'n, N: Names + 'n>(
    ty: Type,
    count: usize,
    text: &str,
    names: impl Fn(usize) -> N,
) -> Result<Vec<u64>, String> {
    let mut values = Vec::new();
    for item in items(text) {
        let (times, item) = match item.split_once('x') {
            Some((times, item)) if times != "0" && times.parse::<usize>().is_ok() => {
                (times.parse().ok(), item)
            }
            _ => (None, item),
        };
        let to_end = count.saturating_sub(values.len());
        if let Some(expression) = item.strip_prefix('(').and_then(|item| item.strip_suffix(')')) {
            for _ in 0..times.unwrap_or(to_end) {
                let value = evaluate(expression, &names(values.len()))?;
                values.push(literal::from_value(ty, value));
            }
        } else if let Some(seed) = item.strip_prefix("random") {
            let mut random = Random(seed.trim_start_matches(':').parse().unwrap_or(1));
            values.extend((0..times.unwrap_or(to_end)).map(|_| random.value(ty)));
        } else {
            values.extend(std::iter::repeat_n(literal::parse(ty, item)?, times.unwrap_or(1)));
        }
    }
    if values.len() > count {
        return Err(format!("{} elements for {count}: {text}", values.len()));
    }
    Ok(values)
}

/// Splits at blanks outside of parentheses.
pub fn items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut depth, mut start) = (0, None);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match (c.is_whitespace() && depth == 0, start) {
            (true, Some(from)) => {
                items.push(&text[from..at]);
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    items.extend(start.map(|from| &text[from..]));
    items
}

/// Little-endian, back to back.
pub fn to_bytes(ty: Type, values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(ty.bytes() as usize)).collect()
}

pub fn from_bytes(ty: Type, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(ty.bytes() as usize)
        .map(|chunk| chunk.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
        .collect()
}
