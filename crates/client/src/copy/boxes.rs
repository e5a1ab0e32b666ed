//! Copies of boxes: rows of bytes with a pitch, in slices. Between two places on the device one
//! command does it; where one side is this machine's, the rows travel one by one, or all together
//! where they touch.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{ArrayPlace, DevicePtr, NodeWork, Pitched, commands};

use crate::copy::array_copy::{ArrayCopy, End};
use crate::copy::{Landing, between_nodes, deferred, from_device, landing, on_host, to_device};
use crate::host_memory::blocks;
use crate::session::issue::Issue;
use crate::session::{self, Session, other_node};
use crate::stream::capture;
use crate::{arrays, context};

/// One side of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) on_device: bool,
    /// The first byte of the box.
    pub(crate) start: u64,
    /// From row to row, in bytes.
    pub(crate) pitch: u64,
    /// From slice to slice, in rows.
    pub(crate) height: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BoxCopy {
    pub(crate) dst: Side,
    pub(crate) src: Side,
    pub(crate) width: u64,
    pub(crate) rows: u64,
    pub(crate) slices: u64,
}

/// What a program says of one side, before it is checked.
struct Operand {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    /// Offsets: Offsets: x in bytes, y in rows, z in slices.
    corner: [u64; 3],
    pitch: u64,
    height: u64,
}

impl Operand {
    fn end(&self, session: &Session, size: [u64; 3]) -> Result<End, CUresult> {
        if self.kind != CUmemorytype::ARRAY {
            return self.side(session, size[0], size[1]).map(End::Memory);
        }
        let [x, y, z] = self.corner;
        if !size.contains(&0) {
            arrays::check(self.array, self.corner, size)?;
        }
        Ok(End::Array(ArrayPlace { array: session.find(self.array)?, x, y, z }))
    }

    /// Pitch and height of 0 mean that rows and slices touch.
    fn side(&self, session: &Session, width: u64, rows: u64) -> Result<Side, CUresult> {
        let (on_device, base) = match self.kind {
            // With unified addresses an address alone says whose it is, and programs do get the
            // kind wrong.
            CUmemorytype::HOST => (session.is_device_address(self.host), self.host),
            CUmemorytype::DEVICE => (!blocks::is_pinned(self.device, 1), self.device),
            CUmemorytype::UNIFIED => (session.is_device_address(self.device), self.device),
            _ => return Err(CUresult::INVALID_VALUE),
        };
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let height = if self.height == 0 { rows } else { self.height };
        let [x, y, z] = self.corner;
        let first_row = z.checked_mul(height).and_then(|row| row.checked_add(y));
        let offset =
            first_row.and_then(|row| row.checked_mul(pitch)).and_then(|offset| offset.checked_add(x));
        let start = offset.and_then(|offset| base.checked_add(offset)).ok_or(CUresult::INVALID_VALUE)?;
        if pitch < width || height < rows {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(Side { on_device, start, pitch, height })
    }
}

impl Side {
    /// Bytes from the first of the box to behind the last.
    pub(crate) fn extent(&self, copy: &BoxCopy) -> Result<u64, CUresult> {
        self.span([copy.width, copy.rows, copy.slices])
    }

    /// Bytes that a box of this width, rows and slices spans.
    pub(crate) fn span(&self, [width, rows, slices]: [u64; 3]) -> Result<u64, CUresult> {
        let last_row = (slices - 1).checked_mul(self.height).and_then(|row| row.checked_add(rows - 1));
        let bytes = last_row.and_then(|row| row.checked_mul(self.pitch)).and_then(|at| at.checked_add(width));
        bytes.ok_or(CUresult::INVALID_VALUE)
    }

    pub(crate) fn row(&self, slice: u64, row: u64) -> u64 {
        self.start + (slice * self.height + row) * self.pitch
    }

    /// As it travels, if all of the box is memory of the device.
    pub(crate) fn pitched(&self, session: &Session, size: [u64; 3]) -> Result<Pitched, CUresult> {
        session.range(self.start, self.span(size)?)?;
        Ok(Pitched { start: DevicePtr(self.start), pitch: self.pitch, height: self.height })
    }
}

impl BoxCopy {
    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.rows == 0 || self.slices == 0
    }

    /// Rows that touch on both sides are one long row.
    fn flattened(mut self) -> BoxCopy {
        if self.dst.pitch == self.width && self.src.pitch == self.width {
            let whole_slices = self.dst.height == self.rows && self.src.height == self.rows;
            let merged = if whole_slices { self.rows * self.slices } else { self.rows };
            if whole_slices || self.slices == 1 {
                self.width *= merged;
                (self.rows, self.slices) = (1, 1);
            }
        }
        self
    }

    /// # Safety
    /// The host side is the program's, by its contract with CUDA.
    unsafe fn run(
        self,
        session: &'static Session,
        stream: CUstream,
        asynchronous: bool,
    ) -> Result<(), CUresult> {
        if self.is_empty() {
            return Ok(());
        }
        if [self.dst, self.src].iter().any(|side| side.on_device && other_node::reaches(side.start)) {
            // SAFETY: the same contract.
            return unsafe { self.run_across(stream) };
        }
        if capture::of(stream).is_some() && !(self.dst.on_device && self.src.on_device) {
            return self.capture(stream);
        }
        let (dst_bytes, src_bytes) = (self.dst.extent(&self)?, self.src.extent(&self)?);
        if self.dst.on_device && self.src.on_device {
            return session.queue(&commands::cuMemcpy3DAsync_v2 {
                dst: self.dst.pitched(session, [self.width, self.rows, self.slices])?,
                src: self.src.pitched(session, [self.width, self.rows, self.slices])?,
                width: self.width,
                height: self.rows,
                depth: self.slices,
                hStream: session.find(stream)?,
            });
        }
        // Rows are checked one by one as they go, so the whole is checked first: nothing happens by
        // halves.
        for (side, bytes) in [(self.dst, dst_bytes), (self.src, src_bytes)] {
            if side.on_device {
                session.range(side.start, bytes)?;
            } else if side.start.checked_add(bytes).is_none() {
                return Err(CUresult::INVALID_VALUE);
            }
        }
        if !self.src.on_device
            && self.dst.on_device
            && deferred::read_later(session, (self.src.start, src_bytes), stream, asynchronous, || {
                self.for_graph(session)
            })?
        {
            return Ok(());
        }
        let landing = landing(self.dst.start, dst_bytes as usize, asynchronous);
        // SAFETY: every row lies in the host side, which the caller vouches for.
        unsafe { self.flattened().run_rows(session, stream, landing) }
    }

    /// Row by row, where a side is on another node.
    ///
    /// # Safety
    /// As for [`BoxCopy::run`].
    unsafe fn run_across(self, stream: CUstream) -> Result<(), CUresult> {
        let flat = self.flattened();
        let places = (0..flat.slices).flat_map(|slice| (0..flat.rows).map(move |row| (slice, row)));
        for (slice, row) in places {
            // SAFETY: the same contract.
            unsafe {
                between_nodes::copy(
                    flat.dst.row(slice, row),
                    flat.src.row(slice, row),
                    flat.width as usize,
                    stream,
                )?
            };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`BoxCopy::run`].
    unsafe fn run_rows(
        &self,
        session: &'static Session,
        stream: CUstream,
        landing: Landing,
    ) -> Result<(), CUresult> {
        let bytes = self.width as usize;
        let mut tickets = Vec::new();
        let mut one = |dst: u64, src: u64| {
            // SAFETY: the caller vouches for the host side.
            unsafe {
                match (self.dst.on_device, self.src.on_device) {
                    (true, _) => to_device(session, dst, src as *const c_void, bytes, stream),
                    (false, true) => {
                        let ticket = from_device(session, dst as *mut c_void, src, bytes, stream)?;
                        tickets.push(ticket);
                        Ok(())
                    }
                    (false, false) => on_host(session, dst, src, bytes, stream),
                }
            }
        };
        let places = (0..self.slices).flat_map(|slice| (0..self.rows).map(move |row| (slice, row)));
        let mut result = Ok(());
        for (slice, row) in places {
            result = one(self.dst.row(slice, row), self.src.row(slice, row));
            if result.is_err() {
                break;
            }
        }
        if landing == Landing::Now && !tickets.is_empty() {
            session.land(stream, &tickets)?;
        }
        result
    }
}

/// A copy as a program describes it.
pub(crate) enum Described {
    Memory(BoxCopy),
    Arrays(ArrayCopy),
}

impl Described {
    fn new(dst: End, src: End, [width, rows, slices]: [u64; 3]) -> Described {
        match (dst, src) {
            (End::Memory(dst), End::Memory(src)) => {
                Described::Memory(BoxCopy { dst, src, width, rows, slices })
            }
            (dst, src) => Described::Arrays(ArrayCopy { dst, src, width, rows, slices }),
        }
    }

    /// # Safety
    /// As for [`BoxCopy::run`].
    unsafe fn run(
        self,
        session: &'static Session,
        stream: CUstream,
        asynchronous: bool,
    ) -> Result<(), CUresult> {
        // SAFETY: the same contract.
        unsafe {
            match self {
                Described::Memory(copy) => copy.run(session, stream, asynchronous),
                Described::Arrays(copy) => copy.run(session, stream, asynchronous),
            }
        }
    }

    /// The work of a node.
    pub(crate) fn for_graph(self, session: &'static Session) -> Result<NodeWork, CUresult> {
        match self {
            Described::Memory(copy) => copy.for_graph(session),
            Described::Arrays(copy) => copy.for_graph(session),
        }
    }
}

fn of_2d(copy: *const CUDA_MEMCPY2D, session: &Session) -> Result<Described, CUresult> {
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a description.
    let it = unsafe { copy.read_unaligned() };
    let size = [it.WidthInBytes as u64, it.Height as u64, 1];
    let dst = Operand {
        kind: it.dstMemoryType,
        host: it.dstHost as u64,
        device: it.dstDevice,
        array: it.dstArray,
        corner: [it.dstXInBytes as u64, it.dstY as u64, 0],
        pitch: it.dstPitch as u64,
        height: 0,
    };
    let src = Operand {
        kind: it.srcMemoryType,
        host: it.srcHost as u64,
        device: it.srcDevice,
        array: it.srcArray,
        corner: [it.srcXInBytes as u64, it.srcY as u64, 0],
        pitch: it.srcPitch as u64,
        height: 0,
    };
    Ok(Described::new(dst.end(session, size)?, src.end(session, size)?, size))
}

pub(crate) fn of_3d(copy: *const CUDA_MEMCPY3D, session: &Session) -> Result<Described, CUresult> {
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a description.
    let it = unsafe { copy.read_unaligned() };
    let size = [it.WidthInBytes as u64, it.Height as u64, it.Depth as u64];
    let dst = Operand {
        kind: it.dstMemoryType,
        host: it.dstHost as u64,
        device: it.dstDevice,
        array: it.dstArray,
        corner: [it.dstXInBytes as u64, it.dstY as u64, it.dstZ as u64],
        pitch: it.dstPitch as u64,
        height: it.dstHeight as u64,
    };
    let src = Operand {
        kind: it.srcMemoryType,
        host: it.srcHost as u64,
        device: it.srcDevice,
        array: it.srcArray,
        corner: [it.srcXInBytes as u64, it.srcY as u64, it.srcZ as u64],
        pitch: it.srcPitch as u64,
        height: it.srcHeight as u64,
    };
    Ok(Described::new(dst.end(session, size)?, src.end(session, size)?, size))
}

// The entry points. CUDA Driver API, section "Memory Management".

pub(crate) unsafe fn cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D, stream: CUstream) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the same contract.
    unsafe { of_2d(pCopy, session)?.run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(
    pCopy: *const CUDA_MEMCPY2D,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemcpy2D_v2(pCopy, stream) }
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(
    pCopy: *const CUDA_MEMCPY2D,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the same contract.
    unsafe { of_2d(pCopy, session)?.run(session, hStream, true) }
}

pub(crate) unsafe fn cuMemcpy3D_v2(pCopy: *const CUDA_MEMCPY3D, stream: CUstream) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the same contract.
    unsafe { of_3d(pCopy, session)?.run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(
    pCopy: *const CUDA_MEMCPY3D,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the same contract.
    unsafe { of_3d(pCopy, session)?.run(session, hStream, true) }
}

/// Contexts of one session share one address space, so that the addresses say it all.
///
/// # Safety
/// `copy` is null or a description.
unsafe fn without_contexts(copy: *const CUDA_MEMCPY3D_PEER) -> Result<CUDA_MEMCPY3D, CUresult> {
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let it = unsafe { copy.read_unaligned() };
    context::named_or_current(it.srcContext)?;
    context::named_or_current(it.dstContext)?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: it.srcXInBytes,
        srcY: it.srcY,
        srcZ: it.srcZ,
        srcLOD: it.srcLOD,
        srcMemoryType: it.srcMemoryType,
        srcHost: it.srcHost,
        srcDevice: it.srcDevice,
        srcArray: it.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: it.srcPitch,
        srcHeight: it.srcHeight,
        dstXInBytes: it.dstXInBytes,
        dstY: it.dstY,
        dstZ: it.dstZ,
        dstLOD: it.dstLOD,
        dstMemoryType: it.dstMemoryType,
        dstHost: it.dstHost,
        dstDevice: it.dstDevice,
        dstArray: it.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: it.dstPitch,
        dstHeight: it.dstHeight,
        WidthInBytes: it.WidthInBytes,
        Height: it.Height,
        Depth: it.Depth,
    })
}

pub(crate) unsafe fn cuMemcpy3DPeer(
    pCopy: *const CUDA_MEMCPY3D_PEER,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemcpy3D_v2(&without_contexts(pCopy)?, stream) }
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(
    pCopy: *const CUDA_MEMCPY3D_PEER,
    hStream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuMemcpy3DAsync_v2(&without_contexts(pCopy)?, hStream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(pitch: u64, height: u64) -> Side {
        Side { on_device: true, start: 1000, pitch, height }
    }

    #[test]
    fn touching_rows_become_one() {
        let copy = BoxCopy { dst: side(8, 3), src: side(8, 3), width: 8, rows: 3, slices: 2 };
        let flat = copy.flattened();
        assert_eq!((flat.width, flat.rows, flat.slices), (48, 1, 1));
        let padded = BoxCopy { src: side(16, 3), ..copy }.flattened();
        assert_eq!((padded.width, padded.rows, padded.slices), (8, 3, 2));
    }

    #[test]
    fn an_extent_ends_with_the_last_row() {
        let copy = BoxCopy { dst: side(16, 5), src: side(16, 5), width: 4, rows: 3, slices: 2 };
        assert_eq!(copy.dst.extent(&copy), Ok((5 + 2) * 16 + 4));
        assert_eq!(copy.dst.row(1, 2), 1000 + 7 * 16);
        assert!(side(u64::MAX, 5).extent(&copy).is_err());
    }
}
