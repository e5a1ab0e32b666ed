//! Any file, read as a session's log. Seed the corpus with what `sluice record` writes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::log::LogDecoder;

fuzz_target!(|file: &[u8]| {
    let mut decoder = LogDecoder::default();
    for piece in file.chunks(4096) {
        if decoder.push(piece).is_err() {
            return;
        }
        while let Ok(Some(_)) = decoder.next_entry() {}
    }
    let _ = decoder.end();
});
