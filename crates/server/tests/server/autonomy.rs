//! What the server changes by itself: by whose consent, and how that is undone.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sluice_api::autonomy::{AutomaticKind, Autonomy, Consent, LeftAlone, Mode, Undone};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseHistory, LeaseState, NewLease, ResizeState};
use sluice_api::node::{Attempt, IdleLease, Resized};
use sluice_api::problem::Kind;
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use crate::invoices::usage;
use crate::ledger::record;
use crate::{PATIENCE, ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

const HOUR_MS: u64 = 3_600_000;
const GIB: u64 = 1 << 30;
const RESEARCH: &str = "acme/research";

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn consent(client: &Client, tenant: &str, mode: &str) -> Result<Consent, Failure> {
    client.post("/autonomy", &json!({ "tenant": tenant, "mode": mode }))
}

/// So many runs of a program, of an hour each, that hold a whole GPU and use a tenth of it.
fn runs(node: &mut ScriptedNode, client: &Client, count: u64) {
    let id = node.joined.node;
    let begin_ms = now_ms() - 20 * HOUR_MS;
    for run in 0..count {
        let lease = request(client, &ask(1_000_000));
        let from_ms = begin_ms + run * HOUR_MS;
        let ended = UsageRecord {
            share_ppm: 1_000_000,
            used_ppm_ms: HOUR_MS * 100_000,
            memory_mib: 16_384,
            memory_peak: GIB,
            last: true,
            ..record(id, lease.id, 1, RESEARCH, (from_ms, from_ms + HOUR_MS))
        };
        usage(node, vec![ended]);
        let _: Lease = client.delete(&format!("/leases/{}", lease.id)).unwrap();
    }
}

fn autonomy(client: &Client, wanted: impl Fn(&Autonomy) -> bool) -> Autonomy {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let found: Autonomy = client.get("/autonomy").unwrap();
        if wanted(&found) {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "{found:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_run_that_states_no_size_gets_one_that_fits_until_that_is_undone() {
    let (folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let mut node = ScriptedNode::join(&server, "one", 1);
    runs(&mut node, &member, 10);
    let set = consent(&administrator, RESEARCH, "next-run").unwrap();
    assert_eq!((set.mode, set.floor_percent, set.idle_after_ms), (Mode::NextRun, 25, None));
    let found = autonomy(&member, |found| !found.programs.is_empty());
    let [size] = &found.programs[..] else { panic!("{found:?}") };
    assert_eq!(
        (size.program.as_str(), size.asked_share_ppm, size.share_ppm),
        ("a program", 1_000_000, 250_000)
    );
    assert!(size.memory < 2 * GIB && size.why.contains("10 earlier runs"), "{size:?}");

    let next = |client: &Client, more: Value| -> Lease {
        let mut asked = json!({ "share_ppm": 1_000_000, "name": "a program", "use_default": true });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let lease: Lease = client.post("/leases", &asked).unwrap();
        let _: Lease = client.delete(&format!("/leases/{}", lease.id)).unwrap();
        lease
    };
    let lease = next(&member, json!({}));
    assert_eq!((lease.share_ppm, lease.memory), (250_000, size.memory));
    let automatic = lease.automatic.unwrap();
    assert_eq!((automatic.kind, automatic.asked_share_ppm), (AutomaticKind::NextRun, 1_000_000));
    assert_eq!(automatic.why, size.why);
    let history: LeaseHistory = member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    let sized = history.items.iter().find(|event| event.action == "lease.sized").unwrap();
    assert!(sized.actor.contains("(itself)") && sized.detail["reason"] == json!(size.why), "{sized:?}");
    for (more, why) in [
        (json!({ "use_default": false }), "its size is stated"),
        (json!({ "as_asked": true }), "it is to be left as it is"),
        (json!({ "name": "another" }), "nothing is known of it"),
    ] {
        let lease = next(&member, more);
        assert_eq!((lease.share_ppm, lease.automatic), (1_000_000, None), "{why}");
    }
    drop(server);
    let server = Server::start(folder.path());
    let member = server.token(RESEARCH, Role::Member);
    assert_eq!(next(&member, json!({})).share_ppm, 250_000, "it is in the database");

    let name = json!({ "tenant": RESEARCH, "program": "a program" });
    let globex = server.token("globex", Role::TenantAdmin);
    assert!(problem(globex.post::<Undone>("/autonomy/undo", &name)).is(Kind::Forbidden));
    assert_eq!(globex.get::<Autonomy>("/autonomy").unwrap().programs, []);
    let undone: Undone = member.post("/autonomy/undo", &name).unwrap();
    assert_eq!((undone.left_alone.program.as_str(), &undone.leases[..]), ("a program", &[][..]));
    let left = next(&member, json!({}));
    assert_eq!((left.share_ppm, left.automatic), (1_000_000, None));
    let found: Autonomy = member.get("/autonomy").unwrap();
    assert_eq!((found.programs.len(), found.left_alone.len()), (0, 1));
    assert!(problem(member.post::<LeftAlone>("/autonomy/allow", &name)).is(Kind::Forbidden));
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let _: LeftAlone = administrator.post("/autonomy/allow", &name).unwrap();
    assert!(problem(administrator.post::<LeftAlone>("/autonomy/allow", &name)).is(Kind::NotFound));

    let entries: Vec<Value> = server.admin.list("/audit").unwrap();
    let actions = entries.iter().filter_map(|entry| entry["action"].as_str());
    let of_autonomy =
        |action: &&str| ["consent.", "program.", "autonomy."].iter().any(|prefix| action.starts_with(prefix));
    assert_eq!(
        actions.filter(of_autonomy).collect::<Vec<_>>(),
        ["consent.changed", "program.sized", "autonomy.undone", "autonomy.allowed"]
    );
}

#[test]
fn a_tenant_gets_no_more_than_its_own_administrator_has_consented_to() {
    let (_folder, server) = Server::with_tenants();
    let [acme, research] = ["acme", RESEARCH].map(|tenant| server.token(tenant, Role::TenantAdmin));
    let member = server.token(RESEARCH, Role::Member);
    assert!(problem(consent(&member, RESEARCH, "off")).is(Kind::Forbidden));
    for above in [&acme, &server.admin] {
        let refused = problem(consent(above, RESEARCH, "next-run"));
        assert!(refused.is(Kind::Forbidden), "{refused:?}");
        assert!(refused.detail.contains("only an administrator of acme/research itself"), "{refused:?}");
    }
    let in_force = || {
        let found: Autonomy = member.get("/autonomy").unwrap();
        let [of] = &found.tenants[..] else { panic!("{found:?}") };
        (of.mode, of.because.clone())
    };
    assert_eq!(in_force(), (Mode::Recommend, "acme/research has said nothing".into()));
    // What a tenant above consents to is for itself.
    consent(&acme, "acme", "live").unwrap();
    assert_eq!(in_force().0, Mode::Recommend);
    consent(&research, RESEARCH, "live").unwrap();
    assert_eq!(in_force().0, Mode::Live);
    consent(&acme, "acme", "next-run").unwrap();
    assert_eq!(in_force(), (Mode::NextRun, "acme allows no more".into()));
    consent(&server.admin, "/", "recommend").unwrap();
    assert_eq!(in_force(), (Mode::Recommend, "/ allows no more".into()));
    // Those above may allow less, and not take that back.
    consent(&acme, RESEARCH, "off").unwrap();
    assert_eq!(in_force(), (Mode::Off, "acme/research has consented to it".into()));
    assert!(problem(consent(&acme, RESEARCH, "recommend")).is(Kind::Forbidden));
    for (field, value) in [("floor_percent", 4), ("floor_percent", 101), ("idle_after_ms", 9_999)] {
        let refused =
            problem(research.post::<Consent>("/autonomy", &json!({ "tenant": RESEARCH, field: value })));
        assert_eq!(refused.field.as_deref(), Some(field));
    }
    let lower_floor = json!({ "tenant": RESEARCH, "floor_percent": 10 });
    assert!(problem(acme.post::<Consent>("/autonomy", &lower_floor)).is(Kind::Forbidden));
    assert_eq!(research.post::<Consent>("/autonomy", &lower_floor).unwrap().floor_percent, 10);
    let nobody = problem(consent(&server.admin, "acme/nobody", "off"));
    assert!(nobody.detail.contains("no tenant acme/nobody"), "{nobody:?}");
}

#[test]
fn programs_of_who_wants_none_of_it_are_not_looked_at() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let mut node = ScriptedNode::join(&server, "one", 1);
    runs(&mut node, &member, 3);
    let advice = || member.get::<Vec<Value>>("/recommendations").unwrap().len();
    assert_eq!(advice(), 1);
    consent(&administrator, RESEARCH, "off").unwrap();
    assert_eq!(advice(), 0);
    consent(&administrator, RESEARCH, "recommend").unwrap();
    assert_eq!(advice(), 1);
    server.apply("pools: [{name: quiet, nodes: [one], autonomy: off}]").unwrap();
    assert_eq!(advice(), 1, "these ran elsewhere");
}

/// Consecutive records of ten seconds of a running lease.
struct Use<'a> {
    node: &'a mut ScriptedNode,
    lease: u64,
    until_ms: u64,
    sent: u32,
}

impl Use<'_> {
    /// So many records that have a share, and use so much of a GPU, both in per cent.
    fn add(&mut self, count: u32, share: u32, used: u64) {
        let id = self.node.joined.node;
        for _ in 0..count {
            // Later than any change before, however long that took.
            let from_ms = self.until_ms.max(now_ms());
            self.until_ms = from_ms + 10_000;
            self.sent += 1;
            let one = UsageRecord {
                share_ppm: share * 10_000,
                used_ppm_ms: used * 10_000 * 10_000,
                memory_mib: 4096,
                ..record(id, self.lease, self.sent, RESEARCH, (from_ms, from_ms + 10_000))
            };
            usage(self.node, vec![one]);
        }
    }

    /// The node says that it has taken the change of this version.
    fn takes(&mut self, version: u32) {
        let attempt = *self.node.report.leases.iter().find(|attempt| attempt.lease == self.lease).unwrap();
        self.node.report.resized.retain(|other| other.attempt != attempt);
        self.node.report.resized.push(Resized { attempt, version, refused: None });
        self.node.say();
    }
}

fn running(node: &mut ScriptedNode, client: &Client, ask: &NewLease) -> Lease {
    let lease = request(client, ask);
    node.claim(&wait_for_state(client, lease.id, LeaseState::Granted));
    wait_for_state(client, lease.id, LeaseState::Running)
}

fn is_sent(share_ppm: u32) -> impl Fn(&Lease) -> bool {
    move |lease| {
        let resizing = lease.resizing.as_ref().filter(|resizing| resizing.state == ResizeState::Sent);
        resizing.is_some_and(|resizing| resizing.share_ppm == share_ppm)
    }
}

#[test]
fn a_running_lease_follows_its_use_and_gets_back_what_it_is_short_of() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    consent(&administrator, RESEARCH, "live").unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let four_gib = |share_ppm| NewLease { memory: 4 * GIB, ..ask(share_ppm) };
    let lease = running(&mut node, &member, &four_gib(1_000_000));
    let mut used = Use { node: &mut node, lease: lease.id, until_ms: 0, sent: 0 };
    used.add(6, 100, 20);
    wait_for(&member, lease.id, is_sent(250_000));
    used.takes(1);
    let less = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((less.share_ppm, less.memory), (250_000, 4 * GIB), "memory stays");
    let automatic = less.automatic.unwrap();
    assert_eq!((automatic.kind, automatic.asked_share_ppm), (AutomaticKind::Live, 1_000_000));

    // Another lease comes into what was given up, and leaves when that is needed again.
    let other = running(used.node, &member, &NewLease { name: "another".into(), ..four_gib(700_000) });
    used.add(1, 25, 25);
    wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Waiting)
    });
    let leaves = wait_for_state(&member, other.id, LeaseState::Preempting);
    assert!(leaves.reason.unwrap().contains("gets back a share that it had given up"));
    used.node.report.leases.retain(|attempt| attempt.lease != other.id);
    used.node.say();
    wait_for(&member, lease.id, is_sent(1_000_000));
    used.takes(2);
    let back = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((back.share_ppm, back.automatic), (1_000_000, None));
    let _: Lease = member.delete(&format!("/leases/{}", other.id)).unwrap();

    // It was short of 25 %, and does not get so little again. It can be undone.
    used.add(12, 100, 20);
    wait_for(&member, lease.id, is_sent(300_000));
    used.takes(3);
    wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    let name = json!({ "tenant": RESEARCH, "program": "a program" });
    let undone: Undone = member.post("/autonomy/undo", &name).unwrap();
    assert_eq!(undone.leases, [lease.id]);
    wait_for(&member, lease.id, is_sent(1_000_000));
    used.takes(4);
    wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    used.add(30, 100, 20);
    // The answer comes after a look at the queue, and at what was used.
    request(&member, &ask(1_000));
    let left: Lease = member.get(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!((left.share_ppm, left.resizing, left.automatic), (1_000_000, None, None));
    let history: LeaseHistory = member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    let sized = history.items.iter().filter(|event| event.action == "lease.sized");
    let why: Vec<&str> = sized.map(|event| event.detail["reason"].as_str().unwrap()).collect();
    let (no_more, all) = ("it has needed no more for a while", "it used all that it had");
    assert_eq!(why, [no_more, all, no_more]);
}

#[test]
fn what_is_stated_firmly_is_not_resized_while_it_runs_and_consent_can_be_taken_back() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    consent(&administrator, RESEARCH, "live").unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let quarter = || NewLease { memory: 4 * GIB, ..ask(250_000) };
    for firm in [NewLease { as_asked: true, ..quarter() }, NewLease { hard_cap: true, ..quarter() }] {
        let lease = running(&mut node, &member, &firm);
        Use { node: &mut node, lease: lease.id, until_ms: 0, sent: 0 }.add(8, 25, 1);
        request(&member, &ask(1_000));
        let same: Lease = member.get(&format!("/leases/{}", lease.id)).unwrap();
        assert_eq!((same.share_ppm, same.resizing), (250_000, None), "{firm:?}");
    }
    let lease = running(&mut node, &member, &quarter());
    let mut used = Use { node: &mut node, lease: lease.id, until_ms: 0, sent: 0 };
    used.add(6, 25, 1);
    wait_for(&member, lease.id, |lease| lease.resizing.is_some());
    used.takes(1);
    wait_for(&member, lease.id, |lease| lease.resizing.is_none() && lease.share_ppm < 250_000);
    consent(&administrator, RESEARCH, "next-run").unwrap();
    wait_for(&member, lease.id, is_sent(250_000));
}

#[test]
fn what_is_undone_while_a_change_is_under_way_is_given_back_after_it() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    consent(&administrator, RESEARCH, "live").unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let lease = running(&mut node, &member, &NewLease { memory: 4 * GIB, ..ask(1_000_000) });
    let mut used = Use { node: &mut node, lease: lease.id, until_ms: 0, sent: 0 };
    used.add(6, 100, 20);
    wait_for(&member, lease.id, is_sent(250_000));
    let name = json!({ "tenant": RESEARCH, "program": "a program" });
    let undone: Undone = member.post("/autonomy/undo", &name).unwrap();
    let [later] = &undone.later[..] else { panic!("{undone:?}") };
    assert_eq!((later.lease, &undone.leases[..]), (lease.id, &[][..]));
    assert!(later.reason.contains("is being resized already"), "{later:?}");
    used.takes(1);
    wait_for(&member, lease.id, is_sent(1_000_000));
    used.takes(2);
    let back = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((back.share_ppm, back.automatic), (1_000_000, None));
}

#[test]
fn a_lease_whose_size_is_undone_while_it_waits_starts_with_what_it_asked_for() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let mut node = ScriptedNode::join(&server, "one", 1);
    runs(&mut node, &member, 10);
    consent(&administrator, RESEARCH, "next-run").unwrap();
    autonomy(&member, |found| !found.programs.is_empty());
    let other = running(&mut node, &member, &NewLease { name: "another".into(), ..ask(1_000_000) });
    let asked = json!({ "share_ppm": 1_000_000, "name": "a program", "use_default": true });
    let lease: Lease = member.post("/leases", &asked).unwrap();
    assert_eq!((lease.share_ppm, lease.memory < 2 * GIB), (250_000, true));
    // The scheduler knows it: it says why it waits.
    wait_for(&member, lease.id, |lease| lease.reason.is_some());
    let name = json!({ "tenant": RESEARCH, "program": "a program" });
    let undone: Undone = member.post("/autonomy/undo", &name).unwrap();
    assert_eq!((&undone.leases[..], &undone.later[..]), (&[lease.id][..], &[][..]));
    let _: Lease = member.delete(&format!("/leases/{}", other.id)).unwrap();
    node.report.leases.clear();
    node.say();
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    assert_eq!((granted.share_ppm, granted.memory), (1_000_000, 16 * GIB));
}

#[test]
fn an_idle_lease_is_told_suspended_and_back_at_its_next_call() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let idle_after = json!({ "tenant": RESEARCH, "idle_after_ms": 10_000 });
    let refused = problem(server.token("acme", Role::TenantAdmin).post::<Consent>("/autonomy", &idle_after));
    assert!(refused.is(Kind::Forbidden), "{refused:?}");
    let _: Consent = administrator.post("/autonomy", &idle_after).unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let lease = running(&mut node, &member, &NewLease { memory: 4 * GIB, ..ask(750_000) });
    let attempt = node.report.leases[0];
    let idle = |idle_ms, wants, stays: &str| vec![IdleLease { attempt, idle_ms, wants, stays: stays.into() }];
    let state = || member.get::<Lease>(&format!("/leases/{}", lease.id)).unwrap();

    node.report.idle = idle(90_000, false, "96.0 MiB cannot leave the GPU");
    node.say();
    let stays = wait_for(&member, lease.id, |lease| lease.idle.is_some()).idle.unwrap();
    assert_eq!(stays.stays.as_deref(), Some("96.0 MiB cannot leave the GPU"));
    node.report.idle.clear();
    node.say();
    wait_for(&member, lease.id, |lease| lease.idle.is_none());

    node.report.idle = idle(9_000, false, "");
    node.say();
    let told = wait_for(&member, lease.id, |lease| lease.idle.is_some());
    let notice = told.idle.unwrap();
    assert!(!notice.suspended && notice.suspend_at_ms > now_ms() - 2_000 && !told.suspended, "{notice:?}");
    wait_for(&member, lease.id, |lease| lease.resizing.as_ref().is_some_and(|resizing| resizing.suspended));
    let mut used = Use { node: &mut node, lease: lease.id, until_ms: 0, sent: 0 };
    used.takes(1);
    let suspended = wait_for(&member, lease.id, |lease| lease.suspended && lease.resizing.is_none());
    assert!(suspended.idle.unwrap().suspended);

    // Its room is another's when it comes back: it waits, with the reason.
    let other = running(used.node, &member, &NewLease { memory: 4 * GIB, ..ask(1_000_000) });
    used.node.report.idle = idle(0, true, "");
    assert!(used.node.say().resize.is_empty());
    let waits = state();
    let resizing = waits.resizing.unwrap();
    assert_eq!((resizing.state, resizing.suspended), (ResizeState::Waiting, false));
    assert!(resizing.reason.unwrap().contains("up to 0 % of the compute"));
    assert!(waits.idle.unwrap().wants);
    used.node.report.leases.retain(|attempt| attempt.lease != other.id);
    used.node.say();
    wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Sent)
    });
    used.node.report.idle.clear();
    used.takes(2);
    let back = wait_for(&member, lease.id, |lease| lease.idle.is_none() && lease.resizing.is_none());
    assert_eq!((back.suspended, back.share_ppm), (false, 750_000));

    // With room the answer to the report brings it back at once.
    used.node.report.idle = idle(9_000, false, "");
    used.node.say();
    wait_for(&member, lease.id, |lease| lease.resizing.as_ref().is_some_and(|resizing| resizing.suspended));
    used.takes(3);
    wait_for(&member, lease.id, |lease| lease.suspended && lease.resizing.is_none());
    used.node.report.idle = idle(0, true, "");
    assert_eq!(used.node.say().resize.len(), 1);
    let history: LeaseHistory = member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    let actions: Vec<&str> = history.items.iter().map(|event| event.action.as_str()).collect();
    for action in ["lease.idle", "lease.idle_suspended", "lease.woken"] {
        assert_eq!(actions.iter().filter(|other| **other == action).count(), 2, "{action}: {actions:?}");
    }
}

#[test]
fn only_its_own_node_says_that_a_lease_is_idle_and_what_a_person_suspends_stays_so() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token(RESEARCH, Role::Member);
    let administrator = server.token(RESEARCH, Role::TenantAdmin);
    let idle_after = json!({ "tenant": RESEARCH, "idle_after_ms": 10_000 });
    let _: Consent = administrator.post("/autonomy", &idle_after).unwrap();
    let [mut one, mut two] = ["one", "two"].map(|name| ScriptedNode::join(&server, name, 1));
    let leases = [(); 2].map(|()| {
        let lease = request(&member, &NewLease { memory: 4 * GIB, ..ask(750_000) });
        wait_for_state(&member, lease.id, LeaseState::Granted)
    });
    if leases[0].places[0].node != "one" {
        std::mem::swap(&mut one, &mut two);
    }
    for (node, lease) in [&mut one, &mut two].into_iter().zip(&leases) {
        node.claim(lease);
        wait_for_state(&member, lease.id, LeaseState::Running);
    }
    let idle = |attempt: Attempt, wants| IdleLease { attempt, idle_ms: 9_000, wants, stays: String::new() };
    let attempts = [one.report.leases[0], two.report.leases[0]];
    two.report.idle = attempts.map(|attempt| idle(attempt, false)).to_vec();
    two.say();
    wait_for(&member, leases[1].id, |lease| lease.idle.is_some());
    let active: Lease = member.get(&format!("/leases/{}", leases[0].id)).unwrap();
    assert_eq!(active.idle, None, "its own node does not say that it is idle");

    let id = leases[1].id;
    wait_for(&member, id, |lease| lease.resizing.as_ref().is_some_and(|resizing| resizing.suspended));
    let mut used = Use { node: &mut two, lease: id, until_ms: 0, sent: 0 };
    used.takes(1);
    wait_for(&member, id, |lease| lease.suspended && lease.resizing.is_none());
    let _: Lease = member.patch(&format!("/leases/{id}"), &json!({ "suspended": true })).unwrap();
    used.takes(2);
    wait_for(&member, id, |lease| lease.suspended && lease.resizing.is_none());
    used.node.report.idle = vec![idle(attempts[1], true)];
    assert!(used.node.say().resize.is_empty(), "a call does not undo what a person did");
    let still: Lease = member.get(&format!("/leases/{id}")).unwrap();
    assert_eq!((still.suspended, still.idle), (true, None));
}

#[test]
fn a_pool_suspends_idle_programs_of_all_but_those_that_are_left_as_they_asked() {
    let (_folder, server) = Server::with_tenants();
    server.apply("pools: [{name: shared, nodes: [one], idle_after: 10s}]").unwrap();
    let member = server.token(RESEARCH, Role::Member);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let leases = [false, true].map(|as_asked| {
        let asked = NewLease { memory: 4 * GIB, as_asked, ..ask(250_000) };
        running(&mut node, &member, &asked)
    });
    let idle = |attempt: &Attempt| IdleLease {
        attempt: *attempt,
        idle_ms: 9_000,
        wants: false,
        stays: String::new(),
    };
    node.report.idle = node.report.leases.iter().map(idle).collect();
    node.say();
    wait_for(&member, leases[0].id, |lease| lease.idle.is_some());
    let firm: Lease = member.get(&format!("/leases/{}", leases[1].id)).unwrap();
    assert_eq!(firm.idle, None);
    let wrong = problem(server.apply("pools: [{name: shared, nodes: [one], idle_after: soon}]"));
    assert!(wrong.detail.contains("no time such as"), "{wrong:?}");
    let short = problem(server.apply("pools: [{name: shared, nodes: [one], idle_after: 1s}]"));
    assert!(short.detail.contains("10000 (ten seconds)"), "{short:?}");
    server.apply("pools: [{name: shared, nodes: [one], idle_after_ms: 0}]").unwrap();
    wait_for(&member, leases[0].id, |lease| lease.idle.is_none());
}
