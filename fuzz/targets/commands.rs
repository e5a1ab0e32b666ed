//! Any frames of commands that are told by what changed, executed as any others are.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| sluice_worker::malformed::told(script));
