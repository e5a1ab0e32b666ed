//! Any records of a peer that has the keys, among any other bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| sluice_transport::tls::malformed::script(script));
