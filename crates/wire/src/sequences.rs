//! Recognised sequences: a command that looks like one sent before travels as what changed.
//!
//! A training step or a token loop sends the same commands again and again, with a few bytes
//! changed. Both ends keep the last commands that went this way, in order ([`History`]), and a
//! place among them, the cursor: the command after the one that was sent last. Several commands of
//! one lane travel in a frame of kind `Commands`, whose header has the lane and the sequence of the
//! first, and whose payload is entries:
//!
//! ```text
//!  number, its low two bits tell what it is; the rest is n
//!  0 n                        n commands as they stand from the cursor on
//!  1 n, changes               the command at the cursor with n changes
//!  2 n, distance, changes     as 1, where the cursor is first set back by `distance`
//!  3 n, bytes                 a new command of n bytes: device (1), operation (2), payload
//!
//!  a change: number of (bytes that stay << 3 | count - 1), and count new bytes
//! ```
//!
//! Numbers are little-endian groups of seven bits (LEB128). Each command sent joins the history,
//! and the cursor moves on by one. So both ends are in step as long as the frames arrive whole and
//! in order, which sessions that can be resumed see to (`resume`): they resume at the byte, and
//! neither end's state has anything to do with connections.
//!
//! Of a recorded PyTorch training loop this leaves 4.5 % of the bytes, and LZ4 13 to 16 % at 1.5
//! times the CPU or more (`docs/benchmarks`).

mod expander;
mod history;
mod recogniser;
#[cfg(test)]
mod tests;

pub use self::expander::Expander;
pub use self::recogniser::Recogniser;

use crate::error::WireError;
use crate::frame::HEADER_SIZE;

/// Larger commands, with their header, travel by themselves and are not remembered.
pub const COMMAND_SIZE_MAX: usize = 4 << 10;
/// Most bytes of commands, each with a header, that one frame tells.
pub const EXPANSION_MAX: usize = 256 << 10;

/// Bytes of a command before its payload, as it is remembered: device and operation.
const PREFIX_SIZE: usize = 3;
/// What a remembered command lacks of the bytes of its frame.
const HEAD_SIZE: usize = HEADER_SIZE - PREFIX_SIZE;

/// What an entry is.
const SAME: u64 = 0;
const CHANGED: u64 = 1;
const ELSEWHERE: u64 = 2;
const NEW: u64 = 3;

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number at the beginning of `bytes`, which it leaves behind.
fn take_number(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(WireError::Truncated)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(WireError::Value { what: "a number's last byte", value: 0xff })
}
