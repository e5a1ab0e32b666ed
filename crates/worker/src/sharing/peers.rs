//! Copies between nodes: this worker writes to the memory of another node's session of the same
//! program, or reads it, and lets such workers do that here. Neither knows more of the other than a
//! connection (`sluice_wire::peer`).
//!
//! ```text
//!  client -- PeerOffer ----> B's worker -- its daemon: a token, good for one connection --> client
//!  client -- PeerConnect --> A's worker -- its daemon --> B's node: its daemon --> B's worker
//!  client -- PeerCopy -----> A's worker == pieces ==> B's worker, or pieces <== B's worker
//! ```
//!
//! The daemons connect, since a worker may not; they carry none of the data. A connection that
//! breaks is gone: the client finds another way.

pub(crate) mod connections;
mod line;
mod server;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use sluice_cuda::{CUresult, CUstream};
use sluice_transport::Stream;
use sluice_transport::tls::Keys;
use sluice_wire::peer::{Answer, PIECE_MAX, Piece, REQUEST_SIZE, Request};
use sluice_wire::{DevicePtr, commands};

use self::connections::{PEERS_MAX, Peers};
use crate::copies;
use crate::session::Session;
use crate::session::execute::Execute;
use crate::sharing::peers::line::Asker;

/// Pieces that are asked for before the first has come.
const AHEAD: usize = 3;

/// The stream of a socket that came from the daemon, or why there is none.
pub(crate) fn taken_over(
    socket: Option<OwnedFd>,
    tls: Option<Keys>,
    refused: Option<String>,
) -> Result<Stream, String> {
    let socket = socket.ok_or_else(|| refused.unwrap_or_else(|| "no socket came along".into()))?;
    Stream::protected(socket, tls).map_err(|error| error.to_string())
}

/// Has the daemon connect to another node. The answer is why it could not, or nothing.
pub(crate) fn connect(session: &Session, command: &commands::PeerConnect<'_>) -> Result<String, CUresult> {
    let node = command.node.to_str().map_err(|_| CUresult::INVALID_VALUE)?;
    session.peers.expect(command.peer)?;
    session.budget.connect_peer(command.peer, node.to_owned(), command.session, command.token.0)?;
    Ok(session.peers.outcome(command.peer))
}

/// Copies to the other node, or from it. When this returns all of it is there, or the copy has
/// failed. The answer is why the connection is lost, if it is: then it is not known how far the
/// copy came.
pub(crate) fn copy(session: &Session, command: &commands::PeerCopy) -> Result<String, CUresult> {
    let asker = session.peers.asker(command.peer)?;
    session.range(command.here, command.ByteCount)?;
    let stream = session.find(command.hStream)?;
    session.refuse_capture(stream)?;
    let mut asker = asker.lock().unwrap_or_else(PoisonError::into_inner);
    let copied = match command.fetches {
        true => fetch(session, &mut asker, command, stream),
        false => send(session, &mut asker, command, stream),
    };
    match copied {
        Ok(result) => result.map(|()| String::new()),
        Err(error) => {
            asker.hang_up();
            session.peers.lock().remove(&command.peer);
            Ok(line::reason(&error))
        }
    }
}

/// The part of a copy that begins at `offset`, on the other side.
fn piece_at(command: &commands::PeerCopy, offset: u64) -> Piece {
    let address = command.there.0.wrapping_add(offset);
    let bytes = (command.ByteCount - offset).min(PIECE_MAX as u64) as usize;
    Piece { device: command.device, address, bytes }
}

fn send(
    session: &Session,
    asker: &mut Asker,
    command: &commands::PeerCopy,
    stream: CUstream,
) -> io::Result<Result<(), CUresult>> {
    let mut message = vec![0; REQUEST_SIZE + PIECE_MAX.min(command.ByteCount as usize)];
    let (mut done, mut read) = (0, Ok(()));
    while done < command.ByteCount && read.is_ok() {
        let piece = piece_at(command, done);
        let message = &mut message[..REQUEST_SIZE + piece.bytes];
        let (head, content) = message.split_at_mut(REQUEST_SIZE);
        head.copy_from_slice(&Request::Put(piece).to_bytes());
        let from = DevicePtr(command.here.0 + done);
        // SAFETY: the pointer and length describe `content`.
        read = unsafe { copies::copy_now(session, content.as_mut_ptr(), from, piece.bytes, stream) };
        if read.is_ok() {
            asker.put(message)?;
        }
        done += piece.bytes as u64;
    }
    let written = asker.finish()?;
    Ok(read.and(written.ok()))
}

fn fetch(
    session: &Session,
    asker: &mut Asker,
    command: &commands::PeerCopy,
    stream: CUstream,
) -> io::Result<Result<(), CUresult>> {
    let mut bytes = vec![0; PIECE_MAX.min(command.ByteCount as usize)];
    let (mut asked, mut done, mut result) = (0, 0, Ok(()));
    loop {
        while result.is_ok() && asked < command.ByteCount && asked - done < (AHEAD * PIECE_MAX) as u64 {
            let piece = piece_at(command, asked);
            asker.ask(Request::Get(piece))?;
            asked += piece.bytes as u64;
        }
        if done == asked {
            return Ok(result);
        }
        let piece = piece_at(command, done);
        match asker.answer()? {
            Answer::Data(count) if count == piece.bytes => {
                let bytes = &mut bytes[..count];
                asker.data(bytes)?;
                let to = command.here.0 + done;
                // SAFETY: the range of the whole copy is the session's, and this is checked again.
                result = result.and_then(|()| unsafe {
                    copies::write_now(session, session.range(DevicePtr(to), count as u64)?, bytes, stream)
                });
            }
            Answer::Done(error) if !error.is_success() => result = result.and(Err(error)),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "not what was asked for")),
        }
        done += piece.bytes as u64;
    }
}

/// Does what another session of the client's program asks for, until that has enough.
pub(crate) fn serve(session: &Arc<Session>, stream: Stream) {
    let is_served = |peers: &Peers| peers.served.fetch_sub(1, Ordering::AcqRel);
    if session.peers.served.fetch_add(1, Ordering::AcqRel) >= PEERS_MAX {
        is_served(&session.peers);
        return;
    }
    server::start(session, stream, move |session| _ = is_served(&session.peers));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn stream() -> Stream {
        UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn a_question_ends_with_a_connection_or_a_reason() {
        let peers = Peers::default();
        peers.expect(1).unwrap();
        assert_eq!(peers.expect(1), Err(CUresult::INVALID_VALUE));
        peers.connected(1, Err("nobody is there".into()));
        assert_eq!(peers.outcome(1), "nobody is there");
        assert_eq!(peers.asker(1).err(), Some(CUresult::INVALID_HANDLE));
        peers.expect(1).expect("the number is free again");
        peers.connected(1, Ok(stream()));
        peers.connected(1, Err("an answer to nothing".into()));
        assert_eq!(peers.outcome(1), "");
        assert!(peers.asker(1).is_ok());
        peers.connected(2, Ok(stream()));
        assert!(peers.asker(2).is_err(), "nobody asked for it");
    }

    #[test]
    fn connections_are_bounded() {
        let peers = Peers::default();
        for number in 0..PEERS_MAX as u64 {
            peers.expect(number).unwrap();
        }
        assert_eq!(peers.expect(1000), Err(CUresult::OUT_OF_MEMORY));
    }
}
