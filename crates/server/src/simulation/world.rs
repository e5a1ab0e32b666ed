//! Servers, nodes, programs and what is between them, in virtual time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::response::Response;
use sluice_api::client::{ADMIN_FILE, NODE_FILE, Settings};
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::token::Role;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::network::{FAIR, FOUL, Message, Party, Payload};
use super::node::{Heard, Node};
use super::post::{Call, Post, UNREACHABLE};
use super::program::Program;
use super::replica::{Answer, BEGIN_MS, Forward, Replica, Time, url};
use super::truth::Truth;
use super::{NODES, PROGRAMS, SERVERS};
use crate::auth;
use crate::fleet::Seat;
use crate::store::faults::{CommitFault, Faults};
use crate::store::{Store, Write};

/// Time continues in steps of this number of milliseconds.
pub(super) const STEP_MS: u64 = 100;
/// While there are no servers.
const LONG_STEP_MS: u64 = 300_000;
const TOKEN_LIFETIME_MS: u64 = 366 * 24 * 3_600_000;

const DECLARATION: &str = "
tenants:
  - path: acme
    quota: {guaranteed_milli: 2000}
  - path: globex
    quota: {guaranteed_milli: 2000}
pools:
  - {name: shared, nodes: [n0], overcommit_percent: 150}
";

struct SimulatedServer {
    name: String,
    folder: PathBuf,
    time: Time,
    faults: Arc<Faults>,
    replica: Option<Replica>,
    starts_at_ms: u64,
}

/// Looks at the database from outside.
pub(super) struct Observer {
    pub(super) runtime: Runtime,
    pub(super) store: Store,
}

/// What was done to a world.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) virtual_ms: u64,
    pub(super) faults: u64,
    pub(super) runs: u64,
    pub(super) records: u64,
}

pub(super) struct World {
    pub(super) post: Post,
    pub(super) observer: Observer,
    pub(super) nodes: Vec<Node>,
    pub(super) truth: Truth,
    servers: Vec<SimulatedServer>,
    pub(super) programs: Vec<Program>,
    /// By the exchange that was forwarded: by whom, and who waits there.
    forwarded: std::collections::HashMap<u64, oneshot::Sender<Response>>,
    time: Time,
    database_time: Time,
    database: PathBuf,
    admin: String,
    pub(super) faults: u64,
    _folder: TempDir,
}

impl World {
    /// A world in which everything is up, and no program has asked for anything.
    pub(super) fn new(seed: u64) -> World {
        let folder = temporary();
        let database = folder.path().join("sluice.db");
        let time = Time::default();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async {
            let store = Store::simulated(&database, Arc::default()).await.unwrap();
            store.set_clock(BEGIN_MS).await.unwrap();
            store
        });
        let machine = |number: usize| SimulatedServer {
            name: format!("s{number}"),
            folder: folder.path().join(format!("s{number}")),
            time: time.another(),
            faults: Arc::default(),
            replica: None,
            starts_at_ms: 0,
        };
        let servers: Vec<SimulatedServer> = (0..SERVERS).map(machine).collect();
        servers.iter().for_each(|server| std::fs::create_dir(&server.folder).unwrap());
        let mut world = World {
            post: Post::new(seed, FAIR),
            observer: Observer { runtime, store },
            nodes: Vec::new(),
            truth: Truth::default(),
            servers,
            programs: Vec::new(),
            forwarded: Default::default(),
            database_time: time.another(),
            time,
            database,
            admin: String::new(),
            faults: 0,
            _folder: folder,
        };
        world.begin();
        world
    }

    /// Starts the servers, with tenants, tokens, and the nodes' and programs' first steps to come.
    fn begin(&mut self) {
        self.start_servers();
        let token = |file: &str| Settings::read(&self.servers[0].folder.join(file)).unwrap().unwrap().token;
        let (admin, join) = (token(ADMIN_FILE), token(NODE_FILE));
        self.admin = admin;
        let call = Call { body: DECLARATION.into(), ..Call::post("/apply".into(), &self.admin, &()) };
        self.post.ask(Party::Administrator, 0, call);
        for _ in 0..20 {
            self.advance();
            self.act().unwrap();
        }
        let members: Vec<String> =
            (0..PROGRAMS).map(|index| self.member(["acme", "globex"][index % 2])).collect();
        self.programs =
            members.into_iter().enumerate().map(|(index, token)| Program::new(index, token)).collect();
        let folder = self.database.parent().unwrap().to_owned();
        self.nodes = (0..NODES)
            .map(|index| {
                Node::new(index, folder.join(format!("n{index}")), self.time.another(), join.clone())
            })
            .collect();
    }

    /// A new token of a tenant, made without the network.
    fn member(&mut self, tenant: &str) -> String {
        let server = Arc::clone(&self.servers[0].replica.as_ref().unwrap().server);
        let (stored, secret) = auth::make(
            tenant.parse().unwrap(),
            Role::Member,
            String::new(),
            None,
            TOKEN_LIFETIME_MS,
            BEGIN_MS,
        )
        .unwrap();
        let replica = self.servers[0].replica.as_ref().unwrap();
        replica.spawn(async move {
            let mut change = server.change().await.unwrap();
            change.write(Write::Token(stored));
            change.commit().await.unwrap();
        });
        replica.settle();
        secret
    }

    fn start_servers(&mut self) {
        for server in &mut self.servers {
            if server.replica.is_none() && self.post.now_ms >= server.starts_at_ms {
                let (time, faults) = (server.time.clone(), Arc::clone(&server.faults));
                server.replica = Replica::start(&server.name, &server.folder, &self.database, time, faults);
                server.starts_at_ms = self.post.now_ms + 1000;
                let what = if server.replica.is_some() { "is up" } else { "finds no database" };
                self.post.note(&format!("{} {what}", server.name));
            }
        }
    }

    /// Lets a step of time pass, with all that happens in it.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.advance();
        self.act()?;
        if self.post.now_ms.is_multiple_of(1000) {
            self.check_books()?;
        }
        Ok(())
    }

    fn advance(&mut self) {
        let away = self.servers.iter().all(|server| server.replica.is_none());
        let starts_ms = self.servers.iter().map(|server| server.starts_at_ms).min().unwrap_or(0);
        let long = away && starts_ms > self.post.now_ms + 2 * LONG_STEP_MS;
        self.post.now_ms += if long { LONG_STEP_MS } else { STEP_MS };
        self.time.now_ms.store(self.post.now_ms, Ordering::Relaxed);
        let database_ms = self.database_time.wall_ms();
        let Observer { runtime, store } = &self.observer;
        runtime.block_on(store.set_clock(database_ms)).unwrap();
        self.start_servers();
        for server in &self.servers {
            if let Some(replica) = &server.replica {
                replica.pass(Duration::from_millis(STEP_MS));
            }
        }
        self.collect();
    }

    /// Delivers what arrives, and lets nodes and programs act.
    fn act(&mut self) -> Result<(), String> {
        for message in self.post.network.arrived(self.post.now_ms) {
            self.deliver(message)?;
        }
        for server in self.servers.iter().filter_map(|server| server.replica.as_ref()) {
            server.settle();
        }
        self.collect();
        for node in &mut self.nodes {
            node.act(&mut self.post);
        }
        for program in &mut self.programs {
            program.act(&mut self.post, &self.nodes, &mut self.truth);
        }
        Ok(())
    }

    /// Takes what servers have said to the network.
    fn collect(&mut self) {
        for index in 0..self.servers.len() {
            let Some(replica) = &self.servers[index].replica else { continue };
            let (answers, forwards) = replica.take_said();
            for Answer { exchange, to, status, body } in answers {
                let payload = Payload::Answer { status, body };
                self.post.send(Message { from: Party::Server(index), to, exchange, payload });
            }
            for Forward { url: to, request, reply } in forwards {
                let leader = self.servers.iter().position(|server| url(&server.name) == to);
                let exchange = self.post.forward(Party::Server(index), leader.unwrap_or(index), request);
                self.forwarded.insert(exchange, reply);
            }
        }
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        let Message { from, to, exchange, payload } = message;
        match (to, payload) {
            (Party::Server(index), Payload::Request(request)) => match &self.servers[index].replica {
                Some(replica) => {
                    replica.ask(exchange, from, copy(&request));
                    // One after the other: tokio draws the order in which tasks that wait for the
                    // same thing continue.
                    replica.settle();
                }
                None => {
                    let payload = Payload::Answer { status: UNREACHABLE, body: Bytes::new() };
                    self.post.send(Message { from: to, to: from, exchange, payload });
                }
            },
            (Party::Server(_), Payload::Answer { status, body }) => {
                // A server that listens no more, or no server at all, gives no answer.
                if let Some(reply) = self.forwarded.remove(&exchange).filter(|_| status != UNREACHABLE) {
                    let mut response = Response::new(body.into());
                    *response.status_mut() = axum::http::StatusCode::from_u16(status).unwrap();
                    let _ = reply.send(response);
                }
            }
            (Party::Node(index), Payload::Answer { status, body }) => {
                let heard = self.nodes[index].hear(exchange, status, &body, &mut self.post);
                self.follow_node(index, heard)?;
            }
            (Party::Program(index), Payload::Answer { status, body }) => {
                let lease = self.programs[index].hear(exchange, status, &body, &mut self.post)?;
                if let Some(lease) = lease {
                    self.check_answer(&lease)?;
                    self.programs[index].take(lease, &mut self.post, &self.nodes, &mut self.truth)?;
                }
            }
            (Party::Administrator, _) | (_, Payload::Request(_)) => {}
        }
        Ok(())
    }

    fn follow_node(&mut self, index: usize, heard: Heard) -> Result<(), String> {
        match heard {
            Heard::Wrong(what) => return Err(what),
            Heard::Answer { taken, held } => {
                self.check_taken(&taken)?;
                self.truth.note_known(&held);
            }
            Heard::Nothing => {}
        }
        for attempt in self.truth.follow(&self.nodes[index], self.post.now_ms) {
            let Some(lease) = self.stored_lease(attempt.lease) else {
                return Err(format!("{attempt:?} was ended, and its lease is not stored"));
            };
            let seat = lease.seats.get(attempt.task as usize);
            let goes_on = lease.state == LeaseState::Running && lease.attempt == attempt.attempt;
            if goes_on && seat.is_some_and(Seat::stays) {
                return Err(format!("{attempt:?} was ended, and it was not asked to make room: {lease:?}"));
            }
            let reason = lease.reason.unwrap_or_default();
            self.truth.check_loss(attempt, &reason)?;
        }
        Ok(())
    }

    // Faults.

    /// Perhaps something goes wrong; once a second.
    pub(super) fn disturb(&mut self) {
        self.post.weather = FOUL;
        if !self.post.chance(90) {
            return;
        }
        self.faults += 1;
        let now_ms = self.post.now_ms;
        let rng = &mut self.post.rng;
        let (server, node, program) = (rng.usize(..SERVERS), rng.usize(..NODES), rng.usize(..PROGRAMS));
        let until_ms = now_ms + rng.u64(1_000..30_000);
        match rng.u32(..100) {
            0..15 => self.crash_server(server, until_ms),
            15..18 => (0..SERVERS).for_each(|server| self.crash_server(server, until_ms)),
            18..30 => self.crash_node(node, until_ms),
            30..45 => {
                let other = match self.post.rng.u32(..3) {
                    0 => Party::Node(node),
                    1 => Party::Program(program),
                    _ => Party::Server((server + 1) % SERVERS),
                };
                self.post.note(&format!("s{server} and {other:?} are cut off each other until {until_ms}"));
                self.post.network.cut(Party::Server(server), other, until_ms);
            }
            45..52 => {
                // Long enough for the node to be given up, now and then.
                let until_ms = now_ms + self.post.rng.u64(1_000..120_000);
                self.post.note(&format!("n{node} is cut off until {until_ms}"));
                for server in 0..SERVERS {
                    self.post.network.cut(Party::Server(server), Party::Node(node), until_ms);
                }
            }
            52..72 => {
                let pause = Duration::from_millis(self.post.rng.u64(100..9_000));
                let fault = match self.post.rng.u32(..4) {
                    0 => CommitFault::Refused,
                    1 => CommitFault::AnswerLost,
                    2 => CommitFault::PauseBefore(pause),
                    _ => CommitFault::PauseAfter(pause),
                };
                self.post.note(&format!("s{server}: {fault:?}"));
                self.servers[server].faults.add(fault);
            }
            72..76 => {
                self.post.note(&format!("s{server} reaches no database"));
                self.servers[server].faults.cut.store(true, Ordering::Relaxed);
            }
            76..78 => {
                self.post.note("the disk of the database is full");
                self.servers.iter().for_each(|server| server.faults.full.store(true, Ordering::Relaxed));
            }
            78..80 => {
                self.post.note("all reach the database again, and there is room");
                for server in &self.servers {
                    server.faults.cut.store(false, Ordering::Relaxed);
                    server.faults.full.store(false, Ordering::Relaxed);
                }
            }
            80..86 => self.set_clock(server, node),
            86..92 => {
                self.programs[program].die(&mut self.post, &self.nodes, &mut self.truth);
            }
            _ => self.preempt_one(server),
        }
    }

    fn crash_server(&mut self, server: usize, until_ms: u64) {
        self.post.note(&format!("s{server} crashes until {until_ms}"));
        let machine = &mut self.servers[server];
        machine.replica = None;
        machine.starts_at_ms = until_ms;
    }

    /// All of them, until then.
    pub(super) fn crash_servers(&mut self, until_ms: u64) {
        (0..SERVERS).for_each(|server| self.crash_server(server, until_ms));
    }

    fn crash_node(&mut self, node: usize, until_ms: u64) {
        self.post.note(&format!("n{node} crashes until {until_ms}"));
        self.truth.crash(node, self.post.now_ms);
        self.nodes[node].crash(until_ms, &mut self.post);
    }

    /// Sets a replica's clock.
    fn set_clock(&mut self, server: usize, node: usize) {
        let far = self.post.chance(300);
        let off_ms =
            if far { self.post.rng.i64(-600_000..600_000) } else { self.post.rng.i64(-3_000..3_000) };
        let (whose, time) = match self.post.rng.u32(..3) {
            0 => (format!("s{server}"), &self.servers[server].time),
            1 => (format!("n{node}"), &self.nodes[node].time),
            _ => ("the database".into(), &self.database_time),
        };
        time.off_ms.store(off_ms, Ordering::Relaxed);
        self.post.note(&format!("the clock of {whose} is off by {off_ms} ms"));
    }

    /// An administrator gives notice to whatever runs.
    fn preempt_one(&mut self, server: usize) {
        let running: Vec<u64> = self.truth.open().map(|held| held.attempt.lease).collect();
        if !running.is_empty() {
            let lease = running[self.post.rng.usize(..running.len())];
            self.post.note(&format!("an administrator preempts {lease}"));
            let call = Call::post(format!("/leases/{lease}/preemptions"), &self.admin, &());
            let call = Call { body: Vec::new(), ..call };
            self.post.ask(Party::Administrator, server, call);
        }
    }

    /// Nothing is wrong any more.
    pub(super) fn heal(&mut self) {
        self.post.note("all is well from now on");
        self.post.weather = FAIR;
        self.post.network.heal();
        let now_ms = self.post.now_ms;
        for server in &mut self.servers {
            server.faults.clear();
            server.starts_at_ms = server.starts_at_ms.min(now_ms);
            server.time.off_ms.store(0, Ordering::Relaxed);
        }
        for node in &mut self.nodes {
            node.starts_by(now_ms);
            node.time.off_ms.store(0, Ordering::Relaxed);
        }
        self.database_time.off_ms.store(0, Ordering::Relaxed);
    }

    pub(super) fn leaders(&self) -> usize {
        self.servers
            .iter()
            .filter_map(|server| server.replica.as_ref())
            .filter(|replica| replica.leads())
            .count()
    }

    /// A lease as it stands in the database.
    pub(super) fn stored_lease(&self, id: u64) -> Option<crate::fleet::LeaseRecord> {
        let Observer { runtime, store } = &self.observer;
        runtime.block_on(store.lease(id)).unwrap()
    }

    /// What is answered is in the database.
    fn check_answer(&mut self, lease: &Lease) -> Result<(), String> {
        let stored =
            self.stored_lease(lease.id).ok_or_else(|| format!("lease {} is not stored", lease.id))?;
        let behind = stored.revision < lease.revision || stored.attempt < lease.attempt;
        let undead = lease.state == LeaseState::Ended && stored.state != LeaseState::Ended;
        if behind || undead {
            return Err(format!("{lease:?} was answered, and {stored:?} is stored"));
        }
        Ok(())
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            virtual_ms: self.post.now_ms,
            faults: self.faults + self.post.network.faults,
            runs: self.truth.all.len() as u64,
            records: self.nodes.iter().map(|node| node.journal().len() as u64).sum(),
        }
    }
}

fn copy(request: &Request<Bytes>) -> Request<Bytes> {
    let mut copy = Request::new(request.body().clone());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// In memory where there is such a folder: nothing here outlives the process.
fn temporary() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}
