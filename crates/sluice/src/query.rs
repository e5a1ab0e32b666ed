//! `sluice gpus` and `sluice sessions`: what a node says about itself, for people and for programs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use sluice_control::{Connection, uuid_text};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, GpuStatus, SHARE_WHOLE_PPM, SessionStatus, Status, StatusRequest};

use crate::cli::{GpuChoice, Output, QueryArgs};
use crate::place::{PrivateNode, Provider};
use crate::quantity::{Memory, Period};
use crate::run::{compute_text, share_text};
use crate::server::lists;
use crate::surroundings::Scratch;
use crate::table::{self, Align};

/// Without a node: the GPUs that a private node on this machine would have.
pub(crate) fn gpus(arguments: &QueryArgs) -> Result<ExitCode> {
    let status = match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Server(client) => return lists::gpus(&client, arguments.output),
        Provider::Node(node) => status_of(&node)?,
        Provider::Private => {
            let scratch = Scratch::new()?;
            let node = PrivateNode::start(&GpuChoice::Auto, scratch.path())?;
            status_of(node.address())?
        }
    };
    let rows: Vec<GpuRow> = status.gpus.iter().map(GpuRow::from).collect();
    match arguments.output {
        Output::Json => print_json(&rows)?,
        Output::Table => {
            print!("{}", table::render(GPU_COLUMNS, &rows.iter().map(GpuRow::cells).collect::<Vec<_>>()))
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn sessions(arguments: &QueryArgs) -> Result<ExitCode> {
    let node = match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Server(client) => return lists::sessions(&client, arguments.output),
        Provider::Node(node) => node,
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE or SLUICE_SERVER"),
    };
    let status = status_of(&node)?;
    let rows: Vec<SessionRow> = status.sessions.iter().map(SessionRow::from).collect();
    match arguments.output {
        Output::Json => print_json(&rows)?,
        Output::Table if rows.is_empty() => eprintln!("no program uses {node} now"),
        Output::Table => {
            print!(
                "{}",
                table::render(SESSION_COLUMNS, &rows.iter().map(SessionRow::cells).collect::<Vec<_>>())
            );
            eprint!("{}", unmovable(&rows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn status_of(node: &Endpoint) -> Result<Status> {
    let mut connection = Connection::open(node)?;
    match connection.ask(StatusRequest {})? {
        Control::Status(status) => Ok(status),
        _ => Err(connection.unexpected().into()),
    }
}

fn print_json(rows: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(rows)?);
    Ok(())
}

/// A GPU as JSON; memory in bytes, shares in millionths.
#[derive(Serialize)]
struct GpuRow {
    index: u32,
    name: String,
    uuid: String,
    software: bool,
    memory: u64,
    memory_leased: u64,
    memory_used: u64,
    share_leased_ppm: u32,
    sessions: u32,
    busy_ppm: u32,
    compute_capability: String,
    driver_version: u32,
}

const GPU_COLUMNS: &[(&str, Align)] = &[
    ("GPU", Align::Right),
    ("NAME", Align::Left),
    ("CC", Align::Left),
    ("MEMORY", Align::Right),
    ("LEASED", Align::Right),
    ("USED", Align::Right),
    ("SHARE LEASED", Align::Right),
    ("BUSY", Align::Right),
    ("SESSIONS", Align::Right),
];

impl From<&GpuStatus> for GpuRow {
    fn from(gpu: &GpuStatus) -> GpuRow {
        let (major, minor) = gpu.compute_capability;
        GpuRow {
            index: gpu.index,
            name: gpu.name.clone(),
            uuid: uuid_text(gpu.uuid),
            software: gpu.is_software,
            memory: gpu.memory,
            memory_leased: gpu.memory_leased,
            memory_used: gpu.memory_used,
            share_leased_ppm: gpu.share_leased_ppm,
            sessions: gpu.sessions,
            busy_ppm: gpu.busy_ppm,
            compute_capability: format!("{major}.{minor}"),
            driver_version: gpu.driver_version,
        }
    }
}

impl GpuRow {
    fn cells(&self) -> Vec<String> {
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        vec![
            self.index.to_string(),
            self.name.clone(),
            self.compute_capability.clone(),
            memory(self.memory),
            memory(self.memory_leased),
            memory(self.memory_used),
            share_text(self.share_leased_ppm),
            share_text(self.busy_ppm / 10_000 * 10_000),
            self.sessions.to_string(),
        ]
    }
}

/// A session as JSON; memory in bytes, times in the unit that their name says.
#[derive(Serialize)]
struct SessionRow {
    session: u64,
    lease: u64,
    name: String,
    process: u32,
    peer: String,
    gpu: u32,
    share_ppm: u32,
    hard_cap: bool,
    limit_ppm: u32,
    memory: u64,
    memory_used: u64,
    /// Of `memory_used`: on the GPU now, in host memory now, and unable to leave the GPU.
    memory_resident: u64,
    memory_swapped: u64,
    memory_in_file: u64,
    memory_pinned: u64,
    /// What is to be said of where its memory is; empty where it is on the GPU.
    memory_state: String,
    /// How often its memory has left the GPUs, and how long that and the ways back have taken.
    memory_moves: u64,
    memory_moving_us: u64,
    kernels: u64,
    bytes_in: u64,
    bytes_out: u64,
    busy_us: u64,
    age_ms: u64,
    /// The client's connection is cut, and the session waits for it.
    parted: bool,
    suspended: bool,
    /// What keeps it from moving to another GPU.
    unmovable: Vec<String>,
}

const SESSION_COLUMNS: &[(&str, Align)] = &[
    ("LEASE", Align::Right),
    ("SESSION", Align::Right),
    ("PROGRAM", Align::Left),
    ("CLIENT", Align::Left),
    ("GPU", Align::Right),
    ("SHARE", Align::Right),
    ("MEMORY", Align::Right),
    ("ON GPU", Align::Right),
    ("SWAPPED", Align::Right),
    ("PINNED", Align::Right),
    ("SWAPPING", Align::Right),
    ("KERNELS", Align::Right),
    ("GPU TIME", Align::Right),
    ("IN", Align::Right),
    ("OUT", Align::Right),
    ("AGE", Align::Right),
];

impl From<&SessionStatus> for SessionRow {
    fn from(session: &SessionStatus) -> SessionRow {
        SessionRow {
            session: session.session,
            lease: session.lease,
            name: session.name.clone(),
            process: session.process,
            peer: session.peer.clone(),
            gpu: session.gpu,
            share_ppm: session.share_ppm,
            hard_cap: session.limit_ppm == session.share_ppm && session.limit_ppm < SHARE_WHOLE_PPM,
            limit_ppm: session.limit_ppm,
            memory: session.memory,
            memory_used: session.memory_used,
            memory_resident: session.memory_used.saturating_sub(session.memory_swapped),
            memory_swapped: session.memory_swapped,
            memory_in_file: session.memory_in_file,
            memory_pinned: session.memory_pinned,
            memory_state: session.memory_state.clone(),
            memory_moves: session.memory_moves,
            memory_moving_us: session.memory_moving_us,
            kernels: session.kernels,
            bytes_in: session.bytes_in,
            bytes_out: session.bytes_out,
            busy_us: session.busy_us,
            age_ms: session.age_ms,
            parted: session.parted,
            suspended: session.suspended,
            unmovable: session.unmovable.clone(),
        }
    }
}

/// Which sessions cannot move, one line for each reason.
fn unmovable(rows: &[SessionRow]) -> String {
    let mut reasons: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for row in rows {
        for reason in &row.unmovable {
            reasons.entry(reason).or_default().push(row.session);
        }
    }
    let line = |(reason, sessions): (&str, Vec<u64>)| {
        let sessions: Vec<String> = sessions.iter().map(u64::to_string).collect();
        format!("cannot move: {} ({reason})\n", sessions.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

impl SessionRow {
    fn cells(&self) -> Vec<String> {
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        let period = |duration| Period::from_duration(duration).to_string();
        let cut = if self.parted { " (cut)" } else { "" };
        let suspended = match (self.suspended, self.memory_state.as_str()) {
            (false, "") => String::new(),
            (true, "") => " (suspended)".to_owned(),
            (false, state) => format!(" ({state})"),
            (true, state) => format!(" (suspended; {state})"),
        };
        vec![
            self.lease.to_string(),
            self.session.to_string(),
            format!("{}{suspended}", self.name),
            format!("{}{cut}", self.peer),
            self.gpu.to_string(),
            compute_text(self.share_ppm, self.limit_ppm),
            memory(self.memory),
            memory(self.memory_resident),
            swapped(self.memory_swapped, self.memory_in_file),
            memory(self.memory_pinned),
            period(Duration::from_micros(self.memory_moving_us)),
            self.kernels.to_string(),
            period(Duration::from_micros(self.busy_us)),
            memory(self.bytes_in),
            memory(self.bytes_out),
            period(Duration::from_millis(self.age_ms)),
        ]
    }
}
/// What has left a GPU, and the part of it that is in a file, if any is.
pub(crate) fn swapped(all: u64, in_file: u64) -> String {
    let [all, file] = [all, in_file].map(|bytes| Memory::from_bytes(bytes).to_string());
    if in_file == 0 { all } else { format!("{all} ({file} in file)") }
}
