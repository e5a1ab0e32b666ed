//! Copies between the workers of one program's sessions, on a connection of their own.
//!
//! ```text
//! who asks                                   who serves
//!   | <- PeerReady, as a control frame ------- |    once its worker has the socket
//!   |                                          |
//!   | -- Put, its bytes, Put, ... -----------> |    written as they come
//!   | -- End --------------------------------> |
//!   | <- Done -------------------------------- |    of all pieces since the last: they are there
//!   |                                          |
//!   | -- Get, Get, ... ----------------------> |
//!   | <- Data, its bytes, or Done ------------ |    to each, in order; Done is why not
//!   |                                          |
//!   | <- Alive ------------------------------- |    now and then, while it waits for its GPU
//! ```
//!
//! The side that serves checks each address as it checks its own client's. A side that says nothing
//! for long, though it is its turn, has no connection any more.

use sluice_cuda::CUresult;

use crate::error::WireError;

/// Bytes of a request, without what follows it.
pub const REQUEST_SIZE: usize = 24;
/// Bytes of an answer, without what follows it.
pub const ANSWER_SIZE: usize = 8;
/// Most bytes of one piece.
pub const PIECE_MAX: usize = 1 << 20;

/// A part of the memory of the side that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// By its place in the lease.
    pub device: u32,
    pub address: u64,
    /// 1 to [`PIECE_MAX`].
    pub bytes: usize,
}

/// What the one asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The bytes of this piece follow, and belong there.
    Put(Piece),
    /// No more of them; an answer is wanted.
    End,
    /// The bytes that are there.
    Get(Piece),
}

/// What the other says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It continues.
    Alive,
    Done(CUresult),
    /// This number of bytes follows; at most [`PIECE_MAX`].
    Data(usize),
}

const END: u32 = 0;
const PUT: u32 = 1;
const GET: u32 = 2;

impl Request {
    pub fn to_bytes(self) -> [u8; REQUEST_SIZE] {
        let (kind, piece) = match self {
            Request::End => (END, Piece { device: 0, address: 0, bytes: 0 }),
            Request::Put(piece) => (PUT, piece),
            Request::Get(piece) => (GET, piece),
        };
        let mut bytes = [0; REQUEST_SIZE];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&piece.device.to_le_bytes());
        bytes[8..16].copy_from_slice(&piece.address.to_le_bytes());
        bytes[16..].copy_from_slice(&(piece.bytes as u64).to_le_bytes());
        bytes
    }

    /// Refuses what is no request, and pieces without bytes or with too many.
    pub fn from_bytes(bytes: [u8; REQUEST_SIZE]) -> Result<Request, WireError> {
        let [k0, k1, k2, k3, d0, d1, d2, d3, a @ .., b0, b1, b2, b3, b4, b5, b6, b7] = bytes;
        let kind = u32::from_le_bytes([k0, k1, k2, k3]);
        if kind == END {
            return Ok(Request::End);
        }
        let piece = Piece {
            device: u32::from_le_bytes([d0, d1, d2, d3]),
            address: u64::from_le_bytes(a),
            bytes: size(u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]))?,
        };
        match kind {
            PUT => Ok(Request::Put(piece)),
            GET => Ok(Request::Get(piece)),
            other => Err(WireError::Value { what: "a request between nodes", value: other.into() }),
        }
    }
}

const ALIVE: u32 = 0;
const DONE: u32 = 1;
const DATA: u32 = 2;

impl Answer {
    pub fn to_bytes(self) -> [u8; ANSWER_SIZE] {
        let (kind, value) = match self {
            Answer::Alive => (ALIVE, 0),
            Answer::Done(result) => (DONE, result.0 as u32),
            Answer::Data(bytes) => (DATA, bytes as u32),
        };
        let mut bytes = [0; ANSWER_SIZE];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// Refuses what is no answer, and more bytes than a piece may have.
    pub fn from_bytes(bytes: [u8; ANSWER_SIZE]) -> Result<Answer, WireError> {
        let [k0, k1, k2, k3, value @ ..] = bytes;
        let value = u32::from_le_bytes(value);
        match u32::from_le_bytes([k0, k1, k2, k3]) {
            ALIVE => Ok(Answer::Alive),
            DONE => Ok(Answer::Done(CUresult(value as i32))),
            DATA => Ok(Answer::Data(size(value.into())?)),
            other => Err(WireError::Value { what: "an answer between nodes", value: other.into() }),
        }
    }
}

fn size(bytes: u64) -> Result<usize, WireError> {
    if (1..=PIECE_MAX as u64).contains(&bytes) {
        return Ok(bytes as usize);
    }
    Err(WireError::Value { what: "the bytes of a piece", value: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Piece = Piece { device: 7, address: 0x2000_0000_1234, bytes: PIECE_MAX };

    #[test]
    fn requests_and_answers_survive_their_bytes() {
        for request in [Request::Put(PIECE), Request::End, Request::Get(Piece { bytes: 1, ..PIECE })] {
            assert_eq!(Request::from_bytes(request.to_bytes()), Ok(request));
        }
        for answer in [Answer::Alive, Answer::Done(CUresult(700)), Answer::Data(PIECE_MAX)] {
            assert_eq!(Answer::from_bytes(answer.to_bytes()), Ok(answer));
        }
    }

    #[test]
    fn a_piece_has_limits() {
        for bytes in [0, PIECE_MAX + 1, usize::MAX] {
            let piece = Piece { bytes, ..PIECE };
            assert!(Request::from_bytes(Request::Put(piece).to_bytes()).is_err());
            assert!(Request::from_bytes(Request::Get(piece).to_bytes()).is_err());
        }
        assert!(Answer::from_bytes(Answer::Data(PIECE_MAX + 1).to_bytes()).is_err());
        assert!(Answer::from_bytes(Answer::Data(0).to_bytes()).is_err());
    }

    #[test]
    fn garbage_is_refused() {
        assert!(Request::from_bytes([0xff; REQUEST_SIZE]).is_err());
        assert!(Answer::from_bytes([0xff; ANSWER_SIZE]).is_err());
    }
}
