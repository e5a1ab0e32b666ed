//! Leases as they change.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::tenant::TenantPath;
use sluice_api::watch::{Event, kind};

use super::lists::{asks_for, now_ms};
use crate::cli::Output;
use crate::moment::Moment;

/// Which lease was shown as of which revision.
type Shown = BTreeMap<LeaseId, u64>;

/// Prints what becomes of leases, until the reader is gone. `list` prints those that there are, and
/// returns them.
pub(super) fn leases(
    client: &Client,
    tenant: Option<&TenantPath>,
    output: Output,
    list: impl Fn() -> Result<Vec<Lease>>,
) -> Result<()> {
    let tenant = tenant.map_or_else(String::new, |tenant| format!("?tenant={tenant}"));
    let (mut shown, mut failed) = (Shown::new(), None);
    client.watch(&format!("/watch{tenant}"), |event| match take(&mut shown, &event, output, &list) {
        Ok(goes_on) => goes_on,
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)
}

fn take(
    shown: &mut Shown,
    event: &Event,
    output: Output,
    list: impl Fn() -> Result<Vec<Lease>>,
) -> Result<ControlFlow<()>> {
    match event.kind.as_str() {
        // Whatever changes after this list is sent.
        kind::BEGIN => *shown = list()?.into_iter().map(|lease| (lease.id, lease.revision)).collect(),
        kind::ANEW => eprintln!("the server has another state now; this begins anew"),
        kind::LEASE => {
            let lease: Lease = serde_json::from_str(&event.data).context("a lease that makes no sense")?;
            if is_new(shown, &lease) {
                let text = match output {
                    Output::Json => serde_json::to_string(&lease)?,
                    Output::Table => format!("{}  {}", Moment::from_ms(now_ms()), line(&lease)),
                };
                if writeln!(std::io::stdout().lock(), "{text}").is_err() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        _ => {}
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether this was not shown yet, in the list or as another event.
fn is_new(shown: &mut Shown, lease: &Lease) -> bool {
    let is_new = shown.get(&lease.id).is_none_or(|revision| *revision < lease.revision);
    if lease.state == LeaseState::Ended {
        // Nothing comes after that.
        shown.remove(&lease.id);
    } else if is_new {
        shown.insert(lease.id, lease.revision);
    }
    is_new
}

/// `lease 7 of acme/research (train.py): running on one`
fn line(lease: &Lease) -> String {
    let program = if lease.name.is_empty() { String::new() } else { format!(" ({})", lease.name) };
    let mut nodes: Vec<&str> = lease.places.iter().map(|place| place.node.as_str()).collect();
    nodes.dedup();
    let on = if nodes.is_empty() { String::new() } else { format!(" on {}", nodes.join(", ")) };
    let what = match lease.state {
        LeaseState::Queued => format!("queued for {}", asks_for(lease)),
        state => format!("{}{on}", state.name()),
    };
    let why = lease.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("lease {} of {}{program}: {what}{why}", lease.id, lease.tenant)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(more: serde_json::Value) -> Lease {
        let mut lease = json!({
            "id": 7, "tenant": "acme", "name": "train.py", "tier": "standard", "state": "queued", "attempt": 1, "gpus": 1, "tasks": 1,
            "share_ppm": 250_000, "memory": 0, "priority": 100, "preemptible": true, "created_at_ms": 0, "places": [], "revision": 3,
        });
        lease.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn what_became_of_a_lease_is_a_line() {
        let check = |more, expect: &str| assert_eq!(line(&lease(more)), expect);
        check(
            json!({ "reason": "no GPU is free" }),
            "lease 7 of acme (train.py): queued for 25%: no GPU is free",
        );
        let places = json!([
            { "task": 0, "node": "one", "address": "h:1", "gpus": [0] },
            { "task": 1, "node": "one", "address": "h:1", "gpus": [1] },
        ]);
        check(json!({ "name": "", "state": "running", "places": places }), "lease 7 of acme: running on one");
        check(json!({ "state": "ended" }), "lease 7 of acme (train.py): ended");
    }

    #[test]
    fn what_the_list_has_shown_is_not_shown_again() {
        let mut shown = Shown::from([(7, 3)]);
        assert!(!is_new(&mut shown, &lease(json!({}))));
        assert!(is_new(&mut shown, &lease(json!({ "revision": 4 }))));
        assert!(!is_new(&mut shown, &lease(json!({ "revision": 4 }))));
        assert!(is_new(&mut shown, &lease(json!({ "revision": 5, "state": "ended" }))));
        assert!(is_new(&mut shown, &lease(json!({ "id": 8 }))));
    }
}
