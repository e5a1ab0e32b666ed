//! Running leases of a server that move to other nodes.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use sluice_api::client::{Client, Failure, segment};
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::moving::{MovePlan, MoveState, Moving, NewMove};

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

/// Says what a move would do; the error says what keeps the lease where it is.
pub(crate) fn plan(client: &Client, id: LeaseId, to: &NewMove) -> Result<()> {
    let options = [
        to.node.as_ref().map(|node| format!("node={}", segment(node))),
        to.gpu.map(|gpu| format!("gpu={gpu}")),
    ];
    let options = options.into_iter().flatten().collect::<Vec<_>>().join("&");
    let planned: MovePlan = client.get(&format!("/leases/{id}/moves/plan?{options}"))?;
    if !planned.reasons.is_empty() {
        bail!("lease {id} would stay: {}", planned.reasons.join("; "));
    }
    eprintln!("sluice: {}", planned_text(id, &planned));
    Ok(())
}

/// `lease 3 would move to GPU 0 of two, and stand still for about 1.2 s while 350 MiB are copied`
fn planned_text(id: LeaseId, planned: &MovePlan) -> String {
    let gpu = planned.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu} of "));
    let node = planned.node.as_deref().unwrap_or("another node");
    let time = planned.stall_us.map_or_else(String::new, |us| format!("for about {:.1} s ", us as f64 / 1e6));
    let memory =
        planned.bytes.map_or_else(|| "its memory is".into(), |it| format!("{} are", Memory::from_bytes(it)));
    let unasked = "; its node has not said yet whether something keeps it";
    let unasked = if planned.is_asked { "" } else { unasked };
    format!("lease {id} would move to {gpu}{node}, and stand still {time}while {memory} copied{unasked}")
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
    fn a_plan_says_where_to_and_how_long_it_takes_as_far_as_that_is_known() {
        let (node, gpu) = (Some("two".to_owned()), Some(0));
        let planned = MovePlan { node, gpu, bytes: Some(350 << 20), is_asked: true, ..MovePlan::default() };
        let text = "lease 3 would move to GPU 0 of two, and stand still while 350 MiB are copied";
        assert_eq!(planned_text(3, &planned), text);
        let planned = MovePlan { stall_us: Some(1_230_000), is_asked: false, ..planned };
        let text = "lease 3 would move to GPU 0 of two, and stand still for about 1.2 s while 350 MiB are copied; \
                    its node has not said yet whether something keeps it";
        assert_eq!(planned_text(3, &planned), text);
    }

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
