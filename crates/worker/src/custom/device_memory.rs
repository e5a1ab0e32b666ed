//! The commands that back device memory, say how much of it is free, and copy it on the device or
//! out of arrays.

use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::*;
use sluice_wire::{CopyNode, CopySide, Encode, Pitched, commands};

use crate::arrays::tiles;
use crate::copies::callbacks::Call;
use crate::memory::budget::Claim;
use crate::outbox::Push;
use crate::outbox::staging::PIECE;
use crate::session::Session;
use crate::session::checks::span;
use crate::session::execute::Execute;

impl Session {
    pub(crate) fn memory_info(&self, reply: &mut Vec<u8>) -> Result<(), CUresult> {
        let (gpu, device) = self.device()?;
        let used = self.budget.used(gpu)?;
        let total = device.memory.load(Relaxed);
        let mut free = total.saturating_sub(used);
        if self.is_loaded && !self.overcommits {
            // Contexts and other users of the GPU take what no lease knows of.
            free = free.min(self.card_free()?.saturating_add(self.budget.held(gpu)));
        }
        commands::cuMemGetInfo_v2Reply { free, total }.encode(reply);
        Ok(())
    }

    pub(crate) fn commit_memory(&self, command: commands::MemoryCommit) -> Result<(), CUresult> {
        tiles::reap(self);
        let (address, bytes) = (command.address.0, command.bytes);
        if command.on_host && self.live.commit(self, address, bytes)? {
            return Ok(());
        }
        match command.by_all && self.devices.len() > 1 {
            true => commit_for_all(self, (address, bytes)),
            false => self.commit((address, bytes), Claim::Asked),
        }
    }

    pub(crate) fn copy_between(&self, command: commands::cuMemcpyDtoDAsync_v2) -> Result<(), CUresult> {
        let bytes = command.ByteCount;
        let (to, from) = (self.range(command.dstDevice, bytes)?, self.range(command.srcDevice, bytes)?);
        // SAFETY: both were looked up.
        unsafe { self.copy_on_device(to, from, bytes, self.find(command.hStream)?) }
    }

    pub(crate) fn copy_box(&self, command: commands::cuMemcpy3DAsync_v2) -> Result<(), CUresult> {
        let extent = [command.width, command.height, command.depth];
        if extent.contains(&0) {
            return Ok(());
        }
        let (from, to) = (&command.src, &command.dst);
        let range = |side: &Pitched| {
            let bytes = span(side, extent)?;
            Ok::<_, CUresult>((self.range(side.start, bytes)?, bytes))
        };
        let (copy, stream) = (described(to, from, extent), self.find(command.hStream)?);
        // SAFETY: both boxes lie in the session's memory.
        unsafe { self.copy_box_on_device(&copy, range(to)?, range(from)?, stream) }
    }

    pub(crate) fn copy_from_array(&self, command: commands::cuMemcpyAtoHAsync_v2) -> Result<(), CUresult> {
        let submit = self.table.cuMemcpy3DAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let copy = CopyNode {
            dst: CopySide::Host(()),
            src: CopySide::Array(command.src),
            width: command.width,
            height: command.height,
            depth: command.depth,
            ticket: 0,
        };
        let length = copy.bytes().filter(|bytes| *bytes <= PIECE as u64).ok_or(CUresult::INVALID_VALUE)?;
        // Checked before a piece is taken.
        self.describe_copy(&copy, std::ptr::null_mut())?;
        let stream = self.find(command.hStream)?;
        let _copy = self.host_copy(stream)?;
        self.outbox.wait_room_for_small(length as usize);
        let mut bytes = self.staging.take(&self.table, length as usize)?;
        let described = self.describe_copy(&copy, bytes.address())?;
        // SAFETY: the box lies in the array, and the piece, which has as many bytes, stays taken
        // until its push has been sent, which the stream triggers after the copy.
        unsafe { submit(&described, stream) }.ok()?;
        self.call_in_order(stream, Call::Push(Push::Data { ticket: command.ticket, offset: 0, bytes }))
    }

    /// Backs addresses of the current device.
    pub(super) fn commit(&self, range: (u64, u64), claim: Claim) -> Result<(), CUresult> {
        let (gpu, device) = self.device()?;
        let device = (gpu, device, std::slice::from_ref(device));
        self.memory.commit(&self.table, &self.budget, device, range, claim)
    }

    /// Bytes of the current device that are free.
    fn card_free(&self) -> Result<u64, CUresult> {
        let get = self.table.cuMemGetInfo_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and the driver writes two sizes to locals.
        unsafe { get(&mut free, &mut total) }.ok()?;
        Ok(free as u64)
    }
}

/// A copy between two places in device memory, as the driver wants it described: the pitch of a
/// single row does not matter, and is one that every driver takes.
pub(crate) fn described(to: &Pitched, from: &Pitched, [width, height, depth]: [u64; 3]) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from.start.0,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: from.pitch.max(width) as usize,
        srcHeight: from.height.max(height) as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: to.start.0,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: to.pitch.max(width) as usize,
        dstHeight: to.height.max(height) as usize,
        WidthInBytes: width as usize,
        Height: height as usize,
        Depth: depth as usize,
    }
}

/// Backs addresses by memory that all GPUs of the session can use: the current one's where the
/// others reach it, else this machine's.
fn commit_for_all(session: &Session, (address, bytes): (u64, u64)) -> Result<(), CUresult> {
    let (memory, table) = (&session.memory, &session.table);
    let (gpu, device) = session.device()?;
    let commit =
        |users| memory.commit(table, &session.budget, (gpu, device, users), (address, bytes), Claim::Asked);
    let done = commit(&session.devices);
    if matches!(done, Ok(()) | Err(CUresult::OUT_OF_MEMORY)) {
        return done;
    }
    // Not all of these GPUs have a way to each other's memory.
    if let Some(held) = session.host_memory.try_take(bytes)
        && memory.commit_on_host(table, &session.devices, held, address, bytes)?
    {
        return Ok(());
    }
    commit(std::slice::from_ref(device))?;
    if memory.is_first_notice() {
        let text = "the GPUs of this lease do not reach each other's memory, so mapped and managed memory can be used on the GPU alone that \
                    was current when it was made or first used";
        session.outbox.push(Push::Notice(text.to_owned()));
    }
    Ok(())
}
