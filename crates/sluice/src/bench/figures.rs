//! What one program measures over a link.

use serde::{Deserialize, Serialize};

/// How a figure is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Microseconds,
    CallsPerSecond,
    BytesPerSecond,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Microseconds => "us",
            Unit::CallsPerSecond => "calls/s",
            Unit::BytesPerSecond => "GB/s",
        }
    }

    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Unit::Microseconds if value < 10.0 => format!("{value:.2}"),
            Unit::Microseconds => format!("{value:.1}"),
            Unit::CallsPerSecond => format!("{value:.0}"),
            Unit::BytesPerSecond => format!("{:.3}", value / 1e9),
        }
    }
}

/// One row of the report.
pub(crate) struct Figure {
    pub(crate) label: &'static str,
    pub(crate) unit: Unit,
    pub(crate) get: fn(&Figures) -> f64,
}

macro_rules! figures {
    ($($name:ident: $unit:ident $label:literal;)*) => {
        #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
        pub(crate) struct Figures {
            $(pub(crate) $name: f64,)*
        }

        pub(crate) const FIGURES: &[Figure] = &[
            $(Figure { label: $label, unit: Unit::$unit, get: |figures| figures.$name },)*
        ];

        impl Figures {
            /// Of each figure's values in ascending order, the one that `pick` picks; there is at
            /// least one run.
            pub(crate) fn of(runs: &[Figures], pick: fn(&[f64]) -> f64) -> Figures {
                $(let $name = {
                    let mut values: Vec<f64> = runs.iter().map(|run| run.$name).collect();
                    values.sort_by(f64::total_cmp);
                    pick(&values)
                };)*
                Figures { $($name,)* }
            }
        }
    };
}

figures! {
    round_trip_us: Microseconds "round trip of 16 bytes, plain socket";
    waiting_call_us: Microseconds "waiting call (cuCtxSynchronize, nothing queued)";
    queued_call_client_cpu_us: Microseconds "queued call (launch), CPU of the client";
    queued_call_us: Microseconds "queued call, until it returns";
    queued_calls_per_s: CallsPerSecond "queued calls, until all are done";
    queued_calls_threads_per_s: CallsPerSecond "  the same from four threads at once";
    waiting_calls_threads_per_s: CallsPerSecond "waiting calls of four threads at once";
    small_htod_us: Microseconds "copy of 64 bytes to the device (cuMemcpyHtoD), until it returns";
    htod_bytes_per_s: BytesPerSecond "large copy to the device";
    htod_baseline_bytes_per_s: BytesPerSecond "  the same bytes without CUDA";
    dtoh_bytes_per_s: BytesPerSecond "large copy from the device";
    dtoh_baseline_bytes_per_s: BytesPerSecond "  the same bytes without CUDA";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_own_median() {
        let run =
            |round_trip_us, waiting_call_us| Figures { round_trip_us, waiting_call_us, ..Figures::default() };
        let median = Figures::of(&[run(1.0, 9.0), run(3.0, 8.0), run(2.0, 7.0)], |values| values[1]);
        assert_eq!((median.round_trip_us, median.waiting_call_us), (2.0, 8.0));
    }
}
