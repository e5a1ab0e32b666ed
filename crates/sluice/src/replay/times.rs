//! How long the calls of a replay took, by function.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Serialize;
use sluice_wire::Op;

#[derive(Default)]
pub(super) struct Times {
    functions: HashMap<u16, Function>,
}

#[derive(Default)]
struct Function {
    count: u64,
    /// From when it was said until its answer had come.
    waits: Vec<Duration>,
}

/// One function's.
#[derive(Serialize)]
pub(super) struct FunctionReport {
    pub(super) count: u64,
    /// Of them those that were answered; the others are queued.
    pub(super) waits: u64,
    total_us: Option<f64>,
    median_us: Option<f64>,
}

impl Times {
    pub(super) fn said(&mut self, op: Op) {
        self.functions.entry(op.0).or_default().count += 1;
    }

    pub(super) fn waited(&mut self, op: Op, time: Duration) {
        self.functions.entry(op.0).or_default().waits.push(time);
    }

    pub(super) fn report(&self) -> BTreeMap<&'static str, FunctionReport> {
        self.functions.iter().map(|(&op, function)| (Op(op).name(), function.report())).collect()
    }
}

impl Function {
    fn report(&self) -> FunctionReport {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let median = waits.get(waits.len() / 2);
        FunctionReport {
            count: self.count,
            waits: waits.len() as u64,
            total_us: median.map(|_| micros(waits.iter().sum())),
            median_us: median.map(|&median| micros(median)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::Fn;

    use super::*;

    #[test]
    fn calls_are_counted_and_waits_are_timed() {
        let (launch, synchronize) = (Op::of(Fn::cuLaunchKernel), Op::of(Fn::cuCtxSynchronize));
        let mut times = Times::default();
        for (op, micros) in
            [(launch, None), (synchronize, Some(7)), (synchronize, Some(90)), (synchronize, Some(3))]
        {
            times.said(op);
            if let Some(micros) = micros {
                times.waited(op, Duration::from_micros(micros));
            }
        }
        let report = serde_json::to_value(times.report()).unwrap();
        let expect = serde_json::json!({
            "cuCtxSynchronize": { "count": 3, "waits": 3, "total_us": 100.0, "median_us": 7.0 },
            "cuLaunchKernel": { "count": 1, "waits": 0, "total_us": null, "median_us": null },
        });
        assert_eq!(report, expect);
    }
}
