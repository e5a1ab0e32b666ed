//! The table of host memory that programs got from CUDA or registered with it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

/// One block, by its start.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) range: Range<u64>,
    pub(crate) flags: u32,
    pub(crate) context: CUcontext,
    pub(super) pages: BlockPages,
}

/// Whose a block's pages are, and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPages {
    /// The program's, from `cuMemHostRegister`: not ours to free.
    Registered,
    /// Where the kernel of this machine put them.
    Anywhere,
    /// At addresses that this device has lent, and has nothing at yet.
    Lent(CUdevice),
    /// At the address at which a device has them. They go when the device's side does.
    Mirrored,
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

/// All blocks that were ever lent their addresses, or mapped at them, lie between these two, and
/// few other addresses that programs pass do.
static LENT_FROM: AtomicU64 = AtomicU64::new(u64::MAX);

static LENT_TO: AtomicU64 = AtomicU64::new(0);

pub(super) fn table() -> MutexGuard<'static, BTreeMap<u64, Block>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The block that `address` lies in.
pub(crate) fn find(address: u64) -> Option<Block> {
    let blocks = table();
    let (_, block) = blocks.range(..=address).next_back()?;
    block.range.contains(&address).then(|| block.clone())
}

/// Whether a copy into `bytes` bytes from `address` may land after the call returns: only into
/// memory that the program has promised to leave alone.
pub(crate) fn is_pinned(address: u64, bytes: u64) -> bool {
    find(address).is_some_and(|block| bytes <= block.range.end - address)
}

/// Addresses between which blocks may lie that were lent theirs, or are mapped there; nothing where
/// there never were any.
pub(super) fn lent() -> Range<u64> {
    LENT_FROM.load(Ordering::Acquire)..LENT_TO.load(Ordering::Acquire)
}

pub(super) fn widen(range: &Range<u64>) {
    LENT_FROM.fetch_min(range.start, Ordering::AcqRel);
    LENT_TO.fetch_max(range.end, Ordering::AcqRel);
}

/// Whether an address that could be a device's is one of host memory, of which no device has a
/// side.
pub(crate) fn is_only_here(address: u64) -> bool {
    lent().contains(&address) && find(address).is_some_and(|block| matches!(block.pages, BlockPages::Lent(_)))
}
