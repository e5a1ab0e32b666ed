//! The two ends of a connection between workers, as bytes (`sluice_wire::peer`).
//!
//! The side that asks waits with a limit: a peer that says nothing though it is its turn is given
//! up, so that no copy hangs. On the side that serves nothing waits, so it waits as long as there
//! is a connection.

use std::io;
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::peer::{ANSWER_SIZE, Answer, Request};
use sluice_wire::spin::Wait;

/// A peer that is silent for this time is gone. One that waits for its GPU says so more often
/// ([`BEAT`]).
const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const BEAT: Duration = Duration::from_secs(3);

/// The end of who asks.
#[derive(Debug)]
pub(crate) struct Asker {
    stream: Stream,
    patience: Duration,
    /// What has come of the next answer.
    answer: [u8; ANSWER_SIZE],
    come: usize,
}

impl Asker {
    pub(super) fn new(stream: Stream) -> Asker {
        Asker { stream, patience: PATIENCE, answer: [0; ANSWER_SIZE], come: 0 }
    }

    /// Writes all of it, and receives meanwhile that the other is alive.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut until = Instant::now() + self.patience;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    until = Instant::now() + self.patience;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait_writable(true, left(until)?)?;
                    while let Some(answer) = self.heard()? {
                        if answer != Answer::Alive {
                            return Err(nonsense("an answer without a question"));
                        }
                        until = Instant::now() + self.patience;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks for a piece, whose answer may come after others'.
    pub(super) fn ask(&mut self, request: Request) -> io::Result<()> {
        let (bytes, until) = (request.to_bytes(), Instant::now() + self.patience);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait_writable(false, left(until)?)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends a copy to the other; what has become of it.
    pub(super) fn finish(&mut self) -> io::Result<CUresult> {
        self.put(&Request::End.to_bytes())?;
        match self.answer()? {
            Answer::Done(result) => Ok(result),
            _ => Err(nonsense("bytes without a question")),
        }
    }

    /// The next answer of meaning.
    pub(super) fn answer(&mut self) -> io::Result<Answer> {
        let mut until = Instant::now() + self.patience;
        loop {
            match self.heard()? {
                Some(Answer::Alive) => until = Instant::now() + self.patience,
                Some(answer) => return Ok(answer),
                None => _ = self.stream.wait_readable(left(until)?)?,
            }
        }
    }

    /// The bytes behind an answer.
    pub(super) fn data(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        let mut until = Instant::now() + self.patience;
        while !into.is_empty() {
            match read_now(&self.stream, into)? {
                0 => _ = self.stream.wait_readable(left(until)?)?,
                count => {
                    into = &mut into[count..];
                    until = Instant::now() + self.patience;
                }
            }
        }
        Ok(())
    }

    /// An answer that has come already.
    fn heard(&mut self) -> io::Result<Option<Answer>> {
        while self.come < ANSWER_SIZE {
            match read_now(&self.stream, &mut self.answer[self.come..])? {
                0 => return Ok(None),
                count => self.come += count,
            }
        }
        self.come = 0;
        Answer::from_bytes(self.answer).map(Some).map_err(nonsense)
    }

    /// No thread asks any more.
    pub(super) fn hang_up(&self) {
        self.stream.shut_down();
    }
}

/// What is there, perhaps nothing; the end of the stream is an error.
fn read_now(stream: &Stream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into, Wait::No) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn nonsense(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Why a connection is of no more use, for people to read.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("the other node has said nothing for {} s", PATIENCE.as_secs()),
        io::ErrorKind::InvalidData => format!("the other node has sent nonsense: {error}"),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the other node has closed it".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Fills the buffer, however long that takes; false if the stream ends before its first byte.
pub(super) fn read_exact(stream: &Stream, mut into: &mut [u8]) -> io::Result<bool> {
    let all = into.len();
    while !into.is_empty() {
        match read_now(stream, into) {
            Ok(0) => _ = stream.wait_readable(Duration::MAX)?,
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && into.len() == all => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes all of it, however long that takes.
pub(super) fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.wait_writable(false, Duration::MAX)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Asker, Stream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Asker::new(a.into()), b.into())
    }

    #[test]
    fn the_end_of_a_copy_brings_its_result() {
        let (mut asker, server) = pair();
        write_all(&server, &Answer::Alive.to_bytes()).unwrap();
        write_all(&server, &Answer::Done(CUresult(700)).to_bytes()).unwrap();
        assert_eq!(asker.finish().unwrap(), CUresult(700));
        let mut request = [0; sluice_wire::peer::REQUEST_SIZE];
        assert!(read_exact(&server, &mut request).unwrap());
        assert_eq!(Request::from_bytes(request), Ok(Request::End));
        drop(server);
        assert!(asker.finish().is_err(), "a copy whose connection is gone does not succeed");
    }

    #[test]
    fn a_silent_peer_is_given_up() {
        let (mut asker, _server) = pair();
        asker.patience = Duration::from_millis(1);
        assert_eq!(asker.answer().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(asker.data(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // More than any socket holds.
        assert_eq!(asker.put(&vec![0; 64 << 20]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_peer_that_takes_its_time_and_says_so_is_waited_for() {
        let (mut asker, server) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It says so while nothing can be written, and takes everything after that.
                write_all(&server, &Answer::Alive.to_bytes()).unwrap();
                let mut bytes = vec![0; 16 << 20];
                assert!(read_exact(&server, &mut bytes).unwrap());
                assert!(bytes.iter().all(|&byte| byte == 5));
                write_all(&server, &Answer::Data(3).to_bytes()).unwrap();
                write_all(&server, b"abc").unwrap();
            });
            asker.put(&vec![5; 16 << 20]).unwrap();
            assert_eq!(asker.answer().unwrap(), Answer::Data(3));
            let mut data = [0; 3];
            asker.data(&mut data).unwrap();
            assert_eq!(&data, b"abc");
        });
    }

    #[test]
    fn nonsense_ends_it() {
        let (mut asker, server) = pair();
        write_all(&server, &[0xff; ANSWER_SIZE]).unwrap();
        assert_eq!(asker.answer().unwrap_err().kind(), io::ErrorKind::InvalidData);
        write_all(&server, &Answer::Data(1).to_bytes()).unwrap();
        assert_eq!(asker.finish().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
