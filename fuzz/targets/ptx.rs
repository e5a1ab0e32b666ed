//! Any text, parsed whole and piece by piece. Seed the corpus with `crates/ptx/tests/ptx`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_ptx::{ClosureError, ModuleIndex};

fuzz_target!(|text: &[u8]| {
    let whole = sluice_ptx::parse(text);
    let Ok(index) = ModuleIndex::new(text) else {
        assert!(whole.is_err(), "the index refuses what the parser takes");
        return;
    };
    for function in index.functions() {
        let part = index.closure(&function.name);
        let is_wrong = matches!(part, Err(ClosureError::Parse(_)));
        assert!(whole.is_err() || !is_wrong, "the parser takes what a closure refuses");
    }
    for variable in index.variables() {
        let _ = index.parse_variable(&variable.name);
    }
});
