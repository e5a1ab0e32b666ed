//! What really was held, where, and for how long: what the server's state is compared with.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::GPU_PPM;
use sluice_api::node::Attempt;

use super::node::Node;

/// A task that ran on a node.
#[derive(Clone, Debug)]
pub(super) struct TaskRun {
    pub(super) node: usize,
    pub(super) attempt: Attempt,
    gpus: Vec<u32>,
    pub(super) share_ppm: u32,
    pub(super) from_ms: u64,
    pub(super) until_ms: Option<u64>,
    /// Its node crashed under it.
    pub(super) crashed: bool,
    pub(super) gpu_ns: u64,
}

impl TaskRun {
    /// What a bill would count of it, in millionths of a GPU x milliseconds.
    pub(super) fn reserved_ppm_ms(&self) -> u64 {
        let held_ms = self.until_ms.unwrap_or(self.from_ms) - self.from_ms;
        u64::from(self.share_ppm) * self.gpus.len() as u64 * held_ms
    }
}

/// Millionths of each GPU of a node that may be leased in parts: one node is of a pool that is
/// overcommitted.
pub(super) fn promised_ppm(node: &str) -> u32 {
    if node == "n0" { GPU_PPM / 2 * 3 } else { GPU_PPM }
}

#[derive(Default)]
pub(super) struct Truth {
    pub(super) all: Vec<TaskRun>,
    open: BTreeMap<(usize, u64), usize>,
    known: BTreeSet<Attempt>,
}

/// What may end a program that runs. Anything else is a mistake of the control plane.
const GOOD_REASONS: [&str; 9] = [
    "an administrator wants its place",
    "does not report any more",
    "its tenant has more than",
    "has a higher priority",
    "it starts again elsewhere",
    "tasks have run for too long",
    "its node refused it",
    "ended by its owner",
    "ended by another user",
];

/// Never true of what runs.
const BAD_REASONS: [&str; 3] =
    ["no program claimed it in time", "its program ended", "its program no longer asked for it"];

impl Truth {
    pub(super) fn begin(
        &mut self,
        node: usize,
        attempt: Attempt,
        local: u64,
        gpus: Vec<u32>,
        share_ppm: u32,
        now_ms: u64,
    ) -> Result<(), String> {
        for &gpu in &gpus {
            let taken = self.taken(node, gpu);
            let one_alone = share_ppm == GPU_PPM || self.on(node, gpu).any(|held| held.share_ppm == GPU_PPM);
            let promised = if one_alone { GPU_PPM } else { promised_ppm(&format!("n{node}")) };
            if taken + u64::from(share_ppm) > u64::from(promised) {
                return Err(format!(
                    "GPU {gpu} of n{node} is lent twice: {taken} are taken, and {attempt:?} gets in"
                ));
            }
        }
        let other = |held: &&TaskRun| {
            held.until_ms.is_none()
                && held.attempt.lease == attempt.lease
                && held.attempt.task == attempt.task
        };
        if let Some(other) = self.all.iter().find(other) {
            return Err(format!("{attempt:?} runs on n{node} beside {other:?}"));
        }
        self.open.insert((node, local), self.all.len());
        let held = TaskRun {
            node,
            attempt,
            gpus,
            share_ppm,
            from_ms: now_ms,
            until_ms: None,
            crashed: false,
            gpu_ns: 0,
        };
        self.all.push(held);
        Ok(())
    }

    /// Millionths of a GPU that are held in truth.
    pub(super) fn taken(&self, node: usize, gpu: u32) -> u64 {
        self.on(node, gpu).map(|held| u64::from(held.share_ppm)).sum()
    }

    fn on(&self, node: usize, gpu: u32) -> impl Iterator<Item = &TaskRun> {
        let on =
            move |held: &&TaskRun| held.node == node && held.until_ms.is_none() && held.gpus.contains(&gpu);
        self.all.iter().filter(on)
    }

    pub(super) fn is_open(&self, node: usize, local: u64) -> bool {
        self.open.contains_key(&(node, local))
    }

    pub(super) fn work(&mut self, node: usize, local: u64, gpu_ns: u64) {
        if let Some(&at) = self.open.get(&(node, local)) {
            self.all[at].gpu_ns += gpu_ns;
        }
    }

    pub(super) fn end(&mut self, node: usize, local: u64, now_ms: u64) {
        if let Some(at) = self.open.remove(&(node, local)) {
            self.all[at].until_ms = Some(now_ms);
        }
    }

    pub(super) fn crash(&mut self, node: usize, now_ms: u64) {
        let here: Vec<u64> = self.open.keys().filter(|key| key.0 == node).map(|key| key.1).collect();
        for local in here {
            if let Some(&at) = self.open.get(&(node, local)) {
                self.all[at].crashed = true;
            }
            self.end(node, local, now_ms);
        }
    }

    /// What a node has ended at its server's word; these attempts.
    pub(super) fn follow(&mut self, node: &Node, now_ms: u64) -> Vec<Attempt> {
        let Some(running) = &node.running else { return Vec::new() };
        let held: BTreeSet<u64> = running.held().into_iter().map(|(_, local)| local).collect();
        let gone: Vec<u64> = self
            .open
            .keys()
            .filter(|(of, local)| *of == node.index && !held.contains(local))
            .map(|key| key.1)
            .collect();
        let mut attempts = Vec::new();
        for local in gone {
            if let Some(&at) = self.open.get(&(node.index, local)) {
                attempts.push(self.all[at].attempt);
            }
            self.end(node.index, local, now_ms);
        }
        attempts
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &TaskRun> {
        self.open.values().map(|&at| &self.all[at])
    }

    /// A server has received reports of these.
    pub(super) fn note_known(&mut self, attempts: &[Attempt]) {
        self.known.extend(attempts);
    }

    /// What runs loses its lease, by the server's state: there has to be a good reason. An attempt
    /// that was not reported to any server may have been given up in favour of others, since that
    /// and the claim can be in flight at the same time.
    pub(super) fn check_loss(&self, attempt: Attempt, reason: &str) -> Result<(), String> {
        let good = GOOD_REASONS.iter().any(|good| reason.contains(good));
        let bad = BAD_REASONS.iter().any(|bad| reason.contains(bad));
        if good || (!bad && !self.known.contains(&attempt)) {
            return Ok(());
        }
        let known = self.known.contains(&attempt);
        Err(format!("{attempt:?} runs, which servers know ({known}), and loses its lease: {reason:?}"))
    }
}
