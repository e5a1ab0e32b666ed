//! A node is upgraded: its state is written, its next program reads it, and takes this one's place.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Node, keep_all};
use crate::config::{CHECK_STATE, NextProgram, TAKE_OVER};
use crate::inventory::said_by;
use crate::registry::one_line;
use crate::registry::saved::Stopped;
use crate::silent::{Accepted, Silent};
use crate::spawn::{Image, set_inherited};
use crate::upgrade::{Passing, SavedConnection, SavedInventory, State, seal};

/// Steps that have begun are let end for this time: longer than a peer has for its first words.
const STEPS_PATIENCE: Duration = Duration::from_secs(8);
/// What a worker has asked is answered within this time.
const PACKETS_PATIENCE: Duration = Duration::from_secs(1);
/// A program may take this time to read a state. Leases and sessions continue meanwhile, and no new
/// connection is begun.
const CHECK_PATIENCE: Duration = Duration::from_secs(3);
/// A program that has read a state before may take this time to read the final one.
const LAST_CHECK_PATIENCE: Duration = Duration::from_secs(3);

/// Why a node continues as it is.
#[derive(Debug, thiserror::Error)]
enum NotUpgraded {
    #[error("it is a part of another program")]
    NoProgram,
    #[error("{0} is under way, and has not ended in time: try again then")]
    Busy(String),
    #[error("{0}: try again then")]
    Unsettled(String),
    #[error("{0}")]
    Usage(String),
    #[error("{program} does not continue from here: {reason}")]
    Program { program: String, reason: String },
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Node {
    /// Does not return, but where the node continues as it is.
    pub(super) fn upgrade(&self, silent: &mut Silent) {
        let kept = silent.take_all();
        match self.try_upgrade(&kept) {
            Err(refusal) => tracing::error!("the node is not upgraded, and continues as it is: {refusal}"),
            Ok(never) => match never {},
        }
        keep_all(silent, kept);
    }

    fn try_upgrade(&self, silent: &[Accepted]) -> Result<Infallible, NotUpgraded> {
        let next = self.next_program.as_ref().ok_or(NotUpgraded::NoProgram)?;
        // One that cannot read a state costs no program a pause.
        let state = self.state(&self.registry.stop(), silent, &mut Passing::default())?;
        check(next, &seal(&state)?, CHECK_PATIENCE)?;
        let steps = self.registry.gates.steps.close(STEPS_PATIENCE).map_err(NotUpgraded::Busy)?;
        let stopped_at = Instant::now();
        let _packets = self.registry.gates.packets.close(PACKETS_PATIENCE).map_err(NotUpgraded::Busy)?;
        // A worker may have had one more step begin.
        steps.wait(PACKETS_PATIENCE).map_err(NotUpgraded::Busy)?;
        let stopped = self.registry.stop();
        if let Some(unsettled) = stopped.unsettled() {
            return Err(NotUpgraded::Unsettled(unsettled));
        }
        let mut passing = Passing::default();
        let state = State { stopped: stopped_at, ..self.state(&stopped, silent, &mut passing)? };
        let file = seal(&state)?;
        check(next, &file, LAST_CHECK_PATIENCE)?;
        passing.pass(file.as_fd());
        let arguments = arguments(next, TAKE_OVER, &file);
        let image = Image::new(&next.program, arguments.iter(), passing.into_numbers())?;
        Err(self.spawner.become_program(image).into())
    }

    fn state(
        &self,
        stopped: &Stopped<'_>,
        silent: &[Accepted],
        passing: &mut Passing,
    ) -> Result<State, NotUpgraded> {
        let asked = self.asked.iter().map(Some).chain([None]);
        let listeners = self.listeners.iter().zip(asked);
        let listeners = listeners.map(|(listener, asked)| listener.save(asked, passing)).collect();
        let stop = passing.pass(self.stop.as_fd());
        let connections = silent.iter().map(|accepted| SavedConnection {
            socket: passing.pass(accepted.stream.as_fd()),
            peer: accepted.peer.clone(),
            listener: accepted.listener,
            deadline: accepted.deadline,
        });
        Ok(State {
            release: env!("CARGO_PKG_VERSION").into(),
            stopped: Instant::now(),
            stop,
            swap_file_bytes: self.registry.swap_file_bytes(),
            listeners,
            silent: connections.collect(),
            inventory: SavedInventory::of(self.registry.inventory()),
            membership: self.registry.save_membership().map_err(NotUpgraded::Usage)?,
            watcher: self.registry.faults.watcher(),
            registry: stopped.save(passing),
        })
    }
}

/// Has the program say whether it can continue from a state.
fn check(next: &NextProgram, state: &OwnedFd, patience: Duration) -> Result<(), NotUpgraded> {
    let mut command = Command::new(&next.program);
    command.args(&arguments(next, CHECK_STATE, state)[1..]);
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let number = state.as_raw_fd();
    // SAFETY: between fork and exec the closure makes one system call and touches no memory.
    unsafe { command.pre_exec(move || set_inherited(number, true)) };
    let program = || next.program.display().to_string();
    let refused =
        |error: io::Error| NotUpgraded::Program { program: program(), reason: one_line(&error.to_string()) };
    let said = said_by(&mut command, patience, "").map_err(refused)?;
    // A program that ends well may be any other one.
    match said.trim_ascii_end() == READY.as_bytes() {
        true => Ok(()),
        false => Err(refused(io::Error::other("it is no `sluice` that can read a state"))),
    }
}

/// What a program says that can continue from a state.
pub const READY: &str = "ready to take over";

fn arguments(next: &NextProgram, what: &str, state: &OwnedFd) -> Vec<OsString> {
    let more = [what.into(), state.as_raw_fd().to_string().into()];
    next.arguments.iter().cloned().chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked_by(script: &str) -> Result<(), String> {
        let arguments = ["sh", "-c", script, "node"].map(OsString::from).to_vec();
        let next = NextProgram { program: "/bin/sh".into(), arguments };
        let file = std::fs::File::open("/dev/null").unwrap();
        check(&next, &file.into(), CHECK_PATIENCE).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_program_that_can_read_the_state_takes_over() {
        // Behind the name of the script stand the option and the number.
        let reads = format!("[ $1 = {CHECK_STATE} ] && cat <&$2 && echo {READY}");
        assert_eq!(checked_by(&reads), Ok(()));
        for (script, said) in [
            ("true", "no `sluice` that can read a state"),
            ("echo it has format 9 >&2; exit 1", "/bin/sh does not continue from here: it has format 9"),
            ("exit 1", "failed without a word"),
        ] {
            let refusal = checked_by(script).unwrap_err();
            assert!(refusal.contains(said), "{script}: {refusal}");
        }
        let none = NextProgram { program: "/nonexistent".into(), arguments: vec!["sluice".into()] };
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(check(&none, &file.into(), CHECK_PATIENCE).is_err());
    }
}
