//! A large fleet that stays: what a browser and scrapers are measured against.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use anyhow::{Result, ensure};
use serde_json::json;
use sluice_api::GPU_PPM;
use sluice_api::health::Condition;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::node::Attempt;
use sluice_api::tenant::Applied;
use sluice_api::token::Role;

use super::{Arguments, Plane, REPORTERS, by_name, each, lock, place_of, report_for_ever};

/// Tenants that the leases are spread over.
const TENANTS: usize = 50;
/// Users. Each may have eight streams of changes.
const USERS: usize = 100;
/// A fifth of a GPU: five leases fill one.
const SHARE_PPM: u32 = 200_000;

/// What sensors say of a GPU that is so busy.
fn condition(busy_ppm: u32) -> Condition {
    Condition {
        temperature_c: Some(34 + busy_ppm / 20_000 + fastrand::u32(..6)),
        slowdown_at_c: Some(90),
        power_mw: Some(90_000 + busy_ppm * 11 / 20),
        power_limit_mw: Some(700_000),
        sm_clock_mhz: Some(1_980),
        driver: Some("580.159.04".into()),
        xid: None,
    }
}

/// Fills a fleet with leases, prints a line of JSON that says where it is, and keeps its nodes
/// reporting until standard input ends.
pub(crate) fn fleet(arguments: &Arguments) -> Result<()> {
    let plane = Plane::start(arguments.sqlite)?;
    let mut declared = "tenants:\n".to_owned();
    (0..TENANTS).for_each(|number| declared += &format!("  - {{path: team{number:02}}}\n"));
    let _: Applied = plane.admin.post_text("/apply", "application/yaml", &declared)?;
    let nodes = plane.join(arguments.nodes, arguments.gpus)?;
    for node in &nodes {
        for gpu in &mut lock(node).report.gpus {
            gpu.busy_ppm = fastrand::u32(..GPU_PPM);
            gpu.condition = Some(condition(gpu.busy_ppm));
        }
    }
    let by_name = by_name(&nodes);
    let of_team = |number: usize| plane.token(&format!("team{:02}", number % TENANTS), Role::Member);
    let users = (0..USERS).map(of_team).collect::<Result<Vec<String>>>()?;
    let (stop, reports) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let report =
            |part| report_for_ever(&plane.url, nodes.iter().skip(part).step_by(REPORTERS), &stop, &reports);
        let reporters: Vec<_> = (0..REPORTERS).map(|part| scope.spawn(move || report(part))).collect();
        let filled = each(arguments.requests, arguments.clients, &plane.url, |connection, number| {
            let ask = json!({ "share_ppm": SHARE_PPM, "name": format!("program {number}") });
            let lease: Lease = connection.post("/leases", &users[number % USERS], &ask)?;
            ensure!(lease.state == LeaseState::Granted, "not granted at once: {lease:?}");
            let mut node = lock(place_of(&lease, &nodes, &by_name)?);
            node.report.leases.push(Attempt { lease: lease.id, attempt: lease.attempt, task: 0 });
            node.news = true;
            Ok(())
        });
        let held = filled.and_then(|()| {
            let ready = json!({
                "url": plane.url, "token": plane.token("/", Role::Platform)?, "users": users,
                "database": plane.database(), "tenants": TENANTS, "server": plane.server.id(), "gpus": arguments.nodes * arguments.gpus, "leases": arguments.requests,
            });
            println!("{ready}");
            std::io::stdout().flush()?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(())
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for reporter in reporters {
            reporter.join().map_err(|_| anyhow::anyhow!("a reporter failed"))??;
        }
        held
    })
}
