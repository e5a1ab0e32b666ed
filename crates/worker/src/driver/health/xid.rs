//! Xid errors: which of them are the card's fault, and which a program's.
//!
//! After NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors), "Analyzing Xid Errors with the
//! Xid Catalog": what is to be done about a program alone (RESTART_APP, IGNORE) is no reason to
//! fence a GPU; what asks for a reset, a new start of the machine or a repair is.

use sluice_worker_link::health::Harm;

/// What a number means for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Xid {
    /// A program did something wrong, or an engine did, with one program; the next one is not
    /// affected.
    Program(&'static str),
    Card(Harm, &'static str),
    Unknown,
}

pub(super) fn meaning(number: u64) -> Xid {
    use Harm::{Contained, Degraded, Lost};
    use Xid::{Card, Program, Unknown};
    match number {
        8 => Program("a kernel ran for too long"),
        11 | 12 => Program("a corrupted command stream"),
        13 => Program("an exception in a kernel"),
        31 => Program("an access to memory that is not mapped"),
        32 => Program("a corrupted command stream"),
        43 => Program("a channel was stopped after a program's error"),
        45 => Program("channels were cleared away after an earlier error or the end of a program"),
        68 | 69 => Program("an exception in an engine"),

        46 => Card(Lost, "the GPU stopped processing"),
        48 => Card(Lost, "a double-bit ECC error"),
        61 | 62 => Card(Lost, "its micro-controller stopped"),
        63 => Card(Degraded, "a row of its memory is to be replaced; it needs a reset"),
        64 => Card(Lost, "a row of its memory could not be replaced"),
        74 => Card(Lost, "an NVLink error"),
        79 => Card(Lost, "the GPU has fallen off the bus"),
        92 => Card(Degraded, "many single-bit ECC errors"),
        94 => Card(Contained, "an uncorrectable ECC error that met one program; it needs a reset"),
        95 => Card(Lost, "an uncorrectable ECC error that was not contained"),
        109 => Card(Lost, "a context switch did not end"),
        119 | 120 => Card(Lost, "its system processor (GSP) does not answer"),
        136 => Card(Lost, "NVLink could not be trained"),
        140 => Card(Lost, "an ECC error that was not recovered"),
        143 => Card(Lost, "its initialization failed"),
        144..=150 => Card(Lost, "an NVLink error"),
        154 => Card(Degraded, "its driver asks for a recovery: `nvidia-smi -q` says which"),
        _ => Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_do_fences_no_card_and_what_cards_do_does() {
        for number in [8, 13, 31, 32, 43, 45, 68, 69] {
            assert!(matches!(meaning(number), Xid::Program(_)), "{number}");
        }
        for number in [48, 64, 74, 79, 95, 119, 120] {
            assert!(matches!(meaning(number), Xid::Card(Harm::Lost, _)), "{number}");
        }
        assert!(matches!(meaning(94), Xid::Card(Harm::Contained, _)));
        for number in [63, 92] {
            assert!(matches!(meaning(number), Xid::Card(Harm::Degraded, _)), "{number}");
        }
        for number in [0, 999, u64::MAX] {
            assert_eq!(meaning(number), Xid::Unknown);
        }
    }
}
