//! What came from the worker and what is still owed. Always used under the lock of its [`Link`](crate::link::Link).

use std::collections::HashMap;
use std::sync::Arc;

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::{
    Decode, Frame, FrameDecoder, HostCall, HostWrite, Kind, Reader, Received, ReplyHead, Sticky, WireError,
    decode,
};

use crate::link::Place;

/// Where pushed data go: a caller's buffer, valid until all of it has come or the ticket is forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sink {
    start: *mut u8,
    bytes: u64,
    missing: u64,
}

// SAFETY: the buffer belongs to a call that waits, or is host memory that the program has promised to an asynchronous
// copy; only the thread that holds the inbox's lock writes to it.
unsafe impl Send for Sink {}

impl Sink {
    /// # Safety
    /// `start` is valid for writing `bytes` bytes until the ticket is settled or forgotten.
    pub(crate) unsafe fn new(start: *mut u8, bytes: u64) -> Sink {
        Sink { start, bytes, missing: bytes }
    }
}

/// What a reply says: the driver's result, and on success the fields of the answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: CUresult,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Inbox {
    /// Whoever takes it leads.
    pub(crate) receiver: Option<Receiver>,
    /// Threads asleep until something changes.
    pub(crate) sleepers: usize,
    answers: HashMap<Place, Option<Answer>>,
    sinks: HashMap<u64, Sink>,
    host_calls: Vec<u64>,
}

/// What the leader has: the stream, and what has come out of it.
pub(crate) struct Receiver {
    pub(crate) stream: Arc<Stream>,
    pub(crate) decoder: FrameDecoder,
    /// Reads in a row that have waited in vain.
    pub(crate) silent: u32,
}

/// News for the link itself.
#[derive(Debug)]
pub(crate) enum News {
    /// The session has this error from now on.
    Failed(Sticky),
    /// The worker has so much of our stream.
    Received(Received),
}

impl Inbox {
    pub(crate) fn new(receiver: Receiver) -> Inbox {
        Inbox {
            receiver: Some(receiver),
            sleepers: 0,
            answers: HashMap::new(),
            sinks: HashMap::new(),
            host_calls: Vec::new(),
        }
    }

    pub(crate) fn await_answer(&mut self, place: Place) {
        self.answers.insert(place, None);
    }

    pub(crate) fn take_answer(&mut self, place: Place) -> Option<Answer> {
        self.answers.get(&place)?.as_ref()?;
        self.answers.remove(&place).flatten()
    }

    pub(crate) fn give_up(&mut self, place: Place) {
        self.answers.remove(&place);
    }

    pub(crate) fn expect(&mut self, ticket: u64, sink: Sink) {
        self.sinks.insert(ticket, sink);
    }

    pub(crate) fn forget(&mut self, ticket: u64) {
        self.sinks.remove(&ticket);
    }

    pub(crate) fn owes_data(&self) -> bool {
        !self.sinks.is_empty()
    }

    pub(crate) fn take_host_calls(&mut self) -> Option<Vec<u64>> {
        (!self.host_calls.is_empty()).then(|| std::mem::take(&mut self.host_calls))
    }

    /// Puts a frame where it belongs. What nobody waits for is dropped: its caller has given up.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>) -> Result<Option<News>, WireError> {
        match frame.header.kind {
            Kind::Reply => {
                let place = (frame.header.lane, frame.header.sequence);
                if let Some(answer) = self.answers.get_mut(&place) {
                    *answer = Some(read_answer(frame.payload)?);
                }
            }
            Kind::HostWrite => self.land(&decode(frame.payload)?)?,
            Kind::HostCall => self.host_calls.push(decode::<HostCall>(frame.payload)?.ticket),
            Kind::Sticky => return decode(frame.payload).map(|sticky| Some(News::Failed(sticky))),
            Kind::Received => return decode(frame.payload).map(|received| Some(News::Received(received))),
            Kind::Output => print(frame.payload),
            kind @ (Kind::Command | Kind::Control) => return Err(WireError::FrameKind(kind as u8)),
        }
        Ok(None)
    }

    fn land(&mut self, write: &HostWrite<'_>) -> Result<(), WireError> {
        let Some(sink) = self.sinks.get_mut(&write.ticket) else { return Ok(()) };
        let length = write.bytes.len() as u64;
        let end = write.offset.checked_add(length).filter(|end| *end <= sink.bytes);
        if end.is_none() || length > sink.missing {
            return Err(WireError::Value { what: "an offset into host memory", value: write.offset });
        }
        // SAFETY: offset and length were checked against the buffer, which its caller keeps valid.
        unsafe {
            let to = sink.start.add(write.offset as usize);
            std::ptr::copy_nonoverlapping(write.bytes.as_ptr(), to, write.bytes.len());
        }
        sink.missing -= length;
        if sink.missing == 0 {
            self.sinks.remove(&write.ticket);
        }
        Ok(())
    }
}

fn read_answer(payload: &[u8]) -> Result<Answer, WireError> {
    let mut reader = Reader::new(payload);
    let head = ReplyHead::decode(&mut reader)?;
    Ok(Answer { result: CUresult(head.result), payload: payload[size_of::<i32>()..].to_vec() })
}

unsafe extern "C" {
    /// The C library's standard output, which this process shares with the program.
    static stdout: *mut libc::FILE;
}

/// Writes what device code printed to the program's standard output, as CUDA does when somebody synchronises: through
/// the C library, so that it comes after what the program itself printed before.
fn print(text: &[u8]) {
    // SAFETY: pointer and length describe `text`, and the C library's stream is there for the whole process. A closed
    // standard output is the program's choice, so nobody is told of a failure.
    unsafe {
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout);
        libc::fflush(stdout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::{Encode, Header};

    fn frame(kind: Kind, payload: &[u8]) -> Frame<'_> {
        Frame { header: Header { kind, device: 0, op: 0, lane: 3, sequence: 9 }, payload }
    }

    fn inbox() -> Inbox {
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = Arc::new(stream.into());
        Inbox::new(Receiver { stream, decoder: FrameDecoder::new(), silent: 0 })
    }

    fn push(inbox: &mut Inbox, ticket: u64, offset: u64, bytes: &[u8]) -> Result<(), WireError> {
        let mut payload = Vec::new();
        HostWrite { ticket, offset, bytes }.encode(&mut payload);
        inbox.deliver(&frame(Kind::HostWrite, &payload)).map(drop)
    }

    #[test]
    fn answers_wait_for_their_own_place() {
        let mut inbox = inbox();
        inbox.await_answer((3, 9));
        assert!(inbox.take_answer((3, 9)).is_none());
        inbox.deliver(&frame(Kind::Reply, &[2, 0, 0, 0, 7])).unwrap();
        let answer = inbox.take_answer((3, 9)).unwrap();
        assert_eq!((answer.result, answer.payload), (CUresult::OUT_OF_MEMORY, vec![7]));
        assert!(inbox.deliver(&frame(Kind::Reply, &[0; 4])).is_ok(), "nobody waits any more");
    }

    #[test]
    fn pushed_data_land_inside_their_buffer_only() {
        let mut inbox = inbox();
        let mut buffer = [0_u8; 4];
        // SAFETY: the buffer outlives the inbox.
        inbox.expect(1, unsafe { Sink::new(buffer.as_mut_ptr(), 4) });
        push(&mut inbox, 1, 2, &[5, 6]).unwrap();
        assert!(push(&mut inbox, 1, 3, &[1, 1]).is_err());
        assert!(push(&mut inbox, 1, u64::MAX, &[1, 1]).is_err());
        push(&mut inbox, 1, 0, &[7, 8]).unwrap();
        assert!(!inbox.owes_data());
        push(&mut inbox, 1, 0, &[9]).unwrap();
        assert_eq!(buffer, [7, 8, 5, 6]);
    }
}
