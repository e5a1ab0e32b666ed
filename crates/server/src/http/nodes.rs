//! Nodes: joining, reports, and what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::Page;
use sluice_api::health::is_version;
use sluice_api::lease::LeaseId;
use sluice_api::moving::MoveOrder;
use sluice_api::node::{
    Drift, Gpu, GpuStatus, Join, Joined, MEMORY_OVERCOMMIT_MAX, MEMORY_RATE_MAX, NodeId, RefusedRecord,
    Report, ReportAnswer, SessionReport, SessionStatus,
};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::text::escaped;
use sluice_api::token::Role;
use sluice_api::usage::{AsideRecord, GFLOPS_MAX, UsageRecord};

use super::admin::is_named_to;
use super::answer::Answer;
use super::extract::{Body, ByUser, Name, OfTenant, OnNode, Options, PageOptions, cut, two_numbers};
use crate::auth::{self, Principal};
use crate::disk;
use crate::fleet::{Fleet, LeaseRecord, Node, OrderToMove, Patience, Taken, cards_of};
use crate::policy::Action;
use crate::server::{Books, Change, Server, unwell};
use crate::store::Write;
use crate::usage_bounds::implausible;
use crate::usage_spans::LastCounted;

const GPUS_MAX: usize = 64;
const LABELS_MAX: usize = 64;
const NAME_MAX: usize = 255;
/// Bytes of a vendor's name or a PCI address.
const WORD_MAX: usize = 64;
const SESSIONS_MAX: usize = 100_000;
/// Of one report: some for each GPU.
const FAULTS_MAX: usize = 1000;
/// How long a node's own token holds; a node joins anew whenever it starts.
const TOKEN_LIFETIME_MS: u64 = 366 * 24 * 3_600_000;
/// The most usage records that are stored of one report; the node sends the others again.
const USAGE_MAX: usize = 1000;
/// The most usage records of a node that are set aside at a time; further ones are refused, and the
/// node keeps them.
const ASIDE_MAX: u64 = 10_000;

/// Lend a node's GPUs
///
/// Under a token of role `node`. A token that names a node is good for that node alone, which then
/// joins with no other one. A node that joins under a name that is known is the same node; its
/// earlier token holds no more.
#[utoipa::path(post, path = "/nodes", tag = "nodes", request_body = Join,
    responses((status = 200, body = Joined)))]
pub(super) async fn join(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(join): Body<Join>,
) -> Answer<Joined> {
    principal.need(Action::Join, &TenantPath::root())?;
    check(&join)?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    change.see_all_written().await?;
    let has_own = server.store.is_node_named(&join.name, now_ms).await?;
    if let Some(detail) = not_its_token(&principal, &join.name, has_own, change.fleet()) {
        change.leave();
        return Err(Problem::new(Kind::Forbidden, detail).into());
    }
    let node = change.fleet().join(join, now_ms);
    let made = auth::make(
        TenantPath::root(),
        Role::Node,
        format!("node {}", node.name),
        Some(node.id),
        TOKEN_LIFETIME_MS,
        now_ms,
    );
    let no_randomness = |error| Problem::new(Kind::Internal, format!("no random numbers: {error}"));
    let (token, secret) = made.map_err(no_randomness)?;
    for earlier in server.store.tokens_of_node(node.id).await? {
        change.write(Write::Revoke(earlier));
    }
    change.write(Write::Token(token));
    let detail = serde_json::json!({ "address": node.address, "gpus": node.gpus.len() });
    change.audit(&principal, "node.joined", &node.name, detail);
    let id = node.id;
    change.write(Write::Node { node, joined_at_ms: now_ms });
    let report_every_ms = change.fleet().report_every_ms();
    change.commit().await?;
    Ok(Json(Joined {
        node: id,
        token: secret,
        grant_key: server.signer.verifier().to_text(),
        report_every_ms,
    }))
}

/// Says why a token is not good for a node of this name. `has_own` says whether a token names the
/// node.
fn not_its_token(principal: &Principal, name: &str, has_own: bool, fleet: &Fleet) -> Option<String> {
    let own = principal.node.map(|id| fleet.nodes().get(&id).map_or(String::new(), |node| node.name.clone()));
    match principal.token.node.clone().or(own) {
        Some(node) if node == name => None,
        Some(node) => Some(format!("this token is for the node {node}, and not for {name}")),
        None if has_own => Some(format!(
            "the node {name} has a token of its own (`sluice token create --role node --node {name}`), and this one is for any node"
        )),
        None => None,
    }
}

/// Returns whether a node can have this name.
pub(super) fn is_node_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

fn check(join: &Join) -> Result<(), Problem> {
    let wrong = |field, detail: &str| Err(Problem::new(Kind::Invalid, detail).at(field));
    let plain =
        |text: &str| (1..=NAME_MAX).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic());
    if !is_node_name(&join.name) {
        return wrong("name", "1 to 255 visible ASCII characters");
    }
    if !plain(&join.address) || !is_address(&join.address) {
        return wrong("address", "HOST:PORT[/FINGERPRINT], where programs reach the node");
    }
    if !(1..=GPUS_MAX).contains(&join.gpus.len()) {
        return wrong("gpus", "a node has 1 to 64 GPUs");
    }
    if join.gpus.iter().any(|gpu| gpu.name.len() > NAME_MAX || !(1..1 << 44).contains(&gpu.memory)) {
        return wrong("gpus", "no GPU has such a name or such a memory");
    }
    let is_too_fast = |gpu: &Gpu| {
        let rates = || [gpu.figures, gpu.measured].into_iter().flatten();
        gpu.gflops > GFLOPS_MAX
            || rates().any(|rates| rates.gflops > GFLOPS_MAX || rates.memory_bytes_per_s > MEMORY_RATE_MAX)
    };
    if join.gpus.iter().any(is_too_fast) {
        return wrong("gpus", "no GPU is so fast");
    }
    let mut gpus = join.gpus.iter().enumerate();
    if let Some(detail) = gpus.find_map(|(index, gpu)| wrong_fact(index, gpu, join.gpus.len())) {
        return wrong("gpus", detail);
    }
    let named = |(name, value): (&String, &String)| plain(name) && plain(value) && !name.contains('=');
    if join.labels.len() > LABELS_MAX || !join.labels.iter().all(named) {
        return wrong("labels", "up to 64 labels; names and values are 1 to 255 visible ASCII characters");
    }
    if join.release != env!("CARGO_PKG_VERSION") {
        let detail =
            concat!("this server is of release ", env!("CARGO_PKG_VERSION"), "; nodes must be of the same");
        return wrong("release", detail);
    }
    Ok(())
}

/// What cannot be true of the place of one GPU among `gpus`.
fn wrong_fact(index: usize, gpu: &Gpu, gpus: usize) -> Option<&'static str> {
    let is_word =
        |text: &String| (1..=WORD_MAX).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic());
    if ![&gpu.vendor, &gpu.pci].into_iter().flatten().all(is_word) {
        return Some("vendor and PCI address are 1 to 64 visible ASCII characters");
    }
    let most = gpu.memory.saturating_mul(MEMORY_OVERCOMMIT_MAX);
    if gpu.memory_leasable != 0 && !(gpu.memory..=most).contains(&gpu.memory_leasable) {
        return Some("a node leases the memory of a GPU once to 16 times");
    }
    let peers: BTreeSet<usize> = gpu.nvlinks.iter().map(|links| links.gpu as usize).collect();
    let are_others = peers.iter().all(|&peer| peer < gpus && peer != index);
    (peers.len() < gpu.nvlinks.len() || !are_others)
        .then_some("NVLinks lead to other GPUs of the node, each of which is said once")
}

/// `HOST:PORT`, or what else programs understand: a fingerprint behind it, or `plain-text:` before
/// it.
fn is_address(text: &str) -> bool {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    port.is_some_and(|port| port > 0)
}

/// What is true on a node now
///
/// Under the token that the node got when it joined.
#[utoipa::path(post, path = "/nodes/{id}/reports", tag = "nodes", params(("id" = u64, Path)),
    request_body = Report, responses((status = 200, body = ReportAnswer)))]
pub(super) async fn report(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<NodeId>,
    Body(report): Body<Report>,
) -> Answer<ReportAnswer> {
    if principal.node != Some(id) {
        return Err(Problem::new(Kind::Forbidden, "this token is not that node's").into());
    }
    if report.sessions.len() > SESSIONS_MAX
        || report.leases.len() > SESSIONS_MAX
        || report.arriving.len() > SESSIONS_MAX
        || report.moved.len() > SESSIONS_MAX
        || report.idle.len() > SESSIONS_MAX
        || report.resized.len() > SESSIONS_MAX
        || report.vacated.len() > SESSIONS_MAX
    {
        return Err(Problem::new(Kind::Invalid, "more sessions than a node can have").at("sessions").into());
    }
    if report.faults.len() > FAULTS_MAX || report.boot.len() > NAME_MAX {
        return Err(Problem::new(Kind::Invalid, "more faults than a node can have").at("faults").into());
    }
    if let Some(detail) = wrong_condition(&report) {
        return Err(Problem::new(Kind::Invalid, detail).at("gpus").into());
    }
    if server.disk.is_full() {
        // Nothing of it becomes true but that the node is there.
        server.hear(|books, now_ms| books.fleet.hear_of_node(id, now_ms)).await?;
        return Err(disk::full().into());
    }
    let usage = &report.usage[..report.usage.len().min(USAGE_MAX)];
    let usage_taken = usage.len() as u32;
    let past = past_leases(&server, usage).await?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let usage_refused = take_usage(&server, &mut change, id, usage, &past).await?;
    let fleet = change.fleet();
    if fleet.nodes().get(&id).is_some_and(|node| !fleet.is_online(node, now_ms)) {
        // Its room can be given out again.
        change.wake();
    }
    let patience = Patience { grace_ms: server.grace_ms, quiet_ms: server.quiet_ms };
    change.fleet().take_faults(id, &report.boot, &report.faults, now_ms, patience);
    change.report_incidents();
    if let Some(traces) = &server.traces {
        traces.reported(&report.sessions, now_ms);
    }
    let has_calls = report.idle.iter().any(|idle| idle.wants);
    let Some(end) = change.fleet().report(id, report, now_ms) else {
        return Err(Problem::new(Kind::NotFound, "the node has to join again").into());
    };
    if has_calls {
        // The answer has the grants with which they come back.
        change.wake_idle(id);
    }
    let (leadership, report_every_ms) = (change.fleet().leadership, change.fleet().report_every_ms());
    let resize = change.fleet().resizing_grants(id, now_ms);
    let orders = change.fleet().move_orders(id, now_ms);
    change.commit().await?;
    let resize = resize.iter().map(|grant| server.signer.sign(grant)).collect();
    let signed = |OrderToMove { attempt, number, address, grant }| MoveOrder {
        attempt,
        number,
        address,
        grant: server.signer.sign(&grant),
    };
    let moves = orders.into_iter().map(signed).collect();
    Ok(Json(ReportAnswer { usage_taken, usage_refused, leadership, end, resize, moves, report_every_ms }))
}

/// Says what cannot be true of how the GPUs of a report are.
fn wrong_condition(report: &Report) -> Option<&'static str> {
    let drivers = report.gpus.iter().filter_map(|gpu| gpu.condition.as_ref()?.driver.as_ref());
    if report.gpus.len() > GPUS_MAX {
        return Some("a node has 1 to 64 GPUs");
    }
    let mut versions = drivers.chain(Some(&report.release).filter(|release| !release.is_empty()));
    (!versions.all(|version| is_version(version)))
        .then_some("versions of drivers and of Sluice are 1 to 64 visible ASCII characters")
}

/// The leases that usage records name and that are in memory no more, by their ids; none for those
/// that there are not.
type PastLeases = BTreeMap<LeaseId, Option<LeaseRecord>>;

async fn past_leases(server: &Server, usage: &[UsageRecord]) -> Result<PastLeases, Problem> {
    let named: BTreeSet<LeaseId> = usage.iter().map(|record| record.lease).collect();
    if named.is_empty() {
        return Ok(PastLeases::new());
    }
    let look = |books: &Books, _| -> Vec<LeaseId> {
        named.iter().copied().filter(|id| books.fleet.lease(*id).is_none()).collect()
    };
    let missing = server.read(look).await?;
    let found = server.store.leases_by_id(&missing).await.map_err(unwell)?;
    let none = missing.into_iter().map(|id| (id, None));
    Ok(none.chain(found.into_iter().map(|lease| (lease.id, Some(lease)))).collect())
}

/// Counts the records of a report, sets those aside that cannot be true, and returns those that are
/// none.
async fn take_usage(
    server: &Server,
    change: &mut Change<'_>,
    id: NodeId,
    usage: &[UsageRecord],
    past: &PastLeases,
) -> Result<Vec<RefusedRecord>, Problem> {
    let now_ms = change.now_ms;
    let (mut aside, mut refused) = (Vec::new(), Vec::new());
    let mut refuse = |id: &str, reason: String| refused.push(RefusedRecord { id: id.to_owned(), reason });
    for record in usage {
        if let Err(reason) = check_usage(record, id) {
            refuse(&record.id, reason);
            continue;
        }
        let lease = match (change.fleet().lease(record.lease), past.get(&record.lease)) {
            (Some(lease), _) => Some(lease.clone()),
            (None, Some(past)) => past.clone(),
            // It has ended since the others were read.
            (None, None) => server.store.lease(record.lease).await.map_err(unwell)?,
        };
        let last = last_counted(server, change, record).await?;
        if record.sequence <= last.sequence && server.store.has_usage(&record.id).await.map_err(unwell)? {
            // The node sends it again, since it missed the answer.
            continue;
        }
        let Some(node) = change.fleet().nodes().get(&id) else { continue };
        let reason = implausible(record, lease.as_ref(), node, now_ms).or_else(|| last.contradiction(record));
        match reason {
            None => {
                let cards = cards_of(record, lease.as_ref(), node);
                change.count(record, cards);
            }
            Some(reason) => {
                aside.push(AsideRecord { record: record.clone(), reason, received_at_ms: now_ms })
            }
        }
    }
    if let Some(first) = aside.first() {
        tracing::warn!(
            node = id,
            "node {id}: {} usage records are set aside: {}; see `sluice usage aside`",
            aside.len(),
            escaped(&first.reason)
        );
        let is_full = server.store.count_aside(id).await.map_err(unwell)? >= ASIDE_MAX;
        for record in aside {
            if is_full {
                refuse(&record.record.id, "too many records of this node are set aside".to_owned());
            } else {
                change.write(Write::Aside(Box::new(record)));
            }
        }
    }
    for RefusedRecord { reason, .. } in &refused {
        tracing::warn!(node = id, "node {id}: {}", escaped(reason));
    }
    Ok(refused)
}

/// Returns what was counted last of the task that a record is of.
async fn last_counted(
    server: &Server,
    change: &Change<'_>,
    record: &UsageRecord,
) -> Result<LastCounted, Problem> {
    match change.books().counted.last(record.node, record.attempt_of()) {
        Some(last) => Ok(last),
        None => server.store.last_usage(record.node, record.attempt_of()).await.map_err(unwell),
    }
}

/// A node speaks for itself only.
fn check_usage(record: &UsageRecord, node: NodeId) -> Result<(), String> {
    record.check().map_err(|error| error.to_string())?;
    if record.node != node {
        return Err(format!("usage record {}: is of node {}", record.id, record.node));
    }
    Ok(())
}

/// All GPUs, and what is free of them
#[utoipa::path(get, path = "/gpus", tag = "nodes", params(OnNode, PageOptions),
    responses((status = 200, body = Page<GpuStatus>)))]
pub(super) async fn gpus(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(on): Options<OnNode>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<GpuStatus>> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    let (limit, after) = (options.limit()?, options.cursor(two_numbers)?);
    let seen = |books: &Books, now_ms: u64| {
        let nodes = books.fleet.nodes().values().filter(|node| is_named(node, &on));
        let gpus = nodes.flat_map(|node| (0..node.gpus.len() as u64).map(move |gpu| ((node.id, gpu), node)));
        let gpus = gpus.map(|(key, node)| (key, (key.1 as u32, node)));
        let Page { items, next } = cut(gpus, after.as_ref(), limit, |(node, gpu)| format!("{node}.{gpu}"));
        let is_shown = |name: &String| is_named_to(&principal, name, &books.fleet, now_ms);
        let status = |(gpu, node)| {
            let status = gpu_status(&books.fleet, node, gpu, now_ms)?;
            Some(GpuStatus { pool: status.pool.filter(is_shown), ..status })
        };
        Page { items: items.into_iter().filter_map(status).collect(), next }
    };
    Ok(Json(server.read(seen).await?))
}

fn is_named(node: &Node, on: &OnNode) -> bool {
    on.node.as_ref().is_none_or(|name| *name == node.name)
}

pub(super) fn gpu_status(fleet: &Fleet, node: &Node, index: u32, now_ms: u64) -> Option<GpuStatus> {
    let Taken { ppm, memory, leases, .. } = fleet.taken(node.id, index);
    let (now, online) = (node.report.gpus.get(index as usize), fleet.is_online(node, now_ms));
    Some(GpuStatus {
        node: node.name.clone(),
        address: node.address.clone(),
        online,
        index,
        pool: Some(fleet.pool_of(node, index).to_owned()),
        gpu: fleet.shown_gpu(node, index)?,
        share_leased_ppm: ppm as u32,
        memory_leased: memory,
        memory_used: now.map_or(0, |now| now.memory_used),
        busy_ppm: now.map_or(0, |now| now.busy_ppm),
        leases,
        condition: now.filter(|_| online).and_then(|now| now.condition.clone()),
        faults: now.map_or(0, |now| now.faults),
        fence: fleet.fence_of(node.id, index).cloned(),
    })
}

/// Differences between nodes and the server that were put right, since this server leads
#[utoipa::path(get, path = "/drift", tag = "nodes",
    responses((status = 200, body = Drift)))]
pub(super) async fn drift(State(server): State<Arc<Server>>, principal: Principal) -> Answer<Drift> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    Ok(Json(server.read(|books, _| books.fleet.drift()).await?))
}

/// The programs that use GPUs now, of the tenants that the token may see
#[utoipa::path(get, path = "/sessions", tag = "nodes", params(OfTenant, OnNode, ByUser, PageOptions),
    responses((status = 200, body = Page<SessionStatus>)))]
pub(super) async fn sessions(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(on): Options<OnNode>,
    Options(by): Options<ByUser>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<SessionStatus>> {
    let (limit, after) = (options.limit()?, options.cursor(two_numbers)?);
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let seen = |books: &Books, now_ms: u64| {
        let fleet = &books.fleet;
        let mut items = Vec::new();
        for node in fleet.nodes().values().filter(|node| fleet.is_online(node, now_ms) && is_named(node, &on))
        {
            for session in &node.report.sessions {
                let is_seen = |lease: &&LeaseRecord| scope.contains(&lease.tenant) && by.wants(&lease.person);
                if let Some(lease) = fleet.lease(session.lease).filter(is_seen) {
                    items.push(((node.id, session.session), (node, session, lease)));
                }
            }
        }
        items.sort_unstable_by_key(|(key, _)| *key);
        let cursor = |(node, session): &(u64, u64)| format!("{node}.{session}");
        let Page { items, next } = cut(items.into_iter(), after.as_ref(), limit, cursor);
        let status = |(node, session, lease): (&Node, &SessionReport, &LeaseRecord)| SessionStatus {
            node: node.name.clone(),
            tenant: lease.tenant.clone(),
            user: lease.person.clone(),
            lease_idle: lease.shown_idle(),
            session: session.clone(),
        };
        Page { items: items.into_iter().map(status).collect(), next }
    };
    Ok(Json(server.read(seen).await?))
}
