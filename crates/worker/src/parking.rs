//! What has to wait for copies between nodes that nobody waits for.
//!
//! A thread makes each such copy, once its stream has come to it, and the driver knows nothing of it: a wait in the driver's
//! stream would hold the turn on the GPU while the other node, perhaps, waits for that of another session which does the same.
//! So it is kept here what may only begin after the copy:
//!
//! - work of the copy's stream, and of streams that wait for events that come after the copy;
//! - and once anything comes of which it is not plain on what it depends, everything after it.
//!
//! The rest goes on: work of other streams, and what other threads of the program wait for there.

#![allow(non_snake_case)] // CUDA's names

use std::collections::{HashSet, VecDeque};

use sluice_cuda::Fn;
use sluice_wire::{Command, EventId, Op, StreamId, Target, WireError, commands, decode};

use crate::pipeline::Job;

/// Most copies that are made at a time.
const COPIES_MAX: usize = 64;
/// Numbers of streams up to this one are default streams: all but the last wait for others.
const PER_THREAD_STREAM: u64 = 2;

/// A stream: of the default one of each thread there are several.
type Place = (u64, u32);

/// What is kept, and for how many copies.
#[derive(Default)]
pub(crate) struct Parking {
    /// Copies that are not over.
    copies: usize,
    streams: HashSet<Place>,
    events: HashSet<EventId>,
    /// Nothing passes any more.
    is_closed: bool,
    jobs: VecDeque<Job>,
    bytes: usize,
}

/// What to do with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Park,
    /// A question about what is not over yet: that is its answer.
    NotReady,
}

/// Which streams and events a command names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    streams: Vec<StreamId>,
    events: Vec<EventId>,
}

impl Parking {
    /// Whether commands have to be looked at.
    pub(crate) fn is_in_use(&self) -> bool {
        self.copies > 0 || self.is_closed || !self.streams.is_empty()
    }

    /// Whether what is kept may go.
    pub(crate) fn is_over(&self) -> bool {
        self.copies == 0 && self.is_in_use()
    }

    /// Commands that are kept, and their bytes.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.jobs.len(), self.bytes)
    }

    /// A copy begins in this stream.
    pub(crate) fn begin(&mut self, stream: StreamId, lane: u32) {
        self.copies += 1;
        self.hold(stream, lane);
    }

    /// A copy is over.
    pub(crate) fn end(&mut self) {
        self.copies -= 1;
    }

    /// What was kept, in its order.
    pub(crate) fn leave(&mut self) -> VecDeque<Job> {
        std::mem::take(self).jobs
    }

    pub(crate) fn keep(&mut self, job: Job) {
        self.bytes += job.payload.len();
        self.jobs.push_back(job);
    }

    /// What to do with the next command; what is parked is noted for those after it.
    pub(crate) fn verdict(&mut self, job: &Job) -> Verdict {
        if !self.is_in_use() {
            return Verdict::Pass;
        }
        let (op, lane) = (Op(job.header.op), job.header.lane);
        let named = match named(op, &job.payload) {
            Ok(Some(named)) => named,
            // Whoever executes it will find what is wrong with it.
            Ok(None) | Err(_) if is_independent(op) && !self.is_closed => return Verdict::Pass,
            Ok(None) | Err(_) => {
                self.is_closed |= !only_waits(op);
                return Verdict::Park;
            }
        };
        let is_held = named.streams.iter().any(|&stream| self.is_held(stream, lane))
            || named.events.iter().any(|event| self.events.contains(event));
        if asks(op) {
            return if is_held { Verdict::NotReady } else { Verdict::Pass };
        }
        let is_copy = op == commands::PeerSend::OP;
        if !is_held && !self.is_closed && !(is_copy && self.copies >= COPIES_MAX) {
            return Verdict::Pass;
        }
        if !only_waits(op) {
            named.streams.iter().for_each(|&stream| self.hold(stream, lane));
            self.events.extend(named.events);
        }
        Verdict::Park
    }

    fn hold(&mut self, stream: StreamId, lane: u32) {
        // Streams wait for the default stream of all threads, and it waits for them.
        self.is_closed |= stream.0 < PER_THREAD_STREAM;
        self.streams.insert(place(stream, lane));
    }

    fn is_held(&self, stream: StreamId, lane: u32) -> bool {
        stream.0 < PER_THREAD_STREAM || self.streams.contains(&place(stream, lane))
    }
}

fn place(stream: StreamId, lane: u32) -> Place {
    (stream.0, if stream.0 == PER_THREAD_STREAM { lane } else { 0 })
}

/// The streams and events of a command of which these say on what it depends; `None` for any other.
fn named(op: Op, payload: &[u8]) -> Result<Option<Named>, WireError> {
    macro_rules! fields {
        ($($name:ident { $($stream:ident),* ; $($event:ident),* })*) => {
            match op {
                $(op if op == commands::$name::OP => {
                    let commands::$name { $($stream,)* $($event,)* .. } = decode(payload)?;
                    Ok(Some(Named { streams: vec![$($stream),*], events: vec![$($event),*] }))
                })*
                _ => Ok(None),
            }
        };
    }
    fields! {
        cuLaunchKernel { hStream; }
        cuMemcpyHtoDAsync_v2 { hStream; }
        cuMemcpyDtoH_v2 { hStream; }
        cuMemcpyDtoHAsync_v2 { hStream; }
        cuMemcpyDtoDAsync_v2 { hStream; }
        cuMemsetD8Async { hStream; }
        cuMemsetD16Async { hStream; }
        cuMemsetD32Async { hStream; }
        cuStreamDestroy_v2 { hStream; }
        cuStreamWaitEvent { hStream; hEvent }
        cuStreamSynchronize { hStream; }
        cuStreamQuery { hStream; }
        cuEventDestroy_v2 { ; hEvent }
        cuEventRecord { hStream; hEvent }
        cuEventQuery { ; hEvent }
        cuEventSynchronize { ; hEvent }
        cuEventElapsedTime { ; hStart, hEnd }
        PeerSend { hStream; }
        PeerCopy { hStream; }
    }
}

/// Whether a command asks what has been done, and does not wait for it.
fn asks(op: Op) -> bool {
    matches!(op.target(), Some(Target::Driver(Fn::cuStreamQuery | Fn::cuEventQuery | Fn::cuEventElapsedTime)))
}

/// Whether a command changes nothing: what comes after it need not wait for it.
fn only_waits(op: Op) -> bool {
    op == commands::PeerSettle::OP
        || matches!(
            op.target(),
            Some(Target::Driver(
                Fn::cuCtxSynchronize | Fn::cuStreamSynchronize | Fn::cuEventSynchronize | Fn::cuMemcpyDtoH_v2
            ))
        )
}

/// Whether a command makes something new, which nothing that is kept can know.
fn is_independent(op: Op) -> bool {
    [commands::MemoryCommit::OP, commands::ImageQuery::OP, commands::ImageData::OP].contains(&op)
        || matches!(
            op.target(),
            Some(Target::Driver(
                Fn::cuEventCreate
                    | Fn::cuStreamCreateWithPriority
                    | Fn::cuModuleLoadDataEx
                    | Fn::cuModuleGetFunction
            ))
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::{Encode, Header, Kind};

    fn job<C: Command + Encode>(command: &C, lane: u32) -> Job {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        let header = Header { kind: Kind::Command, device: 0, op: C::OP.0, lane, sequence: 0 };
        Job { header, payload }
    }

    fn of<C: Command + Encode>(parking: &mut Parking, command: &C) -> Verdict {
        parking.verdict(&job(command, 1))
    }

    const S: StreamId = StreamId(100);
    const T: StreamId = StreamId(101);

    fn record(event: u64, hStream: StreamId) -> commands::cuEventRecord {
        commands::cuEventRecord { hEvent: EventId(event), hStream }
    }

    fn wait(hStream: StreamId, event: u64) -> commands::cuStreamWaitEvent {
        commands::cuStreamWaitEvent { hStream, hEvent: EventId(event), Flags: 0 }
    }

    fn query(hStream: StreamId) -> commands::cuStreamQuery {
        commands::cuStreamQuery { hStream }
    }

    #[test]
    fn without_copies_everything_passes() {
        let mut parking = Parking::default();
        assert!(!parking.is_in_use() && !parking.is_over());
        assert_eq!(of(&mut parking, &query(StreamId(0))), Verdict::Pass);
        assert_eq!(of(&mut parking, &commands::cuCtxSynchronize {}), Verdict::Pass);
    }

    #[test]
    fn what_depends_on_the_copy_waits_and_the_rest_passes() {
        let mut parking = Parking::default();
        parking.begin(S, 1);
        assert_eq!(of(&mut parking, &query(S)), Verdict::NotReady);
        assert_eq!(of(&mut parking, &query(T)), Verdict::Pass);
        assert_eq!(of(&mut parking, &record(7, T)), Verdict::Pass);
        assert_eq!(of(&mut parking, &wait(T, 7)), Verdict::Pass);
        assert_eq!(of(&mut parking, &record(8, S)), Verdict::Park);
        let asked = commands::cuEventQuery { hEvent: EventId(8) };
        assert_eq!(of(&mut parking, &asked), Verdict::NotReady);
        assert_eq!(of(&mut parking, &query(T)), Verdict::Pass);
        // By the event the other stream depends on the copy, and by its own events further ones.
        assert_eq!(of(&mut parking, &wait(T, 8)), Verdict::Park);
        assert_eq!(of(&mut parking, &query(T)), Verdict::NotReady);
        assert_eq!(of(&mut parking, &record(9, T)), Verdict::Park);
        assert_eq!(of(&mut parking, &wait(StreamId(102), 9)), Verdict::Park);
        assert_eq!(of(&mut parking, &query(StreamId(103))), Verdict::Pass);
        parking.end();
        assert!(parking.is_over());
        parking.leave();
        assert!(!parking.is_in_use());
        assert_eq!(of(&mut parking, &query(S)), Verdict::Pass);
    }

    #[test]
    fn waiting_for_the_copy_holds_nobody_else_up() {
        let mut parking = Parking::default();
        parking.begin(S, 1);
        let waits = commands::cuStreamSynchronize { hStream: S };
        assert_eq!(of(&mut parking, &waits), Verdict::Park);
        assert_eq!(of(&mut parking, &commands::cuCtxSynchronize {}), Verdict::Park);
        assert_eq!(of(&mut parking, &commands::PeerSettle {}), Verdict::Park);
        assert_eq!(of(&mut parking, &record(7, T)), Verdict::Pass);
    }

    #[test]
    fn after_what_nobody_knows_nothing_passes() {
        let mut parking = Parking::default();
        parking.begin(S, 1);
        let frees = commands::MemoryDecommit { address: sluice_wire::DevicePtr(0), bytes: 1 };
        let takes = commands::MemoryCommit { address: sluice_wire::DevicePtr(0), bytes: 1 };
        assert_eq!(of(&mut parking, &takes), Verdict::Pass);
        assert_eq!(of(&mut parking, &frees), Verdict::Park);
        assert_eq!(of(&mut parking, &takes), Verdict::Park, "the same memory again");
        assert_eq!(of(&mut parking, &record(7, T)), Verdict::Park);
        assert_eq!(of(&mut parking, &query(T)), Verdict::NotReady);
    }

    #[test]
    fn default_streams_wait_for_others_and_others_for_them() {
        for (copies, works) in [(S, StreamId(0)), (StreamId(0), T), (S, StreamId(1))] {
            let mut parking = Parking::default();
            parking.begin(copies, 1);
            assert_eq!(of(&mut parking, &record(7, works)), Verdict::Park);
            assert_eq!(of(&mut parking, &record(8, StreamId(105))), Verdict::Park);
        }
        // Those of threads are several.
        let mut parking = Parking::default();
        parking.begin(StreamId(2), 1);
        assert_eq!(parking.verdict(&job(&query(StreamId(2)), 1)), Verdict::NotReady);
        assert_eq!(parking.verdict(&job(&query(StreamId(2)), 3)), Verdict::Pass);
    }

    #[test]
    fn what_is_kept_leaves_in_its_order() {
        let mut parking = Parking::default();
        parking.begin(S, 1);
        for event in [3, 4, 5] {
            let job = job(&record(event, S), 1);
            assert_eq!(parking.verdict(&job), Verdict::Park);
            parking.keep(job);
        }
        assert_eq!(parking.kept().0, 3);
        parking.end();
        let events: Vec<u64> = parking
            .leave()
            .iter()
            .map(|job| decode::<commands::cuEventRecord>(&job.payload).unwrap().hEvent.0)
            .collect();
        assert_eq!(events, [3, 4, 5]);
        assert_eq!(parking.kept(), (0, 0));
    }

    #[test]
    fn there_are_not_too_many_copies() {
        let mut parking = Parking::default();
        for stream in 0..COPIES_MAX as u64 {
            parking.begin(StreamId(100 + stream), 1);
        }
        let copy = |stream| commands::PeerSend {
            peer: 1,
            device: 0,
            fetches: false,
            there: sluice_wire::DevicePtr(0),
            here: sluice_wire::DevicePtr(0),
            ByteCount: 1,
            hStream: StreamId(stream),
        };
        assert_eq!(of(&mut parking, &copy(1000)), Verdict::Park);
        parking.end();
        assert_eq!(of(&mut parking, &copy(1001)), Verdict::Pass);
    }
}
