//! Any text, its kernels made into machine code: what is lowered is valid, before the passes and
//! behind them.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sluice_ir::{lower, passes, verify};
use sluice_jit::Compiler;
use sluice_ptx::ModuleIndex;

static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new().expect("this machine has a compiler"));

fuzz_target!(|text: &[u8]| {
    let Ok(index) = ModuleIndex::new(text) else { return };
    for function in index.functions().iter().filter(|function| function.is_entry) {
        let Ok(module) = index.closure(&function.name) else { continue };
        let Ok(mut kernel) = lower::lower_kernel(&module, &function.name) else { continue };
        lower::module_globals(&module);
        verify::verify(&kernel).expect("valid as lowered");
        passes::pipeline(&mut kernel);
        verify::verify_scheduled(&kernel).expect("valid behind the passes");
        // An error is an answer; that the code generator panics, which the product catches, is a
        // finding here.
        let _ = COMPILER.prepare(kernel).load([32, 1, 1]);
    }
});
