//! What a link makes of typical programs, estimated from what was measured.

use serde::Serialize;

use super::figures::Figures;

/// What a program does over and over again.
///
/// Calls were counted with the client library between step 3 and step 8 of PyTorch 2.15 on the
/// recording driver of an H200 (AdamW fused, batch copied from pageable memory, loss read once per
/// step), and for the token from a trace of llama.cpp's calls (CUDA graphs on). The times of steps
/// are assumptions of the right order, for a current data-center GPU.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    name: &'static str,
    /// Per step.
    queued_calls: f64,
    waiting_calls: f64,
    bytes_in: f64,
    bytes_out: f64,
    /// Assumed length of a step where the GPU is.
    native_step_ms: f64,
}

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "GPT-2-small training",
        queued_calls: 620.0,
        waiting_calls: 2.0,
        bytes_in: 66e3,
        bytes_out: 4.0,
        native_step_ms: 100.0,
    },
    Program {
        name: "11M transformer training",
        queued_calls: 321.0,
        waiting_calls: 2.0,
        bytes_in: 33e3,
        bytes_out: 4.0,
        native_step_ms: 10.0,
    },
    Program {
        name: "0.03M toy training",
        queued_calls: 78.0,
        waiting_calls: 2.0,
        bytes_in: 1e3,
        bytes_out: 4.0,
        native_step_ms: 1.0,
    },
    Program {
        name: "language model, a token",
        queued_calls: 4.0,
        waiting_calls: 2.0,
        bytes_in: 1e3,
        bytes_out: 200e3,
        native_step_ms: 10.0,
    },
];

/// How [`Program::slowdown`] estimates, for people to read.
pub(super) const METHOD: &str = "\
Estimated: a step's waiting calls and its bytes come on top of its time at the GPU, and its queued calls take at least what
was measured for them. Calls per step were counted in PyTorch and llama.cpp; the time of a step at the GPU is assumed.
";

impl Program {
    pub(super) fn label(&self) -> String {
        format!("{} ({} ms)", self.name, self.native_step_ms)
    }

    /// The length of its step over a link, as a multiple of one where the GPU is.
    pub(super) fn slowdown(&self, link: &Figures) -> f64 {
        let native_us = self.native_step_ms * 1e3;
        let queued_us = self.queued_calls / link.queued_calls_per_s * 1e6;
        let waiting_us = self.waiting_calls * link.waiting_call_us;
        let bytes_us = (self.bytes_in / link.htod_bytes_per_s + self.bytes_out / link.dtoh_bytes_per_s) * 1e6;
        (native_us.max(queued_us) + waiting_us + bytes_us) / native_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_bytes_lengthen_a_step() {
        let program = Program {
            name: "two calls",
            queued_calls: 100.0,
            waiting_calls: 2.0,
            bytes_in: 1e6,
            bytes_out: 0.0,
            native_step_ms: 10.0,
        };
        let link = Figures {
            waiting_call_us: 500.0,
            queued_calls_per_s: 1e6,
            htod_bytes_per_s: 1e9,
            dtoh_bytes_per_s: 1e9,
            ..Figures::default()
        };
        // 10 ms + 2 x 0.5 ms + 1 ms; the queued calls hide behind the step.
        assert!((program.slowdown(&link) - 1.2).abs() < 1e-9);
        let slow = Figures { queued_calls_per_s: 5e3, ..link };
        assert!((program.slowdown(&slow) - 2.2).abs() < 1e-9);
    }
}
