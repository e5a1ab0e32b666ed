//! A lease from a server: asked for, waited for, claimed on its node, watched, given back.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use sluice_api::bill::BudgetEnd;
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, Place, Refused};
use sluice_control::{Connection, open_lease};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseClaim, LeaseGranted};

use crate::child::EarlyEnd;
use crate::cli::RunArgs;
use crate::moment::Moment;
use crate::output::with_causes;
use crate::quantity::Period;
use crate::run::say_cut;
use crate::server::lists;
use crate::tasks::Event;

/// How long the server may hold an answer back while nothing changes.
const WAIT_MS: u64 = 5_000;
/// The first pause before a server that is away, or was asked too often, is asked again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest such pause. A server drops a waiting lease without a request for 20 s.
const RETRY_LONGEST: Duration = Duration::from_secs(8);
/// One that does not say what it is asked for is.
const RETRY_BLIND_EVERY: Duration = Duration::from_secs(5);
/// A request is tried this often before its failure is the user's.
const TRIES: u32 = 5;
/// A lease that this many nodes have refused is given up.
const REFUSALS_MAX: u32 = 5;

/// How much is printed about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    Quiet,
    Brief,
    /// Also prints all that the scheduler says about why a lease waits.
    Verbose,
}

impl Talk {
    pub(crate) fn of(arguments: &RunArgs) -> Talk {
        match (arguments.quiet, arguments.verbose) {
            (true, _) => Talk::Quiet,
            (false, true) => Talk::Verbose,
            (false, false) => Talk::Brief,
        }
    }
}

/// The pauses between requests to a server that is away: each is twice as long as the one before,
/// up to a limit.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Backoff {
        Backoff(RETRY_FIRST)
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(RETRY_LONGEST);
        pause
    }

    fn wait(&mut self) {
        sleep(self.next());
    }
}

/// A lease that the server keeps for this process; dropped, it ends.
pub(crate) struct ServerLease {
    /// With the key of the lease.
    client: Client,
    id: LeaseId,
    /// As it was seen last.
    seen: Lease,
    talk: Talk,
    /// Whether its program has ended by itself.
    finished: bool,
    /// While there is no program that signals are passed on to.
    early_end: Option<EarlyEnd>,
}

/// A task of a lease that its node has, on the connection that holds it.
pub(crate) struct Claimed {
    /// The number of the task.
    pub(crate) task: u32,
    /// The name of its node.
    pub(crate) node: String,
    pub(crate) address: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) granted: LeaseGranted,
}

impl ServerLease {
    /// Asks for it; it is in the queue when this returns.
    pub(crate) fn ask(client: Client, ask: &NewLease, talk: Talk) -> Result<ServerLease> {
        let key = random_key()?;
        let known = Arc::new(Mutex::new(None));
        let early_end = end_early(&known)?;
        // Who asks for the end meanwhile has to know first whether there is a lease.
        let mut asked = known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lease: Lease = insist(|| client.post_once("/leases", ask, &key))?;
        // The token may end before the lease does.
        let client = lease.key.take().map_or(client.clone(), |key| client.with_token(&key));
        *asked = Some((client.clone(), lease.id));
        drop(asked);
        if let Some(line) = budget_line(&lease).filter(|_| talk != Talk::Quiet) {
            eprintln!("sluice: {line}");
        }
        Ok(ServerLease {
            client,
            id: lease.id,
            seen: lease,
            talk,
            finished: false,
            early_end: Some(early_end),
        })
    }

    /// Takes up a lease that was asked for elsewhere with the same token. It ends with this
    /// process, as one that this asked for does.
    pub(crate) fn take_up(client: Client, id: LeaseId, talk: Talk) -> Result<ServerLease> {
        let seen: Lease = insist(|| client.get(&format!("/leases/{id}")))?;
        if matches!(seen.state, LeaseState::Running | LeaseState::Preempting) {
            bail!("lease {id} has a program already");
        }
        let is_ready = seen.state == LeaseState::Granted;
        if is_ready && seen.places.iter().all(|place| place.grant.is_none()) {
            bail!("lease {id} was asked for with another token, and only that one can claim it");
        }
        let early_end = end_early(&Arc::new(Mutex::new(Some((client.clone(), id)))))?;
        Ok(ServerLease { client, id, seen, talk, finished: false, early_end: Some(early_end) })
    }

    /// Takes over a lease whose program has run before, on the connection of an earlier process.
    pub(crate) fn take_over(client: Client, id: LeaseId) -> Result<ServerLease> {
        let seen: Lease = insist(|| client.get(&format!("/leases/{id}")))?;
        Ok(ServerLease { client, id, seen, talk: Talk::Brief, finished: false, early_end: None })
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.seen.attempt
    }

    pub(crate) fn name(&self) -> &str {
        &self.seen.name
    }

    /// Notes that its program has ended by itself, which becomes the reason for the lease's end.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    pub(crate) fn describe(&self) -> String {
        format!("lease {} of {}", self.id, self.seen.tenant)
    }

    /// Waits until its nodes have its tasks, which come in their order.
    pub(crate) fn claim(&mut self, kernel_timeout_ms: u32, name: &str) -> Result<Vec<Claimed>> {
        let mut refusals = 0;
        loop {
            self.wait_for_place()?;
            let claims = self.seen.places.iter().map(|place| claim_on_node(place, kernel_timeout_ms, name));
            let refusal = match claims.collect::<Result<Vec<Claimed>>>() {
                Ok(claimed) => {
                    // From here on its node knows when this process ends.
                    self.early_end = None;
                    return Ok(claimed);
                }
                Err(error) => with_causes(&error),
            };
            refusals += 1;
            if refusals == REFUSALS_MAX {
                bail!("{refusal} (after {refusals} tries)");
            }
            let refused = Refused { attempt: self.seen.attempt, task: None, reason: refusal };
            // A refusal counts once for each attempt, however often the server hears of it.
            self.seen = insist(|| self.client.post(&format!("/leases/{}/refusals", self.id), &refused))?;
        }
    }

    fn wait_for_place(&mut self) -> Result<()> {
        let mut progress = Progress::new(self.talk);
        let mut away = None;
        loop {
            match self.seen.state {
                LeaseState::Granted if self.seen.places.iter().all(|place| place.grant.is_some()) => {
                    return Ok(());
                }
                LeaseState::Ended => {
                    bail!(
                        "lease {} ended: {}",
                        self.id,
                        self.seen.reason.as_deref().unwrap_or("no reason given")
                    )
                }
                // What was seen last is old while the server is away.
                _ if away.is_some() => {}
                // The node has not said yet that an earlier attempt is over, or this is one.
                _ => progress.show(&self.seen),
            }
            match self.next() {
                Ok(lease) => {
                    self.seen = lease;
                    away = None;
                }
                Err(failure) if failure.is_temporary() => {
                    if away.is_none() {
                        progress.say(&format!("{failure}; still waiting"));
                    }
                    away.get_or_insert_with(Backoff::new).wait();
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// The lease once it differs from what was seen, or after a while.
    fn next(&self) -> Result<Lease, Failure> {
        watch(&self.client, self.id, self.seen.revision)
    }

    /// Tells of changes of the lease until it is over, or until nobody listens.
    pub(crate) fn watch(&self, events: Sender<Event>) {
        let (client, id, attempt) = (self.client.clone(), self.id, self.seen.attempt);
        let (watcher, revision) = (Watcher { client, id, attempt, events }, self.seen.revision);
        // Without the thread the program is ended all the same, only untold.
        let _ = std::thread::Builder::new().name("watch".into()).spawn(move || watcher.run(revision));
    }

    /// For further tasks of this attempt.
    pub(crate) fn claims(&self, kernel_timeout_ms: u32, name: &str) -> Claim {
        Claim {
            client: self.client.clone(),
            id: self.id,
            attempt: self.seen.attempt,
            describe: self.describe(),
            kernel_timeout_ms,
            name: name.to_owned(),
        }
    }

    /// Waits until the server has the lease back in its queue: its node has said that the earlier
    /// attempt is over.
    pub(crate) fn wait_requeued(&mut self) -> Result<()> {
        self.early_end = Some(end_early(&Arc::new(Mutex::new(Some((self.client.clone(), self.id)))))?);
        let attempt = self.seen.attempt;
        let mut backoff = Backoff::new();
        while self.seen.attempt == attempt && self.seen.state != LeaseState::Ended {
            match self.next() {
                Ok(lease) => {
                    self.seen = lease;
                    backoff = Backoff::new();
                }
                Err(failure) if failure.is_temporary() => backoff.wait(),
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }
}

/// Asks again while the server is away, or was asked too often: for what comes to the same, asked
/// twice.
fn insist<T>(mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut tries = 1;
    let mut backoff = Backoff::new();
    loop {
        match ask() {
            Err(failure) if failure.is_temporary() && tries < TRIES => {
                tries += 1;
                backoff.wait();
            }
            answer => return answer,
        }
    }
}

/// Ends the lease, if there is one, and this process, when that is asked to end.
fn end_early(lease: &Arc<Mutex<Option<(Client, LeaseId)>>>) -> Result<EarlyEnd> {
    let lease = Arc::clone(lease);
    let heed = EarlyEnd::heed(move |signal| {
        if let Some((client, id)) = &*lease.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the server cannot be told, it takes a program that does not ask any more for gone.
            let _ = client.delete::<Lease>(&format!("/leases/{id}"));
        }
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        std::process::exit(128 + signal)
    });
    heed.context("signals")
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        let finished = if self.finished { "?finished=true" } else { "" };
        // If the server cannot be told, it learns of the end from the node.
        let _ = self.client.delete::<Lease>(&format!("/leases/{}{finished}", self.id));
    }
}

/// How long a node is asked again. The server takes a program that says nothing for 20 s for gone,
/// and has to hear of a node that is not there while the other tasks' grants hold.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// Percent of a budget from which on who spends it is told.
const BUDGET_MARK: u64 = 80;

/// What there is to say of the tightest budget above a lease.
fn budget_line(lease: &Lease) -> Option<String> {
    let budget = lease.tightest_budget.as_ref().filter(|budget| budget.spent_percent >= BUDGET_MARK)?;
    let then = match (budget.then, budget.spent_percent >= 100) {
        (BudgetEnd::Hold, false) => "; new leases will wait when it is spent",
        (BudgetEnd::Hold, true) => "; new leases wait",
        (BudgetEnd::Preempt, false) => "; programs will be preempted when it is spent",
        (BudgetEnd::Preempt, true) => "; programs are preempted",
        (BudgetEnd::Warn, _) => "",
    };
    let until = budget.until_ms.map(|ms| format!(", until {}", Moment::from_ms(ms))).unwrap_or_default();
    Some(format!(
        "{} % of the budget that {} spends from is spent{until}{then}",
        budget.spent_percent, lease.tenant
    ))
}

/// Claims a task on its node.
fn claim_on_node(place: &Place, kernel_timeout_ms: u32, name: &str) -> Result<Claimed> {
    let grant = place.grant.clone().context("the server gave no grant")?;
    let address: Endpoint = place.address.parse()?;
    let claim = |once| LeaseClaim { once, grant: grant.clone(), kernel_timeout_ms, name: name.to_owned() };
    let (connection, answer) = open_lease(&address, CLAIM_PATIENCE, claim, say_cut)?;
    match answer {
        Control::LeaseGranted(granted) => {
            let address = connection.node().clone();
            Ok(Claimed { task: place.task, node: place.node.clone(), address, connection, granted })
        }
        Control::LeaseRefused(refused) => Err(anyhow!("{}: {}", place.node, refused.reason)),
        _ => Err(connection.unexpected().into()),
    }
}

fn watch(client: &Client, id: LeaseId, revision: u64) -> Result<Lease, Failure> {
    client.get(&format!("/leases/{id}?revision={revision}&wait_ms={WAIT_MS}"))
}

struct Watcher {
    client: Client,
    id: LeaseId,
    attempt: u32,
    events: Sender<Event>,
}

impl Watcher {
    fn run(self, mut revision: u64) {
        let mut blind = false;
        let mut backoff = Backoff::new();
        loop {
            let lease = match watch(&self.client, self.id, revision) {
                Ok(lease) => {
                    backoff = Backoff::new();
                    lease
                }
                // The session continues while the server is away. Who is told to ask less does, and
                // says so.
                Err(failure) if failure.is_temporary() && !failure.is_too_many() => {
                    backoff.wait();
                    continue;
                }
                Err(failure) => {
                    if !std::mem::replace(&mut blind, true) {
                        eprintln!("sluice: {}", blind_line(self.id, &failure));
                    }
                    sleep(RETRY_BLIND_EVERY);
                    continue;
                }
            };
            if std::mem::take(&mut blind) {
                eprintln!("sluice: the server tells of lease {} again", self.id);
            }
            let gone = lease.state == LeaseState::Ended || lease.attempt != self.attempt;
            let is_news = std::mem::replace(&mut revision, lease.revision) != lease.revision;
            // Where nobody listens any more all tasks have ended.
            if is_news && self.events.send(Event::Lease(Box::new(lease))).is_err() || gone {
                return;
            }
        }
    }
}

/// What the user of a program has to know whose lease can no longer be asked for.
fn blind_line(lease: LeaseId, failure: &Failure) -> String {
    format!("{failure}: the program goes on, but is not told when lease {lease} has to make room")
}

/// Claims further tasks of a lease for its program.
#[derive(Clone)]
pub(crate) struct Claim {
    client: Client,
    id: LeaseId,
    pub(crate) attempt: u32,
    /// The lease, for people to read.
    pub(crate) describe: String,
    kernel_timeout_ms: u32,
    name: String,
}

impl Claim {
    /// None if its node refuses, which the server is told.
    pub(crate) fn further(&self, place: &Place) -> Option<Claimed> {
        let refusal = match claim_on_node(place, self.kernel_timeout_ms, &self.name) {
            Ok(claimed) => return Some(claimed),
            Err(error) => with_causes(&error),
        };
        eprintln!("sluice: no further task: {refusal}");
        let refused = Refused { attempt: self.attempt, task: Some(place.task), reason: refusal };
        // If the server cannot be told, it takes back after a while what nobody claims.
        let _ = self.client.post::<Lease>(&format!("/leases/{}/refusals", self.id), &refused);
        None
    }
}

/// How much is left until that moment.
pub(crate) fn grace_left(until_ms: Option<u64>) -> Period {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Period::from_duration(Duration::from_millis(until_ms.unwrap_or(0)).saturating_sub(now))
}

/// The line about a waiting program: rewritten on a terminal, printed when it changes elsewhere.
struct Progress {
    talk: Talk,
    terminal: bool,
    begun: Instant,
    shown: String,
    /// All that the scheduler said, as it was printed last.
    details: String,
    /// When it was said to start, where lines are kept.
    start_ms: Option<u64>,
}

impl Progress {
    fn new(talk: Talk) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let (shown, details) = (String::new(), String::new());
        Progress { talk, terminal, begun: Instant::now(), shown, details, start_ms: None }
    }

    fn show(&mut self, lease: &Lease) {
        let line = self.line(lease);
        self.say(&line);
        let details = lease.reason.as_deref().unwrap_or_default();
        if self.talk == Talk::Verbose && !line.is_empty() && !details.is_empty() && self.details != details {
            self.details = details.to_owned();
            let lead = if self.terminal { "\n" } else { "" };
            eprintln!("{lead}sluice: in detail: {details}");
        }
    }

    fn line(&mut self, lease: &Lease) -> String {
        let start = lease.start.as_ref().and_then(|start| start.at_ms);
        let start = start.map(|at_ms| match self.terminal {
            true => wait_text(at_ms, lists::now_ms()),
            false => self.about(at_ms, lists::now_ms()),
        });
        waiting_line(lease, start.as_deref())
    }

    /// Where lines are kept, the time until it starts would make a new one of each: one that has
    /// hardly moved is as it was said.
    fn about(&mut self, at_ms: u64, now_ms: u64) -> String {
        let said_ms = self.start_ms.filter(|&said_ms| !has_moved(said_ms, at_ms, now_ms)).unwrap_or(at_ms);
        self.start_ms = Some(said_ms);
        if at_ms <= now_ms { ANY_MOMENT.into() } else { format!("at about {}", Moment::from_ms(said_ms)) }
    }

    fn say(&mut self, line: &str) {
        if self.talk == Talk::Quiet || (!self.terminal && self.shown == line) || line.is_empty() {
            return;
        }
        self.shown = line.to_owned();
        if self.terminal {
            let waited = Period::from_duration(self.begun.elapsed());
            let columns = columns_of_terminal();
            // A line that wraps cannot be rewritten: what does not fit is cut.
            let line = cut(&format!("sluice: {line} ({waited})"), columns);
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("sluice: {line}");
        }
    }
}

/// The width of the terminal.
fn columns_of_terminal() -> usize {
    const USUAL: usize = 80;
    ratatui::crossterm::terminal::size().map_or(USUAL, |(columns, _)| usize::from(columns).max(20))
}

/// Shortens a line to fewer characters than there are columns.
fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let kept: String = line.chars().take(columns.saturating_sub(2)).collect();
    format!("{kept}\u{2026}")
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Whether a start that was said is off by more than a fifth of the time that is left.
fn has_moved(said_ms: u64, at_ms: u64, now_ms: u64) -> bool {
    said_ms.abs_diff(at_ms) > at_ms.saturating_sub(now_ms) / 5
}

const ANY_MOMENT: &str = "any moment";

/// Formats a wait, in seconds.
fn wait_text(at_ms: u64, now_ms: u64) -> String {
    match at_ms.saturating_sub(now_ms) / 1000 {
        0 => ANY_MOMENT.into(),
        seconds => format!("in about {}", Period::from_duration(Duration::from_secs(seconds))),
    }
}

/// Formats why a lease waits, its place in the line of its tenant, and when it will start. Without
/// a reason it is empty.
fn waiting_line(lease: &Lease, start: Option<&str>) -> String {
    let reason = lease.reason_brief.as_ref().or(lease.reason.as_ref());
    let (LeaseState::Queued, Some(position), Some(reason)) = (lease.state, lease.position, reason) else {
        return String::new();
    };
    let place = match position {
        1 => "You are next".to_owned(),
        position => format!("You are number {position}"),
    };
    let start = start.map_or_else(|| "; the start is not known yet".to_owned(), |start| format!(", {start}"));
    format!("Waiting: {reason}. {place}{start}.")
}

/// By which the server knows a repeated request.
fn random_key() -> Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    use sluice_api::client::Settings;
    use sluice_api::problem::{Kind, Problem};

    use super::*;
    use crate::child::SIGNALS;
    use crate::server::login;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn who_spends_is_told_from_80_percent_on() {
        let line = |percent, then, until_ms: Option<u64>| {
            let budget = serde_json::json!({ "spent_percent": percent, "then": then, "until_ms": until_ms });
            let lease = lease(serde_json::json!({ "tightest_budget": budget }));
            budget_line(&serde_json::from_value(lease).unwrap())
        };
        let expect = "83 % of the budget that acme spends from is spent, until 2026-12-01T00:00:00Z; new leases will wait when it is spent";
        assert_eq!(line(83, "hold", Some(1_796_083_200_000)).as_deref(), Some(expect));
        assert_eq!(
            line(120, "warn", None).as_deref(),
            Some("120 % of the budget that acme spends from is spent")
        );
        assert_eq!(
            line(146, "hold", None).as_deref(),
            Some("146 % of the budget that acme spends from is spent; new leases wait")
        );
        assert_eq!(line(79, "hold", None), None);
        assert_eq!(budget_line(&serde_json::from_value(lease(serde_json::json!({}))).unwrap()), None);
    }

    fn lease(more: serde_json::Value) -> serde_json::Value {
        let mut lease = serde_json::json!({
            "id": 1, "tenant": "acme", "name": "", "gpus": 1, "tasks": 1, "share_ppm": 1, "memory": 0, "priority": 100, "tier": "standard",
            "preemptible": true, "state": "queued", "attempt": 1, "created_at_ms": 0, "revision": 1,
            "position": 2, "reason": "acme holds 1 of the 1 GPUs that are its limit"
        });
        lease.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lease
    }

    /// A server that answers each request, known by its method and path and by its token, as it is
    /// told to.
    fn serve(answer: impl Fn(&str, &str) -> (u16, String) + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || serve_one(stream.unwrap(), &*answer));
            }
        });
        url
    }

    fn serve_one(stream: TcpStream, answer: &dyn Fn(&str, &str) -> (u16, String)) {
        let mut reader = BufReader::new(&stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) < 3 {
                break;
            }
            head.push(line.to_lowercase());
        }
        let field = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let mut body = vec![0; field("content-length:").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let Some(request) = head.first() else { return };
        let token = field("authorization: bearer").unwrap_or_default();
        let (status, text) = answer(request.trim_end_matches(" http/1.1\r\n"), token);
        let _ = write!(
            &stream,
            "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        );
    }

    /// In a process that a test starts of itself: the server that it asks.
    const SERVER_VARIABLE: &str = "SLUICE_TEST_WAITS_AT";

    /// In a process of its own, which is asked to end.
    #[test]
    fn who_is_asked_to_end_while_it_waits_gives_its_lease_up() {
        if let Ok(url) = std::env::var(SERVER_VARIABLE) {
            let ask = serde_json::from_str("{}").unwrap();
            let mut waits = ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap();
            panic!("{:?}", waits.claim(0, "").map(|_| ()));
        }
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let (heard, requests) = channel();
            // An answer to a waiting program comes when something has changed: not before the lease
            // is ended.
            let ended = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
            let url = serve(move |request, _| {
                heard.send(request.to_owned()).unwrap();
                let (is_over, changed) = &*ended;
                match request.split(' ').next() {
                    Some("get") => drop(changed.wait_while(is_over.lock().unwrap(), |over| !*over).unwrap()),
                    Some("delete") => {
                        *is_over.lock().unwrap() = true;
                        changed.notify_all();
                    }
                    _ => {}
                }
                (200, lease(serde_json::json!({})).to_string())
            });
            let name = "server::lease::tests::who_is_asked_to_end_while_it_waits_gives_its_lease_up";
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", name]).env(SERVER_VARIABLE, &url).stdout(Stdio::null());
            // SAFETY: signal is async-signal-safe. A shell that starts something in the background
            // has it ignore SIGINT.
            unsafe {
                command.pre_exec(move || {
                    libc::signal(signal, libc::SIG_DFL);
                    Ok(())
                })
            };
            let mut process = command.spawn().unwrap();
            assert_eq!(requests.recv_timeout(PATIENCE).as_deref(), Ok("post /api/v1/leases"));
            let asks = requests.recv_timeout(PATIENCE).unwrap();
            assert!(asks.starts_with("get /api/v1/leases/1?"), "{asks}");
            // SAFETY: touches no memory, and the process has not been waited for.
            unsafe { libc::kill(process.id() as i32, signal) };
            assert_eq!(process.wait().unwrap().code(), Some(128 + signal));
            let ends = requests.recv_timeout(PATIENCE);
            assert_eq!(ends.as_deref(), Ok("delete /api/v1/leases/1"));
        }
    }

    #[test]
    fn a_program_whose_token_holds_no_more_is_watched_again_when_it_does() {
        let tries = std::sync::atomic::AtomicU32::new(0);
        let url = serve(move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => {
                let refused = Problem::new(Kind::Unauthenticated, "the token has expired");
                (401, serde_json::to_string(&refused).unwrap())
            }
            _ => (200, lease(serde_json::json!({ "state": "preempting", "revision": 7 })).to_string()),
        });
        let (events, heard) = channel();
        let watcher = Watcher { client: Client::new(&url, "token"), id: 1, attempt: 1, events };
        std::thread::spawn(move || watcher.run(1));
        match heard.recv_timeout(PATIENCE) {
            Ok(Event::Lease(lease)) => assert_eq!(lease.revision, 7),
            _ => panic!("nothing is heard of the lease"),
        }
    }

    /// In a process whose settings are its own.
    #[test]
    fn what_login_keeps_is_taken_by_what_runs_already() {
        let settings =
            |url: &str, token: &str| Settings { server: url.into(), token: token.into(), login: None };
        if let Ok(url) = std::env::var(SERVER_VARIABLE) {
            let client = login::client(settings(&url, "old"));
            let ask = || client.get::<Lease>("/leases/1");
            settings(&url, "old").keep().unwrap();
            assert!(matches!(ask(), Err(Failure::Refused(problem)) if problem.status == 401));
            settings(&url, "new").keep().unwrap();
            assert_eq!(ask().unwrap().id, 1);
            return;
        }
        let url = serve(|_, token| match token {
            "new" => (200, lease(serde_json::json!({})).to_string()),
            _ => (401, serde_json::to_string(&Problem::new(Kind::Unauthenticated, "expired")).unwrap()),
        });
        let folder = std::env::temp_dir().join(format!("sluice-login-{}", std::process::id()));
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server::lease::tests::what_login_keeps_is_taken_by_what_runs_already"])
            .envs([("XDG_CONFIG_HOME", &folder), ("XDG_DATA_HOME", &folder)])
            .env(SERVER_VARIABLE, &url)
            .env_remove("SLUICE_TOKEN")
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_server_that_is_asked_too_often_is_asked_again() {
        let tries = std::sync::atomic::AtomicU32::new(0);
        let url = serve(move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => (429, serde_json::to_string(&Problem::new(Kind::TooMany, "wait")).unwrap()),
            _ => (200, lease(serde_json::json!({})).to_string()),
        });
        let ask = serde_json::from_str("{}").unwrap();
        let _signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap().seen.id, 1);
    }

    /// The token holds no more once there is a lease.
    #[test]
    fn a_lease_is_asked_for_with_its_key() {
        let (heard, requests) = channel();
        let url = serve(move |request, token| {
            heard.send(format!("{request} {token}")).unwrap();
            match token {
                "token" => {
                    (200, lease(serde_json::json!({ "key": "slk_1_x", "state": "granted" })).to_string())
                }
                _ => (200, lease(serde_json::json!({ "state": "ended", "revision": 7 })).to_string()),
            }
        });
        let ask = serde_json::from_str("{}").unwrap();
        let _signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap();
        assert_eq!(held.seen.key, None, "it is shown to nobody");
        let (events, event) = channel();
        held.watch(events);
        assert!(event.recv_timeout(PATIENCE).is_ok());
        held.wait_requeued().unwrap();
        drop(held);
        let asked: Vec<String> = requests.try_iter().collect();
        let [first, then @ ..] = &asked[..] else { panic!("nobody asked") };
        assert_eq!(first, "post /api/v1/leases token");
        assert!(then.iter().all(|request| request.ends_with(" slk_1_x")), "{then:?}");
        assert_eq!(then.last().map(String::as_str), Some("delete /api/v1/leases/1 slk_1_x"));
    }

    #[test]
    fn waiting_is_explained() {
        let brief = serde_json::json!({ "reason_brief": "acme uses 1 GPU of its limit of 1 GPU" });
        let lease: Lease = serde_json::from_value(lease(brief)).unwrap();
        assert_eq!(
            waiting_line(&lease, Some("in about 17 s")),
            "Waiting: acme uses 1 GPU of its limit of 1 GPU. You are number 2, in about 17 s."
        );
        let next = Lease { position: Some(1), reason_brief: None, ..lease.clone() };
        assert_eq!(
            waiting_line(&next, None),
            "Waiting: acme holds 1 of the 1 GPUs that are its limit. You are next; the start is not known yet."
        );
        assert_eq!(waiting_line(&Lease { reason: None, reason_brief: None, ..lease }, None), "");
    }

    #[test]
    fn a_line_is_cut_to_the_width_of_the_terminal() {
        assert_eq!(cut("sluice: waits", 80), "sluice: waits");
        let line = cut(&"x".repeat(200), 40);
        assert!(line.chars().count() < 40 && line.ends_with('\u{2026}'), "{line}");
    }

    #[test]
    fn pauses_grow_to_a_limit_below_that_of_the_server() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u64> = (0..6).map(|_| backoff.next().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn where_lines_are_kept_the_start_is_said_and_again_when_it_moves() {
        let mut progress = Progress::new(Talk::Quiet);
        progress.terminal = false;
        let mut about = |at_s: u64, now_s: u64| progress.about(at_s * 1000, now_s * 1000);
        assert_eq!(about(1000, 0), "at about 1970-01-01T00:16:40Z");
        assert_eq!(about(1150, 10), "at about 1970-01-01T00:16:40Z", "it has hardly moved");
        assert_eq!(about(1500, 10), "at about 1970-01-01T00:25:00Z");
        assert_eq!([about(1500, 1500), about(1501, 1502)], [ANY_MOMENT, ANY_MOMENT]);
        let start = serde_json::json!({ "start": { "at_ms": 4_000_000_000_000_u64, "because": "" } });
        let lease: Lease = serde_json::from_value(lease(start)).unwrap();
        let line = progress.line(&lease);
        assert!(line.ends_with("You are number 2, at about 2096-10-02T07:06:40Z."), "{line}");
    }
}
