//! Batches of box copies: each travels as if it had been called alone.

use std::ffi::c_void;

use sluice_cuda::*;

use crate::abi::out;
use crate::arrays;
use crate::copy::boxes;
use crate::session::issue::list;

/// One end of a copy (`CUmemcpy3DOperand`); what the words are depends on the kind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Operand {
    kind: u32,
    /// Address, row length and layer height in elements, a hint; or an array and a place in it in
    /// elements.
    words: [u64; 4],
}

/// `CUDA_MEMCPY3D_BATCH_OP`. Sources on this machine are read before the call returns, which suits
/// every order of access.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Operation {
    src: Operand,
    dst: Operand,
    /// Width, height and depth in elements.
    extent: [usize; 3],
    _source_order: u32,
    _flags: u32,
}

const POINTER: u32 = 1;
const ARRAY: u32 = 2;

impl Operand {
    fn array(&self) -> Option<CUarray> {
        (self.kind == ARRAY).then_some(CUarray(self.words[0] as usize))
    }

    /// Bytes of an element, where this end knows them.
    fn element_bytes(&self) -> Result<Option<u64>, CUresult> {
        self.array().map(arrays::element_bytes).transpose()
    }
}

/// Where an end begins: its kind, address or array, corner, and bytes and rows from one row and
/// slice to the next.
struct End {
    kind: CUmemorytype,
    address: u64,
    array: CUarray,
    corner: [usize; 3],
    pitch: usize,
    height: usize,
}

fn end(operand: &Operand, element: u64) -> Result<End, CUresult> {
    let bytes = |elements: u64| {
        let bytes = elements.checked_mul(element).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or(CUresult::INVALID_VALUE)
    };
    let [first, second, third, fourth] = operand.words;
    match operand.kind {
        POINTER => Ok(End {
            kind: CUmemorytype::UNIFIED,
            address: first,
            array: CUarray::NULL,
            corner: [0; 3],
            pitch: bytes(second)?,
            height: third as usize,
        }),
        ARRAY => Ok(End {
            kind: CUmemorytype::ARRAY,
            address: 0,
            array: CUarray(first as usize),
            corner: [bytes(second)?, third as usize, fourth as usize],
            pitch: 0,
            height: 0,
        }),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// The copy as `cuMemcpy3D` has it described.
fn described(operation: &Operation) -> Result<CUDA_MEMCPY3D, CUresult> {
    let [width, height, depth] = operation.extent;
    if operation.extent.contains(&0) {
        return Err(CUresult::INVALID_VALUE);
    }
    let element = match (operation.dst.element_bytes()?, operation.src.element_bytes()?) {
        (Some(dst), Some(src)) if dst != src => return Err(CUresult::INVALID_VALUE),
        (dst, src) => dst.or(src).unwrap_or(1),
    };
    let (dst, src) = (end(&operation.dst, element)?, end(&operation.src, element)?);
    let width = usize::try_from(element).ok().and_then(|element| width.checked_mul(element));
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: src.corner[0],
        srcY: src.corner[1],
        srcZ: src.corner[2],
        srcLOD: 0,
        srcMemoryType: src.kind,
        srcHost: std::ptr::null(),
        srcDevice: src.address,
        srcArray: src.array,
        reserved0: std::ptr::null_mut(),
        srcPitch: src.pitch,
        srcHeight: src.height,
        dstXInBytes: dst.corner[0],
        dstY: dst.corner[1],
        dstZ: dst.corner[2],
        dstLOD: 0,
        dstMemoryType: dst.kind,
        dstHost: std::ptr::null_mut(),
        dstDevice: dst.address,
        dstArray: dst.array,
        reserved1: std::ptr::null_mut(),
        dstPitch: dst.pitch,
        dstHeight: dst.height,
        WidthInBytes: width.ok_or(CUresult::INVALID_VALUE)?,
        Height: height,
        Depth: depth,
    })
}

/// # Safety
/// `operations` has `count` items, and ends on this machine are the program's to be copied.
unsafe fn copies(
    operations: *const c_void,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    if flags != 0 {
        return Err((usize::MAX, CUresult::INVALID_VALUE));
    }
    // SAFETY: the same contract.
    let operations = unsafe { list(operations.cast::<Operation>(), count as u64) };
    for (at, operation) in operations.map_err(|error| (usize::MAX, error))?.iter().enumerate() {
        let copy = described(operation).map_err(|error| (at, error))?;
        // SAFETY: the same contract.
        unsafe { boxes::cuMemcpy3DAsync_v2(&copy, stream) }.map_err(|error| (at, error))?;
    }
    Ok(())
}

// The entry points. CUDA Driver API, section "Memory Management".

/// `failIdx` gets the copy that failed, or the greatest number if it was not one of them.
pub(crate) unsafe fn cuMemcpy3DBatchAsync(
    numOps: usize,
    opList: *mut c_void,
    failIdx: *mut usize,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program's list, and null or a place for an index.
    unsafe {
        copies(opList, numOps, flags, hStream).map_err(|(index, error)| {
            out::write_if_wanted(failIdx, index);
            error
        })
    }
}

pub(crate) unsafe fn cuMemcpy3DBatchAsync_v2(
    numOps: usize,
    opList: *mut c_void,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program's list.
    unsafe { copies(opList, numOps, flags, hStream).map_err(|(_, error)| error) }
}

pub(crate) unsafe fn cuMemcpy3DWithAttributesAsync(
    op: *mut c_void,
    flags: u64,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program's one operation.
    unsafe { copies(op, 1, flags, hStream).map_err(|(_, error)| error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_cudas_size() {
        assert_eq!((size_of::<Operand>(), size_of::<Operation>()), (40, 112));
    }

    #[test]
    fn plain_memory_counts_bytes() {
        let operand = |address| Operand { kind: POINTER, words: [address, 16, 4, 0] };
        let operation =
            Operation { src: operand(64), dst: operand(96), extent: [8, 2, 3], _source_order: 1, _flags: 0 };
        let copy = described(&operation).unwrap();
        assert_eq!((copy.srcDevice, copy.dstDevice, copy.srcPitch, copy.dstHeight), (64, 96, 16, 4));
        assert_eq!((copy.WidthInBytes, copy.Height, copy.Depth), (8, 2, 3));
        assert!(described(&Operation { extent: [8, 0, 1], ..operation }).is_err());
        let unknown = Operand { kind: 9, words: [0; 4] };
        assert!(described(&Operation { src: unknown, ..operation }).is_err());
    }
}
