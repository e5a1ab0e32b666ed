//! Running leases of a server that move to other nodes.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::moving::{MoveState, Moving, NewMove};

use crate::progress::Waiting;
use crate::quantity::Memory;

/// The pause before a server that is away is asked again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Has a lease moved, and sees the result.
pub(crate) fn migrate(client: &Client, id: LeaseId, to: &NewMove) -> Result<()> {
    let lease: Lease = client.post(&format!("/leases/{id}/moves"), to)?;
    eprintln!("sluice: {}", result(client, lease)?);
    Ok(())
}

/// Waits for the result of a move, and says it; the error says why the lease has stayed.
pub(crate) fn result(client: &Client, mut lease: Lease) -> Result<String> {
    let (id, attempt) = (lease.id, lease.attempt);
    let _waiting = Waiting::new(format!("lease {id} is moving"));
    loop {
        if lease.state == LeaseState::Ended || lease.attempt != attempt {
            let reason = lease.reason.as_deref().unwrap_or("no reason given");
            bail!("lease {id} does not run any more: {reason}");
        }
        match &lease.moving {
            Some(Moving { state: MoveState::Refused, reason, .. }) => {
                bail!("lease {id} stays: {}", reason.as_deref().unwrap_or("its node refused"))
            }
            Some(moving) if moving.state == MoveState::Moved => return Ok(moved_text(id, moving)),
            Some(_) => {}
            None => bail!("lease {id} is not moving"),
        }
        lease = next(client, &lease)?;
    }
}

/// The lease once it has changed. The move continues while the server is away.
fn next(client: &Client, lease: &Lease) -> Result<Lease, Failure> {
    loop {
        match client.get(&format!("/leases/{}?revision={}", lease.id, lease.revision)) {
            Err(failure) if failure.is_temporary() => sleep(RETRY_EVERY),
            answer => return answer,
        }
    }
}

/// `lease 3 is on GPU 0 of two; 350 MiB were copied, and it stood still for 0.99 s`
fn moved_text(id: LeaseId, moving: &Moving) -> String {
    let gpu = moving.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu} of "));
    let node = moving.node.as_deref().unwrap_or("another node");
    let copied = moving.bytes.zip(moving.stall_us).map_or_else(String::new, |(bytes, stall_us)| {
        let bytes = Memory::from_bytes(bytes);
        format!("; {bytes} were copied, and it stood still for {:.2} s", stall_us as f64 / 1e6)
    });
    format!("lease {id} is on {gpu}{node}{copied}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_says_where_to_and_how_long_it_took() {
        let moving = |more: serde_json::Value| -> Moving {
            let mut moving = serde_json::json!({ "state": "moved", "node": "two", "gpu": 1 });
            moving.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(moving).unwrap()
        };
        let known = moving(serde_json::json!({ "bytes": 350 << 20, "stall_us": 990_000 }));
        assert_eq!(
            moved_text(3, &known),
            "lease 3 is on GPU 1 of two; 350 MiB were copied, and it stood still for 0.99 s"
        );
        assert_eq!(moved_text(3, &moving(serde_json::json!({}))), "lease 3 is on GPU 1 of two");
    }
}
