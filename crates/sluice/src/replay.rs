//! `sluice replay`: sends what a recorded program sent, and compares what comes back.
//!
//! The log is in the order in which the program knew of things. So a command is sent once
//! everything has come that the program knew of when it sent it, and not before: what waited for an
//! answer then waits for it now.

mod compare;
mod times;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use sluice_control::RawSession;
use sluice_cuda::Fn;
use sluice_transport::Stream;
use sluice_wire::control::SessionOpened;
use sluice_wire::log::{Entry, LogDecoder};
use sluice_wire::{Header, Kind, Op};

use crate::cli::{GpuChoice, Output, ReplayArgs};
use crate::lease::{LeaseGuard, Wanted};
use crate::place::{PrivateNode, Provider};
use crate::quantity::{Memory, Period};
use crate::surroundings::Scratch;

use compare::{Answers, At, Compared};
use times::{FunctionReport, Times};

/// Bytes of commands that are sent at a time.
const SEND_BYTES: usize = 64 << 10;
/// No thread of a program has it: they count from 1.
const OWN_LANE: u32 = u32::MAX;
/// Bytes of the file that are read at a time.
const READ_BYTES: usize = 1 << 20;

pub(crate) fn run(arguments: &ReplayArgs) -> Result<ExitCode> {
    let mut log = Log::open(&arguments.file)?;
    let Some(Entry::Opened(recorded)) = log.next()? else { bail!("{}: nothing is in it", log.name) };
    let replayed = match Provider::of(&arguments.place)? {
        Provider::Node(node) => {
            let taken = LeaseGuard::from_node(&node, &wanted(&recorded)).with_context(|| had(&recorded))?;
            replay(taken, &recorded, &mut log)?
        }
        Provider::Server(client) => {
            let tenant = arguments.place.tenant.as_deref();
            let taken = LeaseGuard::from_server(client, tenant, &wanted(&recorded))
                .with_context(|| had(&recorded))?;
            replay(taken, &recorded, &mut log)?
        }
        Provider::Private => {
            let scratch = Scratch::new()?;
            let gpus = arguments.place.gpus.as_ref().unwrap_or(&GpuChoice::Auto);
            let private = PrivateNode::start(gpus, scratch.path())?;
            let taken = LeaseGuard::from_node(private.address(), &wanted(&recorded))
                .with_context(|| had(&recorded))?;
            replay(taken, &recorded, &mut log)?
        }
    };
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&replayed.report())?),
        Output::Table => {
            eprintln!(
                "sluice: {} commands in {}",
                replayed.compared.commands(),
                Period::from_duration(replayed.took)
            );
            print!("{}", replayed.compared.text());
        }
    }
    Ok(if replayed.compared.is_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As many GPUs as the program had, with as much memory.
fn wanted(recorded: &SessionOpened) -> Wanted<'static> {
    Wanted { gpus: recorded.devices.len() as u32, memory: memory(recorded), name: "sluice replay" }
}

fn memory(recorded: &SessionOpened) -> u64 {
    recorded.devices.iter().map(|device| device.memory).max().unwrap_or(0)
}

fn had(recorded: &SessionOpened) -> String {
    let memory = Memory::from_bytes(memory(recorded));
    format!("the recorded program had {} GPUs of {memory}", recorded.devices.len())
}

/// What came of a replay.
struct Replayed {
    recorded_on: String,
    replayed_on: String,
    took: Duration,
    compared: Compared,
    times: Times,
}

/// What came of a replay, for programs to read.
#[derive(Serialize)]
struct Report<'a> {
    recorded_on: &'a str,
    replayed_on: &'a str,
    /// Of these `waits` were waited for.
    commands: u64,
    waits: u64,
    seconds: f64,
    #[serde(flatten)]
    compared: compare::Report<'a>,
    functions: BTreeMap<&'static str, FunctionReport>,
}

impl Replayed {
    fn report(&self) -> Report<'_> {
        let functions = self.times.report();
        Report {
            recorded_on: &self.recorded_on,
            replayed_on: &self.replayed_on,
            commands: self.compared.commands(),
            waits: functions.values().map(|function| function.waits).sum(),
            seconds: self.took.as_secs_f64(),
            compared: self.compared.report(),
            functions,
        }
    }
}

/// Sends the rest of the log under a lease, in a session of its own, and gives the lease back.
fn replay(taken: LeaseGuard, recorded: &SessionOpened, log: &mut Log) -> Result<Replayed> {
    let range = recorded.range.context("the recording has no addresses of its own")?;
    let session = RawSession::open(&taken.address, taken.granted.token, range)?;
    if session.opened.range != Some(range) {
        bail!(
            "the node's driver does not place memory where the recorded program had it (0x{:x}); its addresses are in what the \
             program sent, so it cannot be replayed there",
            range.0
        );
    }
    let device = |opened: &SessionOpened| opened.devices.first().map_or_else(String::new, |d| d.name.clone());
    let (recorded_on, replayed_on) = (device(recorded), device(&session.opened));
    eprintln!("sluice: recorded on {recorded_on}, replayed on {replayed_on}");
    let begin = Instant::now();
    let RawSession { stream, decoder, .. } = session;
    let stream = Arc::new(stream);
    let answers = Answers::gather(Arc::clone(&stream), decoder)?;
    let devices = u8::try_from(recorded.devices.len()).context("the recording has too many devices")?;
    let (unsent, calls, compared) = (Vec::new(), HashMap::new(), Compared::default());
    let times = Times::default();
    let mut replay = Replay { stream, answers, unsent, calls, compared, times, devices };
    let ended = replay.play(log);
    // To give the lease back is no work of the recording's.
    let took = begin.elapsed();
    replay.stream.shut_down();
    ended?;
    taken.close();
    let Replay { compared, times, .. } = replay;
    Ok(Replayed { recorded_on, replayed_on, took, compared, times })
}

struct Replay {
    stream: Arc<Stream>,
    answers: Arc<Answers>,
    unsent: Vec<u8>,
    /// Commands that have not been answered: their number in the log, and when they were said.
    calls: HashMap<At, (u64, Instant)>,
    compared: Compared,
    times: Times,
    devices: u8,
}

impl Replay {
    fn play(&mut self, log: &mut Log) -> Result<()> {
        while let Some(entry) = log.next()? {
            match entry {
                Entry::Command { header, payload } => self.command(header, &payload)?,
                Entry::Reply { header, result, fields } => {
                    let place = (header.lane, header.sequence);
                    let (call, said) = self
                        .calls
                        .remove(&place)
                        .context("an answer is in the recording, and no question")?;
                    self.send()?;
                    let name = format!("call {call}, {}", Op(header.op).name());
                    let (got, came, at) = self.answers.reply(place).with_context(|| name.clone())?;
                    self.times.waited(Op(header.op), at.saturating_duration_since(said));
                    self.compared.reply(&name, Op(header.op), (result, &fields), (got, &came));
                    self.compared.data_so_far(&self.answers, &name);
                }
                Entry::HostCall { ticket } => {
                    self.send()?;
                    self.answers.host_call(ticket).context("a host function")?;
                }
                Entry::Data { ticket, offset, blocks } => self.compared.expect_data(ticket, offset, blocks),
                Entry::Sticky { result, op } => {
                    self.send()?;
                    let name = format!("the session's error, of {}", Op(op).name());
                    let got = self.answers.sticky().with_context(|| name.clone())?;
                    self.compared.result(&name, result, got);
                }
                Entry::Refused { header, result } => {
                    let place = (header.lane, header.sequence);
                    let (call, _) =
                        self.calls.remove(&place).context("a refusal is in the recording, and no command")?;
                    let name = format!("call {call}, {}", Op(header.op).name());
                    self.compared.expect_refused(place, name, result);
                }
                Entry::Output(text) => self.compared.expect_output(&text),
                Entry::Opened(_) => bail!("a second session begins in the recording"),
            }
        }
        self.settle()?;
        self.compared.rest(&self.answers);
        Ok(())
    }

    /// Waits for all that the devices still do: what has not come then does not come.
    fn settle(&mut self) -> Result<()> {
        for device in 0..self.devices {
            let (kind, op, lane) = (Kind::Command, Op::of(Fn::cuCtxSynchronize).0, OWN_LANE);
            let header = Header { kind, device, op, lane, sequence: device.into() };
            header.frame(&mut self.unsent, |_| ())?;
            self.send()?;
            // A session that has an error says so, and has been compared.
            let _ = self.answers.reply((lane, header.sequence));
        }
        Ok(())
    }

    fn command(&mut self, header: Header, payload: &[u8]) -> Result<()> {
        let call = self.compared.command();
        self.calls.insert((header.lane, header.sequence), (call, Instant::now()));
        self.times.said(Op(header.op));
        header.frame(&mut self.unsent, |out| out.extend_from_slice(payload))?;
        if self.unsent.len() >= SEND_BYTES { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        let sent = (&*self.stream).write_all(&self.unsent);
        self.unsent.clear();
        sent.or_else(|error| self.answers.ended(error))
    }
}

/// A file being read.
struct Log {
    name: String,
    file: File,
    decoder: LogDecoder,
    piece: Vec<u8>,
}

impl Log {
    fn open(path: &Path) -> Result<Log> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| name.clone())?;
        Ok(Log { name, file, decoder: LogDecoder::default(), piece: vec![0; READ_BYTES] })
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.decoder.next_entry().with_context(|| self.name.clone())? {
                return Ok(Some(entry));
            }
            let count = self.file.read(&mut self.piece).with_context(|| self.name.clone())?;
            if count == 0 {
                self.decoder.end().with_context(|| self.name.clone())?;
                return Ok(None);
            }
            self.decoder.push(&self.piece[..count]).with_context(|| self.name.clone())?;
        }
    }
}
