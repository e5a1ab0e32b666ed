//! Images to code: of each image the part that the GPU would run, read as far as launching its
//! kernels needs it.

use std::sync::Arc;

use sluice_cuda::CUresult;
use sluice_image::cubin::{Cubin, Variable};
use sluice_image::{Architecture, ComputeCapability, Image, ImageError, Variant};
use sluice_ir::lower::{Global, GlobalRelocation};
use sluice_ptx::{ModuleIndex, Space, Tuning, ast};
use sluice_softgpu::ptx::{ptx_global, ptx_version};
use sluice_softgpu::{Code, Grid, Kernel, Limits, Machine, Resources, Signature};

use crate::record;

type Failure = (CUresult, String);

/// Runs nothing and notes everything.
pub(crate) struct Recording;

impl Machine for Recording {
    /// Nothing is compiled, so there is nothing to tune.
    fn load(&self, images: &[&[u8]], device: &Limits, _: Tuning) -> Result<Arc<dyn Code>, Failure> {
        let parts = images.iter().map(|image| part(image, device.capability));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Parts(parts)))
    }

    fn runs_code(&self) -> bool {
        false
    }

    fn way_out(&self) -> &'static str {
        "build it for the recorded GPU, or record another one (--gpus recording:h200, a100 or rtx5090)"
    }
}

/// The code of one image, or of several that were linked: a name is in the first that has it.
struct Parts(Vec<Box<dyn Code>>);

/// The part of an image that a GPU would run: machine code before PTX, as CUDA prefers it.
fn part(image: &[u8], card: ComputeCapability) -> Result<Box<dyn Code>, Failure> {
    let failure = |error: ImageError| {
        let status = match error {
            ImageError::NoEligiblePtx { .. } => CUresult::NO_BINARY_FOR_GPU,
            _ => CUresult::INVALID_IMAGE,
        };
        (status, error.to_string())
    };
    match Image::parse(image).map_err(failure)? {
        Image::Ptx(text) => ptx(text),
        Image::Elf(file) => {
            let code = Cubin::parse(file).map_err(failure)?;
            // A file does not say whether it is for its architecture only: it runs on that one at
            // least.
            let capability = ComputeCapability::from_sm(code.architecture);
            if !(Architecture { capability, variant: Variant::Portable }).runs_machine_code_on(card) {
                let text = format!("machine code for {capability} on a device of {card}");
                return Err((CUresult::NO_BINARY_FOR_GPU, text));
            }
            Ok(Box::new(MachineCode::new(code)))
        }
        Image::FatBinary(container) => match container.choose_machine_code(card) {
            Some(entry) => {
                let file = entry.contents().map_err(failure)?;
                Ok(Box::new(MachineCode::new(Cubin::parse(&file).map_err(failure)?)))
            }
            None => ptx(&container.choose_ptx(card).and_then(|entry| entry.contents()).map_err(failure)?),
        },
    }
}

impl Parts {
    /// The first answer that is not `NOT_FOUND`.
    fn find<T>(&self, ask: impl Fn(&dyn Code) -> Result<T, CUresult>) -> Result<T, CUresult> {
        let mut answers = self.0.iter().map(|part| ask(&**part));
        answers.find(|answer| !matches!(answer, Err(CUresult::NOT_FOUND))).unwrap_or(Err(CUresult::NOT_FOUND))
    }
}

impl Code for Parts {
    fn entry_names(&self) -> Vec<&str> {
        self.0.iter().flat_map(|part| part.entry_names()).collect()
    }

    fn signature(&self, name: &str) -> Result<Signature, CUresult> {
        self.find(|part| part.signature(name))
    }

    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, CUresult> {
        self.find(|part| part.kernel(name))
    }

    fn global(&self, name: &str) -> Result<Global, CUresult> {
        self.find(|part| part.global(name))
    }

    fn is_function(&self, name: &str) -> bool {
        self.0.iter().any(|part| part.is_function(name))
    }

    fn ptx_version(&self) -> i32 {
        self.0.first().map_or(0, |part| part.ptx_version())
    }
}

/// A kernel that is not run: what it costs is all there is.
struct Recorded(Resources);

impl Kernel for Recorded {
    fn resources(&self) -> Resources {
        self.0
    }

    fn globals(&self) -> &[String] {
        &[]
    }

    fn own_globals(&self) -> &[Global] {
        &[]
    }

    fn run(&self, grid: &Grid<'_>) -> Result<(), CUresult> {
        record::launch(grid);
        Ok(())
    }
}

struct MachineCode(Cubin);

impl MachineCode {
    fn new(code: Cubin) -> Self {
        Self(code)
    }

    fn find(&self, name: &str) -> Result<&sluice_image::cubin::Kernel, CUresult> {
        self.0.kernels.get(name).ok_or(CUresult::NOT_FOUND)
    }
}

/// Threads that a block may have by these bounds, and by every device's.
fn threads_max(bounds: Option<[u32; 3]>) -> u32 {
    const MOST: u32 = 1024;
    bounds.map_or(MOST, |bounds| {
        bounds.iter().fold(1u32, |product, &n| product.saturating_mul(n)).clamp(1, MOST)
    })
}

impl Code for MachineCode {
    fn entry_names(&self) -> Vec<&str> {
        self.0.kernels.keys().map(String::as_str).collect()
    }

    fn signature(&self, name: &str) -> Result<Signature, CUresult> {
        let kernel = self.find(name)?;
        Ok(Signature {
            params: kernel.params.clone(),
            threads_max: threads_max(kernel.required_threads.or(kernel.max_threads)),
            required_threads: kernel.required_threads,
            explicit_cluster: kernel.explicit_cluster,
            required_cluster: kernel.required_cluster,
            max_cluster_blocks: None,
        })
    }

    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, CUresult> {
        let kernel = self.find(name)?;
        let last = kernel.params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        Ok(Arc::new(Recorded(Resources {
            shared: kernel.shared,
            local: kernel.local,
            constant: kernel.constant,
            registers: kernel.registers,
            params: u32::try_from(last).unwrap_or(u32::MAX),
        })))
    }

    fn global(&self, name: &str) -> Result<Global, CUresult> {
        self.0.variables.get(name).map(|variable| global(name, variable)).ok_or(CUresult::NOT_FOUND)
    }

    fn is_function(&self, name: &str) -> bool {
        self.0.kernels.contains_key(name) || self.0.functions.iter().any(|function| function == name)
    }

    fn ptx_version(&self) -> i32 {
        self.0.architecture.cast_signed()
    }
}

fn global(name: &str, variable: &Variable) -> Global {
    let relocation = |(offset, symbol, addend): &(u64, String, i64)| GlobalRelocation {
        offset: *offset,
        bytes: 8,
        symbol: symbol.clone(),
        addend: *addend,
        mask: u64::MAX,
    };
    Global {
        name: name.to_owned(),
        space: if variable.is_constant { sluice_ir::Space::Const } else { sluice_ir::Space::Global },
        bytes: variable.bytes,
        align: 256,
        is_managed: false,
        is_extern: false,
        reference: None,
        init: variable.init.clone(),
        relocations: variable.addresses.iter().map(relocation).collect(),
    }
}

/// Code that the card's driver would compile.
struct Text(ModuleIndex);

fn ptx(text: &[u8]) -> Result<Box<dyn Code>, Failure> {
    let index = ModuleIndex::new(text).map_err(|error| (CUresult::INVALID_PTX, error.to_string()))?;
    Ok(Box::new(Text(index)))
}

impl Text {
    fn entry(&self, name: &str) -> Result<&ast::Function, CUresult> {
        self.0.function(name).filter(|function| function.is_entry).ok_or(CUresult::NOT_FOUND)
    }

    /// Bytes of the variables in a space that an entry and what it calls declare. A body that this
    /// parser does not know an instruction of counts as having none: the card's own compiler would
    /// not mind.
    fn bytes(&self, name: &str, space: Space) -> u32 {
        let Ok(module) = self.0.closure(name) else { return 0 };
        let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
        let declared = module.variables.iter().chain(bodies.flat_map(|body| &body.variables));
        let bytes = declared.filter(|variable| variable.space == space).map(|variable| variable.size);
        u32::try_from(bytes.fold(0u64, u64::saturating_add)).unwrap_or(u32::MAX)
    }
}

impl Code for Text {
    fn entry_names(&self) -> Vec<&str> {
        let entries = self.0.functions().iter().filter(|function| function.is_entry);
        entries.map(|function| &*function.name).collect()
    }

    fn signature(&self, name: &str) -> Result<Signature, CUresult> {
        Signature::of_ptx(self.entry(name)?)
    }

    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, CUresult> {
        /// What a compiler would take is not known; a middling number.
        const REGISTERS: u32 = 32;
        let params = self.signature(name)?.params;
        let last = params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        Ok(Arc::new(Recorded(Resources {
            shared: self.bytes(name, Space::Shared),
            local: self.bytes(name, Space::Local),
            constant: 0,
            registers: REGISTERS,
            params: u32::try_from(last).unwrap_or(u32::MAX),
        })))
    }

    fn global(&self, name: &str) -> Result<Global, CUresult> {
        ptx_global(&self.0, name)
    }

    fn is_function(&self, name: &str) -> bool {
        self.0.function(name).is_some()
    }

    fn ptx_version(&self) -> i32 {
        ptx_version(&self.0)
    }
}
