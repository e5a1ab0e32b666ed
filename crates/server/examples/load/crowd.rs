//! Many tenants, and many connections without a request: what a quota change and a lease request
//! take meanwhile.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sluice_api::lease::Lease;
use sluice_api::tenant::Applied;
use sluice_api::token::Role;

use super::{Figures, Plane};

/// Tenants of one declaration, and below one top-level tenant.
const AT_ONCE: usize = 1000;
const OF_TREE: usize = 10_000;
/// Each is measured this often.
const TIMES: usize = 20;

/// Declares this number of tenants, then measures with them, and once more beside this number of
/// silent connections.
pub(crate) fn crowd(tenants: usize, connections: usize, figures: &mut Figures) -> Result<()> {
    sluice_transport::raise_descriptor_limit();
    let plane = Plane::start(true)?;
    apply(&plane, "tenants: [{path: other}]")?;
    for first in (0..tenants).step_by(AT_ONCE) {
        let top = first / OF_TREE;
        let mut declared = format!("tenants:\n  - {{path: big{top}}}\n");
        for n in first..tenants.min(first + AT_ONCE) {
            declared += &format!("  - {{path: big{top}/t{n}}}\n");
        }
        apply(&plane, &declared)?;
    }
    let member = plane.admin.with_token(&plane.token("other", Role::Member)?);
    let (mut quotas, mut leases, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..TIMES {
        let quota = format!("tenants: [{{path: other, quota: {{limit: {}}}}}]", n + 1);
        quotas.push(timed(|| apply(&plane, &quota))?);
        leases.push(timed(|| lease(&member))?);
    }
    let address = plane.url.strip_prefix("http://").context("plain text")?;
    let mut silent = Vec::new();
    for _ in 0..connections {
        silent.push(TcpStream::connect(address)?);
    }
    for _ in 0..TIMES {
        // Each on a connection of its own, as a new client has.
        let fresh = sluice_api::client::Client::new(&plane.url, &plane.token("other", Role::Member)?);
        beside.push(timed(|| lease(&fresh))?);
    }
    drop(silent);
    for (name, worst, times) in [
        ("quota_change_median_ms", "quota_change_worst_ms", quotas),
        ("lease_request_median_ms", "lease_request_worst_ms", leases),
        ("lease_request_beside_connections_median_ms", "lease_request_beside_connections_worst_ms", beside),
    ] {
        let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        figures.insert(name, times[times.len() / 2]);
        figures.insert(worst, times[times.len() - 1]);
    }
    Ok(())
}

fn apply(plane: &Plane, yaml: &str) -> Result<()> {
    plane.admin.post_text::<Applied>("/apply", "application/yaml", yaml)?;
    Ok(())
}

/// Asks for a lease that waits, since there is no node, and ends it.
fn lease(client: &sluice_api::client::Client) -> Result<()> {
    let lease: Lease = client.post("/leases", &serde_json::json!({ "share_ppm": 1000 }))?;
    client.delete::<Lease>(&format!("/leases/{}", lease.id))?;
    Ok(())
}

fn timed(act: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    act()?;
    Ok(begun.elapsed())
}
