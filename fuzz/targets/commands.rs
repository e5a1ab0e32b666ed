//! Any frames of delta-encoded commands, executed as any others are.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| sluice_worker::malformed::told(script));
