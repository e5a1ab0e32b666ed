//! What comes back in a replay, and what differs from the recording.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use sluice_cuda::{CUresult, Fn};
use sluice_transport::Stream;
use sluice_wire::log::{BLOCK, Digest, block_hashes};
use sluice_wire::spin::Wait;
use sluice_wire::{
    Command, CommandRefused, FrameDecoder, HostCall, HostWrite, Kind, Op, Sticky, Target, commands, decode,
};

/// What was answered in the recording is answered within this time.
const PATIENCE: Duration = Duration::from_secs(600);
/// Differences that are printed.
const SHOWN_MAX: usize = 20;
/// Bytes asked of the node at a time.
const READ_BYTES: usize = 256 << 10;

/// Lane and sequence of a command.
pub(super) type At = (u32, u64);

/// What has come, gathered by a thread of its own so that neither side waits for the other to read.
pub(super) struct Answers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// With the moment in which they came.
    replies: HashMap<At, (i32, Digest, Instant)>,
    /// Hashes of blocks, by ticket and offset.
    data: HashMap<(u64, u64), u64>,
    host_calls: HashSet<u64>,
    sticky: Option<i32>,
    /// Operations and results of queued commands that were refused.
    refused: HashMap<At, (u16, i32)>,
    output: Vec<u8>,
    /// Why nothing more will come.
    ended: Option<String>,
}

impl Answers {
    pub(super) fn gather(stream: Arc<Stream>, mut decoder: FrameDecoder) -> Result<Arc<Answers>> {
        let answers = Arc::new(Answers { state: Mutex::default(), changed: Condvar::new() });
        let gathering = Arc::clone(&answers);
        std::thread::Builder::new().name("answers".into()).spawn(move || {
            let why = gathering.read(&stream, &mut decoder);
            gathering.lock().ended = Some(why);
            gathering.changed.notify_all();
        })?;
        Ok(answers)
    }

    /// Until there is nothing more; the answer is why.
    fn read(&self, stream: &Stream, decoder: &mut FrameDecoder) -> String {
        loop {
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => {
                        if let Err(error) = self.lock().take(frame.header.kind, frame.header, frame.payload) {
                            return error.to_string();
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
            }
            self.changed.notify_all();
            match stream.read(decoder.space(READ_BYTES), Wait::Asleep) {
                Ok(0) => return "the node has closed the connection; its messages may say why".into(),
                Ok(count) => decoder.received(count),
                Err(error) => return error.to_string(),
            }
        }
    }

    pub(super) fn reply(&self, place: At) -> Result<(i32, Digest, Instant)> {
        self.wait(|state| state.replies.remove(&place))
    }

    pub(super) fn host_call(&self, ticket: u64) -> Result<()> {
        self.wait(|state| state.host_calls.remove(&ticket).then_some(()))
    }

    pub(super) fn sticky(&self) -> Result<i32> {
        self.wait(|state| state.sticky)
    }

    /// The connection has failed: the reason is what has come before, if that says it.
    pub(super) fn ended(&self, error: std::io::Error) -> Result<()> {
        match &self.lock().ended {
            Some(why) => bail!("the session has ended: {why}"),
            None => Err(error.into()),
        }
    }

    fn wait<T>(&self, mut take: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            if let Some(why) = &state.ended {
                bail!("answered in the recording, and here the session has ended: {why}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("answered in the recording, and not here within {} s", PATIENCE.as_secs());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, kind: Kind, header: sluice_wire::Header, payload: &[u8]) -> Result<()> {
        match kind {
            Kind::Reply => {
                let Some((result, fields)) = payload.split_first_chunk() else {
                    bail!("an answer has no result")
                };
                let came = Instant::now();
                let answer = (i32::from_le_bytes(*result), Digest::of(fields), came);
                self.replies.insert((header.lane, header.sequence), answer);
            }
            Kind::HostWrite => {
                let HostWrite { ticket, offset, bytes } = decode(payload)?;
                self.data.extend(blocks_at(ticket, offset, &block_hashes(bytes)));
            }
            Kind::HostCall => _ = self.host_calls.insert(decode::<HostCall>(payload)?.ticket),
            Kind::Sticky => self.sticky = Some(decode::<Sticky>(payload)?.result),
            Kind::CommandRefused => {
                let refused = decode::<CommandRefused>(payload)?;
                self.refused.insert((header.lane, header.sequence), (header.op, refused.result));
            }
            Kind::Output => self.output.extend_from_slice(payload),
            Kind::Received | Kind::Notice | Kind::Allowance => {}
            Kind::Command | Kind::Commands | Kind::Control | Kind::Packed => {
                bail!("the node sent a frame of kind {kind:?}")
            }
        }
        Ok(())
    }
}

/// Data of the recording: ticket, offset, and the hash of each block.
type Piece = (u64, u64, Vec<u64>);

fn blocks_at(ticket: u64, offset: u64, blocks: &[u64]) -> impl Iterator<Item = ((u64, u64), u64)> {
    let offsets = (offset..).step_by(BLOCK);
    offsets.zip(blocks).map(move |(offset, &hash)| ((ticket, offset), hash))
}

/// What an answer tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    /// What is another each time: times, what is free, what a node has seen before.
    Moment,
    /// What was in the device's memory.
    Data,
    /// What became of the program's code on this model of device.
    Function,
    Other,
}

impl Tells {
    fn of(op: Op) -> Tells {
        match op.target() {
            _ if op == commands::ImagesQuery::OP => Tells::Moment,
            Some(Target::Driver(
                Fn::cuEventElapsedTime
                | Fn::cuEventElapsedTime_v2
                | Fn::cuEventQuery
                | Fn::cuStreamQuery
                | Fn::cuMemGetInfo_v2,
            )) => Tells::Moment,
            Some(Target::Driver(Fn::cuMemcpyDtoH_v2)) => Tells::Data,
            Some(Target::Driver(
                Fn::cuModuleGetFunction | Fn::cuModuleLoadDataEx | Fn::cuFuncGetAttribute,
            )) => Tells::Function,
            _ => Tells::Other,
        }
    }
}

/// Whether this result says no more than whether work was done at that moment.
fn tells_whether_done(op: Op, result: i32) -> bool {
    Tells::of(op) == Tells::Moment && [CUresult::SUCCESS, CUresult::NOT_READY].contains(&CUresult(result))
}

/// The comparison for programs to read.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    answers: u64,
    pieces: u64,
    varied: u64,
    /// The first of them.
    differences: &'a [String],
    differences_count: u64,
    differences_in_data: u64,
    differences_in_functions: u64,
}

/// The comparison so far.
#[derive(Default)]
pub(super) struct Compared {
    commands: u64,
    answers: u64,
    /// Answers that differ by nature.
    varied: u64,
    pieces: u64,
    /// The first differences, and how many there are of each kind.
    differences: Vec<String>,
    in_data: u64,
    in_functions: u64,
    elsewhere: u64,
    /// Data of the recording that have not been compared.
    expected: Vec<Piece>,
    /// Names and results of queued commands that were refused in the recording.
    refused: HashMap<At, (String, i32)>,
    output: Vec<u8>,
}

impl Compared {
    /// Counts a command; the answer is its number, from 1.
    pub(super) fn command(&mut self) -> u64 {
        self.commands += 1;
        self.commands
    }

    pub(super) fn commands(&self) -> u64 {
        self.commands
    }

    pub(super) fn reply(&mut self, name: &str, op: Op, was: (i32, &Digest), is: (i32, &Digest)) {
        self.answers += 1;
        if was.0 != is.0 && tells_whether_done(op, was.0) && tells_whether_done(op, is.0) {
            self.varied += 1;
            return;
        }
        if was.0 != is.0 {
            return self
                .differs(Tells::Other, format!("{name}: {}, recorded was {}", result(is.0), result(was.0)));
        }
        let Some(how) = was.1.difference(is.1) else { return };
        match Tells::of(op) {
            Tells::Moment => self.varied += 1,
            tells => self.differs(tells, format!("{name}: its answer differs: {how}")),
        }
    }

    pub(super) fn result(&mut self, name: &str, was: i32, is: i32) {
        if was != is {
            self.differs(Tells::Other, format!("{name}: {}, recorded was {}", result(is), result(was)));
        }
    }

    pub(super) fn expect_refused(&mut self, place: At, name: String, result: i32) {
        self.refused.insert(place, (name, result));
    }

    pub(super) fn expect_data(&mut self, ticket: u64, offset: u64, blocks: Vec<u64>) {
        self.expected.push((ticket, offset, blocks));
    }

    pub(super) fn expect_output(&mut self, text: &[u8]) {
        self.output.extend_from_slice(text);
    }

    /// Compares what has come of the data that are expected: at an answer, those that came before
    /// it.
    pub(super) fn data_so_far(&mut self, answers: &Answers, name: &str) {
        let mut state = answers.lock();
        let has_come = |state: &State, (ticket, offset, blocks): &Piece| {
            blocks_at(*ticket, *offset, blocks).all(|(at, _)| state.data.contains_key(&at))
        };
        let (come, missing): (Vec<Piece>, Vec<Piece>) =
            self.expected.drain(..).partition(|piece| has_come(&state, piece));
        self.expected = missing;
        let mut different = Vec::new();
        for (ticket, offset, blocks) in &come {
            let is_other =
                |(at, was): ((u64, u64), u64)| (state.data.remove(&at) != Some(was)).then_some(at.1);
            let others: Vec<u64> = blocks_at(*ticket, *offset, blocks).filter_map(is_other).collect();
            if let Some(first) = others.first() {
                different.push((others.len(), blocks.len(), *first));
            }
        }
        drop(state);
        self.pieces += come.len() as u64;
        for (others, blocks, first) in different {
            self.differs(
                Tells::Data,
                format!(
                    "data from the device, before the answer to {name}: {others} of {blocks} blocks of {BLOCK} bytes differ, the \
                     first at byte {first}"
                ),
            );
        }
    }

    /// At the end, when all has come that comes.
    pub(super) fn rest(&mut self, answers: &Answers) {
        self.data_so_far(answers, "no more call");
        for (_, offset, blocks) in std::mem::take(&mut self.expected) {
            let what = format!("{} blocks of data, from byte {offset} on, did not all come", blocks.len());
            self.differs(Tells::Data, what);
        }
        let mut refused = std::mem::take(&mut answers.lock().refused);
        for (place, (name, was)) in std::mem::take(&mut self.refused) {
            let is = refused.remove(&place).map_or(0, |(_, result)| result);
            self.result(&name, was, is);
        }
        for (op, is) in refused.into_values() {
            self.result(Op(op).name(), 0, is);
        }
        let is = std::mem::take(&mut answers.lock().output);
        if let Some(how) = Digest::of(&self.output).difference(&Digest::of(&is)) {
            self.differs(Tells::Data, format!("what device code printed: {how}"));
        }
    }

    pub(super) fn is_same(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> u64 {
        self.in_data + self.in_functions + self.elsewhere
    }

    fn differs(&mut self, tells: Tells, what: String) {
        match tells {
            Tells::Data => self.in_data += 1,
            Tells::Function => self.in_functions += 1,
            Tells::Moment | Tells::Other => self.elsewhere += 1,
        }
        if self.differences.len() < SHOWN_MAX {
            self.differences.push(what);
        }
    }

    pub(super) fn report(&self) -> Report<'_> {
        Report {
            answers: self.answers,
            pieces: self.pieces,
            varied: self.varied,
            differences: &self.differences,
            differences_count: self.count(),
            differences_in_data: self.in_data,
            differences_in_functions: self.in_functions,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for difference in &self.differences {
            let _ = writeln!(text, "{difference}");
        }
        let hidden = self.count() - self.differences.len() as u64;
        if hidden > 0 {
            let _ = writeln!(text, "... and {hidden} more");
        }
        let (answers, pieces) = (self.answers, self.pieces);
        let verdict = match self.count() {
            0 => "all as recorded".to_owned(),
            count => format!(
                "{count} differences ({} in data, {} in what describes functions, {} in other answers)",
                self.in_data, self.in_functions, self.elsewhere
            ),
        };
        let varied = match self.varied {
            0 => String::new(),
            count => format!(" ({count} answers that differ by nature are not counted)"),
        };
        let _ = writeln!(text, "{answers} answers and {pieces} pieces of data compared: {verdict}{varied}");
        text
    }
}

fn result(code: i32) -> String {
    match CUresult(code).name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => format!("error {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work is done sooner or later.
    #[test]
    fn whether_work_was_done_differs_by_nature() {
        let (query, none) = (Op::of(Fn::cuStreamQuery), Digest::of(&[]));
        let [done, not_ready, failed] = [CUresult::SUCCESS, CUresult::NOT_READY, CUresult::ILLEGAL_ADDRESS]
            .map(|result| (result.0, &none));
        let mut compared = Compared::default();
        compared.reply("call 1, cuStreamQuery", query, done, not_ready);
        compared.reply("call 2, cuStreamQuery", query, not_ready, done);
        assert!(compared.is_same() && compared.varied == 2);
        compared.reply("call 3, cuStreamQuery", query, not_ready, failed);
        compared.reply("call 4, cuCtxSynchronize", Op::of(Fn::cuCtxSynchronize), done, not_ready);
        assert_eq!(compared.report().differences_count, 2);
    }

    #[test]
    fn what_differs_is_named_and_counted() {
        let (synchronize, elapsed) = (Op::of(Fn::cuCtxSynchronize), Op::of(Fn::cuEventElapsedTime));
        let mut compared = Compared::default();
        let [one, two] = [&[1; 4], &[2; 4]].map(|bytes| Digest::of(bytes));
        compared.reply("call 1, cuCtxSynchronize", synchronize, (0, &one), (0, &one));
        compared.reply("call 2, cuEventElapsedTime", elapsed, (0, &one), (0, &two));
        assert!(compared.is_same());
        assert_eq!(
            compared.text(),
            "2 answers and 0 pieces of data compared: all as recorded (1 answers that differ by nature are not counted)\n"
        );
        compared.reply("call 3, cuCtxSynchronize", synchronize, (0, &one), (700, &one));
        compared.reply("call 4, cuCtxSynchronize", synchronize, (0, &one), (0, &two));
        assert!(!compared.is_same());
        let text = compared.text();
        for part in [
            "call 3, cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS, recorded was CUDA_SUCCESS",
            "call 4, cuCtxSynchronize: its answer differs: from byte 0 of 4 on 02020202, recorded was 01010101",
            "2 differences (0 in data, 0 in what describes functions, 2 in other answers)",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
