//! What the server has in memory: the fleet, the plan, and what else the database holds.

use std::collections::BTreeMap;

use sluice_api::audit::Head;
use sluice_api::bill::Seller;
use sluice_api::identity::Identity;
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, ResizeLease};
use sluice_api::moving::MovePlan;
use sluice_api::node::NodeId;
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::TenantPath;

use super::LOOK_EVERY;
use super::scaling::Scaling;
use crate::autonomy::Autonomy;
use crate::commits::Epoch;
use crate::fleet::{Fleet, LeaseRecord, NoResize};
use crate::history::History;
use crate::plan::{Clock, Offered, Plan, Trial, never};
use crate::store::{Store, StoreError};
use crate::usage_spans::Counted;
use crate::webhooks::Webhooks;

/// Clocks that run at different speeds differ by less from one look to the next.
const CLOCK_SET_MS: u64 = 1000;
/// A server that leads looks at its state more often by far, unless it cannot.
const DEAF_MS: u64 = 5_000;
/// The latest leases that are learned from at the start.
const HISTORY: u32 = 1000;

pub(crate) struct Books {
    pub(crate) fleet: Fleet,
    /// While this server leads, once it has looked at the queue.
    pub(super) plan: Option<Plan>,
    pub(super) history: History,
    /// The latest leases, until there is a plan.
    pub(super) past: Vec<LeaseRecord>,
    pub(crate) identity: Option<Identity>,
    pub(crate) seller: Seller,
    pub(crate) counted: Counted,
    pub(crate) webhooks: Webhooks,
    /// By tenant and program.
    pub(crate) run_defaults: BTreeMap<(TenantPath, String), RunDefault>,
    pub(crate) autonomy: Autonomy,
    pub(super) scaling: Scaling,
    /// When it was last looked what time alone has ended.
    pub(super) expired_at_ms: u64,
    pub(super) audit: Head,
    pub(super) epoch: Epoch,
    /// Does not show what the database holds.
    pub(super) stale: bool,
    /// The role in which it received what it has received.
    pub(super) turn: u64,
    /// When it was looked at last, by the clock that may be set, and by the one that may not.
    pub(super) looked: (u64, tokio::time::Instant),
}

impl Books {
    pub(super) async fn read(store: &Store, epoch: Epoch, now_ms: u64) -> Result<Books, StoreError> {
        // From before the queries: what they take is no difference between the clocks.
        let looked = (now_ms, tokio::time::Instant::now());
        let revision = store.leader().await?.revision;
        let (tenants, pools) = (store.tenants().await?, store.pools().await?);
        let leases = store.open_leases().await?;
        let last_lease = store.last_lease().await?;
        let nodes = store.nodes().await?;
        let mut fleet = Fleet::new(tenants, pools, nodes, leases, last_lease, revision, now_ms);
        fleet.recall_cards(store.cards().await?);
        fleet.recall_forgotten(store.forgotten_nodes().await?);
        let (identity, seller) = (store.identity().await?, store.seller().await?);
        let webhooks = store.webhooks().await?;
        let defaults = store.run_defaults().await?.into_iter();
        let run_defaults =
            defaults.map(|default| ((default.tenant.clone(), default.program.clone()), default)).collect();
        let autonomy = Autonomy::read(store).await?;
        let audit = store.audit_head().await?;
        let mut history = History::default();
        let mut recent = store.leases(i64::MAX as u64, HISTORY).await?;
        recent.reverse();
        recent.iter().for_each(|lease| _ = history.follow(lease));
        store.estimate_errors(HISTORY).await?.iter().for_each(|error| history.recall(error));
        Ok(Books {
            fleet,
            plan: None,
            history,
            past: recent,
            identity,
            seller,
            counted: Counted::default(),
            webhooks: webhooks.into_iter().map(|webhook| (webhook.id.clone(), webhook)).collect(),
            run_defaults,
            autonomy,
            scaling: Scaling::default(),
            expired_at_ms: 0,
            audit,
            epoch,
            stale: false,
            turn: 0,
            looked,
        })
    }

    /// What the clock says, unless it was set since it was looked at last.
    pub(super) fn expected_ms(&self) -> u64 {
        self.looked.0 + self.looked.1.elapsed().as_millis() as u64
    }

    /// Notices when the clock has been set, and when the state was not looked at for long: no node
    /// has been silent for longer because of that.
    pub(super) fn follow_clock(&mut self, now_ms: u64) {
        let (passed_ms, expected_ms) = (self.looked.1.elapsed().as_millis() as u64, self.expected_ms());
        if now_ms.abs_diff(expected_ms) > CLOCK_SET_MS {
            let by_ms = now_ms.wrapping_sub(expected_ms) as i64;
            tracing::warn!("the clock was set by {by_ms} ms");
            self.fleet.clock_was_set(by_ms);
        }
        if passed_ms > DEAF_MS {
            tracing::warn!(
                "it did not run, or its database did not answer, for {} s: no node counts as silent because of \
                 that",
                passed_ms / 1000
            );
            self.fleet.was_deaf(passed_ms, now_ms);
        }
        self.looked = (now_ms, tokio::time::Instant::now());
    }

    /// Decides what can be decided now; true if there may be more.
    pub(super) fn decide(&mut self, clock: Clock, half_life_ms: Option<u64>) -> bool {
        let now_ms = clock.now_ms;
        if now_ms.abs_diff(self.expired_at_ms) >= LOOK_EVERY.as_millis() as u64 {
            self.expired_at_ms = now_ms;
            self.fleet.look_at_nodes(now_ms, now_ms + clock.grace_ms);
            self.fleet.expire(now_ms);
            self.follow_idle(now_ms);
            self.follow_undone(now_ms);
        }
        self.follow_live(clock);
        let plan = self.plan.get_or_insert_with(|| {
            let mut plan = Plan::new(&self.fleet, now_ms, half_life_ms);
            plan.recall_use(&self.fleet, &std::mem::take(&mut self.past));
            plan
        });
        let more = plan.decide(&mut self.fleet, clock);
        plan.estimate_all(&self.fleet, &mut self.history, clock);
        more
    }

    /// A lease as users see it, without its grants.
    pub(crate) fn view(&self, lease: &LeaseRecord) -> Lease {
        let mut view = self.fleet.view(lease);
        if let Some(plan) = self.plan.as_ref().filter(|_| lease.waits()) {
            view.reason = plan.why(&self.fleet, lease.id).or(view.reason);
            view.reason_brief = plan.brief(&self.fleet, lease);
            view.start = plan.estimate(lease.id).cloned();
        }
        if lease.state != LeaseState::Ended {
            view.tightest_budget = self.fleet.budgets().tightest(&lease.tenant, self.expected_ms());
        }
        view
    }

    /// See [`Plan::fair_share_milli`]; there is none before the first scheduling cycle either.
    pub(crate) fn fair_share_milli(&self, tenant: &TenantPath) -> Option<u64> {
        self.plan.as_ref()?.fair_share_milli(tenant)
    }

    /// What keeps a waiting lease from starting, in one word for metrics.
    pub(crate) fn why_kind(&self, lease: &LeaseRecord) -> &'static str {
        self.plan.as_ref().map_or("undecided", |plan| plan.why_kind(&self.fleet, lease))
    }

    /// Has a lease resized, or where there is no room for that and it may wait, has it wait.
    pub(crate) fn resize(&mut self, id: LeaseId, resize: &ResizeLease, now_ms: u64) -> Result<(), NoResize> {
        let to = self.fleet.resized(id, resize)?;
        let in_the_way = self.fleet.no_room_to_resize(id, to, now_ms);
        let Books { fleet, plan, .. } = self;
        match in_the_way.or_else(|| plan.as_mut()?.make_room(fleet, id, to)) {
            None => fleet.send_resize(id, to),
            Some(NoResize::NoRoom(reason)) if resize.wait => fleet.wait_to_resize(id, to, reason),
            Some(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Has the task of a lease moved to another node: to this one, and this GPU of it, if one is
    /// named. A refusal says why it stays.
    pub(crate) fn move_lease(
        &mut self,
        id: LeaseId,
        to: (Option<NodeId>, Option<u32>),
    ) -> Result<(), String> {
        let (task, seat) = self.fleet.movable(id)?;
        self.fleet.exchanges(seat.node)?;
        let Books { fleet, plan, .. } = self;
        let plan = plan.as_mut().ok_or("the server has only begun to lead: ask again")?;
        let (node, gpus) = plan.place_elsewhere(fleet, id, task, to)?;
        fleet.start_move(id, task, (node, gpus), None);
        Ok(())
    }

    /// Predicts what [`Books::move_lease`] would lead to.
    pub(crate) fn plan_move(&mut self, id: LeaseId, to: (Option<NodeId>, Option<u32>)) -> MovePlan {
        let mut planned = self.fleet.move_plan(id);
        let Books { fleet, plan, .. } = self;
        let Ok(task) = fleet.movable(id).map(|(task, _)| task) else { return planned };
        let again = || "the server has only begun to lead: ask again".to_owned();
        match plan.as_mut().ok_or_else(again).and_then(|plan| plan.find_elsewhere(fleet, id, task, to)) {
            Ok((node, gpus)) => {
                planned.node = fleet.nodes().get(&node).map(|node| node.name.clone());
                planned.gpu = gpus.first().copied();
            }
            Err(reason) => planned.reasons.push(reason),
        }
        planned
    }

    /// Predicts what a request would lead to, with the GPUs that it accepts. There is no prediction
    /// before the first scheduling cycle.
    pub(crate) fn trial(&self, lease: &LeaseRecord, clock: Clock) -> Option<(Trial, Vec<Offered>)> {
        let plan = self.plan.as_ref()?;
        Some((plan.trial(&self.fleet, &self.history, lease, clock), plan.offers(&self.fleet, lease)))
    }

    /// Why a request could never be granted, as far as is known.
    pub(crate) fn never(&self, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        never::over_quota(&self.fleet, tenant, ask)
            .or_else(|| self.plan.as_ref().and_then(|plan| plan.over_capacity(&self.fleet, tenant, ask)))
    }
}
