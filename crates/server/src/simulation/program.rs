//! A user's program under `sluice run`: asks for a lease, waits, claims it on its nodes, runs, and ends or is ended.

use axum::body::Bytes;
use sluice_api::lease::{Lease, LeaseState, NewLease, Refused};
use sluice_api::node::Attempt;

use super::SERVERS;
use super::network::Party;
use super::node::Node;
use super::post::{Call, Post, Wait, is_temporary};
use super::truth::Truth;

const ANSWER_TIME_MAX_MS: u64 = 8_000;
const RETRY_EVERY_MS: u64 = 1_000;
/// The server gives a program that waits up if it has not asked for 20 s; less the longest that an answer may take.
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
    /// Its tasks' nodes, and the numbers of the leases there.
    tasks: Vec<(usize, Attempt, u64)>,
    told_to_end: bool,
    /// Asks for nothing more.
    pub(super) retired: bool,
    /// Asks for so little that all of its kind have room.
    pub(super) modest: bool,
    /// Beside its usual duration.
    pub(super) lasts_ms: u64,
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
        let priority = 50 + post.rng.i32(0..100);
        let (share_ppm, gpus, tasks) = if self.modest { (250_000, 1, 1) } else { (share_ppm, gpus, tasks) };
        let ask = serde_json::json!({ "share_ppm": share_ppm, "gpus": gpus, "tasks": tasks, "priority": priority,
                                      "name": self.key });
        self.ask = serde_json::from_value(ask).unwrap();
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
        let has = |(node, _, local): &(usize, Attempt, u64)| truth.is_open(*node, *local);
        let whole = self.tasks.iter().all(has);
        if !whole || post.now_ms >= until_ms {
            self.end_tasks(post, nodes, truth);
            // What had to make room waits for its next turn; all else is done.
            // Some try again when the node has crashed, and may still find their grant.
            let waits = self.told_to_end || (!whole && post.chance(500));
            self.state = if waits { State::Waits } else { State::Leaves };
            self.waits = None;
        } else if post.chance(20) {
            for (node, _, local) in &self.tasks {
                if let Some(running) = &nodes[*node].running {
                    let gpu_ns = post.rng.u64(..50_000_000);
                    running.work(*local, gpu_ns);
                    truth.work(*node, *local, gpu_ns);
                }
            }
        }
    }

    /// As the death of the program does.
    fn end_tasks(&mut self, post: &mut Post, nodes: &[Node], truth: &mut Truth) {
        for (node, attempt, local) in std::mem::take(&mut self.tasks) {
            if truth.is_open(node, local)
                && let Some(running) = &nodes[node].running
            {
                running.end(local);
                truth.end(node, local, post.now_ms);
                post.note(&format!("p{} ends {attempt:?} on n{node}", self.index));
            }
        }
    }

    /// Killed, with nobody to tell the server.
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
            State::Waits | State::Runs(..) => {
                Call::get(format!("/leases/{id}?revision={revision}&wait_ms=4000"), &self.token)
            }
            State::Refuses(attempt) => {
                let refused = Refused { attempt, reason: "its node says no".into() };
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

    /// The lease that an answer speaks of, if it is one to this program's question; the error says what must not be.
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
            return Err(format!("p{} hears {status}: {}", self.index, String::from_utf8_lossy(body)));
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
                        "{line}: p{} was heard {} ms ago",
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
                    for (_, attempt, _) in &self.tasks {
                        truth.check_loss(*attempt, &reason).map_err(|what| format!("{line}: {what}"))?;
                    }
                    let told = std::mem::take(&mut self.told_to_end);
                    self.end_tasks(post, nodes, truth);
                    self.state = if told && !ended { State::Waits } else { State::Leaves };
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
        for ((task, place), grant) in (0..).zip(&lease.places).zip(grants) {
            let attempt = Attempt { lease: lease.id, attempt: lease.attempt, task };
            let index = nodes.iter().position(|node| node.machine.name == place.node).unwrap();
            let claimed = match &nodes[index].running {
                Some(node) => node.claim(grant),
                None => Err("nobody listens there".into()),
            };
            match claimed {
                Ok(local) => {
                    post.note(&format!("p{} claims {attempt:?} on n{index}", self.index));
                    truth.begin(index, attempt, local, place.gpus.clone(), lease.share_ppm, post.now_ms)?;
                    self.tasks.push((index, attempt, local));
                }
                Err(refusal) => {
                    post.note(&format!("n{index} refuses {attempt:?}: {refusal}"));
                    self.end_tasks(post, nodes, truth);
                    self.state = State::Refuses(lease.attempt);
                    return Ok(());
                }
            }
        }
        self.told_to_end = false;
        let duration_ms = post.rng.u64(3_000..90_000);
        let until_ms = post.now_ms.saturating_add(duration_ms).saturating_add(self.lasts_ms);
        self.state = State::Runs(lease.attempt, until_ms);
        Ok(())
    }
}
