//! What another worker of the client's program asks for: writing and reading this session's memory.
//!
//! One thread reads requests and one executes them, so that the next piece comes while the driver
//! has the last, and one of them can say that this worker is alive while it waits for its turn on
//! the GPU. Each request takes one of a few buffers: that bounds what waits here.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::control::PeerReady;
use sluice_wire::peer::{Answer, Piece, REQUEST_SIZE, Request};
use sluice_wire::{DevicePtr, GREEN_PLACES, Header, Kind};

use super::line::{BEAT, read_exact, write_all};
use crate::connection::client::frame_of;
use crate::copies;
use crate::process::ending;
use crate::session::Session;
use crate::session::execute::Execute;

/// Requests that are being read, wait, or are executed.
const BUFFERS: usize = 4;
/// The lane of those threads that execute for other nodes: no client thread has it.
const LANE: u32 = u32::MAX;

/// The end of who serves.
struct Server {
    stream: Stream,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

type Job = (Request, Vec<u8>);

/// Serves a connection until it ends, on two threads; `over` is called then.
pub(super) fn start(session: &Arc<Session>, stream: Stream, over: impl FnOnce(&Session) + Send + 'static) {
    let server = Arc::new(Server { stream, writing: Mutex::new(()) });
    let (jobs, accepted) = channel();
    let (give_back, free) = channel();
    (0..BUFFERS).for_each(|_| _ = give_back.send(Vec::new()));
    let (executing, executor) = (Arc::clone(session), Arc::clone(&server));
    ending::spawn("peer", move || {
        // Copies fail where they were asked for; here there is nothing to report.
        let _ = executor.execute(&accepted, &give_back, |request, bytes| run(&executing, request, bytes));
        executor.stream.shut_down();
    });
    let session = Arc::clone(session);
    ending::spawn("peer reader", move || {
        let _ = server.read(&jobs, &free);
        server.stream.shut_down();
        over(&session);
    });
}

impl Server {
    /// Reads requests until there are no more.
    fn read(&self, jobs: &Sender<Job>, free: &Receiver<Vec<u8>>) -> io::Result<()> {
        self.say(&frame_of(PeerReady {})?)?;
        let mut buffers = Vec::new();
        loop {
            while !self.stream.wait_readable(BEAT)? {
                buffers.extend(free.try_iter());
                if buffers.len() < BUFFERS {
                    self.is_alive()?;
                }
            }
            let mut request = [0; REQUEST_SIZE];
            if !read_exact(&self.stream, &mut request)? {
                return Ok(());
            }
            let request = Request::from_bytes(request).map_err(io::Error::other)?;
            buffers.extend(free.try_iter());
            let mut bytes = match buffers.pop() {
                Some(buffer) => buffer,
                None => self.next_buffer(free)?,
            };
            if let Request::Put(piece) = request {
                bytes.resize(piece.bytes, 0);
                if !read_exact(&self.stream, &mut bytes)? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            jobs.send((request, bytes)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
    }

    fn next_buffer(&self, free: &Receiver<Vec<u8>>) -> io::Result<Vec<u8>> {
        loop {
            match free.recv_timeout(BEAT) {
                Ok(buffer) => return Ok(buffer),
                Err(RecvTimeoutError::Timeout) => self.is_alive()?,
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    /// Executes what has been read, in its order.
    fn execute(
        &self,
        jobs: &Receiver<Job>,
        give_back: &Sender<Vec<u8>>,
        run: impl std::ops::Fn(Request, &mut Vec<u8>) -> Result<(), CUresult>,
    ) -> io::Result<()> {
        let mut result = Ok(());
        for (request, mut bytes) in jobs {
            match request {
                // What comes after a failure is of the same copy.
                Request::Put(_) => result = result.and_then(|()| run(request, &mut bytes)),
                Request::End => {
                    let told = std::mem::replace(&mut result, Ok(())).err().unwrap_or(CUresult::SUCCESS);
                    self.say(&Answer::Done(told).to_bytes())?;
                }
                Request::Get(_) => match run(request, &mut bytes) {
                    Ok(()) => self.say_with(Answer::Data(bytes.len()), &bytes)?,
                    Err(error) => self.say(&Answer::Done(error).to_bytes())?,
                },
            }
            let _ = give_back.send(bytes);
        }
        Ok(())
    }

    fn say(&self, bytes: &[u8]) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_all(&self.stream, bytes)
    }

    fn say_with(&self, answer: Answer, bytes: &[u8]) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_all(&self.stream, &answer.to_bytes())?;
        write_all(&self.stream, bytes)
    }

    /// Sends a keep-alive, unless another thread is sending.
    fn is_alive(&self) -> io::Result<()> {
        match self.writing.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(()),
            Ok(_) | Err(TryLockError::Poisoned(_)) => write_all(&self.stream, &Answer::Alive.to_bytes()),
        }
    }
}

/// Writes or reads one piece where the session has memory.
fn run(session: &Session, request: Request, bytes: &mut Vec<u8>) -> Result<(), CUresult> {
    let (Request::Put(piece) | Request::Get(piece)) = request else { return Ok(()) };
    let Piece { device, address, bytes: count } = piece;
    session.failure()?;
    let is_device = |place: &u8| *place < GREEN_PLACES;
    let device = u8::try_from(device).ok().filter(is_device).ok_or(CUresult::INVALID_DEVICE)?;
    let _present = session.presence.enter();
    session.enter(Header { kind: Kind::Command, device, op: 0, lane: LANE, sequence: 0 })?;
    let at = session.range(DevicePtr(address), count as u64)?;
    let stream = session.mirror_stream()?;
    if let Request::Get(_) = request {
        bytes.resize(count, 0);
        // SAFETY: the pointer and length are of a slice.
        return unsafe { copies::copy_now(session, bytes.as_mut_ptr(), DevicePtr(at), count, stream) };
    }
    // SAFETY: the range is the session's, and pointer and length are of a slice.
    unsafe { copies::write_now(session, at, bytes, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A session's memory that is one vector; addresses beyond it are refused.
    fn served(asks: impl FnOnce(Stream)) -> Vec<u8> {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let server = Server { stream: ours.into(), writing: Mutex::new(()) };
        let memory = Mutex::new(vec![0_u8; 64]);
        let (jobs, accepted) = channel();
        let (give_back, free) = channel();
        (0..BUFFERS).for_each(|_| _ = give_back.send(Vec::new()));
        let run = |request, bytes: &mut Vec<u8>| {
            let (Request::Put(piece) | Request::Get(piece)) = request else { return Ok(()) };
            let mut memory = memory.lock().unwrap();
            let start = piece.address as usize;
            let range = memory.get_mut(start..start + piece.bytes).ok_or(CUresult::INVALID_VALUE)?;
            match request {
                Request::Get(_) => *bytes = range.to_vec(),
                _ => range.copy_from_slice(bytes),
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || server.execute(&accepted, &give_back, run));
            scope.spawn(move || {
                let _ = server.read(&jobs, &free);
                server.stream.shut_down();
            });
            let theirs = Stream::from(theirs);
            let mut ready = vec![0; frame_of(PeerReady {}).unwrap().len()];
            assert!(read_exact(&theirs, &mut ready).unwrap());
            asks(theirs);
        });
        memory.into_inner().unwrap()
    }

    fn piece(address: u64, bytes: usize) -> Piece {
        Piece { device: 0, address, bytes }
    }

    #[test]
    fn pieces_are_written_and_read_and_failures_told() {
        let memory = served(|stream| {
            let mut asker = super::super::line::Asker::new(stream);
            let mut put = |address, text: &[u8]| {
                let request = Request::Put(piece(address, text.len()));
                asker.put(&[&request.to_bytes()[..], text].concat()).unwrap();
            };
            put(3, b"abc");
            put(6, b"def");
            assert_eq!(asker.finish().unwrap(), CUresult::SUCCESS);
            let mut put = |address, text: &[u8]| {
                let request = Request::Put(piece(address, text.len()));
                asker.put(&[&request.to_bytes()[..], text].concat()).unwrap();
            };
            put(62, b"too far");
            put(0, b"z");
            assert_eq!(asker.finish().unwrap(), CUresult::INVALID_VALUE);
            assert_eq!(asker.finish().unwrap(), CUresult::SUCCESS, "that failure was of the copy before");
            // More than there are buffers.
            for _ in 0..3 * BUFFERS {
                asker.ask(Request::Get(piece(4, 4))).unwrap();
            }
            for _ in 0..3 * BUFFERS {
                assert_eq!(asker.answer().unwrap(), Answer::Data(4));
                let mut data = [0; 4];
                asker.data(&mut data).unwrap();
                assert_eq!(&data, b"bcde");
            }
            asker.ask(Request::Get(piece(63, 2))).unwrap();
            assert_eq!(asker.answer().unwrap(), Answer::Done(CUresult::INVALID_VALUE));
        });
        assert_eq!(&memory[..10], b"\0\0\0abcdef\0", "nothing is written after a failure");
    }

    #[test]
    fn nonsense_and_a_piece_that_never_ends_write_nothing() {
        let counted = AtomicUsize::new(0);
        for bytes in [vec![0xff; REQUEST_SIZE], Request::Put(piece(0, 9)).to_bytes().to_vec(), vec![1; 3]] {
            let memory = served(|stream| {
                write_all(&stream, &bytes).unwrap();
                stream.shut_down_writes();
                // It hangs up.
                assert!(!read_exact(&stream, &mut [0]).unwrap_or(false));
                counted.fetch_add(1, Relaxed);
            });
            assert_eq!(memory, [0; 64]);
        }
        assert_eq!(counted.into_inner(), 3);
    }
}
