//! What came from the worker and what is still owed. Always used under the lock of its
//! [`Link`](crate::link::Link).

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::{
    Allowance, CommandRefused, Decode, Frame, FrameDecoder, HostCall, HostWrite, Kind, Op, Reader, Received,
    ReplyHead, Sticky, WireError, decode,
};

use crate::link::command_id::CommandId;
use crate::link::waiters::{Sleeper, Want};

/// A push that lacks at least this many bytes is read directly into its target.
const ARRIVAL_MIN: usize = 16 << 10;
/// Bytes of an unwanted push that are read at a time.
pub(crate) const SCRAP_BYTES: usize = 1 << 10;
/// Bytes of a `HostWrite` before its data: ticket, offset, and their number.
const HOST_WRITE_FIELDS: usize = 20;

/// Where pushed data go: a caller's buffer, valid until all of it has come or the ticket is
/// forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sink {
    start: *mut u8,
    bytes: u64,
    missing: u64,
}

// SAFETY: the buffer belongs to a call that waits, or is host memory that the program has promised
// to an asynchronous copy; only the thread that holds the inbox's lock writes to it.
unsafe impl Send for Sink {}

impl Sink {
    /// # Safety
    /// `start` is valid for writing `bytes` bytes until the ticket is settled or forgotten.
    pub(crate) unsafe fn new(start: *mut u8, bytes: u64) -> Sink {
        Sink { start, bytes, missing: bytes }
    }

    /// Bytes that it waits for in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let start = self.start as u64;
        start < range.end && range.start < start + self.bytes
    }

    /// Where `length` bytes for `offset` go, if the buffer has room for them and waits for that
    /// many.
    fn place(&self, offset: u64, length: u64) -> Result<*mut u8, WireError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.bytes);
        if end.is_none() || length > self.missing {
            return Err(WireError::Value { what: "an offset into host memory", value: offset });
        }
        // SAFETY: the offset is within the buffer.
        Ok(unsafe { self.start.add(offset as usize) })
    }
}

/// Data of a large push that are read from the stream directly into their sink.
#[derive(Debug)]
pub(crate) struct Arrival {
    ticket: u64,
    /// Where the next byte goes; `None` once they are unwanted.
    to: Option<NonNull<u8>>,
    /// Bytes of the whole push, and how many of them are still to come.
    bytes: u64,
    left: usize,
}

// SAFETY: as for `Sink`, whose buffer this is a part of: it is written to by the thread that leads,
// and the buffer's owner waits for that thread (`Link::forget`).
unsafe impl Send for Arrival {}

impl Arrival {
    /// The memory that the stream may be read into now: that of the sink, or some of `scrap`.
    ///
    /// # Safety
    /// The caller leads, and gives up what it got before it stops leading.
    pub(crate) unsafe fn space<'a>(&mut self, scrap: &'a mut [u8]) -> &'a mut [u8] {
        match self.to {
            // SAFETY: as many bytes of the sink are still to come, and its owner keeps it until the
            // leader is done.
            Some(to) => unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), self.left) },
            None => {
                let size = self.left.min(scrap.len());
                &mut scrap[..size]
            }
        }
    }

    /// Notes that this many bytes have been read into the space.
    pub(crate) fn received(&mut self, count: usize) {
        self.left -= count;
        // SAFETY: the sink has `count` bytes there, which have just been written.
        self.to = self.to.map(|to| unsafe { to.add(count) });
    }

    /// The sink's memory cannot be written to, or goes.
    pub(crate) fn discard(&mut self) {
        self.to = None;
    }
}

/// What has come from nodes so far by which a program can know how far its GPUs have come.
static NEWS: AtomicU64 = AtomicU64::new(0);

/// Returns that count. It is raised before any thread sees what has come.
pub(crate) fn news() -> u64 {
    NEWS.load(Ordering::Acquire)
}

/// What a reply says: the driver's result, and on success the fields of the answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: CUresult,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Inbox {
    /// The thread that takes it leads.
    pub(crate) receiver: Option<Receiver>,
    /// Threads that sleep until they are taken from this list.
    pub(crate) sleepers: Vec<Sleeper>,
    answers: HashMap<CommandId, Option<Answer>>,
    sinks: HashMap<u64, Sink>,
    /// The ticket of the push that arrives.
    arriving: Option<u64>,
    host_calls: Vec<HostCall>,
}

/// What the leader has: the stream, and what has come out of it.
pub(crate) struct Receiver {
    pub(crate) stream: Arc<Stream>,
    pub(crate) decoder: FrameDecoder,
    /// What the next bytes are: the rest of a push, if there is one, and then those of the decoder.
    pub(crate) arrival: Option<Arrival>,
    /// The last frame was a large push, and so is probably the next.
    pub(crate) after_bulk: bool,
    /// Reads in a row that have waited in vain.
    pub(crate) silent: u32,
}

impl Receiver {
    pub(crate) fn new(stream: Arc<Stream>, decoder: FrameDecoder) -> Receiver {
        Receiver { stream, decoder, arrival: None, after_bulk: false, silent: 0 }
    }
}

/// News for the link itself.
#[derive(Debug)]
pub(crate) enum News {
    /// The session has this error from now on.
    Failed(Sticky),
    /// A queued command was refused.
    Refused(CommandId, Op, CommandRefused),
    /// How much of this side's stream the worker has.
    Received(Received),
    /// The program's user should know this.
    Notice(String),
    /// What may be used unasked has changed.
    Allowance(Allowance),
}

impl Inbox {
    pub(crate) fn new(receiver: Receiver) -> Inbox {
        Inbox {
            receiver: Some(receiver),
            sleepers: Vec::new(),
            answers: HashMap::new(),
            sinks: HashMap::new(),
            arriving: None,
            host_calls: Vec::new(),
        }
    }

    pub(crate) fn await_answer(&mut self, place: CommandId) {
        self.answers.insert(place, None);
    }

    pub(crate) fn take_answer(&mut self, place: CommandId) -> Option<Answer> {
        self.answers.get(&place)?.as_ref()?;
        self.answers.remove(&place).flatten()
    }

    /// Whether that is there, or may be.
    pub(crate) fn has(&self, want: Want) -> bool {
        match want {
            Want::Answer(place) => self.answers.get(&place).is_some_and(Option::is_some),
            Want::HostCalls => !self.host_calls.is_empty(),
            Want::Change => true,
        }
    }

    pub(crate) fn give_up(&mut self, place: CommandId) {
        self.answers.remove(&place);
    }

    pub(crate) fn expect(&mut self, ticket: u64, sink: Sink) {
        self.sinks.insert(ticket, sink);
    }

    /// Whether the leader may be writing to this ticket's buffer.
    pub(crate) fn is_in_use(&self, ticket: u64) -> bool {
        self.arriving == Some(ticket) && self.receiver.is_none()
    }

    /// True if data were still to come, which go nowhere now. The buffer is not in use.
    pub(crate) fn forget(&mut self, ticket: u64) -> bool {
        let arrival = self.receiver.as_mut().and_then(|receiver| receiver.arrival.as_mut());
        if let Some(arrival) = arrival.filter(|arrival| arrival.ticket == ticket) {
            arrival.discard();
        }
        self.sinks.remove(&ticket).is_some()
    }

    /// If the frame that has begun is a large push into a buffer that is there, takes it out of the
    /// decoder: the rest of it is read straight into that buffer.
    pub(crate) fn begin_arrival(&mut self, receiver: &mut Receiver) -> Result<(), WireError> {
        let Some(begun) = receiver.decoder.begun()? else { return Ok(()) };
        if begun.header.kind != Kind::HostWrite || begun.missing < ARRIVAL_MIN {
            return Ok(());
        }
        let Some((fields, come)) = begun.payload.split_at_checked(HOST_WRITE_FIELDS) else { return Ok(()) };
        let mut fields = Reader::new(fields);
        let (ticket, offset) = (u64::decode(&mut fields)?, u64::decode(&mut fields)?);
        let (count, left) = (u32::decode(&mut fields)? as usize, begun.missing);
        if count != come.len() + left {
            return Err(WireError::Truncated);
        }
        let Some(sink) = self.sinks.get(&ticket) else { return Ok(()) };
        let to = sink.place(offset, count as u64)?;
        // SAFETY: `count` bytes of the sink begin there, which is no less than has come.
        let rest = unsafe {
            std::ptr::copy_nonoverlapping(come.as_ptr(), to, come.len());
            to.add(come.len())
        };
        receiver.arrival = Some(Arrival { ticket, to: NonNull::new(rest), bytes: count as u64, left });
        receiver.decoder.take_begun();
        receiver.after_bulk = true;
        self.arriving = Some(ticket);
        Ok(())
    }

    /// Settles a push whose last byte has come.
    pub(crate) fn end_arrival(&mut self, receiver: &mut Receiver) {
        let Some(arrival) = receiver.arrival.take_if(|arrival| arrival.left == 0) else { return };
        self.arriving = None;
        NEWS.fetch_add(1, Ordering::AcqRel);
        self.landed(arrival.ticket, arrival.bytes);
    }

    /// Whether data are still to land in this memory.
    pub(crate) fn will_write(&self, range: &Range<u64>) -> bool {
        self.sinks.values().any(|sink| sink.overlaps(range))
    }

    pub(crate) fn owes_data(&self) -> bool {
        !self.sinks.is_empty()
    }

    /// Whether nothing is owed: no answer, no data, no host function.
    pub(crate) fn is_settled(&self) -> bool {
        self.answers.values().all(Option::is_some)
            && self.sinks.is_empty()
            && self.arriving.is_none()
            && self.host_calls.is_empty()
    }

    pub(crate) fn take_host_calls(&mut self) -> Option<Vec<HostCall>> {
        (!self.host_calls.is_empty()).then(|| std::mem::take(&mut self.host_calls))
    }

    /// Puts a frame where it belongs. A frame for which no caller waits is dropped: the caller has
    /// given up.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>) -> Result<Option<News>, WireError> {
        if !matches!(frame.header.kind, Kind::Received | Kind::Allowance | Kind::Notice) {
            NEWS.fetch_add(1, Ordering::AcqRel);
        }
        match frame.header.kind {
            Kind::Reply => {
                let place = (frame.header.lane, frame.header.sequence);
                if let Some(answer) = self.answers.get_mut(&place) {
                    *answer = Some(read_answer(frame.payload)?);
                }
            }
            Kind::HostWrite => self.land(&decode(frame.payload)?)?,
            Kind::HostCall => self.host_calls.push(decode(frame.payload)?),
            Kind::Sticky => return decode(frame.payload).map(|sticky| Some(News::Failed(sticky))),
            Kind::CommandRefused => {
                let (header, refused) = (frame.header, decode::<CommandRefused>(frame.payload)?);
                // It would come for ever.
                self.sinks.remove(&refused.ticket);
                return Ok(Some(News::Refused((header.lane, header.sequence), Op(header.op), refused)));
            }
            Kind::Received => return decode(frame.payload).map(|received| Some(News::Received(received))),
            Kind::Output => print(frame.payload),
            Kind::Allowance => {
                return decode(frame.payload).map(|allowance| Some(News::Allowance(allowance)));
            }
            Kind::Notice => return Ok(Some(News::Notice(one_line(frame.payload)))),
            kind @ (Kind::Command | Kind::Commands | Kind::Control | Kind::Packed) => {
                return Err(WireError::FrameKind(kind as u8));
            }
        }
        Ok(None)
    }

    fn land(&mut self, write: &HostWrite<'_>) -> Result<(), WireError> {
        let Some(sink) = self.sinks.get(&write.ticket) else { return Ok(()) };
        let length = write.bytes.len() as u64;
        let to = sink.place(write.offset, length)?;
        // SAFETY: the buffer has that many bytes there, which its caller keeps valid.
        unsafe { std::ptr::copy_nonoverlapping(write.bytes.as_ptr(), to, write.bytes.len()) };
        self.landed(write.ticket, length);
        Ok(())
    }

    fn landed(&mut self, ticket: u64, bytes: u64) {
        let Some(sink) = self.sinks.get_mut(&ticket) else { return };
        sink.missing -= bytes;
        if sink.missing == 0 {
            self.sinks.remove(&ticket);
        }
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

/// Text from elsewhere, fit for a terminal.
fn one_line(text: &[u8]) -> String {
    const CHARACTERS_MAX: usize = 400;
    let text = String::from_utf8_lossy(text);
    text.chars().take(CHARACTERS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes what device code printed to the program's standard output, as CUDA does when a program
/// synchronises: through the C library, so that it comes after what the program itself printed
/// before.
fn print(text: &[u8]) {
    // SAFETY: pointer and length describe `text`, and the C library's stream is there for the whole
    // process. A closed standard output is the program's choice, so a failure is ignored.
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
        Inbox::new(Receiver::new(stream, FrameDecoder::new()))
    }

    fn push(inbox: &mut Inbox, ticket: u64, offset: u64, bytes: &[u8]) -> Result<(), WireError> {
        let mut payload = Vec::new();
        HostWrite { ticket, offset, bytes }.encode(&mut payload);
        inbox.deliver(&frame(Kind::HostWrite, &payload)).map(drop)
    }

    #[test]
    fn a_notice_is_one_line() {
        assert_eq!(one_line(b"no\n\x1b[31mroom\xff"), "no  [31mroom\u{fffd}");
        assert_eq!(one_line(&[b'x'; 1000]).len(), 400);
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

    /// A receiver that has this much of a push of `count` bytes, whose frame says `said`.
    fn arriving(ticket: u64, offset: u64, (come, count): (usize, usize), said: u32) -> Receiver {
        let mut payload = Vec::new();
        HostWrite { ticket, offset, bytes: &vec![5; count] }.encode(&mut payload);
        payload[16..20].copy_from_slice(&said.to_le_bytes());
        let mut bytes = Vec::new();
        let header = frame(Kind::HostWrite, &[]).header;
        header.frame(&mut bytes, |out| out.extend_from_slice(&payload)).unwrap();
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut receiver = Receiver::new(Arc::new(stream.into()), FrameDecoder::new());
        receiver.decoder.push(&bytes[..40 + come]);
        assert!(receiver.decoder.next_frame().unwrap().is_none());
        receiver
    }

    /// Gives the receiver these as the next bytes of the stream, as the link does; returns those
    /// behind the push.
    fn arrive<'a>(receiver: &mut Receiver, mut bytes: &'a [u8]) -> &'a [u8] {
        let arrival = receiver.arrival.as_mut().expect("a push has begun");
        while arrival.left > 0 && !bytes.is_empty() {
            let mut scrap = [0; SCRAP_BYTES];
            // SAFETY: no other thread has the receiver.
            let space = unsafe { arrival.space(&mut scrap) };
            let (now, later) = bytes.split_at(bytes.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            arrival.received(now.len());
            bytes = later;
        }
        bytes
    }

    const BYTES: usize = 2 * ARRIVAL_MIN;

    #[test]
    fn a_large_push_arrives_in_its_buffer() {
        let mut inbox = inbox();
        let mut buffer = vec![0_u8; BYTES + 20];
        // SAFETY: the buffer outlives the inbox.
        inbox.expect(1, unsafe { Sink::new(buffer.as_mut_ptr(), buffer.len() as u64) });
        let mut receiver = arriving(1, 10, (7, BYTES), BYTES as u32);
        inbox.begin_arrival(&mut receiver).unwrap();
        let rest = [[6; BYTES - 7].as_slice(), b"next"].concat();
        assert_eq!(arrive(&mut receiver, &rest), b"next");
        inbox.end_arrival(&mut receiver);
        assert!(receiver.arrival.is_none());
        push(&mut inbox, 1, 0, &[1; 10]).unwrap();
        push(&mut inbox, 1, BYTES as u64 + 10, &[2; 10]).unwrap();
        assert!(!inbox.owes_data(), "it counts towards what is owed");
        let expected = [&[1; 10][..], &[5; 7], &[6; BYTES - 7], &[2; 10]].concat();
        assert!(buffer == expected);
    }

    #[test]
    fn a_push_whose_buffer_goes_is_read_to_its_end() {
        let mut inbox = inbox();
        let mut buffer = vec![0_u8; BYTES];
        // SAFETY: the buffer outlives the inbox.
        inbox.expect(1, unsafe { Sink::new(buffer.as_mut_ptr(), BYTES as u64) });
        let mut receiver = arriving(1, 0, (0, BYTES), BYTES as u32);
        inbox.begin_arrival(&mut receiver).unwrap();
        assert!(arrive(&mut receiver, &[6; 10]).is_empty());
        inbox.receiver = Some(receiver);
        assert!(!inbox.is_in_use(1) && inbox.forget(1));
        let mut receiver = inbox.receiver.take().unwrap();
        assert_eq!(arrive(&mut receiver, &[7; BYTES]).len(), 10);
        inbox.end_arrival(&mut receiver);
        assert!(receiver.arrival.is_none());
        assert!(buffer[..10] == [6; 10] && buffer[10..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_push_that_does_not_fit_is_refused_when_it_begins() {
        let mut buffer = vec![0_u8; BYTES];
        for (offset, said) in [(1, BYTES), (u64::MAX, BYTES), (0, 0), (0, BYTES + 1), (0, u32::MAX as usize)]
        {
            let mut inbox = inbox();
            // SAFETY: the buffer outlives the inbox.
            inbox.expect(1, unsafe { Sink::new(buffer.as_mut_ptr(), BYTES as u64) });
            let mut receiver = arriving(1, offset, (9, BYTES), said as u32);
            assert!(inbox.begin_arrival(&mut receiver).is_err(), "{offset} {said}");
            assert!(receiver.arrival.is_none());
        }
        assert!(buffer.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn small_and_unknown_pushes_stay_with_the_decoder() {
        let mut inbox = inbox();
        let mut unknown = arriving(1, 0, (9, BYTES), BYTES as u32);
        inbox.begin_arrival(&mut unknown).unwrap();
        let mut buffer = [0_u8; 100];
        // SAFETY: the buffer outlives the inbox.
        inbox.expect(1, unsafe { Sink::new(buffer.as_mut_ptr(), 100) });
        let mut small = arriving(1, 0, (9, 100), 100);
        inbox.begin_arrival(&mut small).unwrap();
        assert!(unknown.arrival.is_none() && small.arrival.is_none());
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
