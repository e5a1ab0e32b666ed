//! The memory of a session that is cloned: the old worker and the new one have the same pages, and
//! the system copies a page when one of them writes to it.
//!
//! Each extent is one byte with a descriptor beside it, in the order of their addresses.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use sluice_transport::Stream;

use super::arrive::NotArrived;
use super::depart::NotDeparted;
use crate::session::Session;

/// The other worker has the next descriptor within this time: it may have to copy memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the contents of the session's memory. The GPUs have nothing to do.
pub(super) fn send(session: &Session, to: &File) -> Result<(), NotDeparted> {
    let to = stream(to)?;
    let is_unwritten = !session.is_written.swap(false, SeqCst);
    let sent = session.memory.extents().into_iter().try_for_each(|address| {
        let file = sluice_softgpu::freeze(address, is_unwritten).map_err(NotDeparted::Frozen)?;
        to.write_with_descriptor(&[1], file.as_fd())?;
        Ok(())
    });
    if sent.is_err() {
        // Some of it may have been frozen, and some not.
        session.is_written.store(true, SeqCst);
    }
    sent
}

/// Gives the memory that has been made for the session its contents, and has what the session makes
/// later be ready for its own clones.
pub(super) fn receive(session: &Session, from: &File) -> Result<(), NotArrived> {
    let from = stream(from)?;
    for address in session.memory.extents() {
        let file = next(&from)?;
        sluice_softgpu::lay_over(address, file).map_err(NotArrived::Memory)?;
    }
    sluice_softgpu::keep_in_files();
    Ok(())
}

fn next(from: &Stream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    loop {
        match from.read_with_descriptor(&mut byte) {
            Ok((1, Some(file))) => return Ok(file),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !from.wait_readable(PATIENCE)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn stream(socket: &File) -> io::Result<Stream> {
    Ok(OwnedFd::from(socket.try_clone()?).into())
}
