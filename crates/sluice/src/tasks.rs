//! The tasks of one run, from their start to their end.
//!
//! Each is a program of its own under [`child`], on GPUs of its own. A task that ends gives its
//! GPUs back at once, while the others continue. Of an elastic lease further tasks come while it
//! runs, and some may have to make room:
//!
//! ```text
//!  lease's state on the server ──▶ further task ──▶ claimed on its node ──▶ starts, lowest rank
//!                              └─▶ task's notice ──▶ SIGTERM, grace time, SIGKILL ──▶ rank is free
//!  a task's end ──▶ its rank is done with; if it failed, the others are asked to end
//! ```
//! All of it happens in the thread that waits here, in the order in which it is received. What may
//! take time, claiming on a node and giving back, happens in threads of its own.

mod ends;
mod plan;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::JoinHandle;

use sluice_api::lease::{Lease, LeaseState, Place};
use sluice_control::Keeper;
use sluice_wire::address::{RECORD_VARIABLE, REPORT_VARIABLE, SessionAddress};

use crate::child::{CHILDREN_MAX, Children, NotStarted, asked_to_end, signal, signal_one};
use crate::cli::RunArgs;
use crate::place;
use crate::run::{HeldLease, failed, granted_line, scratch, task_environment};
use crate::server::lease::{Claim, Claimed, grace_left};
use crate::surroundings::{Libraries, Scratch, Surroundings};
use crate::training;
use crate::used::{Uses, give_back};
use ends::{Ends, unknown_status};
use plan::{Plan, free_rank, plan_for};

/// What happens while tasks run.
pub(crate) enum Event {
    /// The task of a rank has ended.
    Ended { rank: usize, status: std::io::Result<ExitStatus> },
    /// The lease is another thing than before.
    Lease(Box<Lease>),
    /// A further task has been claimed.
    Claimed(Box<Claimed>),
}

/// How a run ended.
pub(crate) struct Outcome {
    /// Of the task that failed first, of all in the order of their ranks, then of those that had to
    /// make room while others went on, and that were not replaced.
    pub(crate) statuses: Vec<ExitStatus>,
    /// All tasks were preempted.
    pub(crate) preempted: bool,
    /// What the tasks used of each of their leases.
    pub(crate) uses: Uses,
}

struct Task {
    rank: usize,
    /// Its number on the lease; a program that has several parts of it as one list has none.
    number: Option<u32>,
    has_notice: bool,
    /// Ends when its GPUs are free.
    thread: JoinHandle<Uses>,
}

pub(crate) struct Tasks<'a> {
    arguments: &'a RunArgs,
    libraries: &'a Libraries,
    claim: Option<Claim>,
    children: Children,
    scratch: Scratch,
    events: Sender<Event>,
    heard: Receiver<Event>,
    /// Counts tasks that were begun.
    begun: usize,
    running: Vec<Task>,
    ended: Vec<JoinHandle<Uses>>,
    ends: Ends,
    /// The lease as it was last received, once it has changed.
    seen: Option<Box<Lease>>,
    /// Numbers that are known: they are below this.
    next_number: u32,
    /// All tasks have been preempted.
    preempted: bool,
    /// When it is suspended for being idle, and whether it is, as was said last.
    idle_said: Option<(u64, bool)>,
    /// No further task is begun: one has failed, or the lease is over.
    ending: bool,
}

impl<'a> Tasks<'a> {
    /// `claim` is for further tasks of a lease from a server.
    pub(crate) fn new(
        arguments: &'a RunArgs,
        libraries: &'a Libraries,
        claim: Option<Claim>,
    ) -> Result<Tasks<'a>, NotStarted> {
        let scratch = scratch()?;
        let (events, heard) = channel();
        Ok(Tasks {
            arguments,
            libraries,
            claim,
            children: Children::install(),
            scratch,
            events,
            heard,
            begun: 0,
            running: Vec::new(),
            ended: Vec::new(),
            ends: Ends::default(),
            seen: None,
            next_number: 0,
            preempted: false,
            idle_said: None,
            ending: false,
        })
    }

    /// To tell of changes of the lease.
    pub(crate) fn events(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Runs these tasks, each with the GPUs of its leases as one list, and those that come later,
    /// to the end of all. What the leases held is free when this returns.
    pub(crate) fn run(mut self, tasks: Vec<Vec<HeldLease>>) -> Result<Outcome, NotStarted> {
        let count = tasks.len();
        let started =
            tasks.into_iter().enumerate().try_for_each(|(rank, held)| self.start(rank, count, held));
        self.children.all_started();
        if started.is_err() {
            self.end_all();
        }
        while !self.running.is_empty() {
            match self.heard.recv() {
                Ok(event) => self.follow(event),
                // Not while this holds a sender.
                Err(_) => break,
            }
        }
        // A panic of a thread has said what it is, and there is nothing to report of its task.
        let uses = self.ended.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        self.children.stop();
        started?;
        Ok(Outcome { statuses: self.ends.statuses(), preempted: self.preempted, uses })
    }

    /// `count` is how many tasks there are with this one.
    fn start(&mut self, rank: usize, count: usize, held: Vec<HeldLease>) -> Result<(), NotStarted> {
        let folder: PathBuf = self.scratch.path().join(self.begun.to_string());
        self.begun += 1;
        let failed_there = |error| failed(format!("{}: {error}", folder.display()));
        std::fs::create_dir(&folder).map_err(failed_there)?;
        let number = match &held[..] {
            [only] => only.task,
            _ => None,
        };
        let known = held.iter().filter_map(|held| held.task).max();
        self.next_number = self.next_number.max(known.map_or(0, |number| number + 1));
        let (mut sessions, mut software, mut keepers) = (Vec::new(), false, Vec::new());
        // Nodes copy to each other over the network.
        let is_alone = held.len() == 1;
        for held in held {
            let place = granted_line(&held);
            let HeldLease { address, connection, lease, .. } = held;
            if !self.arguments.quiet {
                eprintln!("sluice: {place}");
            }
            keepers.push((Keeper::start(connection, &lease).map_err(failed)?, place));
            software |= lease.devices.iter().any(|device| device.is_software);
            let nearby = lease.nearby.as_deref().filter(|_| is_alone).and_then(place::nearby);
            let node = nearby.unwrap_or(address);
            sessions.push(SessionAddress { node, token: lease.token }.to_string());
        }
        let surroundings = Surroundings::prepare(&folder, self.libraries, &sessions.join(","), software)
            .map_err(failed_there)?;
        let mut environment = surroundings.environment().to_vec();
        if let Some(file) = &self.arguments.record {
            environment.push((RECORD_VARIABLE.into(), file.into()));
        }
        let names = self.arguments.ci.report.as_ref().map(|_| folder.join("processes"));
        if let Some(names) = &names {
            std::fs::create_dir(names).map_err(failed_there)?;
            environment.push((REPORT_VARIABLE.into(), names.into()));
        }
        if self.arguments.tasks.is_some() {
            environment.extend(task_environment(rank, count));
            environment.extend(training::variable_of(rank));
        }
        let (events, quiet) = (self.events.clone(), self.arguments.quiet);
        let child = match self.children.start(&self.arguments.program, &environment, rank) {
            Ok(child) => child,
            Err(failure) => {
                for (keeper, place) in keepers {
                    let _ = give_back(keeper, place, true, None);
                }
                return Err(failure);
            }
        };
        let thread = std::thread::spawn(move || {
            // The receiver is gone if the others could not be started.
            let _ = events.send(Event::Ended { rank, status: child.wait() });
            let used = |(keeper, place)| give_back(keeper, place, quiet, names.as_deref());
            keepers.into_iter().map(used).collect()
        });
        self.ends.begin(rank);
        self.running.push(Task { rank, number, has_notice: false, thread });
        Ok(())
    }

    fn follow(&mut self, event: Event) {
        match event {
            Event::Ended { rank, status } => self.task_ended(rank, status),
            Event::Lease(lease) => {
                self.lease_changed(&lease);
                self.seen = Some(lease);
            }
            Event::Claimed(claimed) if self.is_ending() => claimed.connection.close(),
            Event::Claimed(claimed) => self.start_further(*claimed),
        }
    }

    /// No further task is begun: see `ending`, or the user has asked for the end.
    fn is_ending(&self) -> bool {
        self.ending || asked_to_end()
    }

    fn task_ended(&mut self, rank: usize, status: std::io::Result<ExitStatus>) {
        let Some(at) = self.running.iter().position(|task| task.rank == rank) else { return };
        let task = self.running.swap_remove(at);
        self.ended.push(task.thread);
        let status = status.unwrap_or_else(|error| {
            eprintln!("sluice: waiting for the program: {error}");
            unknown_status()
        });
        // One that had to make room has left its work to the next one of its rank, as the server
        // has it too: what it ended with only says whether it could save its work.
        if task.has_notice {
            return self.ends.leave(rank, status, !self.running.is_empty());
        }
        self.ends.finish(rank, status);
        // Once all have been asked to end, how they do it says nothing, and to be asked twice may
        // keep them from saving their work.
        if !status.success() && !self.ending {
            self.ends.fail_first(status);
            self.end_all();
        }
    }

    /// Tasks belong together: when one fails the others are asked to end.
    fn end_all(&mut self) {
        self.ending = true;
        signal(libc::SIGTERM);
    }

    fn lease_changed(&mut self, lease: &Lease) {
        let reason = lease.reason.as_deref().unwrap_or("no reason given");
        let claim = self.claim.as_ref().map(|claim| claim.attempt);
        if lease.state == LeaseState::Ended || Some(lease.attempt) != claim {
            if self.preempted {
                // Its node has ended the session: what is left of the program cannot continue.
                signal(libc::SIGKILL);
            } else {
                eprintln!("sluice: the lease ended: {reason}");
                signal(libc::SIGTERM);
            }
            self.ending = true;
        } else if lease.state == LeaseState::Preempting && !self.preempted {
            (self.preempted, self.ending) = (true, true);
            let grace = grace_left(lease.preempt_at_ms);
            eprintln!(
                "sluice: preempted: {reason}. The program has {grace} to end, then waits in the queue again"
            );
            signal(libc::SIGTERM);
        } else if lease.state == LeaseState::Running {
            self.say_idle(lease);
            self.tell_tasks(lease, reason);
            self.claim_further(lease);
        }
    }

    /// Says once that the program is about to be suspended, and once that it is.
    fn say_idle(&mut self, lease: &Lease) {
        let told = lease.idle.as_ref().filter(|idle| idle.stays.is_none());
        let told = told.map(|idle| (idle.suspend_at_ms, idle.suspended));
        if told == self.idle_said {
            return;
        }
        self.idle_said = told;
        if let Some((at_ms, is_suspended)) = told {
            match is_suspended {
                true => eprintln!("sluice: the program is idle and is suspended until its next CUDA call"),
                false => eprintln!(
                    "sluice: the program is idle; it is suspended in {} unless it makes a CUDA call",
                    grace_left(Some(at_ms))
                ),
            }
        }
    }

    fn tell_tasks(&mut self, lease: &Lease, reason: &str) {
        let is_elastic = self.arguments.tasks.is_some_and(|tasks| tasks.max.is_some());
        for task in &mut self.running {
            let Some(number) = task.number else { continue };
            let (rank, had_notice) = (task.rank, task.has_notice);
            match plan_for(lease, number) {
                Plan::Leaves(at_ms) if !had_notice => {
                    let grace = grace_left(Some(at_ms));
                    eprintln!(
                        "sluice: task {rank} is preempted: {reason}. It has {grace} to end, the others continue"
                    );
                    task.has_notice = true;
                    signal_one(rank, libc::SIGTERM);
                }
                // Its node has ended the session: what is left of the task cannot continue. Its
                // notice may have come and gone while the server could not be asked. Tasks of a
                // gang that has no notice for single ones cannot do without each other.
                Plan::Gone if had_notice || is_elastic => {
                    if !had_notice {
                        eprintln!("sluice: task {rank} has lost its place: it is ended, the others continue");
                    }
                    task.has_notice = true;
                    signal_one(rank, libc::SIGKILL);
                }
                _ => {}
            }
        }
    }

    /// Claims what has come; the answers come as events.
    fn claim_further(&mut self, lease: &Lease) {
        let Some(claim) = self.claim.as_ref().filter(|_| !self.is_ending()) else { return };
        let is_new = |place: &&Place| place.task >= self.next_number && place.grant.is_some();
        for place in lease.places.iter().filter(is_new) {
            let (claim, place, events) = (claim.clone(), place.clone(), self.events.clone());
            std::thread::spawn(move || {
                if let Some(claimed) = claim.further(&place)
                    && let Err(SendError(Event::Claimed(claimed))) =
                        events.send(Event::Claimed(Box::new(claimed)))
                {
                    // All have ended meanwhile.
                    claimed.connection.close();
                }
            });
        }
        let last = lease.places.iter().map(|place| place.task + 1).max();
        self.next_number = self.next_number.max(last.unwrap_or(0));
    }

    /// A task that came while others run.
    fn start_further(&mut self, claimed: Claimed) {
        // It may have had to leave, or have been taken back, while it was being claimed.
        let stays = |lease: &Lease| plan_for(lease, claimed.task) == Plan::Stays;
        if !self.seen.as_deref().is_some_and(stays) {
            return claimed.connection.close();
        }
        let taken: BTreeSet<usize> = self.ranks().collect();
        let Some(rank) = free_rank(&taken, self.ranks_max()) else {
            return claimed.connection.close();
        };
        let described = self.claim.as_ref().map(|claim| claim.described.clone()).unwrap_or_default();
        self.children.more();
        let started = self.start(rank, taken.len() + 1, vec![HeldLease::of(claimed, &described)]);
        self.children.all_started();
        if asked_to_end() {
            // A terminal's signal may have come just before there was a program to get it.
            signal_one(rank, libc::SIGTERM);
        }
        if let Err(NotStarted { message, .. }) = started {
            eprintln!("sluice: a further task did not start: {message}");
        }
    }

    /// Ranks are below this. A task beyond the maximum came in place of one that is done, whose
    /// notice was received too late: there is nothing to do for it. But one that still has to leave
    /// keeps its rank until it ends.
    fn ranks_max(&self) -> usize {
        let asked = self.arguments.tasks.and_then(|tasks| tasks.max);
        match asked {
            Some(max) if !self.running.iter().any(|task| task.has_notice) => max as usize,
            _ => CHILDREN_MAX,
        }
    }

    fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        let running = self.running.iter().map(|task| task.rank);
        running.chain(self.ends.done())
    }
}
