//! Copies of graphs between this process and the device: how they travel, and what happens when
//! their turn comes.

use std::ffi::c_void;
use std::ops::Range;

use sluice_cuda::*;
use sluice_wire::{
    ArrayPlace, BULK_SIZE_MAX, Command, CopyNode, CopySide, DevicePtr, Encode, NodeWork, Pitched, commands,
    decode,
};

use crate::copy::boxes::{BoxCopy, Side};
use crate::session::issue::Issue;
use crate::session::{self, Session};
use crate::stream::capture;
use crate::stream::host_function::{self, Pending};

impl BoxCopy {
    /// One row.
    pub(crate) fn line(dst: (bool, u64), src: (bool, u64), bytes: usize) -> BoxCopy {
        let width = bytes as u64;
        let side = |(on_device, start)| Side { on_device, start, pitch: width, height: 1 };
        BoxCopy { dst: side(dst), src: side(src), width, rows: 1, slices: 1 }
    }

    /// The work of a node: what is this process's is kept here under a ticket.
    pub(crate) fn for_graph(self, session: &'static Session) -> Result<NodeWork, CUresult> {
        if self.is_empty() {
            return Err(CUresult::INVALID_VALUE);
        }
        let side = |side: &Side| {
            let end = side.start.checked_add(side.extent(&self)?).ok_or(CUresult::INVALID_VALUE)?;
            if !side.on_device {
                return if side.start == 0 { Err(CUresult::INVALID_VALUE) } else { Ok(CopySide::Host(())) };
            }
            session.range(side.start, end - side.start)?;
            let start = DevicePtr(side.start);
            Ok(CopySide::Device(Pitched { start, pitch: side.pitch, height: side.height }))
        };
        let (width, height, depth) = (self.width, self.rows, self.slices);
        let mut node =
            CopyNode { dst: side(&self.dst)?, src: side(&self.src)?, width, height, depth, ticket: 0 };
        if node.is_across() {
            node.bytes().filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or(CUresult::INVALID_VALUE)?;
            node.ticket = host_function::keep(session, Pending::copying(self))?;
        }
        Ok(NodeWork::Copy(node))
    }

    /// Adds the copy to what a stream captures.
    pub(crate) fn capture(self, stream: CUstream) -> Result<(), CUresult> {
        let session = session::enter()?;
        session.find(stream)?;
        let work = self.for_graph(session)?;
        let ticket = if let NodeWork::Copy(copy) = &work { copy.ticket } else { 0 };
        capture::add(session, stream, work).inspect_err(|_| host_function::forget(ticket))?;
        Ok(())
    }

    /// A node's copy between two places on the device, as CUDA describes it.
    pub(crate) fn described_node(copy: &CopyNode) -> Result<CUDA_MEMCPY3D, CUresult> {
        let side = |side: &CopySide| match side {
            CopySide::Device(place) => {
                Ok(Side { on_device: true, start: place.start.0, pitch: place.pitch, height: place.height })
            }
            CopySide::Host(()) => Err(CUresult::INVALID_VALUE),
            CopySide::Array(_) => Ok(Side { on_device: true, start: 0, pitch: 0, height: 0 }),
        };
        let (dst, src) = (side(&copy.dst)?, side(&copy.src)?);
        let boxes = BoxCopy { dst, src, width: copy.width, rows: copy.height, slices: copy.depth };
        let mut params = boxes.described();
        if let CopySide::Array(ArrayPlace { array, x, y, z }) = copy.dst {
            (params.dstMemoryType, params.dstArray) = (CUmemorytype::ARRAY, CUarray(array.0 as usize));
            [params.dstXInBytes, params.dstY, params.dstZ] = [x, y, z].map(|at| at as usize);
        }
        if let CopySide::Array(ArrayPlace { array, x, y, z }) = copy.src {
            (params.srcMemoryType, params.srcArray) = (CUmemorytype::ARRAY, CUarray(array.0 as usize));
            [params.srcXInBytes, params.srcY, params.srcZ] = [x, y, z].map(|at| at as usize);
        }
        Ok(params)
    }

    /// The copy as CUDA describes it.
    pub(crate) fn described(&self) -> CUDA_MEMCPY3D {
        let kind = |side: &Side| if side.on_device { CUmemorytype::DEVICE } else { CUmemorytype::HOST };
        let device = |side: &Side| if side.on_device { side.start } else { 0 };
        let host = |side: &Side| if side.on_device { 0 } else { side.start };
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: kind(&self.src),
            srcHost: host(&self.src) as *const c_void,
            srcDevice: device(&self.src),
            srcArray: CUarray::NULL,
            reserved0: std::ptr::null_mut(),
            srcPitch: self.src.pitch as usize,
            srcHeight: self.src.height as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: kind(&self.dst),
            dstHost: host(&self.dst) as *mut c_void,
            dstDevice: device(&self.dst),
            dstArray: CUarray::NULL,
            reserved1: std::ptr::null_mut(),
            dstPitch: self.dst.pitch as usize,
            dstHeight: self.dst.height as usize,
            WidthInBytes: self.width as usize,
            Height: self.rows as usize,
            Depth: self.slices as usize,
        }
    }

    /// Whether it writes to this memory of this process.
    pub(crate) fn writes_here(&self, range: &Range<u64>) -> bool {
        let end = self.dst.extent(self).map_or(u64::MAX, |bytes| self.dst.start.saturating_add(bytes));
        !self.dst.on_device && self.dst.start < range.end && range.start < end
    }

    fn places(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (rows, slices) = (self.rows, self.slices);
        (0..slices).flat_map(move |slice| (0..rows).map(move |row| (slice, row)))
    }

    /// Does this process's part when a graph gets to the copy.
    ///
    /// # Safety
    /// The sides in this process are the program's, for as long as a graph may be launched.
    pub(crate) unsafe fn run_in_graph(&self, session: &Session, ticket: u64) -> Result<(), CUresult> {
        // SAFETY: the same contract.
        unsafe {
            match (self.dst.on_device, self.src.on_device) {
                (true, _) => self.bring(session, ticket),
                (false, true) => self.take(session, ticket),
                (false, false) => {
                    for (slice, row) in self.places() {
                        let (dst, src) = (self.dst.row(slice, row), self.src.row(slice, row));
                        std::ptr::copy(src as *const u8, dst as *mut u8, self.width as usize);
                    }
                    Ok(())
                }
            }
        }
    }

    /// Sends the rows, one behind the other.
    ///
    /// # Safety
    /// As for [`BoxCopy::run_in_graph`].
    unsafe fn bring(&self, session: &Session, ticket: u64) -> Result<(), CUresult> {
        let mut packed = Vec::new();
        let mut offset = 0;
        let mut send = |packed: &mut Vec<u8>| {
            let sent = session.queue_quietly(&commands::NodeDataPut { ticket, offset, bytes: packed });
            offset += packed.len() as u64;
            packed.clear();
            sent
        };
        for (slice, row) in self.places() {
            let start = self.src.row(slice, row) as *const u8;
            // SAFETY: a row of the program's side of the copy.
            let mut rest = unsafe { std::slice::from_raw_parts(start, self.width as usize) };
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(BULK_SIZE_MAX - packed.len()));
                packed.extend_from_slice(now);
                rest = later;
                if packed.len() == BULK_SIZE_MAX {
                    send(&mut packed)?;
                }
            }
        }
        if packed.is_empty() { Ok(()) } else { send(&mut packed) }
    }

    /// Fetches the rows.
    ///
    /// # Safety
    /// As for [`BoxCopy::run_in_graph`].
    unsafe fn take(&self, session: &Session, ticket: u64) -> Result<(), CUresult> {
        let total = self.width * self.rows * self.slices;
        let mut offset = 0;
        while offset < total {
            let count = (total - offset).min(BULK_SIZE_MAX as u64);
            let command = commands::NodeDataGet { ticket, offset, count };
            let answer =
                session.link.call(session.place(), commands::NodeDataGet::OP, |out| command.encode(out))?;
            answer.result.ok()?;
            let reply: commands::NodeDataGetReply<'_> =
                decode(&answer.payload).map_err(|_| CUresult::UNKNOWN)?;
            if reply.bytes.len() as u64 != count {
                return Err(CUresult::UNKNOWN);
            }
            // SAFETY: the same contract.
            unsafe { self.scatter(offset, reply.bytes) };
            offset += count;
        }
        Ok(())
    }

    /// Writes bytes of the packed rows, from this place on, where they belong.
    ///
    /// # Safety
    /// As for [`BoxCopy::run_in_graph`]; the bytes lie within the box.
    unsafe fn scatter(&self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (row, column) = (at / self.width, at % self.width);
            let (now, later) = bytes.split_at(bytes.len().min((self.width - column) as usize));
            let to = self.dst.row(row / self.rows, row % self.rows) + column;
            // SAFETY: part of a row of the program's side of the copy.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to as *mut u8, now.len()) };
            at += now.len() as u64;
            bytes = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_scattered_to_their_places() {
        let mut place = [0_u8; 12];
        let dst = Side { on_device: false, start: place.as_mut_ptr() as u64, pitch: 4, height: 3 };
        let src = Side { on_device: true, start: 4096, pitch: 2, height: 3 };
        let copy = BoxCopy { dst, src, width: 2, rows: 3, slices: 1 };
        // SAFETY: three rows of two bytes lie in the twelve bytes.
        unsafe {
            copy.scatter(0, &[1, 2, 3]);
            copy.scatter(3, &[4, 5, 6]);
        }
        assert_eq!(place, [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0]);
    }
}
