//! A user's program under `sluice run`: asks for a lease, waits, claims it on its nodes, runs, and
//! ends or is ended.

use axum::body::Bytes;
use sluice_api::lease::{Lease, LeaseState, NewLease, Place, Refused};
use sluice_api::node::Attempt;

use super::SERVERS;
use super::network::Party;
use super::node::Node;
use super::post::{Call, Post, Wait, is_temporary};
use super::truth::Truth;

const ANSWER_TIME_MAX_MS: u64 = 8_000;
const RETRY_EVERY_MS: u64 = 1_000;
/// The server gives a program that waits up if it has not asked for 20 s; less the longest that an
/// answer may take.
const PATIENCE_MS: u64 = 20_000 - ANSWER_TIME_MAX_MS - 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until then.
    Rests(u64),
    Asks,
    Waits,
    /// An attempt, until then.
    Runs(u32, u64),
    /// A node has refused this attempt.
    Refuses(u32),
    Leaves,
}

pub(super) struct Program {
    pub(super) index: usize,
    token: String,
    /// Of its requests.
    number: u32,
    key: String,
    ask: NewLease,
    seen: Option<Lease>,
    state: State,
    waits: Option<Wait>,
    next_at_ms: u64,
    /// Last answer about its lease.
    heard_at_ms: u64,
    tasks: Vec<Task>,
    /// Tasks of this attempt that it has claimed or will not claim are below this.
    next_task: u32,
    /// A node has refused this further task.
    refuses: Option<Refused>,
    told_to_end: bool,
    /// Asks for nothing more.
    pub(super) retired: bool,
    /// Asks for so little that all of its kind have room.
    pub(super) modest: bool,
    /// Beside its usual duration.
    pub(super) lasts_ms: u64,
}

/// A task that runs.
struct Task {
    node: usize,
    attempt: Attempt,
    /// The number of the lease on its node.
    local: u64,
    /// It ends by itself, or because it was asked to make room; not before the program unless said.
    until_ms: u64,
    told_to_leave: bool,
}

impl Program {
    pub(super) fn new(index: usize, token: String) -> Program {
        Program {
            index,
            token,
            number: 0,
            key: String::new(),
            ask: serde_json::from_value(serde_json::json!({})).unwrap(),
            seen: None,
            state: State::Rests(0),
            waits: None,
            next_at_ms: 0,
            heard_at_ms: 0,
            tasks: Vec::new(),
            next_task: 0,
            refuses: None,
            told_to_end: false,
            retired: false,
            modest: false,
            lasts_ms: 0,
        }
    }

    fn party(&self) -> Party {
        Party::Program(self.index)
    }

    pub(super) fn rests(&self) -> bool {
        matches!(self.state, State::Rests(_))
    }

    pub(super) fn act(&mut self, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        match self.state {
            State::Rests(until_ms) if self.retired || post.now_ms < until_ms => return,
            State::Rests(_) => self.begin(post),
            State::Runs(_, until_ms) => self.run(until_ms, post, nodes, truth),
            _ => {}
        }
        if self.waits.is_some_and(|wait| post.now_ms >= wait.until_ms) {
            self.waits = None;
        }
        if self.waits.is_none() && post.now_ms >= self.next_at_ms {
            self.send(post);
        }
    }

    fn begin(&mut self, post: &mut Post) {
        self.number += 1;
        self.key = format!("{} of {}", self.number, self.index);
        let share_ppm = [250_000, 500_000, 1_000_000][post.rng.usize(..3)];
        let gpus = if post.chance(200) { 2 } else { 1 };
        let tasks = if post.chance(200) { 2 } else { 1 };
        let tasks_max = if post.chance(400) { tasks + post.rng.u32(1..4) } else { tasks };
        let priority = 50 + post.rng.i32(0..100);
        let (share_ppm, gpus, tasks, tasks_max) =
            if self.modest { (250_000, 1, 1, 1) } else { (share_ppm, gpus, tasks, tasks_max) };
        let ask = serde_json::json!({ "share_ppm": share_ppm, "gpus": gpus, "tasks": tasks, "tasks_max": tasks_max,
                                      "priority": priority, "name": self.key });
        self.ask = serde_json::from_value(ask).unwrap();
        self.refuses = None;
        (self.seen, self.told_to_end) = (None, false);
        self.state = State::Asks;
    }

    /// Runs that have begun end by then.
    pub(super) fn hurry(&mut self, by_ms: u64) {
        self.lasts_ms = 0;
        if let State::Runs(_, until_ms) = &mut self.state {
            *until_ms = by_ms.min(*until_ms);
        }
    }

    fn run(&mut self, until_ms: u64, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        self.end_some(post, nodes, truth);
        let whole = self.tasks.iter().all(|task| truth.is_open(task.node, task.local));
        if !whole || self.tasks.is_empty() || post.now_ms >= until_ms {
            self.end_tasks(post, nodes, truth);
            // What had to make room waits for its next turn; all else is done.
            // Some try again when the node has crashed, and may still find their grant.
            let waits = self.told_to_end || (!whole && post.chance(500));
            self.state = if waits { State::Waits } else { State::Leaves };
            self.waits = None;
        } else if post.chance(20) {
            for &Task { node, local, .. } in &self.tasks {
                if let Some(running) = &nodes[node].running {
                    let gpu_ns = post.rng.u64(..50_000_000);
                    running.work(local, gpu_ns);
                    truth.work(node, local, gpu_ns);
                }
            }
        }
    }

    /// As the death of the program does.
    fn end_tasks(&mut self, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        let tasks = std::mem::take(&mut self.tasks);
        tasks.iter().for_each(|task| end_task(self.index, task, post, nodes, truth));
    }

    /// Ends the tasks that end before the others, and forgets those that were asked to and have
    /// been ended.
    fn end_some(&mut self, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        let (index, now_ms) = (self.index, post.now_ms);
        self.tasks.retain(|task| {
            let ends = now_ms >= task.until_ms;
            if ends {
                end_task(index, task, post, nodes, truth);
            }
            !ends && (!task.told_to_leave || truth.is_open(task.node, task.local))
        });
    }

    /// The program is killed, and the server is not notified.
    pub(super) fn die(&mut self, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        post.note(&format!("p{} dies", self.index));
        self.end_tasks(post, nodes, truth);
        self.rest(post);
    }

    fn rest(&mut self, post: &mut Post) {
        self.waits = None;
        self.state = State::Rests(post.now_ms + post.rng.u64(100..8_000));
    }

    fn send(&mut self, post: &mut Post) {
        let id = self.seen.as_ref().map_or(0, |lease| lease.id);
        let revision = self.seen.as_ref().map_or(0, |lease| lease.revision);
        let server = post.rng.usize(..SERVERS);
        let call = match self.state {
            State::Rests(_) => return,
            State::Asks => {
                Call { key: Some(&self.key), ..Call::post("/leases".into(), &self.token, &self.ask) }
            }
            State::Runs(..) if self.refuses.is_some() => {
                Call::post(format!("/leases/{id}/refusals"), &self.token, &self.refuses.take())
            }
            State::Waits | State::Runs(..) => {
                Call::get(format!("/leases/{id}?revision={revision}&wait_ms=4000"), &self.token)
            }
            State::Refuses(attempt) => {
                let refused = Refused { attempt, task: None, reason: "its node says no".into() };
                Call::post(format!("/leases/{id}/refusals"), &self.token, &refused)
            }
            State::Leaves => Call::delete(format!("/leases/{id}"), &self.token),
        };
        let exchange = post.ask(self.party(), server, call);
        self.waits = Some(Wait { exchange, until_ms: post.now_ms + ANSWER_TIME_MAX_MS });
        if self.state == State::Leaves {
            // Once; should it be lost, the server learns of the end from the node.
            self.rest(post);
        }
    }

    /// The lease that an answer speaks of, if it is one to this program's question; the error says
    /// what must not be.
    pub(super) fn hear(
        &mut self,
        exchange: u64,
        status: u16,
        body: &Bytes,
        post: &mut Post,
    ) -> Result<Option<Lease>, String> {
        if self.waits.is_none_or(|wait| wait.exchange != exchange) {
            return Ok(None);
        }
        self.waits = None;
        self.next_at_ms = post.now_ms;
        if is_temporary(status) {
            self.next_at_ms = post.now_ms + RETRY_EVERY_MS;
            return Ok(None);
        }
        if status == 422 && self.state == State::Asks && String::from_utf8_lossy(body).contains("never-fits")
        {
            // Not all nodes have joined.
            self.rest(post);
            return Ok(None);
        }
        if status != 200 {
            return Err(format!("p{} reads {status}: {}", self.index, String::from_utf8_lossy(body)));
        }
        let lease: Lease = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if let Some(seen) = &self.seen
            && seen.id != lease.id
        {
            return Err(format!(
                "p{} asked once and has the leases {} and {}",
                self.index, seen.id, lease.id
            ));
        }
        Ok(Some(lease))
    }

    /// Does what the state of its lease asks for.
    pub(super) fn take(
        &mut self,
        lease: Lease,
        post: &mut Post,
        nodes: &[Node],
        truth: &mut Truth,
    ) -> Result<(), String> {
        let heard_before = std::mem::replace(&mut self.heard_at_ms, post.now_ms);
        let reason = lease.reason.clone().unwrap_or_default();
        let line = format!(
            "p{} sees lease {} attempt {} {} at {}: {reason}",
            self.index,
            lease.id,
            lease.attempt,
            lease.state.name(),
            lease.revision
        );
        if self.seen.as_ref().is_none_or(|seen| seen.revision != lease.revision) {
            post.note(&line);
        }
        match self.state {
            State::Asks | State::Refuses(_) => self.state = State::Waits,
            _ => {}
        }
        let ended = lease.state == LeaseState::Ended;
        match self.state {
            State::Waits if ended => {
                let forgot = reason == "its program no longer asked for it"
                    && post.now_ms - heard_before <= PATIENCE_MS
                    && self.seen.is_some();
                if forgot {
                    return Err(format!(
                        "{line}: p{} was last received {} ms ago",
                        self.index,
                        post.now_ms - heard_before
                    ));
                }
                self.rest(post);
            }
            State::Waits if lease.state == LeaseState::Granted => {
                let attempts_of = |place: &sluice_api::lease::Place| place.grant.clone();
                if let Some(grants) = lease.places.iter().map(attempts_of).collect::<Option<Vec<_>>>() {
                    self.claim(&lease, &grants, post, nodes, truth)?;
                }
            }
            State::Runs(attempt, until_ms) => {
                let gone = ended || lease.attempt != attempt;
                if lease.state == LeaseState::Preempting && !self.told_to_end {
                    self.told_to_end = true;
                    let patience_ms = post.rng.u64(..10_000);
                    self.state = State::Runs(attempt, until_ms.min(post.now_ms + patience_ms));
                } else if gone {
                    for task in &self.tasks {
                        truth.check_loss(task.attempt, &reason).map_err(|what| format!("{line}: {what}"))?;
                    }
                    let told = std::mem::take(&mut self.told_to_end);
                    self.end_tasks(post, nodes, truth);
                    self.state = if told && !ended { State::Waits } else { State::Leaves };
                } else if lease.state == LeaseState::Running {
                    self.follow_tasks(&lease, post, nodes, truth)?;
                }
            }
            _ => {}
        }
        self.seen = Some(lease);
        Ok(())
    }

    fn claim(
        &mut self,
        lease: &Lease,
        grants: &[String],
        post: &mut Post,
        nodes: &[Node],
        truth: &mut Truth,
    ) -> Result<(), String> {
        self.next_task = 0;
        for (place, grant) in lease.places.iter().zip(grants) {
            if let Err(refusal) = self.claim_task(lease, place, grant, post, nodes, truth)? {
                post.note(&refusal);
                self.end_tasks(post, nodes, truth);
                self.state = State::Refuses(lease.attempt);
                return Ok(());
            }
        }
        self.told_to_end = false;
        let duration_ms = post.rng.u64(3_000..90_000);
        let until_ms = post.now_ms.saturating_add(duration_ms).saturating_add(self.lasts_ms);
        self.state = State::Runs(lease.attempt, until_ms);
        Ok(())
    }

    /// The inner error is the node's refusal.
    fn claim_task(
        &mut self,
        lease: &Lease,
        place: &Place,
        grant: &str,
        post: &mut Post,
        nodes: &[Node],
        truth: &mut Truth,
    ) -> Result<Result<(), String>, String> {
        let attempt = Attempt { lease: lease.id, attempt: lease.attempt, task: place.task };
        self.next_task = self.next_task.max(place.task + 1);
        let node = nodes.iter().position(|node| node.machine.name == place.node).unwrap();
        let claimed = match &nodes[node].running {
            Some(node) => node.claim(grant),
            None => Err("no node listens there".into()),
        };
        let local = match claimed {
            Ok(local) => local,
            Err(refusal) => return Ok(Err(format!("n{node} refuses {attempt:?}: {refusal}"))),
        };
        post.note(&format!("p{} claims {attempt:?} on n{node}", self.index));
        truth.begin(node, attempt, local, place.gpus.clone(), lease.share_ppm, post.now_ms)?;
        // Some end before the others.
        let early = !self.modest && post.chance(300);
        let until_ms = if early { post.now_ms + post.rng.u64(1_000..40_000) } else { u64::MAX };
        self.tasks.push(Task { node, attempt, local, until_ms, told_to_leave: false });
        Ok(Ok(()))
    }

    /// Tells tasks that have to make room, and claims further ones.
    fn follow_tasks(
        &mut self,
        lease: &Lease,
        post: &mut Post,
        nodes: &[Node],
        truth: &mut Truth,
    ) -> Result<(), String> {
        for task in &mut self.tasks {
            let place = lease.places.iter().find(|place| place.task == task.attempt.task);
            if place.is_some_and(|place| place.leave_at_ms.is_some()) && !task.told_to_leave {
                task.told_to_leave = true;
                task.until_ms = task.until_ms.min(post.now_ms + post.rng.u64(..10_000));
            }
        }
        let known = self.next_task;
        for place in lease.places.iter().filter(|place| place.task >= known) {
            self.next_task = self.next_task.max(place.task + 1);
            // Some are never claimed.
            let Some(grant) = place.grant.as_ref().filter(|_| !post.chance(100)) else { continue };
            if let Err(refusal) = self.claim_task(lease, place, grant, post, nodes, truth)? {
                post.note(&refusal);
                self.refuses =
                    Some(Refused { attempt: lease.attempt, task: Some(place.task), reason: refusal });
            }
        }
        Ok(())
    }
}

fn end_task(index: usize, task: &Task, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
    let &Task { node, attempt, local, .. } = task;
    if truth.is_open(node, local)
        && let Some(running) = &nodes[node].running
    {
        running.end(local);
        truth.end(node, local, post.now_ms);
        post.note(&format!("p{index} ends {attempt:?} on n{node}"));
    }
}
