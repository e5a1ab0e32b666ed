//! Images as the CUDA Driver API gets them: a pointer without a length. How far an image goes
//! follows from the image itself.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use crate::elf::{self, Tables};
use crate::fatbin::{self, CONTAINER_HEADER_BYTES, CONTAINER_MAGIC};
use crate::{FatBinary, ImageError, looks_like_ptx};

/// Begins the record (`__fatBinC_Wrapper_t` in what nvcc generates) that points to a container.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// What the CUDA runtime passes for code compiled into a program.
#[repr(C)]
#[derive(Debug)]
struct Wrapper {
    magic: u32,
    /// 1, or 2 where there is a list.
    version: u32,
    /// A container.
    data: *const c_void,
    /// What `data` was linked from, up to a null. `nvcc` writes version 2 with an empty list into
    /// every program.
    list: *const *const c_void,
}

/// A record for several containers, as the CUDA runtime passes one for a program built as
/// relocatable device code. It holds addresses: what it was made from has to stay.
#[derive(Debug)]
pub struct Linked {
    wrapper: Wrapper,
    _list: Vec<*const c_void>,
}

impl Linked {
    /// The parts stand for the linked machine code too, which is not available.
    pub fn new(parts: &[FatBinary<'_>]) -> Linked {
        let addresses = parts.iter().map(|part| part.bytes.as_ptr().cast::<c_void>());
        let list: Vec<*const c_void> = addresses.chain([std::ptr::null()]).collect();
        let wrapper = Wrapper { magic: WRAPPER_MAGIC, version: 2, data: list[0], list: list.as_ptr() };
        Linked { wrapper, _list: list }
    }

    /// What `cuModuleLoadData` takes.
    pub fn image(&self) -> *const c_void {
        (&raw const self.wrapper).cast()
    }
}

/// Containers in a version 2 record; a limit on a list that nothing else ends.
pub(crate) const LIST_ENTRIES_MAX: usize = 4096;

/// What a pointer leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<'a> {
    /// The image to load.
    pub image: &'a [u8],
    /// For a program linked from relocatable device code (`nvcc -rdc=true`), the images it was
    /// linked from. Then `image` holds the linked machine code, without PTX and possibly without
    /// anything, and a device that it does not fit has to link the PTX of these.
    pub parts: Vec<&'a [u8]>,
}

/// Finds the image at a pointer.
///
/// # Safety
/// The pointer is null, or one that the CUDA Driver API would accept as `cuModuleLoadData`'s
/// `image`: PTX text with a NUL at its end, or a whole ELF file, fat binary, or wrapper of a fat
/// binary. It stays so for `'a`.
pub unsafe fn locate<'a>(pointer: *const c_void) -> Result<Located<'a>, ImageError> {
    // SAFETY: passed on.
    if unsafe { magic_at(pointer) }? != Some(WRAPPER_MAGIC) {
        // SAFETY: passed on.
        let image = unsafe { image_at(pointer) }?;
        return Ok(Located { image, parts: Vec::new() });
    }
    // SAFETY: the magic says that a wrapper is here, which is whole by the contract.
    let wrapper = unsafe { pointer.cast::<Wrapper>().read_unaligned() };
    // SAFETY: the wrapper's data is an image by the contract.
    let image = unsafe { image_at(wrapper.data) }?;
    let mut parts = Vec::new();
    if wrapper.version != 2 || wrapper.list.is_null() {
        return Ok(Located { image, parts });
    }
    for index in 0..LIST_ENTRIES_MAX {
        // SAFETY: the list continues until its null entry, which has not been met.
        let entry = unsafe { wrapper.list.add(index).read_unaligned() };
        if entry.is_null() {
            return Ok(Located { image, parts });
        }
        // SAFETY: each entry of the list is an image.
        parts.push(unsafe { image_at(entry) }?);
    }
    Err(ImageError::Invalid("list of fat binaries"))
}

/// The image at a pointer that is no wrapper.
///
/// # Safety
/// As for [`locate`].
unsafe fn image_at<'a>(pointer: *const c_void) -> Result<&'a [u8], ImageError> {
    let bytes = pointer.cast::<u8>();
    // SAFETY: passed on.
    let size = match unsafe { magic_at(pointer) }? {
        Some(CONTAINER_MAGIC) => {
            // SAFETY: a container is whole by the contract, so it has its header.
            fatbin::container_bytes(unsafe { slice::from_raw_parts(bytes, CONTAINER_HEADER_BYTES) })?
        }
        Some(magic) if magic.to_le_bytes() == *elf::MAGIC => {
            // SAFETY: an ELF file is whole by the contract, so it has its header.
            let tables = Tables::read(unsafe { slice::from_raw_parts(bytes, elf::HEADER_BYTES) })?;
            let (offset, length, _) = tables.sections;
            let offset = usize::try_from(offset).map_err(|_| ImageError::Invalid("ELF header"))?;
            // SAFETY: and it has its section headers, where its header says.
            let headers = unsafe { slice::from_raw_parts(bytes.add(offset), length as usize) };
            usize::try_from(tables.file_bytes(headers)?).map_err(|_| ImageError::Invalid("ELF section"))?
        }
        _ => {
            // SAFETY: what is neither is text with a NUL at its end.
            let text = unsafe { CStr::from_ptr(pointer.cast::<c_char>()) }.to_bytes();
            return if looks_like_ptx(text) { Ok(text) } else { Err(ImageError::Unrecognized) };
        }
    };
    if isize::try_from(size).is_err() {
        return Err(ImageError::Invalid("size"));
    }
    // SAFETY: the image is whole by the contract, and this is its size.
    Ok(unsafe { slice::from_raw_parts(bytes, size) })
}

/// The first four bytes, as the little-endian number they are; None where text ends before.
///
/// # Safety
/// As for [`locate`].
unsafe fn magic_at(pointer: *const c_void) -> Result<Option<u32>, ImageError> {
    if pointer.is_null() {
        return Err(ImageError::NullPointer);
    }
    let mut magic = [0; 4];
    for (index, byte) in magic.iter_mut().enumerate() {
        // SAFETY: no byte of a magic number is zero, so a zero is the end of a text, and nothing is
        // read after it.
        *byte = unsafe { pointer.cast::<u8>().add(index).read() };
        if *byte == 0 {
            return Ok(None);
        }
    }
    Ok(Some(u32::from_le_bytes(magic)))
}
