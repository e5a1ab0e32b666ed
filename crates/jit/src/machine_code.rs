//! Executable memory of one compiled function.

use std::io;
use std::ptr::{self, NonNull};

use crate::block::Code;
use crate::context::{FrameLayout, WarpFunction};
use crate::math::Tiles;

/// A mapping that holds machine code, readable and executable; unmapped on drop.
#[derive(Debug)]
pub(crate) struct MachineCode {
    memory: NonNull<u8>,
    len: usize,
    traits: CodeTraits,
    /// What the code has the addresses of.
    _tiles: Tiles,
}

/// What the runtime must know about the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeTraits {
    pub frame: FrameLayout,
    /// Lanes of a warp: 32, or fewer where that is the length of a row of threads.
    pub lanes: u32,
    /// Whether it reads [`crate::context::WarpContext::tid`].
    pub lane_tids: bool,
    /// Whether lanes of one warp may wait for each other in a loop, so that groups must take turns.
    pub rotates: bool,
    /// Whether warps wait for each other at barriers, or lanes for lanes at collective
    /// instructions.
    pub has_sync: bool,
    /// Whether it continues by itself when a warp has exited: with the block's next, and with the
    /// next blocks.
    pub goes_on: bool,
}

// SAFETY: the mapping is never written after `new`.
unsafe impl Send for MachineCode {}
// SAFETY: as above.
unsafe impl Sync for MachineCode {}

impl MachineCode {
    /// Maps `bytes`, the position-independent code of a [`WarpFunction`] over warps with this
    /// layout, which may refer to the tiles.
    pub(crate) fn new(bytes: &[u8], traits: CodeTraits, tiles: Tiles) -> io::Result<MachineCode> {
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
