//! Copies with an array on a side. On the device they are one command. From this machine the rows
//! travel packed, and the worker spreads them; to this machine they come back in pieces of many
//! rows.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{ArrayPlace, BULK_SIZE_MAX, CopyNode, CopySide, NodeWork, commands};

use crate::arrays;
use crate::copy::boxes::Side;
use crate::copy::{Landing, deferred, landing};
use crate::link::inbox::Sink;
use crate::session::issue::Issue;
use crate::session::{self, Session};
use crate::stream::capture;

/// Pieces in flight to this machine at a time; the node has memory for a few more.
const PIECES_AT_A_TIME: usize = 32;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Array(ArrayPlace),
    Memory(Side),
}

/// A copy whose ends are arrays or memory, at least one of them an array.
#[derive(Clone, Debug)]
pub(crate) struct ArrayCopy {
    pub(crate) dst: End,
    pub(crate) src: End,
    /// Of a row, in bytes.
    pub(crate) width: u64,
    pub(crate) rows: u64,
    pub(crate) slices: u64,
}

/// Part of a copy that fits into one message: rows of one slice, or a part of one row.
struct Piece {
    x: u64,
    row: u64,
    slice: u64,
    width: u64,
    rows: u64,
}

impl Piece {
    /// This part of a box in an array.
    fn within(&self, place: &ArrayPlace) -> ArrayPlace {
        let ArrayPlace { array, x, y, z } = *place;
        // A box that wraps is refused on the node, as any that is not inside its array.
        let (x, y, z) = (x.saturating_add(self.x), y.saturating_add(self.row), z.saturating_add(self.slice));
        ArrayPlace { array, x, y, z }
    }
}

impl ArrayCopy {
    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.rows == 0 || self.slices == 0
    }

    /// The copy in pieces.
    fn pieces(&self) -> Vec<Piece> {
        const BYTES: u64 = BULK_SIZE_MAX as u64;
        let mut pieces = Vec::new();
        for slice in 0..self.slices {
            let (mut row, mut x) = (0, 0);
            while row < self.rows {
                let piece = if self.width <= BYTES {
                    let rows = (BYTES / self.width).min(self.rows - row);
                    Piece { x: 0, row, slice, width: self.width, rows }
                } else {
                    Piece { x, row, slice, width: BYTES.min(self.width - x), rows: 1 }
                };
                x += piece.width;
                if x >= self.width {
                    (x, row) = (0, row + piece.rows);
                }
                pieces.push(piece);
            }
        }
        pieces
    }

    /// # Safety
    /// An end in this machine's memory is the program's, by its contract with CUDA.
    pub(crate) unsafe fn run(
        &self,
        session: &'static Session,
        stream: CUstream,
        asynchronous: bool,
    ) -> Result<(), CUresult> {
        if self.is_empty() {
            return Ok(());
        }
        if capture::of(stream).is_some() {
            let work = self.for_graph(session)?;
            return capture::add(session, stream, work).map(drop);
        }
        // SAFETY: by this function's contract.
        unsafe {
            match (&self.dst, &self.src) {
                (End::Array(dst), End::Memory(src)) if !src.on_device => {
                    // Graphs have no such copy.
                    deferred::settle(session, (src.start, self.check_host(src)?), stream, asynchronous)?;
                    self.bring(session, dst, src, stream)
                }
                (End::Memory(dst), End::Array(src)) if !dst.on_device => {
                    self.fetch(session, dst, src, stream, asynchronous)
                }
                _ => {
                    let copy = self.node(session)?;
                    session.queue(&commands::cuMemcpyAtoA_v2 { copy, hStream: session.find(stream)? })
                }
            }
        }
    }

    /// # Safety
    /// The program's memory may be read.
    unsafe fn bring(
        &self,
        session: &Session,
        to: &ArrayPlace,
        from: &Side,
        stream: CUstream,
    ) -> Result<(), CUresult> {
        self.check_host(from)?;
        let hStream = session.find(stream)?;
        let mut packed = Vec::new();
        for piece in self.pieces() {
            packed.clear();
            for row in piece.row..piece.row + piece.rows {
                let start = (from.row(piece.slice, row) + piece.x) as *const u8;
                // SAFETY: part of a row of the program's.
                packed.extend_from_slice(unsafe { std::slice::from_raw_parts(start, piece.width as usize) });
            }
            session.queue(&commands::cuMemcpyHtoAAsync_v2 {
                dst: piece.within(to),
                width: piece.width,
                height: piece.rows,
                depth: 1,
                srcHost: &packed,
                hStream,
            })?;
        }
        Ok(())
    }

    /// Rows that touch land where they belong; others land packed, and are spread here.
    ///
    /// # Safety
    /// The program's memory may be written, until the data have landed.
    unsafe fn fetch(
        &self,
        session: &'static Session,
        to: &Side,
        from: &ArrayPlace,
        stream: CUstream,
        asynchronous: bool,
    ) -> Result<(), CUresult> {
        let bytes = self.check_host(to)?;
        let hStream = session.find(stream)?;
        let touches = to.pitch == self.width || self.rows == 1;
        let pieces = self.pieces();
        let may_land_later = touches
            && pieces.len() <= PIECES_AT_A_TIME
            && landing(to.start, bytes as usize, asynchronous) == Landing::Later;
        for batch in pieces.chunks(PIECES_AT_A_TIME) {
            let mut packed: Vec<Vec<u8>> = Vec::new();
            let mut tickets = Vec::new();
            for piece in batch {
                let bytes = piece.width * piece.rows;
                let start = if touches {
                    (to.row(piece.slice, piece.row) + piece.x) as *mut u8
                } else {
                    packed.push(vec![0; bytes as usize]);
                    packed.last_mut().map_or(std::ptr::null_mut(), |rows| rows.as_mut_ptr())
                };
                let ticket = session.link.ticket();
                // SAFETY: rows of the program's that touch, or a buffer that stays until its data
                // have landed.
                session.link.expect(ticket, unsafe { Sink::new(start, bytes) });
                tickets.push(ticket);
                let command = commands::cuMemcpyAtoHAsync_v2 {
                    ticket,
                    src: piece.within(from),
                    width: piece.width,
                    height: piece.rows,
                    depth: 1,
                    hStream,
                };
                if let Err(error) = session.queue(&command) {
                    tickets.iter().for_each(|&ticket| _ = session.link.forget(ticket));
                    return Err(error);
                }
            }
            if may_land_later {
                return Ok(());
            }
            session.land(stream, &tickets)?;
            for (piece, rows) in batch.iter().zip(&packed) {
                for (row, data) in (piece.row..).zip(rows.chunks(piece.width as usize)) {
                    let start = (to.row(piece.slice, row) + piece.x) as *mut u8;
                    // SAFETY: part of a row of the program's.
                    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) };
                }
            }
        }
        Ok(())
    }

    /// Bytes from the first to the last of an end in this machine's memory.
    fn check_host(&self, side: &Side) -> Result<u64, CUresult> {
        let bytes = side.span([self.width, self.rows, self.slices])?;
        let is_possible = side.start != 0 && side.start.checked_add(bytes).is_some();
        if is_possible && isize::try_from(bytes).is_ok() { Ok(bytes) } else { Err(CUresult::INVALID_VALUE) }
    }

    fn node(&self, session: &Session) -> Result<CopyNode, CUresult> {
        let size = [self.width, self.rows, self.slices];
        let side = |end: &End| match end {
            End::Array(place) => Ok(CopySide::Array(place.clone())),
            End::Memory(side) if side.on_device => Ok(CopySide::Device(side.pitched(session, size)?)),
            End::Memory(side) => self.check_host(side).map(|_| CopySide::Host(())),
        };
        let (dst, src) = (side(&self.dst)?, side(&self.src)?);
        Ok(CopyNode { dst, src, width: self.width, height: self.rows, depth: self.slices, ticket: 0 })
    }

    /// The work of a node, between places on the device.
    pub(crate) fn for_graph(&self, session: &Session) -> Result<NodeWork, CUresult> {
        if self.is_empty() {
            return Err(CUresult::INVALID_VALUE);
        }
        let node = self.node(session)?;
        // Such a copy would stop in memory of the node; programs make it of two.
        if node.is_across() { Err(CUresult::NOT_SUPPORTED) } else { Ok(NodeWork::Copy(node)) }
    }
}

// The entry points. CUDA Driver API, section "Memory Management". They copy bytes of
// one-dimensional arrays.

/// A box of one row in an array.
fn row_of(session: &Session, array: CUarray, offset: usize, bytes: usize) -> Result<End, CUresult> {
    let place = ArrayPlace { array: session.find(array)?, x: offset as u64, y: 0, z: 0 };
    if bytes != 0 {
        arrays::check(array, [offset as u64, 0, 0], [bytes as u64, 1, 1])?;
    }
    Ok(End::Array(place))
}

/// A row of memory.
fn line(on_device: bool, start: u64, bytes: usize) -> End {
    End::Memory(Side { on_device, start, pitch: bytes as u64, height: 1 })
}

fn row(dst: End, src: End, bytes: usize) -> ArrayCopy {
    ArrayCopy { dst, src, width: bytes as u64, rows: 1, slices: 1 }
}

pub(crate) unsafe fn cuMemcpyAtoA_v2(
    dstArray: CUarray,
    dstOffset: usize,
    srcArray: CUarray,
    srcOffset: usize,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let dst = row_of(session, dstArray, dstOffset, ByteCount)?;
    let src = row_of(session, srcArray, srcOffset, ByteCount)?;
    // SAFETY: no memory of this machine.
    unsafe { row(dst, src, ByteCount).run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpyAtoD_v2(
    dstDevice: CUdeviceptr,
    srcArray: CUarray,
    srcOffset: usize,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let src = row_of(session, srcArray, srcOffset, ByteCount)?;
    // SAFETY: as above.
    unsafe { row(line(true, dstDevice, ByteCount), src, ByteCount).run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpyDtoA_v2(
    dstArray: CUarray,
    dstOffset: usize,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let dst = row_of(session, dstArray, dstOffset, ByteCount)?;
    // SAFETY: as above.
    unsafe { row(dst, line(true, srcDevice, ByteCount), ByteCount).run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpyHtoA_v2(
    dstArray: CUarray,
    dstOffset: usize,
    srcHost: *const c_void,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the same contract.
    unsafe { cuMemcpyHtoAAsync_v2(dstArray, dstOffset, srcHost, ByteCount, stream)? };
    session.arrive(stream)
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    dstArray: CUarray,
    dstOffset: usize,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let dst = row_of(session, dstArray, dstOffset, ByteCount)?;
    // SAFETY: the program passes that many bytes to read.
    unsafe { row(dst, line(false, srcHost as u64, ByteCount), ByteCount).run(session, hStream, true) }
}

pub(crate) unsafe fn cuMemcpyAtoH_v2(
    dstHost: *mut c_void,
    srcArray: CUarray,
    srcOffset: usize,
    ByteCount: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let src = row_of(session, srcArray, srcOffset, ByteCount)?;
    // SAFETY: the program passes that many bytes to write.
    unsafe { row(line(false, dstHost as u64, ByteCount), src, ByteCount).run(session, stream, false) }
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    dstHost: *mut c_void,
    srcArray: CUarray,
    srcOffset: usize,
    ByteCount: usize,
    hStream: CUstream,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    let src = row_of(session, srcArray, srcOffset, ByteCount)?;
    // SAFETY: as above, until the data have landed.
    unsafe { row(line(false, dstHost as u64, ByteCount), src, ByteCount).run(session, hStream, true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(width: u64, rows: u64) -> ArrayCopy {
        let side = Side { on_device: true, start: 0, pitch: width, height: rows };
        ArrayCopy { dst: End::Memory(side), src: End::Memory(side), width, rows, slices: 2 }
    }

    #[test]
    fn pieces_cover_the_box_once_and_fit_into_messages() {
        for (width, rows) in [(16, 5), (1 << 16, 1000), (3 * BULK_SIZE_MAX as u64 + 7, 2)] {
            let copy = copy(width, rows);
            let pieces = copy.pieces();
            let bytes: u64 = pieces.iter().map(|piece| piece.width * piece.rows).sum();
            assert_eq!(bytes, width * rows * 2);
            assert!(pieces.iter().all(|piece| piece.width * piece.rows <= BULK_SIZE_MAX as u64));
            assert!(pieces.iter().all(|piece| piece.rows == 1 || piece.width == width));
        }
    }
}
