//! Where readings come from: a server, or a node that lends alone; and how a session is ended,
//! suspended, resumed or resized there.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sluice_api::client::Client;
use sluice_api::lease::{Lease, ResizeLease};
use sluice_api::node::{GpuStatus, SessionStatus};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{LeaseName, LeaseResize};

use super::act::Act;
use super::state::{Gpu, Reading, Session};
use crate::resize::{resize_on, resized_text};
use crate::server::resize as server;
use crate::{query, suspend};

pub(super) enum Source {
    Server(Client),
    Node(Endpoint),
}

impl Source {
    pub(super) fn name(&self) -> String {
        match self {
            Source::Server(client) => client.server().to_owned(),
            Source::Node(node) => format!("node {}", node.place()),
        }
    }

    pub(super) fn read(&self) -> Result<Reading> {
        match self {
            Source::Server(client) => {
                let gpus: Vec<GpuStatus> = client.list("/gpus")?;
                let sessions: Vec<SessionStatus> = client.list("/sessions")?;
                Ok(Reading {
                    gpus: gpus.into_iter().map(gpu_of_server).collect(),
                    sessions: sessions.into_iter().map(session_of_server).collect(),
                })
            }
            Source::Node(node) => {
                let status = query::status_of(node)?;
                Ok(Reading {
                    gpus: status.gpus.into_iter().map(gpu_of_node).collect(),
                    sessions: status.sessions.into_iter().map(session_of_node).collect(),
                })
            }
        }
    }

    /// Does something to a session, or with a server to its lease; the answer says what was done.
    pub(super) fn act(&self, session: &Session, act: &Act) -> Result<String> {
        match *act {
            Act::End => self.end(session),
            Act::Suspend => self.suspend(session, true),
            Act::Resume => self.suspend(session, false),
            Act::Resize { share_ppm, memory } => self.resize(session, share_ppm, memory),
        }
    }

    fn suspend(&self, session: &Session, suspended: bool) -> Result<String> {
        match self {
            Source::Server(client) => {
                let change = ResizeLease { suspended: Some(suspended), ..ResizeLease::default() };
                server::changed(client, session.lease, &change, &mut |_| {})
            }
            Source::Node(node) => {
                let said = suspend::suspend_on(node, session.session, suspended)?;
                Ok(said.join("; "))
            }
        }
    }

    fn resize(&self, session: &Session, share_ppm: Option<u32>, memory: Option<u64>) -> Result<String> {
        match self {
            Source::Server(client) => {
                let change = ResizeLease { share_ppm, memory, ..ResizeLease::default() };
                server::changed(client, session.lease, &change, &mut |_| {})
            }
            Source::Node(node) => {
                let lease = LeaseName::Numbered(session.lease);
                let resized = resize_on(node, LeaseResize { lease, share_ppm, memory, limit_ppm: None })?;
                Ok(resized_text(&resized))
            }
        }
    }

    /// Ends the lease of a session, or on a node without a server its program; the answer says what
    /// was done.
    fn end(&self, session: &Session) -> Result<String> {
        match self {
            Source::Server(client) => {
                let lease: Lease = client.delete(&format!("/leases/{}", session.lease))?;
                Ok(format!("lease {} of {}: {}", lease.id, lease.tenant, lease.state.name()))
            }
            Source::Node(node) => {
                let pid = program_here(session)
                    .with_context(|| format!("{} ends sessions with their programs", node.place()))?;
                terminate(pid)?;
                Ok(format!("process {pid} got SIGTERM"))
            }
        }
    }
}

fn gpu_of_server(gpu: GpuStatus) -> Gpu {
    let condition = gpu.condition.unwrap_or_default();
    Gpu {
        name: format!("{}/{}", gpu.node, gpu.index),
        model: gpu.gpu.name,
        busy_ppm: gpu.busy_ppm,
        share_leased_ppm: gpu.share_leased_ppm,
        memory: gpu.gpu.memory,
        memory_used: gpu.memory_used,
        temperature_c: condition.temperature_c,
        power_w: condition.power_mw.map(|power_mw| power_mw / 1000),
        users: gpu.leases,
    }
}

fn session_of_server(status: SessionStatus) -> Session {
    let session = status.session;
    Session {
        node: status.node,
        session: session.session,
        lease: session.lease,
        tenant: status.tenant.to_string(),
        program: session.name,
        gpu: session.gpu,
        share_ppm: session.share_ppm,
        memory: session.memory,
        memory_used: session.memory_used,
        memory_swapped: session.memory_swapped,
        memory_pinned: session.memory_pinned,
        memory_moving_us: session.memory_moving_us,
        suspended: session.suspended,
        kernels: session.kernels,
        busy_us: session.busy_us,
        age_ms: session.age_ms,
        peer: session.peer,
    }
}

fn gpu_of_node(gpu: sluice_wire::control::GpuStatus) -> Gpu {
    Gpu {
        name: gpu.index.to_string(),
        model: gpu.name,
        busy_ppm: gpu.busy_ppm,
        share_leased_ppm: gpu.share_leased_ppm,
        memory: gpu.memory,
        memory_used: gpu.memory_used,
        temperature_c: None,
        power_w: None,
        users: gpu.sessions,
    }
}

fn session_of_node(session: sluice_wire::control::SessionStatus) -> Session {
    Session {
        node: String::new(),
        session: session.session,
        lease: session.lease,
        tenant: String::new(),
        program: session.name,
        gpu: session.gpu,
        share_ppm: session.share_ppm,
        memory: session.memory,
        memory_used: session.memory_used,
        memory_swapped: session.memory_swapped,
        memory_pinned: session.memory_pinned,
        memory_moving_us: session.memory_moving_us,
        suspended: session.suspended,
        kernels: session.kernels,
        busy_us: session.busy_us,
        age_ms: session.age_ms,
        peer: session.peer,
    }
}

/// The process of a session whose program runs on this machine, as the node's kernel vouched for
/// it. That the node is on this machine follows from a process of this number that is at least as
/// old as the session.
fn program_here(session: &Session) -> Result<i32> {
    let Some(pid) =
        session.peer.strip_prefix("pid ").and_then(|pid| pid.parse::<i32>().ok()).filter(|&pid| pid > 1)
    else {
        bail!("the program runs on {}: end it there", session.peer)
    };
    let age = age_of(pid)
        .with_context(|| format!("no process {pid} runs on this machine: end the program on the node's"))?;
    let slack = Duration::from_secs(2);
    ensure!(
        age + slack >= Duration::from_millis(session.age_ms),
        "process {pid} of this machine is younger than the session: end the program on the node's machine"
    );
    Ok(pid)
}

/// How long ago a process of this machine started (proc(5), field 22 of `stat`).
fn age_of(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let started: f64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    // SAFETY: a plain query.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Duration::try_from_secs_f64(uptime - started / ticks).ok()
}

/// Whether this user may do that is the kernel's decision.
fn terminate(pid: i32) -> Result<()> {
    // SAFETY: sends a signal and touches no memory.
    let sent = unsafe { libc::kill(pid, libc::SIGTERM) };
    ensure!(sent == 0, "process {pid}: {}", std::io::Error::last_os_error());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn session(peer: &str, age_ms: u64) -> Session {
        Session { peer: peer.into(), age_ms, ..Session::default() }
    }

    #[test]
    fn only_a_program_of_this_machine_is_ended() {
        let refused = |peer: &str, age_ms| program_here(&session(peer, age_ms)).expect_err(peer).to_string();
        assert!(refused("10.0.0.7:5312", 0).contains("10.0.0.7:5312: end it there"));
        assert!(refused("pid 1", 0).contains("end it there") && refused("pid x", 0).contains("end it there"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let peer = format!("pid {}", child.id());
        assert!(refused(&peer, 3_600_000).contains("younger than the session"), "the number is another's");
        let pid = program_here(&session(&peer, 0)).unwrap();
        terminate(pid).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(refused(&peer, 0).contains("no process"));
    }
}
