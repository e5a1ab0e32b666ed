//! LLVM's shared library, by its C interface: from the text of its intermediate representation to
//! an object file.
//!
//! The library is loaded where it is found, and never linked. Versions 16 to 21 have what is used
//! here: pointers without a type, and passes that are named in a string.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::Library;

use crate::optimizer;

/// Names the library to load, or says that none is to be: `off`.
pub(super) const VARIABLE: &str = "SLUICE_LLVM";

/// The versions that are tried, in this order.
const VERSIONS: [u32; 6] = [19, 20, 21, 18, 17, 16];

/// What improves the text: values get into registers, then what a compiler of C does without its
/// search for vectors, since the text is vectors already.
fn passes(version: u32) -> CString {
    // From LLVM 18 on the pass checks that it has nothing left to do, and ends the process if not.
    let combine = if version >= 18 { "instcombine<no-verify-fixpoint>" } else { "instcombine" };
    let passes = format!(
        "function(sroa,early-cse<memssa>,simplifycfg,{combine},loop-mssa(licm),gvn,{combine},adce,simplifycfg)"
    );
    CString::new(passes).unwrap_or_default()
}

const OBJECT_FILE: c_int = 1;
const OPTIMIZE_DEFAULT: c_int = 2;
const RELOCATE_PIC: c_int = 2;
const CODE_MODEL_SMALL: c_int = 3;

type Handle = *mut c_void;

macro_rules! interface {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are called, by their names in LLVM's C interface.
        #[allow(non_snake_case, reason = "the names are LLVM's")]
        struct Interface {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Interface {
            /// # Safety
            /// The library is LLVM's.
            unsafe fn find(library: &Library) -> Result<Interface, libloading::Error> {
                // SAFETY: the types are those of LLVM's C headers, which do not change in the
                // versions that are loaded.
                unsafe { Ok(Interface { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }
        }
    };
}

interface! {
    LLVMContextCreate: fn() -> Handle;
    LLVMContextDispose: fn(Handle);
    LLVMGetDiagInfoSeverity: fn(Handle) -> c_int;
    LLVMContextSetDiagnosticHandler: fn(Handle, Option<unsafe extern "C" fn(Handle, Handle)>, Handle);
    LLVMCreateMemoryBufferWithMemoryRangeCopy: fn(*const c_char, usize, *const c_char) -> Handle;
    LLVMParseIRInContext: fn(Handle, Handle, *mut Handle, *mut *mut c_char) -> c_int;
    LLVMDisposeModule: fn(Handle);
    LLVMDisposeMessage: fn(*mut c_char);
    LLVMInitializeX86TargetInfo: fn();
    LLVMInitializeX86Target: fn();
    LLVMInitializeX86TargetMC: fn();
    LLVMInitializeX86AsmPrinter: fn();
    LLVMGetTargetFromTriple: fn(*const c_char, *mut Handle, *mut *mut c_char) -> c_int;
    LLVMGetHostCPUName: fn() -> *mut c_char;
    LLVMGetHostCPUFeatures: fn() -> *mut c_char;
    LLVMCreateTargetMachine: fn(Handle, *const c_char, *const c_char, *const c_char, c_int, c_int, c_int) -> Handle;
    LLVMDisposeTargetMachine: fn(Handle);
    LLVMCreatePassBuilderOptions: fn() -> Handle;
    LLVMDisposePassBuilderOptions: fn(Handle);
    LLVMRunPasses: fn(Handle, *const c_char, Handle, Handle) -> Handle;
    LLVMGetErrorMessage: fn(Handle) -> *mut c_char;
    LLVMDisposeErrorMessage: fn(*mut c_char);
    LLVMTargetMachineEmitToMemoryBuffer: fn(Handle, Handle, c_int, *mut *mut c_char, *mut Handle) -> c_int;
    LLVMGetBufferStart: fn(Handle) -> *const u8;
    LLVMGetBufferSize: fn(Handle) -> usize;
    LLVMDisposeMemoryBuffer: fn(Handle);
}

/// The loaded library, ready to make code for this processor.
pub(crate) struct Llvm {
    interface: Interface,
    /// As it was named.
    pub name: String,
    pub version: u32,
    target: Handle,
    processor: CString,
    features: CString,
    /// Its functions are called for as long as the process lives.
    _library: std::mem::ManuallyDrop<Library>,
}

// SAFETY: LLVM's target is constant, and each compilation has a context of its own.
unsafe impl Send for Llvm {}
// SAFETY: as above.
unsafe impl Sync for Llvm {}

/// The library, loaded by the first who asks. The error says why there is none.
pub(crate) fn llvm() -> Result<&'static Llvm, &'static str> {
    static LLVM: OnceLock<Result<Llvm, String>> = OnceLock::new();
    LLVM.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Llvm, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("LLVM is used on x86-64 only".into());
    }
    match std::env::var(VARIABLE) {
        Ok(value) if value == "off" => Err(format!("{VARIABLE} is off")),
        Ok(name) if !name.is_empty() => load_named(&name),
        _ => {
            let names = VERSIONS.iter().flat_map(|version| {
                [
                    format!("libLLVM.so.{version}.1"),
                    format!("libLLVM-{version}.so.1"),
                    format!("libLLVM-{version}.so"),
                ]
            });
            let found = names.map(|name| load_named(&name)).find(Result::is_ok);
            found.unwrap_or_else(|| Err("no shared library of LLVM 16 to 21 is installed".into()))
        }
    }
}

fn load_named(name: &str) -> Result<Llvm, String> {
    // SAFETY: the user's or the system's libLLVM, whose constructors register options.
    let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
    // SAFETY: as above.
    let interface = unsafe { Interface::find(&library) }.map_err(|error| format!("{name}: {error}"))?;
    // SAFETY: this function has had these parameters since LLVM 16, where it came.
    let version = unsafe {
        let get =
            library.get::<unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint)>(b"LLVMGetVersion\0");
        get.map_or(0, |get| {
            let mut version = 0;
            get(&mut version, ptr::null_mut(), ptr::null_mut());
            version
        })
    };
    if !VERSIONS.contains(&version) {
        return Err(format!("{name} is LLVM {version}; 16 to 21 are used"));
    }
    let mut target = ptr::null_mut();
    // SAFETY: LLVM's functions get what they ask for; messages are given back to it.
    let (is_missing, processor, features) = unsafe {
        (interface.LLVMInitializeX86TargetInfo)();
        (interface.LLVMInitializeX86Target)();
        (interface.LLVMInitializeX86TargetMC)();
        (interface.LLVMInitializeX86AsmPrinter)();
        let mut message = ptr::null_mut();
        let is_missing = (interface.LLVMGetTargetFromTriple)(TRIPLE.as_ptr(), &mut target, &mut message);
        let text = |message: *mut c_char| {
            let text = CStr::from_ptr(message).to_owned();
            (interface.LLVMDisposeMessage)(message);
            text
        };
        (is_missing, text((interface.LLVMGetHostCPUName)()), text((interface.LLVMGetHostCPUFeatures)()))
    };
    if is_missing != 0 {
        return Err(format!("{name} makes no code for x86-64"));
    }
    let has = |feature: &str| features.to_string_lossy().split(',').any(|found| found == feature);
    if !has("+fma") || !has("+avx2") || !has("+f16c") {
        return Err("the processor lacks AVX2, FMA or F16C".into());
    }
    optimizer::end_before_library();
    let _library = std::mem::ManuallyDrop::new(library);
    Ok(Llvm { interface, name: name.into(), version, target, processor, features, _library })
}

/// The system that code is made for.
const TRIPLE: &CStr = c"x86_64-unknown-linux-gnu";

/// `LLVMDSError`.
const SEVERITY_ERROR: c_int = 0;

/// Notes errors; without a handler LLVM would end the process. What goes wrong while code is
/// generated is reported in no other way.
///
/// # Safety
/// `has_failed` is an [`AtomicBool`].
unsafe extern "C" fn note(diagnostic: Handle, has_failed: Handle) {
    let Ok(llvm) = llvm() else { return };
    // SAFETY: LLVM has called this with a diagnostic of its own, and with what it was given.
    unsafe {
        if (llvm.interface.LLVMGetDiagInfoSeverity)(diagnostic) == SEVERITY_ERROR {
            (*has_failed.cast::<AtomicBool>()).store(true, Ordering::Relaxed);
        }
    }
}

impl Llvm {
    /// An object file (ELF) of the functions in a text.
    pub(crate) fn compile(&self, text: &str) -> Result<Vec<u8>, String> {
        let api = &self.interface;
        // SAFETY: handles are made, used and given back in the order that LLVM's C interface
        // prescribes: the parser takes the buffer, and modules go before their context.
        unsafe {
            let context = (api.LLVMContextCreate)();
            let has_failed = AtomicBool::new(false);
            let flag: Handle = (&raw const has_failed).cast_mut().cast();
            (api.LLVMContextSetDiagnosticHandler)(context, Some(note), flag);
            let machine = (api.LLVMCreateTargetMachine)(
                self.target,
                TRIPLE.as_ptr(),
                self.processor.as_ptr(),
                self.features.as_ptr(),
                OPTIMIZE_DEFAULT,
                RELOCATE_PIC,
                CODE_MODEL_SMALL,
            );
            let object = self.compile_in(context, machine, text);
            (api.LLVMDisposeTargetMachine)(machine);
            (api.LLVMContextDispose)(context);
            match has_failed.into_inner() {
                true => object.and_then(|_| Err("LLVM reports an error".into())),
                false => object,
            }
        }
    }

    /// # Safety
    /// The context is LLVM's and so is the target machine.
    unsafe fn compile_in(&self, context: Handle, machine: Handle, text: &str) -> Result<Vec<u8>, String> {
        let api = &self.interface;
        // SAFETY: see `compile`.
        unsafe {
            let buffer = (api.LLVMCreateMemoryBufferWithMemoryRangeCopy)(
                text.as_ptr().cast(),
                text.len(),
                c"kernel".as_ptr(),
            );
            let (mut module, mut message) = (ptr::null_mut(), ptr::null_mut());
            if (api.LLVMParseIRInContext)(context, buffer, &mut module, &mut message) != 0 {
                return Err(self.taken(message));
            }
            let options = (api.LLVMCreatePassBuilderOptions)();
            let passes = passes(self.version);
            let failed = (api.LLVMRunPasses)(module, passes.as_ptr(), machine, options);
            (api.LLVMDisposePassBuilderOptions)(options);
            let object = if failed.is_null() {
                self.emit(machine, module)
            } else {
                let message = (api.LLVMGetErrorMessage)(failed);
                let text = CStr::from_ptr(message).to_string_lossy().into_owned();
                (api.LLVMDisposeErrorMessage)(message);
                Err(text)
            };
            (api.LLVMDisposeModule)(module);
            object
        }
    }

    /// # Safety
    /// As [`Llvm::compile_in`]; the module is of that context.
    unsafe fn emit(&self, machine: Handle, module: Handle) -> Result<Vec<u8>, String> {
        let api = &self.interface;
        let (mut object, mut message) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: see `compile`; the buffer is copied before it is given back.
        unsafe {
            let emit = api.LLVMTargetMachineEmitToMemoryBuffer;
            if emit(machine, module, OBJECT_FILE, &mut message, &mut object) != 0 {
                return Err(self.taken(message));
            }
            let (start, len) = ((api.LLVMGetBufferStart)(object), (api.LLVMGetBufferSize)(object));
            let bytes = std::slice::from_raw_parts(start, len).to_vec();
            (api.LLVMDisposeMemoryBuffer)(object);
            Ok(bytes)
        }
    }

    /// # Safety
    /// The message is LLVM's, and not used afterwards.
    unsafe fn taken(&self, message: *mut c_char) -> String {
        if message.is_null() {
            return "LLVM does not say why".into();
        }
        // SAFETY: LLVM's messages end with a zero.
        unsafe {
            let text = CStr::from_ptr(message).to_string_lossy().into_owned();
            (self.interface.LLVMDisposeMessage)(message);
            text
        }
    }
}
