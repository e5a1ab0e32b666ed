//! Executable memory of one compiled function.

use std::io;
use std::ptr::{self, NonNull};

use crate::block::Code;
use crate::context::WarpFunction;
use crate::math::Tile;
use crate::object::{CodeTraits, Object};

/// A mapping that holds machine code, readable and executable; unmapped on drop.
#[derive(Debug)]
pub(crate) struct MachineCode {
    memory: NonNull<u8>,
    len: usize,
    traits: CodeTraits,
    /// The code has their addresses.
    _tiles: Box<[Tile]>,
}

// SAFETY: the mapping is never written after `new`.
unsafe impl Send for MachineCode {}
// SAFETY: as above.
unsafe impl Sync for MachineCode {}

impl MachineCode {
    /// Maps the code of an object, with the addresses of this process in it.
    pub(crate) fn new(mut object: Object) -> io::Result<MachineCode> {
        let broken =
            || io::Error::new(io::ErrorKind::InvalidData, "the code refers to what it does not have");
        object.relocate().ok_or_else(broken)?;
        let Object { code: bytes, tiles, traits, .. } = object;
        let len = bytes.len().max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping touches nothing that exists.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(address.cast::<u8>()).expect("a mapping is not at null");
        let code = MachineCode { memory, len, traits, _tiles: tiles };
        // SAFETY: the mapping is writable, ours alone and `len` long; then it becomes executable
        // instead.
        let protected = unsafe {
            memory.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            libc::mprotect(address, len, libc::PROT_READ | libc::PROT_EXEC)
        };
        if protected != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(code)
    }

    pub(crate) fn code(&self) -> Code {
        // SAFETY: the mapping starts with a function of this type.
        let function = unsafe { std::mem::transmute::<*mut u8, WarpFunction>(self.memory.as_ptr()) };
        Code { function, traits: self.traits }
    }
}

impl Drop for MachineCode {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
