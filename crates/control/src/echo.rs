//! Plain transfers between this process and a node, to compare the transfers of CUDA calls with.

use sluice_wire::control::{Control, EchoRequest};
use sluice_wire::handshake::LeaseToken;
use std::time::Instant;

use crate::{ANSWER_TIME_MAX, Connection, Failure};

/// A row of equal transfers. The connection is of use again after the last round.
pub struct Echo<'a> {
    connection: &'a mut Connection,
    take: usize,
    give: usize,
}

impl Connection {
    /// Agrees on `rounds` rounds, in each of which the node takes and then gives a number of bytes.
    pub fn echo(
        &mut self,
        token: LeaseToken,
        take: usize,
        give: usize,
        rounds: u32,
    ) -> Result<Echo<'_>, Failure> {
        match self.ask(EchoRequest { token, take: take as u64, give: give as u64, rounds })? {
            Control::EchoReady(_) => Ok(Echo { connection: self, take, give }),
            _ => Err(self.unexpected()),
        }
    }
}

impl Echo<'_> {
    /// One round, out of and into `bytes`, which holds at least the larger of both.
    pub fn round(&mut self, bytes: &mut [u8]) -> Result<(), Failure> {
        self.exchange(bytes).map_err(|cause| self.connection.failure(cause))
    }

    fn exchange(&mut self, bytes: &mut [u8]) -> Result<(), crate::Cause> {
        self.connection.write(&bytes[..self.take])?;
        let stream = &self.connection.stream;
        let mut given = 0;
        while given < self.give {
            given += crate::read(stream, &mut bytes[given..self.give], Instant::now() + ANSWER_TIME_MAX)?;
        }
        Ok(())
    }
}
