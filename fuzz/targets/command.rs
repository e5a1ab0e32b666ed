//! Any commands of a session, executed by a worker before a driver that follows every pointer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| sluice_worker::malformed::session(script));
