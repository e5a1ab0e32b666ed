//! The link against a worker that is played by the test, on the other end of a socket pair.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sluice_wire::resume::ACKNOWLEDGE_EVERY;
use sluice_wire::sequences::Expander;
use sluice_wire::{Command, CommandRefused, Encode, Frame, Header, HostWrite, Kind, Op, Received, commands};

use super::silence::STOPPED_MAX;
use super::zero_copy::LEND_MIN;
use super::*;
use crate::link::inbox::Sink;

pub(super) const OP: Op = Op::of(sluice_cuda::Fn::cuCtxSynchronize);

pub(super) fn pair() -> (&'static Link, Peer) {
    pair_with(None)
}

fn pair_with(resumption: Option<Resumption>) -> (&'static Link, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let link = Link::new(Stream::from(ours), FrameDecoder::new(), (0, 0), resumption, None);
    // How long nothing is heard is for a test to say.
    link.outbox().stream.set_read_limit(Duration::from_secs(600)).unwrap();
    // As in a program, where the session is never freed.
    (Box::leak(Box::new(link)), Peer { stream: theirs, decoder: FrameDecoder::new() })
}

/// The worker's end.
pub(super) struct Peer {
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Peer {
    /// A worker's end of another connection.
    pub(super) fn on(self, stream: UnixStream) -> Peer {
        Peer { stream, decoder: FrameDecoder::new() }
    }

    pub(super) fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.header, frame.payload.to_vec()));
            }
            let count = self.stream.read(self.decoder.space(4096)).unwrap();
            if count == 0 {
                return None;
            }
            self.decoder.received(count);
        }
    }

    fn send(&mut self, header: Header, payload: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        header.frame(&mut frame, payload).unwrap();
        self.stream.write_all(&frame).unwrap();
    }

    /// Success, with the command's own payload as the answer.
    pub(super) fn echo(&mut self, command: (Header, Vec<u8>)) {
        let (header, payload) = command;
        self.send(Header { kind: Kind::Reply, ..header }, |out| {
            0_i32.encode(out);
            out.extend_from_slice(&payload);
        });
    }
}

fn header(kind: Kind) -> Header {
    Header { kind, device: 0, op: 0, lane: 0, sequence: 0 }
}

#[test]
fn answers_find_their_threads_in_any_order() {
    const THREADS: usize = 8;
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        for number in 0..THREADS as u64 {
            scope.spawn(move || {
                let answer = link.call(0, OP, |out| number.encode(out)).unwrap();
                assert_eq!(answer.payload, number.to_le_bytes());
            });
        }
        let mut commands: Vec<_> = (0..THREADS).map(|_| peer.next().unwrap()).collect();
        commands.sort_by_key(|(header, _)| std::cmp::Reverse(header.lane));
        commands.into_iter().for_each(|command| peer.echo(command));
    });
}

#[test]
fn commands_of_a_thread_keep_their_order() {
    let (link, mut peer) = pair();
    for number in 0..1000_u64 {
        link.queue(0, OP, |out| number.encode(out)).unwrap();
    }
    link.flush_now().unwrap();
    let (first, _) = peer.next().unwrap();
    for number in 1..1000_u64 {
        let (header, payload) = peer.next().unwrap();
        assert_eq!((header.lane, header.sequence), (first.lane, first.sequence + number));
        assert_eq!(payload, number.to_le_bytes());
    }
}

/// Also what comes too soon after a flush to go out by itself.
#[test]
fn what_is_queued_goes_out_without_another_call() {
    let (link, mut peer) = pair();
    link.start_flusher();
    for number in 0..100_u64 {
        link.queue(0, OP, |out| number.encode(out)).unwrap();
        link.queue(0, OP, |out| number.encode(out)).unwrap();
        for _ in 0..2 {
            assert_eq!(peer.next().unwrap().1, number.to_le_bytes());
        }
    }
}

/// Neither side reads before it has written more than the socket holds.
#[test]
fn a_full_socket_is_read_while_it_is_written() {
    const PIECES: usize = 64;
    const PIECE: usize = 256 << 10;
    let (link, mut peer) = pair();
    let mut landed = vec![0_u8; PIECES * PIECE];
    let ticket = link.ticket();
    // SAFETY: the buffer outlives the ticket: all of it has landed before the test looks at it.
    link.expect(ticket, unsafe { Sink::new(landed.as_mut_ptr(), landed.len() as u64) });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in 0..PIECES {
                let bytes = vec![piece as u8 + 1; PIECE];
                let write = HostWrite { ticket, offset: (piece * PIECE) as u64, bytes: &bytes };
                peer.send(header(Kind::HostWrite), |out| write.encode(out));
            }
            let mut received = 0;
            while received < PIECES {
                let (_, payload) = peer.next().unwrap();
                received += usize::from(payload.len() == PIECE);
            }
            let command = peer.next().unwrap();
            peer.echo(command);
        });
        let data = vec![9_u8; PIECE];
        for _ in 0..PIECES {
            link.queue(0, OP, |out| out.extend_from_slice(&data)).unwrap();
        }
        link.call(0, OP, |_| ()).unwrap();
    });
    assert!(!link.owes_data());
    assert!(landed.chunks(PIECE).zip(1..).all(|(piece, value)| piece.iter().all(|byte| *byte == value)));
}

#[test]
fn a_session_that_ends_here_fails_every_call_now_and_later() {
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| link.call(0, OP, |_| ()).unwrap_err());
        peer.next().unwrap();
        link.end(CUresult::INVALID_HANDLE, &"a function could not be run");
        assert_eq!(waits.join().unwrap(), CUresult::INVALID_HANDLE);
    });
    assert_eq!(link.queue(0, OP, |_| ()), Err(CUresult::INVALID_HANDLE));
    assert_eq!(link.wait_for_host_calls().unwrap_err(), CUresult::INVALID_HANDLE);
    assert!(peer.next().is_none(), "the worker hears of it");
}

#[test]
fn a_lost_connection_fails_every_call_now_and_later() {
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(link.call(0, OP, |_| ()).unwrap_err(), LOST));
        }
        (0..4).for_each(|_| drop(peer.next().unwrap()));
        drop(peer);
    });
    assert_eq!(link.queue(0, OP, |_| ()), Err(LOST));
    assert_eq!(link.check(), Err(LOST));
}

/// Looks for a sign of life as whoever waits does after a while in which nothing has come.
fn hear_nothing(link: &Link) {
    let mut receiver = link.inbox().receiver.take().unwrap();
    link.heard_nothing(&mut receiver);
    link.stop_leading(&mut link.inbox(), receiver);
}

/// On the same host, where nothing can be resumed.
#[test]
fn a_worker_that_says_nothing_is_asked_and_given_up_in_the_end() {
    let (link, mut peer) = pair();
    let looks = (STOPPED_MAX.as_secs() / SILENCE.as_secs()) as u32;
    for _ in 1..looks {
        hear_nothing(link);
        let (asked, payload) = peer.next().unwrap();
        assert_eq!((asked.kind, payload.last()), (Kind::Received, Some(&1)), "it wants an answer");
    }
    assert_eq!(link.check(), Ok(()));
    assert!(link.silence_is_told.load(Ordering::Relaxed));
    // It continues, and everything begins anew. What it says to have is more than a link counts
    // that keeps nothing.
    std::thread::scope(|scope| {
        scope.spawn(|| link.call(0, OP, |_| ()).unwrap());
        let command = peer.next().unwrap();
        peer.send(header(Kind::Received), |out| Received { position: 1 << 40, answer: false }.encode(out));
        peer.echo(command);
    });
    assert!(!link.silence_is_told.load(Ordering::Relaxed));
    (1..looks).for_each(|_| hear_nothing(link));
    assert_eq!(link.check(), Ok(()));
    hear_nothing(link);
    assert_eq!(link.call(0, OP, |_| ()).unwrap_err(), LOST);
}

/// Nobody can ask while another thread sends, and a worker that takes what it is sent need not say
/// anything.
#[test]
fn silence_while_another_thread_sends_does_not_count() {
    let (link, _peer) = pair();
    let outbox = link.outbox();
    for _ in 0..100 {
        hear_nothing(link);
    }
    drop(outbox);
    assert_eq!(link.inbox().receiver.as_ref().unwrap().silent, 0);
    assert_eq!(link.check(), Ok(()));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_lost() {
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(link.call(0, OP, |_| ()).unwrap_err(), LOST));
        peer.next().unwrap();
        peer.stream.write_all(&[0xff; 64]).unwrap();
    });
}

#[test]
fn a_sticky_error_is_the_answer_to_later_calls() {
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| link.call(0, OP, |_| ()).unwrap());
        let command = peer.next().unwrap();
        let sticky = sluice_wire::Sticky {
            result: CUresult::ILLEGAL_ADDRESS.0,
            op: Op::of(sluice_cuda::Fn::cuLaunchKernel).0,
            text: String::new(),
        };
        peer.send(header(Kind::Sticky), |out| sticky.encode(out));
        peer.echo(command);
    });
    assert_eq!(link.queue(0, OP, |_| ()), Err(CUresult::ILLEGAL_ADDRESS));
    assert_eq!(link.call(0, OP, |_| ()).unwrap_err(), CUresult::ILLEGAL_ADDRESS);
}

/// The session continues, and nothing is to come any more for the command.
#[test]
fn a_refused_command_is_over() {
    let (link, mut peer) = pair();
    let mut buffer = [0_u8; 4];
    let ticket = link.ticket();
    // SAFETY: the buffer outlives the test, in which nothing is pushed.
    link.expect(ticket, unsafe { Sink::new(buffer.as_mut_ptr(), 4) });
    let copy = Op::of(sluice_cuda::Fn::cuMemcpyDtoHAsync_v2);
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| link.try_out(0, copy, |_| ()));
        let (refused, _) = peer.next().unwrap();
        let why = CommandRefused { result: CUresult::OUT_OF_MEMORY.0, ticket, captured: false };
        peer.send(Header { kind: Kind::CommandRefused, ..refused }, |out| why.encode(out));
        let submitted = peer.next().unwrap();
        assert_eq!(Op(submitted.0.op), commands::Submitted::OP);
        peer.echo((submitted.0, Vec::new()));
        assert_eq!(tried.join().unwrap(), Err(CUresult::OUT_OF_MEMORY));
        let tried = scope.spawn(|| link.try_out(0, copy, |_| ()));
        peer.next().unwrap();
        let submitted = peer.next().unwrap();
        peer.echo((submitted.0, Vec::new()));
        assert_eq!(tried.join().unwrap(), Ok(()));
    });
    assert!(!link.owes_data());
    assert_eq!(link.check(), Ok(()));
}

#[test]
fn host_functions_are_announced_to_the_thread_that_waits_for_them() {
    let (link, mut peer) = pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| link.wait_for_host_calls().unwrap());
        let call = sluice_wire::HostCall { ticket: 5, status: 0 };
        peer.send(header(Kind::HostCall), |out| call.encode(out));
        assert_eq!(waiter.join().unwrap(), [call]);
    });
}

/// Memory that cannot be written to spoils the session, and nothing else.
#[test]
fn a_buffer_that_cannot_be_written_to_is_an_error_of_the_session() {
    let (link, mut peer) = pair();
    const BYTES: usize = 1 << 20;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    let ticket = link.ticket();
    // SAFETY: nobody else uses that memory.
    link.expect(ticket, unsafe { Sink::new(page.cast(), BYTES as u64) });
    std::thread::scope(|scope| {
        scope.spawn(|| link.call(0, OP, |_| ()).unwrap());
        let command = peer.next().unwrap();
        let mut frame = Vec::new();
        let fields = |out: &mut Vec<u8>| {
            ticket.encode(out);
            0_u64.encode(out);
            (BYTES as u32).encode(out);
        };
        header(Kind::HostWrite).frame_before(&mut frame, BYTES, fields).unwrap();
        // So that no data are there when the frame begins.
        peer.stream.write_all(&frame).unwrap();
        while !link.inbox().is_in_use(ticket) {
            std::thread::yield_now();
        }
        peer.stream.write_all(&vec![1; BYTES]).unwrap();
        peer.echo(command);
    });
    assert_eq!(link.check(), Err(CUresult::INVALID_VALUE));
    assert!(!link.owes_data());
}

/// Data go out from where they lie where nothing can be sent again; the peer sees what it would see
/// anyway.
#[test]
fn lent_data_are_the_end_of_their_command() {
    let (link, mut peer) = pair();
    let data: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut loan = link.loan();
            for size in [10, LEND_MIN, data.len()] {
                // SAFETY: it is dropped below.
                unsafe { loan.queue(0, OP, |out| 7_u64.encode(out), (&data[..size], 0)) }.unwrap();
            }
            drop(loan);
            link.call(0, OP, |_| ()).unwrap();
        });
        for size in [10, LEND_MIN, data.len()] {
            let (_, payload) = peer.next().unwrap();
            let mut expected = Vec::new();
            7_u64.encode(&mut expected);
            (&data[..size]).encode(&mut expected);
            assert!(payload == expected, "{size} bytes");
        }
        let command = peer.next().unwrap();
        peer.echo(command);
    });
}

/// They go out with what comes next, as launches do.
#[test]
fn small_data_wait_for_company() {
    let (link, mut peer) = pair();
    let (small, large) = ([1; 64], vec![1; LEND_MIN]);
    let queue = |data: &[u8]| {
        // Nothing is due because of the time.
        link.outbox().flushed_at = Instant::now() + Duration::from_secs(3600);
        // SAFETY: the loan is dropped at once.
        unsafe { link.loan().queue(0, OP, |_| (), (data, 0)) }.unwrap();
        link.outbox().unsent() > 0
    };
    assert!(queue(&small) && queue(&small));
    assert!(!queue(&large), "all go out together");
    for size in [64, 64, LEND_MIN] {
        assert_eq!(peer.next().unwrap().1.len(), 4 + size);
    }
}

#[test]
fn data_lent_to_a_lost_connection_are_forgotten() {
    let (link, peer) = pair();
    drop(peer);
    let data = vec![1; 3 << 20];
    let mut loan = link.loan();
    // SAFETY: it is dropped below.
    let mut queue = || unsafe { loan.queue(0, OP, |_| (), (&data, 0)) };
    // The first may still be taken for sent.
    let _ = queue();
    assert_eq!(queue(), Err(LOST));
    drop(loan);
    assert_eq!(link.outbox().buffer.unsent(), 0);
}

/// A worker that acknowledges as the real one does, until it has had `refuse_after` bytes: then the
/// session fails. It ends with the command `LAST`, or with the connection.
fn acknowledge(mut peer: Peer, refuse_after: u64) -> u64 {
    let (mut position, mut said, mut failed) = (0, 0, false);
    while let Some((command, payload)) = peer.next() {
        position += (sluice_wire::frame::HEADER_SIZE + payload.len()) as u64;
        let mut answer = Vec::new();
        let asked = command.kind == Kind::Received && payload.ends_with(&[1]);
        if asked || position - said >= ACKNOWLEDGE_EVERY {
            said = position;
            let received = Received { position, answer: false };
            header(Kind::Received).frame(&mut answer, |out| received.encode(out)).unwrap();
        }
        if position >= refuse_after && !failed {
            failed = true;
            let (result, text) = (CUresult::ILLEGAL_ADDRESS.0, String::new());
            let sticky = sluice_wire::Sticky { result, op: OP.0, text };
            header(Kind::Sticky).frame(&mut answer, |out| sticky.encode(out)).unwrap();
        }
        if Op(command.op) == LAST || peer.stream.write_all(&answer).is_err() {
            break;
        }
    }
    position
}

const LAST: Op = Op::of(sluice_cuda::Fn::cuStreamSynchronize);

/// A link that keeps what it has sent, though nothing cuts it here.
fn resumable() -> (&'static Link, Peer) {
    resumable_with(false, 1)
}

fn resumable_with(expands: bool, stripes: u8) -> (&'static Link, Peer) {
    let terms = sluice_wire::control::ResumeTerms {
        secret: sluice_wire::handshake::SessionSecret([0; 32]),
        linger_ms: 1,
        expands,
    };
    let token = sluice_wire::handshake::LeaseToken([0; 32]);
    let address = sluice_wire::address::SessionAddress { node: "unix:/nowhere".parse().unwrap(), token };
    let resumption = Resumption::new(address, 1, &terms, 0, stripes);
    pair_with(Some(resumption))
}

/// The worker has room for data that it was told of only, and those may have come in next to no
/// bytes.
#[test]
fn data_that_come_packed_are_acknowledged_as_what_they_are() {
    const PIECE: usize = 1 << 18;
    const PIECES: usize = 8;
    let (link, mut peer) = resumable();
    let mut landed = vec![1_u8; PIECES * PIECE];
    let ticket = link.ticket();
    // SAFETY: the buffer outlives the ticket: all of it has landed before the test looks at it.
    link.expect(ticket, unsafe { Sink::new(landed.as_mut_ptr(), landed.len() as u64) });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let command = peer.next().unwrap();
            let mut packer = sluice_wire::pack::Packer::default();
            let mut sent = 0;
            for piece in 0..PIECES {
                let write = HostWrite { ticket, offset: (piece * PIECE) as u64, bytes: &[0; PIECE] };
                let mut frame = Vec::new();
                header(Kind::HostWrite).frame(&mut frame, |out| write.encode(out)).unwrap();
                assert!(packer.pack(&mut frame, header(Kind::HostWrite), 0));
                peer.stream.write_all(&frame).unwrap();
                sent += frame.len() as u64;
            }
            // Nothing else is sent before.
            let (acknowledgement, payload) = peer.next().unwrap();
            assert_eq!(acknowledgement.kind, Kind::Received);
            assert_eq!(payload[8..], [0], "it asks for a sign of life after a while of silence");
            let position = u64::from_le_bytes(payload[..8].try_into().unwrap());
            assert!(position > 0 && position <= sent && sent < ACKNOWLEDGE_EVERY, "{position} of {sent}");
            peer.echo(command);
        });
        link.call(0, OP, |_| ()).unwrap();
    });
    assert!(landed.iter().all(|byte| *byte == 0));
}

/// Queues 16 MiB in pieces, and returns how that ended, where in our stream the last of it is that
/// was lent, and where that ends.
fn lend(link: &'static Link) -> (Result<(), CUresult>, u64, u64) {
    const PIECE: usize = 1 << 20;
    let data = vec![1; 16 * PIECE];
    let mut loan = link.loan();
    let mut rest = &data[..];
    let mut result = Ok(());
    while !rest.is_empty() && result.is_ok() {
        let (piece, behind) = rest.split_at(PIECE);
        // SAFETY: it is dropped below.
        result = unsafe { loan.queue(0, OP, |_| (), (piece, behind.len())) };
        rest = behind;
    }
    let lent = loan.end;
    drop(loan);
    (result, lent, link.outbox().buffer.end())
}

#[test]
fn a_loan_ends_when_the_worker_has_what_was_lent() {
    let (link, peer) = resumable();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| acknowledge(peer, u64::MAX));
        let (result, lent, end) = lend(link);
        assert_eq!(result, Ok(()));
        // The window may have grown, if the machine is slow: then less is lent. The first piece
        // always is.
        assert!(lent > 1 << 20 && link.outbox().buffer.start() >= lent, "what was lent is held");
        assert!(end > 16 << 20);
        link.queue(0, LAST, |_| ()).unwrap();
        link.flush_now().unwrap();
        assert!(worker.join().unwrap() > end);
    });
}

#[test]
fn a_loan_ends_when_the_copy_fails_half_way() {
    let (link, peer) = resumable();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| acknowledge(peer, 3 << 20));
        let (result, lent, end) = lend(link);
        let start = link.outbox().buffer.start();
        link.outbox().stream.shut_down();
        worker.join().unwrap();
        // It comes before the acknowledgement without which the window would stay full.
        assert_eq!(result, Err(CUresult::ILLEGAL_ADDRESS));
        assert!(start >= lent && end < 16 << 20, "what was lent is held: {start} to {end}");
    });
}

/// Small commands that repeat, and large ones, in the order in which they were queued.
#[test]
fn what_is_told_arrives_in_order_with_what_is_not() {
    const ROUNDS: u64 = 200;
    const LARGE: usize = 100_000;
    let (link, mut peer) = resumable_with(true, 1);
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let (mut expander, mut heard, mut told) = (Expander::new(), Vec::new(), 0);
            while let Some((header, payload)) = peer.next() {
                if header.kind != Kind::Commands {
                    heard.push((header, payload));
                } else {
                    expander.begin(&Frame { header, payload: &payload });
                    while let Some(frame) = expander.next_command().unwrap() {
                        heard.push((frame.header, frame.payload.to_vec()));
                        told += 1;
                    }
                }
                if heard.last().is_some_and(|(header, _)| header.op == LAST.0) {
                    peer.echo(heard.pop().unwrap());
                    break;
                }
            }
            (heard, told)
        });
        let large = vec![7; LARGE];
        for round in 0..ROUNDS {
            link.queue(0, OP, |out| out.extend_from_slice(&[round as u8 / 8; 100])).unwrap();
            if round % 50 == 0 {
                link.queue(0, OP, |out| out.extend_from_slice(&large)).unwrap();
                // SAFETY: the loan is dropped before the data go.
                unsafe { link.loan().queue(0, OP, |out| round.encode(out), (&large[..], 0)) }.unwrap();
            }
        }
        link.call(0, LAST, |_| ()).unwrap();
        let (heard, told) = worker.join().unwrap();
        let rounds = heard.iter().filter(|(_, payload)| payload.len() == 100);
        assert!(rounds.zip(0..).all(|((_, payload), round)| *payload == [round / 8; 100]));
        let sequences = heard.iter().map(|(header, _)| header.sequence);
        assert!(sequences.clone().zip(sequences.skip(1)).all(|(a, b)| b == a + 1), "an order of its own");
        assert_eq!(heard.len() as u64, ROUNDS + 8);
        assert_eq!(told, ROUNDS + 1, "the small ones, and the last");
    });
}

#[test]
fn a_connection_is_kept_where_several_do_not_come_through() {
    let (link, mut peer) = resumable_with(false, 8);
    let resumption = link.resumption().unwrap();
    for _ in 0..3 {
        assert!(resumption.width().counts(1 << 30), "it is worth another attempt");
        link.widen(resumption);
        assert!(!link.is_cut());
    }
    assert!(!resumption.width().counts(1 << 30), "it was tried often enough");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let asked = peer.next().unwrap();
            peer.echo(asked);
        });
        link.call(0, LAST, |_| ()).unwrap();
    });
}
