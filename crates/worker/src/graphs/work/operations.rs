//! Nodes that set memory, wait for values and write them.

use sluice_cuda::*;
use sluice_wire::{DevicePtr, FillNode, MemoryOp, MemoryOpsNode, product, rows};

use crate::session::Session;
use crate::session::checks;
use crate::session::checks::aligned;
use crate::session::execute::Execute;
use crate::session::execute::Range;

/// How a wait compares, and whether it flushes remote writes (`CUstreamWaitValue_flags`).
const WAIT_FLAGS: u64 = 0x4000_0003;

/// Whether a write goes without a barrier (`CUstreamWriteValue_flags`).
const WRITE_FLAGS: u64 = 1;

/// CUDA takes at most this many memory operations at a time.
pub(in crate::graphs) const OPERATIONS_MAX: usize = 256;

/// The memory that a node fills.
pub(super) fn fill_range(fill: &FillNode) -> Range {
    let row = product(&[fill.width, fill.element_bytes.into()]);
    (fill.dst.0, rows(fill.height, row, fill.pitch))
}

/// The parameters of a node of memory operations (CUDA Driver API,
/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`).
#[repr(C)]
pub(super) struct BatchParams {
    ctx: CUcontext,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    pub(super) flags: u32,
}

pub(super) fn batch(ctx: CUcontext, ops: &mut [CUstreamBatchMemOpParams], flags: u32) -> BatchParams {
    BatchParams { ctx, count: ops.len() as u32, paramArray: ops.as_mut_ptr(), flags }
}

impl Session {
    pub(super) fn fill(&self, fill: &FillNode) -> Result<CUDA_MEMSET_NODE_PARAMS, CUresult> {
        checks::one_of(fill.element_bytes, &[1, 2, 4])?;
        if fill.width == 0 || fill.height == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let row = product(&[fill.width, fill.element_bytes.into()]);
        let dst = aligned(fill.dst, fill.element_bytes.into())?;
        Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: self.range(dst, fill_range(fill).1)?,
            pitch: fill.pitch.max(row) as usize,
            value: fill.value,
            elementSize: fill.element_bytes,
            width: fill.width as usize,
            height: fill.height as usize,
        })
    }

    pub(super) fn memory_ops(&self, node: &MemoryOpsNode) -> Result<Vec<CUstreamBatchMemOpParams>, CUresult> {
        checks::bits(node.flags.into(), 0)?;
        if node.ops.is_empty() || node.ops.len() > OPERATIONS_MAX {
            return Err(CUresult::INVALID_VALUE);
        }
        let words = |op: &MemoryOp| {
            use CUstreamBatchMemOpType as Kind;
            let known =
                [Kind::WAIT_VALUE_32, Kind::WRITE_VALUE_32, Kind::WAIT_VALUE_64, Kind::WRITE_VALUE_64];
            if !known.contains(&op.kind) {
                return Err(CUresult::NOT_SUPPORTED);
            }
            let is_wait = [Kind::WAIT_VALUE_32, Kind::WAIT_VALUE_64].contains(&op.kind);
            checks::bits(op.flags.into(), if is_wait { WAIT_FLAGS } else { WRITE_FLAGS })?;
            let address = self.range(aligned(op.address, op.width())?, op.width())?;
            let words = [op.kind.0.into(), address, op.value, op.flags.into(), 0, 0];
            Ok(CUstreamBatchMemOpParams { words })
        };
        node.ops.iter().map(words).collect()
    }

    pub(super) fn get_memory_ops(&self, node: CUgraphNode) -> Result<MemoryOpsNode, CUresult> {
        let get = self.table.cuGraphBatchMemOpNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut params = batch(CUcontext::NULL, &mut [], 0);
        // SAFETY: the node is live, and the driver fills a local of its own structure; the
        // operations stay the driver's until the node changes.
        let ops = unsafe {
            get(node, std::ptr::from_mut(&mut params).cast()).ok()?;
            crate::graphs::driver_list(params.paramArray.cast_const(), params.count as usize)
        };
        let op = |op: &CUstreamBatchMemOpParams| {
            let [kind, address, value, flags, ..] = op.words;
            let kind = CUstreamBatchMemOpType(kind as u32);
            MemoryOp { kind, address: DevicePtr(address), value, flags: flags as u32 }
        };
        Ok(MemoryOpsNode { ops: ops.iter().map(op).collect(), flags: params.flags })
    }
}
