//! Plain transfers over a control connection, for `sluice bench remoting` to compare with: no
//! frames, no GPU.

use std::io::{self, Read, Write};

use sluice_wire::control::{ECHO_BYTES_MAX, EchoRequest};

/// Bytes that are received or sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The answer to a request beyond the limits.
pub(crate) const LIMITS: &str =
    "a round of an echo takes at least one byte, and moves at most 256 MiB each way";

/// What an [`EchoRequest`] within the limits asks for.
pub(crate) struct Transfers {
    take: usize,
    give: usize,
    rounds: u32,
    piece: Vec<u8>,
}

impl Transfers {
    pub(crate) fn asked(request: &EchoRequest) -> Option<Transfers> {
        let within = |bytes: u64| usize::try_from(bytes).ok().filter(|_| bytes <= ECHO_BYTES_MAX);
        let take = within(request.take).filter(|&bytes| bytes > 0)?;
        let give = within(request.give)?;
        let piece = vec![0; PIECE_BYTES.min(take.max(give))];
        Some(Transfers { take, give, rounds: request.rounds, piece })
    }

    /// Ends with an error when the asker is gone.
    pub(crate) fn serve(&mut self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        for _ in 0..self.rounds {
            self.receive(stream)?;
            self.send(stream)?;
        }
        Ok(())
    }

    fn receive(&mut self, stream: &mut impl Read) -> io::Result<()> {
        let mut left = self.take;
        while left > 0 {
            let size = left.min(self.piece.len());
            match stream.read(&mut self.piece[..size]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => left -= count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        let mut left = self.give;
        while left > 0 {
            let size = left.min(self.piece.len());
            stream.write_all(&self.piece[..size])?;
            left -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::handshake::LeaseToken;
    use std::os::unix::net::UnixStream;

    fn request(take: u64, give: u64, rounds: u32) -> EchoRequest {
        EchoRequest { token: LeaseToken([0; 32]), take, give, rounds }
    }

    #[test]
    fn every_round_takes_and_gives_what_was_asked() {
        let (mut asker, mut node) = UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || {
            Transfers::asked(&request(3, 400_000, 2)).unwrap().serve(&mut node).map(drop)
        });
        let mut given = vec![1; 400_000];
        for _ in 0..2 {
            asker.write_all(b"abc").unwrap();
            asker.read_exact(&mut given).unwrap();
        }
        assert!(serving.join().unwrap().is_ok());
        assert_eq!(asker.read(&mut given).unwrap(), 0, "nothing beyond the last round");
    }

    #[test]
    fn limits_are_checked_before_anything_is_allocated() {
        assert!(Transfers::asked(&request(ECHO_BYTES_MAX + 1, 0, 1)).is_none());
        assert!(Transfers::asked(&request(1, u64::MAX, 1)).is_none());
        assert!(Transfers::asked(&request(0, 1, 1)).is_none());
        let (_, mut node) = UnixStream::pair().unwrap();
        assert!(Transfers::asked(&request(1, 0, 1)).unwrap().serve(&mut node).is_err(), "the asker is gone");
    }
}
