//! Any text, parsed whole and piece by piece, and its parts (a zero ends each) linked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_ptx::link::{Input, link};
use sluice_ptx::{ClosureError, ModuleIndex};

fuzz_target!(|text: &[u8]| {
    let parts: Vec<&[u8]> = text.split(|&byte| byte == 0).collect();
    if parts.len() > 1 {
        let inputs: Vec<Input<'_>> = parts.iter().map(|text| Input { name: "a part", text }).collect();
        if let Ok(linked) = link(&inputs)
            && parts.iter().all(|part| sluice_ptx::parse(part).is_ok())
        {
            sluice_ptx::parse(&linked).expect("what is linked is read as its parts are");
        }
    }
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
