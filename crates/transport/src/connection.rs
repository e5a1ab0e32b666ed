//! One connected socket, and what protects its bytes.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};

use sluice_wire::spin::Wait;

use crate::socket::Socket;
use crate::tls::Records;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Box<Records>>,
}

impl Connection {
    pub(crate) fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            Some(records) => records.read(&self.socket, into, wait),
            None => self.socket.read(into, wait),
        }
    }

    pub(crate) fn write_vectored(&self, parts: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        match &self.tls {
            Some(records) => records.write_vectored(&self.socket, parts, wait),
            None => self.socket.write_vectored(parts, wait),
        }
    }

    /// Whether a read would find something that has left the socket already.
    pub(crate) fn has_unread(&self) -> bool {
        self.tls.as_ref().is_some_and(|records| records.has_unread())
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        std::os::fd::AsFd::as_fd(&self.socket).as_raw_fd()
    }
}
