//! Loads, stores and atomics: the windows of a block, and global memory behind a trait.

use std::collections::HashMap;

use super::{InterpFault, Launch, RunningBlock, scalar};
use crate::texture::{self, SurfaceAccess, Texels};
use crate::{Inst, InstId, MemoryOperand, RuntimeFunction, Space, Type, Window};

/// Global memory as the interpreter sees it.
pub trait GlobalMemory {
    /// Fills `bytes` from `address`, or says that there is no memory.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), InterpFault>;
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), InterpFault>;
}

/// Separate allocations at given addresses; everything between them is illegal.
#[derive(Default)]
pub struct SparseMemory {
    allocations: HashMap<u64, Vec<u8>>,
}

impl SparseMemory {
    pub fn insert(&mut self, address: u64, bytes: Vec<u8>) {
        self.allocations.insert(address, bytes);
    }

    pub fn get(&self, address: u64) -> Option<&[u8]> {
        self.allocations.get(&address).map(Vec::as_slice)
    }

    fn slice(&mut self, address: u64, length: usize) -> Result<&mut [u8], InterpFault> {
        self.allocations
            .iter_mut()
            .find_map(|(start, bytes)| {
                let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get_mut(offset..offset.checked_add(length)?)
            })
            .ok_or(InterpFault::IllegalAddress { address })
    }
}

impl GlobalMemory for SparseMemory {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), InterpFault> {
        bytes.copy_from_slice(self.slice(address, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), InterpFault> {
        self.slice(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

// Generic addresses of the windows, far above any real address.
const SHARED_BASE: u64 = 1 << 60;
const LOCAL_BASE: u64 = 2 << 60;
const PARAM_BASE: u64 = 3 << 60;
/// Between the local frames of two threads.
const LOCAL_STRIDE: u64 = 1 << 32;
/// Between the shared memories of two blocks of a cluster.
pub(super) const SHARED_STRIDE: u64 = 1 << 32;

/// What the threads of a cluster share.
pub(super) struct Memory<'m> {
    global: &'m mut dyn GlobalMemory,
    /// Shared memory of each block, by rank.
    shared: Vec<Vec<u8>>,
}

impl<'m> Memory<'m> {
    pub(super) fn new(launch: &Launch<'_>, global: &'m mut dyn GlobalMemory, blocks: usize) -> Memory<'m> {
        let layout = &launch.kernel.shared;
        let bytes = layout.dynamic_offset.unwrap_or(layout.static_bytes) + launch.dynamic_shared_bytes;
        Memory { global, shared: vec![vec![0; bytes as usize]; blocks] }
    }

    /// Of one block.
    pub(super) fn shared_bytes(&self) -> u64 {
        self.shared[0].len() as u64
    }
}

pub(super) fn window_base(window: Window, rank: usize, thread: usize) -> u64 {
    match window {
        Window::Shared => SHARED_BASE + rank as u64 * SHARED_STRIDE,
        Window::Local => LOCAL_BASE + thread as u64 * LOCAL_STRIDE,
        Window::Param => PARAM_BASE,
    }
}

impl RunningBlock {
    /// A memory instruction or call of one thread.
    pub(super) fn access(
        &mut self,
        launch: &Launch<'_>,
        memory: &mut Memory<'_>,
        t: usize,
        id: InstId,
    ) -> Result<(), InterpFault> {
        let data = launch.kernel.inst(id);
        match &data.inst {
            Inst::Load { place, ty, count, guard, .. } => {
                let active = guard.is_none_or(|guard| self.value(t, guard) != 0);
                for index in 0..u32::from(*count) {
                    let bits = if active {
                        let address = self.address(t, place, *ty, *count, index)?;
                        self.read(launch, memory, address, *ty)?
                    } else {
                        0
                    };
                    self.set(t, data.result(index as usize), bits);
                }
            }
            Inst::Store { place, ty, values, guard, .. } => {
                if guard.is_none_or(|guard| self.value(t, guard) != 0) {
                    for (index, value) in values.iter().enumerate() {
                        let address = self.address(t, place, *ty, values.len() as u8, index as u32)?;
                        self.write(memory, address, *ty, self.value(t, *value))?;
                    }
                }
            }
            Inst::Atomic { op, place, ty, arg, compare, guard, .. } => {
                let mut old = 0;
                if guard.is_none_or(|guard| self.value(t, guard) != 0) {
                    let address = self.address(t, place, *ty, 1, 0)?;
                    old = self.read(launch, memory, address, *ty)?;
                    let compare = compare.map(|compare| self.value(t, compare));
                    let new = scalar::atomic(*op, *ty, old, self.value(t, *arg), compare);
                    self.write(memory, address, *ty, new)?;
                }
                if data.result_count > 0 {
                    self.set(t, data.result(0), old);
                }
            }
            Inst::Sample { sampling, object, place, level } => {
                let place = place.map(|at| self.value(t, at) as u32);
                let level = f32::from_bits(self.value(t, *level) as u32);
                let texture = texture::find(self.value(t, *object)).ok_or(InterpFault::Trap)?;
                let sampled = texture.sample(*sampling, place, level, memory.global)?;
                for (result, bits) in data.results().zip(sampled) {
                    self.set(t, result, bits.into());
                }
            }
            Inst::CallRuntime { function, args }
                if matches!(function, RuntimeFunction::SurfaceLoad | RuntimeFunction::SurfaceStore) =>
            {
                let args: Vec<u64> = args.iter().map(|arg| self.value(t, *arg)).collect();
                let result = image(*function, &args, memory.global)?;
                if data.result_count > 0 {
                    self.set(t, data.result(0), result);
                }
            }
            // The interpreter has no counters, and no thread sees them.
            Inst::CallRuntime { function: RuntimeFunction::CountThreads, .. } => {}
            Inst::CallRuntime { function, .. } => {
                return Err(match function {
                    RuntimeFunction::AssertFail => InterpFault::Assert,
                    RuntimeFunction::Missing => InterpFault::Missing,
                    RuntimeFunction::StackOverflow => InterpFault::StackOverflow,
                    RuntimeFunction::Vprintf => InterpFault::Unsupported("vprintf"),
                    _ => InterpFault::Unsupported("device heap"),
                });
            }
            _ => unreachable!("not a memory instruction"),
        }
        self.threads[t].at += 1;
        Ok(())
    }

    /// The generic address of element `index` of `count`; the whole access is aligned, as PTX asks.
    fn address(
        &self,
        t: usize,
        place: &MemoryOperand,
        ty: Type,
        count: u8,
        index: u32,
    ) -> Result<u64, InterpFault> {
        let base = self.value(t, place.addr);
        let in_window = |window| {
            let offset = (base as u32).wrapping_add(place.offset as u32);
            window_base(window, self.rank, t) + u64::from(offset)
        };
        let address = match place.space {
            Space::Generic | Space::Global | Space::Const => base.wrapping_add(place.offset as i64 as u64),
            Space::Shared => in_window(Window::Shared),
            Space::Local => in_window(Window::Local),
            Space::Param => in_window(Window::Param),
        };
        if !address.is_multiple_of(u64::from(ty.bytes()) * u64::from(count)) {
            return Err(InterpFault::MisalignedAddress { address });
        }
        Ok(address + u64::from(index * ty.bytes()))
    }

    fn read(
        &mut self,
        launch: &Launch<'_>,
        memory: &mut Memory<'_>,
        address: u64,
        ty: Type,
    ) -> Result<u64, InterpFault> {
        let mut bytes = [0; 8];
        let length = ty.bytes() as usize;
        if address >= PARAM_BASE {
            bytes[..length].copy_from_slice(within(launch.params, address, address - PARAM_BASE, length)?);
        } else if let Some(window) = self.window(memory, address, length)? {
            bytes[..length].copy_from_slice(window);
        } else {
            memory.global.read(address, &mut bytes[..length])?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(
        &mut self,
        memory: &mut Memory<'_>,
        address: u64,
        ty: Type,
        bits: u64,
    ) -> Result<(), InterpFault> {
        let bytes = &bits.to_le_bytes()[..ty.bytes() as usize];
        if let Some(window) = self.window(memory, address, bytes.len())? {
            window.copy_from_slice(bytes);
            return Ok(());
        }
        memory.global.write(address, bytes)
    }

    /// Where in the cluster's shared memory or in the block's local memory this address is; None
    /// when it is global.
    fn window<'a>(
        &'a mut self,
        memory: &'a mut Memory<'_>,
        address: u64,
        length: usize,
    ) -> Result<Option<&'a mut [u8]>, InterpFault> {
        let illegal = InterpFault::IllegalAddress { address };
        let (bytes, offset) = if address < SHARED_BASE {
            return Ok(None);
        } else if address < LOCAL_BASE {
            let rank = ((address - SHARED_BASE) / SHARED_STRIDE) as usize;
            let Some(shared) = memory.shared.get_mut(rank) else { return Err(illegal) };
            (shared, (address - SHARED_BASE) % SHARED_STRIDE)
        } else if address < PARAM_BASE {
            let thread = ((address - LOCAL_BASE) / LOCAL_STRIDE) as usize;
            let Some(thread) = self.threads.get_mut(thread) else { return Err(illegal) };
            (&mut thread.local, (address - LOCAL_BASE) % LOCAL_STRIDE)
        } else {
            return Err(illegal);
        };
        bytes.get_mut(offset as usize..offset as usize + length).map(Some).ok_or(illegal)
    }
}

fn within(bytes: &[u8], address: u64, offset: u64, length: usize) -> Result<&[u8], InterpFault> {
    usize::try_from(offset)
        .ok()
        .and_then(|offset| bytes.get(offset..offset.checked_add(length)?))
        .ok_or(InterpFault::IllegalAddress { address })
}

impl Texels for dyn GlobalMemory + '_ {
    type Error = InterpFault;

    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), InterpFault> {
        GlobalMemory::read(self, address, to)
    }
}

/// A surface instruction of one thread.
fn image(function: RuntimeFunction, args: &[u64], memory: &mut dyn GlobalMemory) -> Result<u64, InterpFault> {
    let (object, what) = (args[0], args[1] as u32);
    let place = [args[2] as u32, args[3] as u32, args[4] as u32];
    let access = SurfaceAccess::from_bits(what);
    let surface = texture::surface(object).ok_or(InterpFault::Trap)?;
    let Some(address) = surface.surface_address(access, place).map_err(|_| InterpFault::Trap)? else {
        return Ok(0);
    };
    let half = access.bytes.min(8) as usize;
    if function == RuntimeFunction::SurfaceLoad {
        let mut bytes = [0; 8];
        let offset = if access.is_second_half { 8 } else { 0 };
        memory.read(address + offset, &mut bytes[..half])?;
        return Ok(u64::from_le_bytes(bytes));
    }
    memory.write(address, &args[5].to_le_bytes()[..half])?;
    if access.bytes == 16 {
        memory.write(address + 8, &args[6].to_le_bytes())?;
    }
    Ok(0)
}
