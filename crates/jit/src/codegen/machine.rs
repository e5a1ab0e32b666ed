//! The processor that code is made for.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable, Flags};

use sluice_ir::Type;

use crate::code_store::Stored;
use crate::compile::CompileError;
use crate::compile_memory::CompileMemory;
use crate::context::LANES;
use crate::math;
use crate::object::Symbol;

/// Instruction set and settings of the host.
pub(crate) struct Target {
    pub isa: OwnedTargetIsa,
    /// Whether `fma` is one instruction.
    pub has_fma: bool,
    pub memory: CompileMemory,
    /// Where code is stored between processes.
    pub stored: OnceLock<Option<Stored>>,
    /// Whether kernels that take long are compiled again by LLVM.
    pub optimizes: AtomicBool,
}

impl Target {
    pub(crate) fn host() -> Result<Target, CompileError> {
        let processor = |reason: &dyn std::fmt::Display| CompileError::Processor(reason.to_string());
        let mut flags = settings::builder();
        for (name, value) in [
            // Cranelift's optimiser moves pure instructions to their last use, which leaves all
            // loads of a step live at the same time. What it would find, the IR's passes and `plan`
            // have found.
            ("opt_level", "none"),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("is_pic", "false"),
            ("enable_probestack", "false"),
            ("unwind_info", "false"),
        ] {
            flags.set(name, value).map_err(|error| processor(&error))?;
        }
        let builder = cranelift_native::builder().map_err(|error| processor(&error))?;
        let isa = builder.finish(Flags::new(flags)).map_err(|error| processor(&error))?;
        if !cfg!(target_arch = "x86_64") && !cfg!(target_arch = "aarch64") {
            return Err(processor(&isa.triple()));
        }
        #[cfg(target_arch = "x86_64")]
        let has_fma = {
            if !std::is_x86_feature_detected!("sse4.1") {
                return Err(processor(&"it lacks SSE 4.1"));
            }
            std::is_x86_feature_detected!("fma")
        };
        #[cfg(not(target_arch = "x86_64"))]
        let has_fma = true;
        Ok(Target {
            isa,
            has_fma,
            memory: CompileMemory::default(),
            stored: OnceLock::new(),
            optimizes: AtomicBool::new(false),
        })
    }

    /// What of the processor and the settings code depends on, as text.
    pub(crate) fn processor(&self) -> String {
        let mut text = format!("{} {} {}\n", self.isa.triple(), self.isa.flags(), self.has_fma);
        self.isa.isa_flags().iter().for_each(|flag| text.push_str(&format!("{flag}\n")));
        for ty in [Type::F32, Type::F64] {
            let tile = math::fma_tile(ty, LANES).map(|tile| Symbol::function(tile as *const ()));
            text.push_str(&format!("{tile:?}\n"));
        }
        text
    }
}
