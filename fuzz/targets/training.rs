//! Any bytes as a file of metrics that grows: its form by the first byte, where it is cut by the
//! second.
#![no_main]

use std::fs;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluice_training::{Source, Watch};

const NAMES: [&str; 3] = ["a.jsonl", "events.out.tfevents.1", "metrics"];

fuzz_target!(|data: &[u8]| {
    let [form, cut, data @ ..] = data else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(NAMES[usize::from(*form) % NAMES.len()]);
    let (first, _) = data.split_at(data.len() * usize::from(*cut) / 256);
    let rules = ["* diverges", "* stops falling for 2 steps", "* drops by 10%", "* above 0"];
    let mut watch = Watch::new(rules.map(|rule| rule.parse().unwrap()).into());
    let mut source = Source::new(&path, "");
    for (written, is_last) in [(first, false), (data, true)] {
        fs::write(&path, written).unwrap();
        loop {
            let polled = source.poll(is_last);
            polled.points.iter().for_each(|point| _ = watch.take(point, Some(Duration::ZERO)));
            if !polled.more {
                break;
            }
        }
    }
});
