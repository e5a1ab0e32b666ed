//! Relocatable code of one kernel: what the code generator makes, and what can be stored and used
//! in another process of the same build.

use serde::{Deserialize, Serialize};

use crate::context::FrameLayout;
use crate::math::Tile;
use crate::runtime;

/// Bytes of an address in machine code.
const ADDRESS: usize = size_of::<u64>();

/// The code of one kernel for one form of blocks, before it has a place in memory.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Object {
    /// A [`crate::context::WarpFunction`], position-independent but for `relocations`.
    pub code: Vec<u8>,
    pub relocations: Vec<Relocation>,
    pub tiles: Box<[Tile]>,
    pub traits: CodeTraits,
}

/// Eight bytes of the code that become an address.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Relocation {
    /// In bytes from the start of the code.
    pub offset: u32,
    pub symbol: Symbol,
}

/// What code refers to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Symbol {
    /// A function of this library, in bytes from [`anchor`]: the same in each process of a build,
    /// wherever the system has loaded it.
    Function(i64),
    /// One of the object's tiles.
    Tile(u32),
}

/// What the runtime must know about the code.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
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

impl Symbol {
    pub(crate) fn function(address: *const ()) -> Symbol {
        Symbol::Function((address as u64).wrapping_sub(anchor()) as i64)
    }

    fn address(self, tiles: &[Tile]) -> Option<u64> {
        match self {
            Symbol::Function(distance) => Some(anchor().wrapping_add(distance as u64)),
            Symbol::Tile(number) => Some(std::ptr::from_ref(tiles.get(number as usize)?) as u64),
        }
    }
}

/// The address from which functions are measured.
fn anchor() -> u64 {
    runtime::fault as *const () as u64
}

impl Object {
    /// Puts the addresses of this process in. `None` where the object is not a whole one.
    pub(crate) fn relocate(&mut self) -> Option<()> {
        for relocation in &self.relocations {
            let start = relocation.offset as usize;
            let place = self.code.get_mut(start..start.checked_add(ADDRESS)?)?;
            place.copy_from_slice(&relocation.symbol.address(&self.tiles)?.to_ne_bytes());
        }
        Some(())
    }

    /// As bytes to store, behind a hash of them.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let body = postcard::to_allocvec(self).ok()?;
        let hash = blake3::hash(&body);
        Some([hash.as_bytes(), &body[..]].concat())
    }

    /// What [`Object::to_bytes`] made; `None` for anything else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Object> {
        let (hash, body) = bytes.split_first_chunk::<{ blake3::OUT_LEN }>()?;
        if blake3::hash(body).as_bytes() != hash {
            return None;
        }
        postcard::from_bytes(body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        let relocation = |offset, symbol| Relocation { offset, symbol };
        Object {
            code: vec![0x90; 24],
            relocations: vec![
                relocation(4, Symbol::function(runtime::fault as *const ())),
                relocation(16, Symbol::Tile(0)),
            ],
            tiles: Box::new([Tile { factor_stride: 4, row_stride: 8, count: 2, columns: Vec::new() }]),
            traits: CodeTraits {
                frame: FrameLayout::new(3),
                lanes: 32,
                lane_tids: false,
                rotates: true,
                has_sync: false,
                goes_on: true,
            },
        }
    }

    #[test]
    fn addresses_of_the_process_are_put_in() {
        let mut object = object();
        object.relocate().unwrap();
        let tile = std::ptr::from_ref(&object.tiles[0]) as u64;
        assert_eq!(object.code[4..12], anchor().to_ne_bytes());
        assert_eq!(object.code[16..24], tile.to_ne_bytes());
        assert_eq!(object.code[..4], [0x90; 4]);
    }

    #[test]
    fn references_beyond_the_code_or_the_tiles_are_refused() {
        let mut outside = object();
        outside.relocations[0].offset = 17;
        assert_eq!(outside.relocate(), None);
        let mut unknown = object();
        unknown.relocations[1].symbol = Symbol::Tile(1);
        assert_eq!(unknown.relocate(), None);
    }

    #[test]
    fn stored_objects_come_back_and_damaged_ones_do_not() {
        let bytes = object().to_bytes().unwrap();
        assert_eq!(Object::from_bytes(&bytes), Some(object()));
        for place in [0, 40, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert_eq!(Object::from_bytes(&damaged), None, "byte {place}");
        }
        assert_eq!(Object::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Object::from_bytes(&[]), None);
    }
}
