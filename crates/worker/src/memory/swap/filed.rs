//! Extents that go to a file, and come back from there.

use std::fs::File;

use sluice_cuda::DriverTable;

use super::copies::Copies;
use super::{Moving, NotMoved};
use crate::memory::extent::Piece;
use crate::memory::file::{FilePiece, SwapFile};
use crate::memory::host::HostPiece;
use crate::session::Session;

/// The extents that fit into `room` bytes of host memory, and the others.
pub(super) fn divide(moving: &[Moving], room: u64) -> (Vec<Moving>, Vec<Moving>) {
    let mut left = room;
    moving.iter().partition(|extent| {
        let fits = extent.bytes <= left;
        left -= if fits { extent.bytes } else { 0 };
        fits
    })
}

/// A place in a file for each extent; the disk has room for all.
pub(super) fn file_places(file: File, moving: &[Moving]) -> Result<Vec<FilePiece>, NotMoved> {
    let sizes: Vec<u64> = moving.iter().map(|extent| extent.bytes).collect();
    SwapFile::places(file, &sizes).map_err(NotMoved::File)
}

/// Host memory through which extents go to a file and come back, one after the other.
#[derive(Default)]
pub(super) struct Stage(Option<HostPiece>);

impl Stage {
    /// Memory of this size; a context is current.
    fn of(&mut self, table: &DriverTable, bytes: u64) -> Result<&mut HostPiece, NotMoved> {
        let piece = match self.0.take().filter(|piece| piece.bytes() == bytes) {
            Some(piece) => piece,
            None => HostPiece::new(bytes)?,
        };
        let piece = self.0.insert(piece);
        piece.pin(table);
        Ok(piece)
    }
}

/// Writes extents to their places in a file. The disk has them when this returns, and nothing has
/// changed on the device.
pub(super) fn copy_to_file(
    session: &Session,
    moving: &[Moving],
    mut places: Vec<FilePiece>,
) -> Result<Vec<FilePiece>, NotMoved> {
    let mut stage = Stage::default();
    let mut copies = Copies::new(session);
    for (extent, place) in moving.iter().zip(&mut places) {
        copies.stream(extent.gpu)?;
        let piece = stage.of(&session.table, extent.bytes)?;
        copies.copy_out(extent.gpu, piece, extent.address, extent.bytes)?;
        copies.finish()?;
        place.fill(piece).map_err(NotMoved::File)?;
    }
    // A disk that fails says so here, as long as the memory is still on the device.
    if let Some(place) = places.first() {
        place.file().sync().map_err(NotMoved::File)?;
    }
    Ok(places)
}

/// Has the bytes of a parked extent go to its address; unless they came from a file, the copy may
/// still be running when this returns.
pub(super) fn copy_back(
    copies: &mut Copies<'_>,
    stage: &mut Stage,
    extent: &Moving,
    piece: &Piece,
) -> Result<(), NotMoved> {
    let file = match piece {
        Piece::Host(piece) => return copies.copy_in(extent.gpu, extent.address, piece, extent.bytes),
        Piece::File(file) => file,
    };
    copies.stream(extent.gpu)?;
    let piece = stage.of(&copies.session.table, file.bytes())?;
    file.read(piece)?;
    copies.copy_in(extent.gpu, extent.address, piece, extent.bytes)?;
    copies.finish()
}
