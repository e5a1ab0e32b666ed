use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::client::{Client, Failure};
use sluice_api::health::{Clearing, Condition, FenceState, GpuFault, NewFence, Unfence};
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::node::{Gpu, GpuReport, GpuStatus, NodeStatus, NvLinks, PcieLink, Rates, ReportAnswer};
use sluice_api::problem::Kind;
use sluice_api::token::Role;

use crate::{ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

fn fence(client: &Client, gpus: &[&str], sessions: Clearing) -> Result<Page<GpuStatus>, Failure> {
    let gpus = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
    client.post("/gpus/fences", &NewFence { gpus, why: "its fan rattles".into(), sessions })
}

fn unfence(client: &Client, gpus: &[&str]) -> Result<Page<GpuStatus>, Failure> {
    let gpus = gpus.iter().map(|gpu| gpu.parse().unwrap()).collect();
    client.post("/gpus/unfences", &Unfence { gpus, why: "a new fan".into() })
}

/// The states of all GPUs, node by node.
fn states(client: &Client) -> Vec<Option<FenceState>> {
    let gpus: Vec<GpuStatus> = client.list("/gpus").unwrap();
    gpus.into_iter().map(|gpu| gpu.fence.map(|fence| fence.state)).collect()
}

fn audited(server: &Server, action: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    server.admin.each("/audit", |entry: Entry| entries.push(entry)).unwrap();
    entries.retain(|entry| entry.action == action);
    entries
}

/// Takes what the server wants ended out of what the node says that it has.
fn end_what_is_told(node: &mut ScriptedNode) {
    let answer = node.say();
    node.report.leases.retain(|attempt| !answer.end.contains(attempt));
    node.say();
}

#[test]
fn lists_have_what_sensors_say_and_nothing_of_gpus_without_them() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 2);
    let condition = Condition {
        temperature_c: Some(61),
        power_mw: Some(312_000),
        driver: Some("580.159.04".into()),
        ..Condition::default()
    };
    let with =
        |condition: &Condition| GpuReport { condition: Some(condition.clone()), ..GpuReport::default() };
    node.report.gpus = vec![with(&condition), GpuReport { faults: 2, ..GpuReport::default() }];
    node.report.release = "0.1.0".into();
    node.say();
    let member = server.token("acme", Role::Member);
    let gpus: Vec<GpuStatus> = member.list("/gpus").unwrap();
    assert_eq!((&gpus[0].condition, &gpus[1].condition), (&Some(condition.clone()), &None));
    assert_eq!((gpus[0].faults, gpus[1].faults), (0, 2));
    let known: NodeStatus = member.get("/nodes/one").unwrap();
    assert_eq!(known.release.as_deref(), Some("0.1.0"));

    let path = format!("/nodes/{}/reports", node.joined.node);
    for driver in ["", "580\n", &"9".repeat(65)] {
        node.report.gpus[1] = with(&Condition { driver: Some(driver.to_owned()), ..condition.clone() });
        node.report.sequence += 1;
        let refused = problem(node.client.post::<ReportAnswer>(&path, &node.report));
        assert!(refused.is(Kind::Invalid), "{driver:?}: {refused:?}");
    }
}

#[test]
fn an_operator_fences_a_gpu_and_its_lease_goes_on_elsewhere() {
    let (folder, server) = Server::with_tenants();
    let mut one = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1_000_000));
    one.claim(&wait_for_state(&member, lease.id, LeaseState::Granted));
    wait_for_state(&member, lease.id, LeaseState::Running);

    for (client, gpus, why) in [(&member, "one/0", Kind::Forbidden), (&server.admin, "one/1", Kind::NotFound)]
    {
        assert!(problem(fence(client, &[gpus], Clearing::Preempt)).is(why), "{gpus}");
    }
    let refused = problem(fence(&server.admin, &["one/0", "two/0"], Clearing::Preempt));
    assert!(refused.is(Kind::NotFound) && states(&member) == [None], "all or nothing");

    let fenced = fence(&server.token("/", Role::Provider), &["one/0"], Clearing::Preempt).unwrap();
    let seen = fenced.items[0].fence.clone().unwrap();
    assert_eq!((seen.state, seen.why.as_str(), seen.lasting), (FenceState::Fenced, "its fan rattles", true));
    let told = wait_for(&member, lease.id, |lease| lease.state == LeaseState::Preempting);
    assert_eq!(told.reason.as_deref(), Some("its GPU one/0 is fenced: its fan rattles"));
    end_what_is_told(&mut one);
    let waits = |lease: &Lease| {
        lease.reason.as_ref().is_some_and(|why| why.contains("fenced: one/0 (its fan rattles)"))
    };
    wait_for(&member, lease.id, |lease| lease.state == LeaseState::Queued && waits(lease));

    let _two = ScriptedNode::join(&server, "two", 1);
    let again = wait_for_state(&member, lease.id, LeaseState::Granted);
    assert_eq!((again.places[0].node.as_str(), again.attempt), ("two", 2));

    // It is still fenced after a restart of the server.
    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(states(&server.admin), [Some(FenceState::Fenced), None]);
    unfence(&server.admin, &["one/0"]).unwrap();
    assert_eq!(states(&server.admin), [None, None]);
    let subjects = |action| audited(&server, action).into_iter().map(|e| e.subject).collect::<Vec<_>>();
    assert_eq!(
        (subjects("gpu.fenced"), subjects("gpu.unfenced")),
        (vec!["one/0".into()], vec!["one/0".into()])
    );
}

#[test]
fn what_nodes_find_fences_gpus_until_it_is_over_or_somebody_has_looked() {
    let (_folder, server) = Server::with_tenants();
    let mut one = ScriptedNode::join(&server, "one", 10);
    let hot = GpuFault { gpu: 0, what: "95 C".into(), sessions: Clearing::Finish, lasting: false };
    let lost = |gpu| GpuFault { gpu, what: "Xid 79".into(), sessions: Clearing::End, lasting: true };
    one.report.boot = "first".into();
    one.report.faults = vec![hot, lost(1)];
    one.say();
    let fenced = Some(FenceState::Fenced);
    assert_eq!(states(&server.admin)[..3], [fenced, fenced, None]);

    // Heat passes (the server of these tests waits no longer); what is lost is reported once and
    // stays.
    one.report.faults.clear();
    one.say();
    one.say();
    assert_eq!(states(&server.admin)[..3], [None, fenced, None]);

    // One in five of ten may be; the third is only suspected, until somebody decides.
    one.report.faults = vec![lost(2), lost(3)];
    one.say();
    let suspected = Some(FenceState::Suspected);
    assert_eq!(states(&server.admin)[..4], [None, fenced, fenced, suspected]);
    assert_eq!((audited(&server, "gpus.held").len(), audited(&server, "gpu.suspected").len()), (1, 1));
    fence(&server.admin, &["one/3"], Clearing::End).unwrap();
    unfence(&server.admin, &["one/1"]).unwrap();
    assert_eq!(states(&server.admin)[..4], [None, None, fenced, fenced]);

    // A start of the machine ends what the node found, and not what an operator wants.
    one.report.faults.clear();
    one.report.boot = "second".into();
    one.say();
    assert_eq!(states(&server.admin)[..4], [None, None, None, fenced]);
}

#[test]
fn where_gpus_stand_is_shown_as_their_node_said_it_and_nonsense_is_refused() {
    let (_folder, server) = Server::with_tenants();
    let linked = |gpu, links| Gpu {
        vendor: Some("nvidia".into()),
        pci: Some("0000:3b:00.0".into()),
        numa_node: Some(1),
        pcie: Some(PcieLink { generation: 5, lanes: 16 }),
        nvlinks: vec![NvLinks { gpu, links }],
        ..ScriptedNode::gpu()
    };
    let gpus = vec![linked(1, 18), linked(0, 18), ScriptedNode::gpu()];
    let _node = ScriptedNode::join_with(&server.admin, "one", gpus.clone()).unwrap();
    let shown: Vec<GpuStatus> = server.admin.list("/gpus").unwrap();
    assert_eq!(shown.into_iter().map(|status| status.gpu).collect::<Vec<_>>(), gpus);

    let twice = Gpu { nvlinks: vec![NvLinks { gpu: 0, links: 1 }; 2], ..ScriptedNode::gpu() };
    let blank = Gpu { pci: Some(String::new()), ..ScriptedNode::gpu() };
    let long = Gpu { vendor: Some("v".repeat(65)), ..ScriptedNode::gpu() };
    let fast = Gpu { gflops: 1_000_000_001, ..ScriptedNode::gpu() };
    let absurd = Rates { gflops: 1, memory_bytes_per_s: u64::MAX };
    let measured = Gpu { measured: Some(absurd), ..ScriptedNode::gpu() };
    for wrong in [linked(9, 1), linked(0, 1), twice, blank, long, fast, measured] {
        let refused = problem(ScriptedNode::join_with(&server.admin, "two", vec![wrong.clone()]).map(drop));
        assert!(refused.is(Kind::Invalid) && refused.field.as_deref() == Some("gpus"), "{wrong:?}");
    }
}
