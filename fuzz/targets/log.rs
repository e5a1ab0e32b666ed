//! Any file, read as a session's log: as it is (first byte 0), or behind a log's beginning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::control::SessionOpened;
use sluice_wire::log::{self, LogDecoder};

/// Reads a file, in pieces, as far as that goes.
fn read(file: &[u8]) {
    let mut decoder = LogDecoder::default();
    for piece in file.chunks(4096) {
        if decoder.push(piece).is_err() {
            return;
        }
        while let Ok(Some(_)) = decoder.next_entry() {}
    }
    let _ = decoder.end();
}

fuzz_target!(|bytes: &[u8]| match bytes.split_first() {
    Some((0, file)) => read(file),
    Some((_, frames)) => {
        let opened = SessionOpened {
            session: 1,
            range: Some((1 << 40, 1 << 30)),
            devices: Vec::new(),
            resume: None,
            allowances: Vec::new(),
        };
        let mut file = Vec::new();
        log::begin(&opened, &mut file).expect("it is small");
        file.extend_from_slice(frames);
        read(&file);
    }
    None => {}
});
