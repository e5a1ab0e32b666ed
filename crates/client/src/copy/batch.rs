//! Calls that stand for many: batches of copies, and of waits for and writes of memory. Each of
//! their parts travels as if it had been called alone.

use sluice_cuda::*;

use crate::copy::unified;
use crate::generated::stubs;
use crate::session::issue::list;
use crate::session::{self, Session};

/// Copies `count` times. Attributes say when sources may be read and where operands probably are:
/// sources on this machine are read before the call returns, which suits every order.
///
/// # Safety
/// The lists have `count` items, and operands on this machine are the program's to be copied.
unsafe fn copies(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    // SAFETY: the same contract.
    let lists = unsafe {
        list(dsts, count as u64)
            .and_then(|dsts| Ok((dsts, list(srcs, count as u64)?, list(sizes, count as u64)?)))
    };
    let (dsts, srcs, sizes) = lists.map_err(|error| (0, error))?;
    for (i, ((dst, src), size)) in dsts.iter().zip(srcs).zip(sizes).enumerate() {
        // SAFETY: the same contract.
        unsafe { unified(*dst, *src, *size, stream, true) }.map_err(|error| (i, error))?;
    }
    Ok(())
}

// The entry points. CUDA Driver API, sections "Memory Management" and "Stream Memory Operations".

/// `failIdx` gets the copy that failed, or the greatest number if it was not one of them.
pub(crate) unsafe fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    _: *mut CUmemcpyAttributes,
    _: *mut usize,
    _: usize,
    failIdx: *mut usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program's lists, and null or a place for an index.
    unsafe {
        copies(dsts, srcs, sizes, count, hStream).map_err(|(index, error)| {
            crate::abi::out::write_if_wanted(failIdx, index);
            error
        })
    }
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    _: *mut CUmemcpyAttributes,
    _: *mut usize,
    _: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program's lists.
    unsafe { copies(dsts, srcs, sizes, count, hStream).map_err(|(_, error)| error) }
}

pub(crate) unsafe fn cuMemcpyWithAttributesAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    size: usize,
    _: *mut CUmemcpyAttributes,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { unified(dst, src, size, hStream, true) }
}

/// One wait or write. The union is read by words: kind, address, value, flags.
fn memory_operation(
    session: &Session,
    stream: CUstream,
    operation: &CUstreamBatchMemOpParams,
) -> Result<(), CUresult> {
    use CUstreamBatchMemOpType as Kind;
    let [kind, address, value, flags, ..] = operation.words;
    let (small, flags) = (value as u32, flags as u32);
    // SAFETY: no pointers of this process.
    unsafe {
        match CUstreamBatchMemOpType(kind as u32) {
            Kind::WAIT_VALUE_32 => stubs::cuStreamWaitValue32_v2(session, stream, address, small, flags),
            Kind::WAIT_VALUE_64 => stubs::cuStreamWaitValue64_v2(session, stream, address, value, flags),
            Kind::WRITE_VALUE_32 => stubs::cuStreamWriteValue32_v2(session, stream, address, small, flags),
            Kind::WRITE_VALUE_64 => stubs::cuStreamWriteValue64_v2(session, stream, address, value, flags),
            // A device alone in its session has no remote writes, and its operations are in order.
            Kind::FLUSH_REMOTE_WRITES | Kind::BARRIER => Ok(()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// CUDA takes at most this many at a time.
const OPERATIONS_MAX: u32 = 256;

pub(crate) unsafe fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    if flags != 0 || count > OPERATIONS_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes `count` operations.
    let operations = unsafe { list(paramArray, count.into())? };
    operations.iter().try_for_each(|operation| memory_operation(session, stream, operation))
}

pub(crate) unsafe fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuStreamBatchMemOp_v2(stream, count, paramArray, flags) }
}
