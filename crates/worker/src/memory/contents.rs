//! The contents of device memory, in pieces, by way of host memory.

use std::io;

use sluice_cuda::CUresult;

use super::host::HostPiece;
use super::swap::NotMoved;
use crate::session::Session;
use crate::session::current::make_current;

/// Bytes that are copied at a time.
pub(crate) const PIECE: u64 = 16 << 20;

/// Copies what a session's GPUs have done with.
pub(crate) struct Contents<'a> {
    session: &'a Session,
    piece: HostPiece,
}

impl<'a> Contents<'a> {
    pub(crate) fn new(session: &'a Session) -> Result<Contents<'a>, NotMoved> {
        Ok(Contents { session, piece: HostPiece::new(PIECE)? })
    }

    /// Passes on the contents of a range of a GPU's memory, which is mapped.
    pub(crate) fn send<E: From<NotMoved> + From<io::Error>>(
        &mut self,
        gpu: u32,
        range: (u64, u64),
        mut pass_on: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), E> {
        let step = "cuMemcpyDtoH";
        let copy = self.session.table.cuMemcpyDtoH_v2.ok_or_else(|| failed(step, CUresult::NOT_SUPPORTED))?;
        self.enter(gpu)?;
        for (address, count) in pieces(range) {
            // SAFETY: the range is mapped, and the piece has as many bytes.
            let copied = unsafe { copy(self.piece.address(), address, count) };
            copied.ok().map_err(|result| failed(step, result))?;
            pass_on(&self.piece.bytes_mut()[..count])?;
        }
        Ok(())
    }

    /// Fills a range of a GPU's memory, which is mapped.
    pub(crate) fn receive<E: From<NotMoved> + From<io::Error>>(
        &mut self,
        gpu: u32,
        range: (u64, u64),
        mut take: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> Result<(), E> {
        let step = "cuMemcpyHtoD";
        let copy = self.session.table.cuMemcpyHtoD_v2.ok_or_else(|| failed(step, CUresult::NOT_SUPPORTED))?;
        self.enter(gpu)?;
        for (address, count) in pieces(range) {
            take(&mut self.piece.bytes_mut()[..count])?;
            // SAFETY: as in `send`.
            let copied = unsafe { copy(address, self.piece.address(), count) };
            copied.ok().map_err(|result| failed(step, result))?;
        }
        Ok(())
    }

    fn enter(&self, gpu: u32) -> Result<(), NotMoved> {
        let device = self.session.devices.get(gpu as usize);
        let device = device.ok_or_else(|| failed("device table", CUresult::INVALID_DEVICE))?;
        make_current(&self.session.table, device.context).map_err(|result| failed("cuCtxSetCurrent", result))
    }
}

fn failed(step: &'static str, result: CUresult) -> NotMoved {
    NotMoved::Driver { step, result }
}

/// The addresses and sizes of the pieces of a range, in bytes.
fn pieces((start, bytes): (u64, u64)) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes).step_by(PIECE as usize).map(move |at| (start + at, (bytes - at).min(PIECE) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_pieces_and_a_rest() {
        assert_eq!(pieces((7, 0)).count(), 0);
        assert_eq!(pieces((7, PIECE + 1)).collect::<Vec<_>>(), [(7, PIECE as usize), (7 + PIECE, 1)]);
    }
}
