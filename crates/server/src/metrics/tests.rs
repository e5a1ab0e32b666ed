use sluice_api::audit::{Entry, Head};
use sluice_api::lease::{LeaseId, LeaseState, NewLease};
use sluice_api::node::Gpu;
use sluice_api::tenant::{Quota, Tenant, TenantPath};
use sluice_metrics::Format;

use super::*;
use crate::fleet::{Fleet, LeaseRecord, Node, Seat};
use crate::store::Write;

fn lease(id: LeaseId, tenant: &str, seats: Vec<Seat>) -> LeaseRecord {
    let holds = !seats.is_empty();
    LeaseRecord {
        id,
        tenant: tenant.parse().unwrap(),
        person: String::new(),
        ask: NewLease { share_ppm: 200_000, ..NewLease::whole(1) },
        token: "t".into(),
        state: if holds { LeaseState::Running } else { LeaseState::Queued },
        attempt: 1,
        reason: None,
        seats,
        preempt_at_ms: None,
        created_at_ms: 1_000,
        queued_at_ms: 1_000,
        granted_at_ms: holds.then_some(5_000),
        ended_at_ms: None,
        heard_at_ms: 0,
        revision: id,
        automatic: None,
    }
}

fn page(picture: Picture) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(picture));
    Format::OpenMetrics.encode(&registry).unwrap()
}

fn fleet(nodes: u64, gpus_per_node: u32, leases: u64, tenants: u64) -> Fleet {
    let tenant = |number| format!("t{:04}", number % tenants);
    let gpu = Gpu { name: "H100".into(), memory: 80 << 30, ..Gpu::default() };
    let node = |id| Node::new(id, format!("n{id}"), "h:1".into(), vec![gpu.clone(); gpus_per_node as usize]);
    let gpus = nodes * u64::from(gpus_per_node);
    let with_seat = |id: LeaseId| {
        let at = id % gpus;
        let seat = Seat::new(
            at / u64::from(gpus_per_node) + 1,
            vec![(at % u64::from(gpus_per_node)) as u32],
            1 << 30,
        );
        // Every tenth one waits.
        lease(id, &tenant(id), if id.is_multiple_of(10) { vec![] } else { vec![seat] })
    };
    let declared = (0..tenants).map(|number| Tenant {
        path: tenant(number).parse().unwrap(),
        quota: Quota { guaranteed_milli: 2_500, ..Quota::default() },
        budget: None,
        bill_to: None,
    });
    let nodes = (1..=nodes).map(node).collect();
    Fleet::new(declared.collect(), vec![], nodes, (1..=leases).map(with_seat).collect(), leases, leases, 0)
}

#[test]
fn the_page_says_what_waits_and_what_is_held() {
    let fleet = fleet(2, 2, 10, 2);
    let picture = FleetPicture::of_fleet(&fleet, |_| "room", 61_000);
    let page = page(Picture { leads: true, fleet: Some(picture), ..Picture::default() });
    for line in [
        "sluice_leader 1.0",
        "sluice_queue_depth{reason=\"room\"} 1.0",
        "sluice_queue_oldest_wait_seconds 60.0",
        "sluice_leases{state=\"running\"} 9.0",
        "sluice_pool_gpus{pool=\"default\"} 4.0",
        "sluice_pool_gpus_usable{pool=\"default\"} 0.0",
        "sluice_tenant_gpus_guaranteed{tenant=\"t0000\"} 2.5",
        "sluice_tenant_gpus_held{tenant=\"t0001\"} 1.0",
        "sluice_tenant_leases_queued{tenant=\"t0000\"} 1.0",
        "sluice_node_online{node=\"n1\"} 0.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    assert!(!page.contains("sluice_node_heartbeat_age"), "nothing has been heard of the nodes\n{page}");
}

#[test]
fn a_server_that_does_not_lead_says_nothing_of_the_fleet() {
    let page = page(Picture::default());
    assert!(page.contains("sluice_leader 0.0") && page.contains("sluice_build_info"), "{page}");
    assert!(!page.contains("queue") && !page.contains("tenant"), "{page}");
}

/// 10,000 GPUs and 50,000 leases: the page grows with nodes and tenants, not with leases.
/// `--nocapture` says what it takes.
#[test]
fn a_large_fleet_is_a_bounded_page() {
    let fleet = fleet(1_250, 8, 50_000, 5_000);
    let begun = std::time::Instant::now();
    let picture = FleetPicture::of_fleet(&fleet, |_| "room", 61_000);
    let locked = begun.elapsed();
    let page = page(Picture { leads: true, fleet: Some(picture), ..Picture::default() });
    eprintln!("lock held for {locked:?}, page of {} bytes after {:?}", page.len(), begun.elapsed());
    assert!(page.contains("sluice_tenants_omitted 3000.0"), "tenants have a bound");
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 1_250 * 6 + 2_000 * 9 + 100, "{series} series");
    assert!(page.contains("sluice_leases{state=\"running\"} 45000.0"));
}

#[test]
fn what_becomes_of_leases_counts_once_it_is_written() {
    let counters = Counters::default();
    let granted = lease(7, "acme", vec![Seat::new(1, vec![0], 1)]);
    let entry = |action, lease: u64| {
        Write::Audit(Entry::after(&Head::default(), 5_000, "x", action, &lease.to_string(), "{}"), None)
    };
    let writes = vec![
        Write::Lease(Box::new(granted)),
        entry("lease.granted", 7),
        entry("lease.preempted", 8),
        entry("tenant.changed", 7),
    ];
    let batch = counters.of_batch(&writes, true);
    let mut registry = Registry::default();
    counters.register(&mut registry);
    let before = Format::OpenMetrics.encode(&registry).unwrap();
    assert!(!before.contains("granted"), "not written yet\n{before}");
    counters.written(batch);
    let page = Format::OpenMetrics.encode(&registry).unwrap();
    for line in [
        "sluice_lease_events_total{event=\"granted\"} 1",
        "sluice_lease_events_total{event=\"preempted\"} 1",
        "sluice_lease_wait_seconds_sum{tenant=\"acme\",pool=\"(any)\",tier=\"standard\"} 4.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
    // The bucket names the lease that was counted there last, and its trace.
    let trace = format!("{:032x}", crate::traces::id_of(7, 1_000));
    let bucket =
        "sluice_lease_wait_seconds_bucket{le=\"5.0\",tenant=\"acme\",pool=\"(any)\",tier=\"standard\"} 1";
    let with_exemplar = format!("{bucket} # {{lease=\"7\",trace_id=\"{trace}\"}} 4.0 ");
    assert!(page.contains(&with_exemplar), "{with_exemplar} in\n{page}");
    assert!(!page.contains("changed"), "{page}");
}

#[test]
fn all_metrics_are_explained() {
    let mut fleet = fleet(1, 1, 10, 1);
    let tenant: TenantPath = "t0000".parse().unwrap();
    fleet.set_quota(tenant.clone(), Quota { limit_milli: Some(1), ..Quota::default() });
    let budget = serde_json::json!({ "micro": 1, "per": "ever", "then": "hold" });
    fleet.set_budget(tenant, Some(serde_json::from_value(budget).unwrap()));
    fleet.report(1, sluice_api::node::Report { sequence: 1, ..Default::default() }, 0);
    let mut of_fleet = FleetPicture::of_fleet(&fleet, |_| "room", 61_000);
    of_fleet.nodes[0].ledger_lag_ms = Some(1);
    let picture =
        Picture { leads: true, certificate_ends_s: Some(1), fleet: Some(of_fleet), ..Picture::default() };
    let counters = Counters::default();
    counters.answered("GET", "/", 200, std::time::Duration::ZERO);
    let granted = lease(7, "acme", vec![Seat::new(1, vec![0], 1)]);
    let entry = Entry::after(&Head::default(), 5_000, "x", "lease.granted", "7", "{}");
    counters.written(counters.of_batch(&[Write::Lease(Box::new(granted)), Write::Audit(entry, None)], false));
    let mut registry = Registry::default();
    counters.register(&mut registry);
    registry.register_collector(Box::new(picture));
    let page = Format::Prometheus.encode(&registry).unwrap();
    let names: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.len() >= 34, "{names:?}");
    let document = include_str!("../../../../docs/metrics.md");
    for name in names {
        assert!(document.contains(&format!("| `{name}` |")), "docs/metrics.md does not have {name}");
    }
    assert!("(others)".parse::<TenantPath>().is_err(), "no tenant is taken for the others");
}
