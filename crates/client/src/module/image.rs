//! Code images: from what a program points at to what the node needs, and the compiler's log on the
//! way back.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluice_cuda::*;
use sluice_image::pointer::Located;
use sluice_image::{ComputeCapability, Image, ImageError};
use sluice_ptx::Tuning;
use sluice_wire::JitOption;
use sluice_wire::control::DeviceSnapshot;

/// What a program that brings machine code only can do about it.
const NO_PTX: &str = "the software GPU runs PTX, and this image has none that fits; run the program on a node with \
                      an NVIDIA GPU, or build it with PTX (nvcc -arch=compute_80, -code=compute_80)";

/// The image at a pointer.
///
/// # Safety
/// `image` is what a program may pass to `cuModuleLoadData`.
pub(crate) unsafe fn at<'a>(image: *const c_void) -> Result<Located<'a>, CUresult> {
    // SAFETY: the caller vouches for the image.
    unsafe { sluice_image::pointer::locate(image) }.map_err(code)
}

pub(crate) fn read_file(path: &CStr) -> Result<Vec<u8>, CUresult> {
    use std::os::unix::ffi::OsStrExt;
    std::fs::read(std::ffi::OsStr::from_bytes(path.to_bytes())).map_err(|_| CUresult::FILE_NOT_FOUND)
}

/// The part of an image that a device can run: for a software GPU its PTX, else all of it.
pub(crate) fn for_device<'a>(
    located: &Located<'a>,
    device: &DeviceSnapshot,
    jit: &mut Jit,
) -> Result<Cow<'a, [u8]>, CUresult> {
    let (major, minor) = device.compute_capability();
    let capability = ComputeCapability { major: major as u32, minor: minor as u32 };
    let part = match located.parts[..] {
        // A GPU that the program was linked for runs what the linker made; any other runs what it
        // was linked from.
        [_, ..] if device.is_software => linked_from(&located.parts, capability),
        _ => of_image(located.image, capability, device.is_software),
    };
    part.map_err(|error| {
        jit.write(error.to_string().as_bytes(), false);
        if matches!(error, ImageError::NoEligiblePtx { .. }) {
            say_what_lacks_ptx(located.image, &error);
        }
        code(error)
    })
}

/// Says once of each library, and once of all other images, that a software GPU cannot run it, and
/// what can be done.
fn say_what_lacks_ptx(image: &[u8], error: &ImageError) {
    static SAID: Mutex<BTreeSet<Option<String>>> = Mutex::new(BTreeSet::new());
    let library = library_of(image.as_ptr());
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(library.clone());
    match library {
        _ if !is_new => {}
        Some(library) => crate::abi::errors::say(format_args!(
            "{library} brings code that the software GPU cannot run ({error}). What does not use {library} \
             works; for what does, take a node with an NVIDIA GPU"
        )),
        None => crate::abi::errors::say(format_args!("{error}: {NO_PTX}")),
    }
}

/// The file name of the library that an image is part of; none for the program itself and for
/// memory of its own.
fn library_of(image: *const u8) -> Option<String> {
    // SAFETY: an all-zero answer is a valid one, which names nothing.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: only looks the address up, and writes to a local.
    if unsafe { libc::dladdr(image.cast(), &mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the library, and the image is in use.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy();
    let name = path.rsplit('/').next().filter(|name| name.contains(".so"))?;
    Some(name.to_owned())
}

fn of_image(
    bytes: &[u8],
    capability: ComputeCapability,
    is_software: bool,
) -> Result<Cow<'_, [u8]>, ImageError> {
    match Image::parse(bytes)? {
        Image::Ptx(text) => Ok(Cow::Borrowed(text)),
        Image::Elf(_) if is_software => {
            Err(ImageError::NoEligiblePtx { capability, available: "machine code only".to_string() })
        }
        Image::Elf(file) => Ok(Cow::Borrowed(file)),
        Image::FatBinary(fatbin) if is_software => fatbin.subset(capability).map(Cow::Owned),
        Image::FatBinary(fatbin) => Ok(Cow::Borrowed(fatbin.bytes)),
    }
}

/// The PTX of each part of a program built as relocatable device code, one container behind the
/// other: the node links them.
fn linked_from<'a>(parts: &[&[u8]], capability: ComputeCapability) -> Result<Cow<'a, [u8]>, ImageError> {
    let mut all = Vec::new();
    for part in parts {
        match Image::parse(part)? {
            Image::FatBinary(fatbin) => all.extend_from_slice(&fatbin.subset(capability)?),
            _ => return Err(ImageError::Invalid("part: linked programs are made of fat binaries")),
        }
    }
    Ok(Cow::Owned(all))
}

fn code(error: ImageError) -> CUresult {
    match error {
        ImageError::NullPointer => CUresult::INVALID_VALUE,
        ImageError::NoEligiblePtx { .. } => CUresult::NO_BINARY_FOR_GPU,
        _ => CUresult::INVALID_IMAGE,
    }
}

/// What a program's JIT options say: how to compile, and where it wants to read what the compiler
/// says.
#[derive(Debug)]
pub(crate) struct Jit {
    pub(crate) numbers: Vec<JitOption>,
    info: Buffer,
    error: Buffer,
    /// The value of the option that asks how long it takes.
    wall_time: *mut *mut c_void,
}

/// The options that the node's driver is given. The others say where something is or continues this
/// machine, what target or fallback there is to be, or nothing that a driver still heeds.
const NUMBERS: [CUjit_option; 9] = [
    CUjit_option::MAX_REGISTERS,
    CUjit_option::OPTIMIZATION_LEVEL,
    CUjit_option::GENERATE_DEBUG_INFO,
    CUjit_option::LOG_VERBOSE,
    CUjit_option::GENERATE_LINE_INFO,
    CUjit_option::CACHE_MODE,
    CUjit_option::MIN_CTA_PER_SM,
    CUjit_option::MAX_THREADS_PER_BLOCK,
    CUjit_option::OVERRIDE_DIRECTIVE_VALUES,
];

#[derive(Debug)]
struct Buffer {
    start: *mut c_char,
    bytes: usize,
    /// The option's own value, which becomes the number of bytes written.
    count: *mut *mut c_void,
}

impl Buffer {
    const NONE: Buffer = Buffer { start: std::ptr::null_mut(), bytes: 0, count: std::ptr::null_mut() };

    fn write(&self, text: &[u8]) {
        if self.start.is_null() || self.bytes == 0 {
            return;
        }
        let kept = text.len().min(self.bytes - 1);
        // SAFETY: the program's buffer has `bytes` bytes, of which at most that many are written;
        // its option array has a place for the count.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.start.cast(), kept);
            self.start.add(kept).write(0);
            if !self.count.is_null() {
                self.count.write_unaligned(std::ptr::without_provenance_mut(kept + 1));
            }
        }
    }
}

impl Jit {
    pub(crate) fn none() -> Jit {
        Jit { numbers: Vec::new(), info: Buffer::NONE, error: Buffer::NONE, wall_time: std::ptr::null_mut() }
    }

    /// Reads JIT options.
    ///
    /// # Safety
    /// `options` and `values` are null or arrays of `count`, as `cuModuleLoadDataEx` takes them,
    /// and stay so while its buffers are used.
    pub(crate) unsafe fn from_options(
        count: u32,
        options: *const CUjit_option,
        values: *mut *mut c_void,
    ) -> Jit {
        let mut jit = Jit::none();
        if options.is_null() || values.is_null() {
            return jit;
        }
        for i in 0..count as usize {
            // SAFETY: the arrays have `count` entries.
            let (option, place) = unsafe { (options.add(i).read_unaligned(), values.add(i)) };
            // SAFETY: as above.
            let value = unsafe { place.read_unaligned() };
            // Sizes are 32-bit numbers in the place of a pointer; programs leave the upper half
            // unset.
            let size = value as usize as u32 as usize;
            match option {
                CUjit_option::WALL_TIME => jit.wall_time = place,
                CUjit_option::INFO_LOG_BUFFER => jit.info.start = value.cast(),
                CUjit_option::ERROR_LOG_BUFFER => jit.error.start = value.cast(),
                CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES => (jit.info.bytes, jit.info.count) = (size, place),
                CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (jit.error.bytes, jit.error.count) = (size, place)
                }
                // Of two the first counts.
                option if NUMBERS.contains(&option) && !jit.numbers.iter().any(|of| of.option == option) => {
                    jit.numbers.push(JitOption { option, value: size as u32 });
                }
                _ => {}
            }
        }
        jit
    }

    /// What the options demand of all kernels.
    pub(crate) fn tuning(&self) -> Tuning {
        let number = |option| self.numbers.iter().find(|of| of.option == option).map(|of| of.value);
        Tuning {
            registers_max: number(CUjit_option::MAX_REGISTERS),
            threads_max: number(CUjit_option::MAX_THREADS_PER_BLOCK),
            blocks_min: number(CUjit_option::MIN_CTA_PER_SM),
            overrides: number(CUjit_option::OVERRIDE_DIRECTIVE_VALUES).is_some_and(|value| value != 0),
        }
    }

    /// Tells the program how long its image took. The number, a `float` of milliseconds, replaces
    /// the option's value.
    pub(crate) fn took(&self, time: Duration) {
        if !self.wall_time.is_null() {
            // SAFETY: a place in the program's array of values, which it keeps while its options
            // are used.
            unsafe { self.wall_time.cast::<f32>().write_unaligned(time.as_secs_f32() * 1e3) };
        }
    }

    /// Hands the program what the compiler said.
    pub(crate) fn write(&mut self, text: &[u8], success: bool) {
        if success { self.info.write(text) } else { self.error.write(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_in_a_library_is_known_by_its_file() {
        let of_libc = (libc::strlen as unsafe extern "C" fn(*const c_char) -> usize) as *const u8;
        assert_eq!(library_of(of_libc).as_deref(), Some("libc.so.6"));
        assert_eq!(library_of([0_u8; 4].as_ptr()), None, "memory of the program");
        assert_eq!(library_of(NO_PTX.as_ptr()), None, "the program itself");
    }

    #[test]
    fn logs_go_to_the_buffers_that_options_name() {
        let mut buffer = [b'x'; 8];
        let mut options = [CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES, CUjit_option::ERROR_LOG_BUFFER];
        let mut values: [*mut c_void; 2] = [std::ptr::without_provenance_mut(8), buffer.as_mut_ptr().cast()];
        // SAFETY: two options with their values, and a buffer of the size that they name.
        let mut jit = unsafe { Jit::from_options(2, options.as_mut_ptr(), values.as_mut_ptr()) };
        jit.write(b"nothing to tell", true);
        jit.write(b"line 1: wrong", false);
        assert_eq!(&buffer, b"line 1:\0");
        assert_eq!(values[0] as usize, 8);
    }

    #[test]
    fn numbers_are_read_for_the_node() {
        use CUjit_option as O;
        let options =
            [O::MAX_REGISTERS, O::WALL_TIME, O::OPTIMIZATION_LEVEL, O::MAX_REGISTERS, O::GLOBAL_SYMBOL_NAMES];
        // Programs leave the upper half of a number unset.
        let mut values = [0xffff_0000_0000_0020, 1, 3, 64, 5].map(std::ptr::without_provenance_mut::<c_void>);
        // SAFETY: five options with their values; no buffer is among them.
        let jit = unsafe { Jit::from_options(5, options.as_ptr(), values.as_mut_ptr()) };
        let number = |option, value| JitOption { option, value };
        assert_eq!(jit.numbers, [number(O::MAX_REGISTERS, 32), number(O::OPTIMIZATION_LEVEL, 3)]);
    }

    #[test]
    fn machine_code_does_not_fit_a_software_gpu() {
        assert_eq!(
            code(ImageError::NoEligiblePtx {
                capability: ComputeCapability::SOFTWARE_GPU,
                available: String::new()
            }),
            CUresult::NO_BINARY_FOR_GPU
        );
    }
}
