//! A change of the fleet and what it adds to the database and the audit log, handed over to be
//! written in one transaction.

use std::sync::Arc;
use std::time::Duration;

use sluice_api::audit::Entry;
use sluice_api::autonomy::{Consent, LeftAlone, ProgramName};
use sluice_api::bill::Seller;
use sluice_api::identity::Identity;
use sluice_api::lease::{LeaseId, ResizeLease};
use sluice_api::node::NodeId;
use sluice_api::problem::Problem;
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;
use sluice_api::webhook::Webhook;
use tokio::sync::MutexGuard;

use super::{Books, Server};
use crate::auth::Principal;
use crate::autonomy::SizedProgram;
use crate::billing::Billed;
use crate::commits::{Lost, Ticket};
use crate::concern;
use crate::fleet::{Event, Fleet, Incident, NoResize};
use crate::kept::Forgotten;
use crate::keys;
use crate::store::Write;
use crate::usage_spans::LastCounted;
use crate::webhooks;

/// An answer to a request for a lease does not wait longer for a look at the queue.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// A change under way; given up unless it is committed.
pub(crate) struct Change<'a> {
    pub(super) server: &'a Server,
    pub(super) books: MutexGuard<'a, Books>,
    pub(crate) now_ms: u64,
    pub(super) writes: Vec<Write>,
    pub(super) wakes: bool,
    pub(super) done: bool,
}

impl Change<'_> {
    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    pub(crate) fn fleet(&mut self) -> &mut Fleet {
        &mut self.books.fleet
    }

    /// As [`Books::resize`].
    pub(crate) fn resize(&mut self, id: LeaseId, resize: &ResizeLease) -> Result<(), NoResize> {
        let now_ms = self.now_ms;
        self.books.resize(id, resize, now_ms)
    }

    /// As [`Books::give_back`].
    pub(crate) fn give_back(&mut self, id: LeaseId) -> Result<(), String> {
        let now_ms = self.now_ms;
        self.books.give_back(id, now_ms)
    }

    /// As [`Books::wake_idle`].
    pub(crate) fn wake_idle(&mut self, node: NodeId) {
        let now_ms = self.now_ms;
        self.books.wake_idle(node, now_ms);
    }

    /// Has a lease move to another node.
    pub(crate) fn move_lease(
        &mut self,
        id: LeaseId,
        to: (Option<NodeId>, Option<u32>),
    ) -> Result<(), String> {
        self.books.move_lease(id, to)
    }

    /// The provider that was there before.
    pub(crate) fn set_identity(&mut self, identity: Option<Identity>) -> Option<Identity> {
        self.writes.push(Write::Identity(identity.clone().map(Box::new)));
        std::mem::replace(&mut self.books.identity, identity)
    }

    /// What was declared before.
    pub(crate) fn set_seller(&mut self, seller: Seller) -> Seller {
        self.writes.push(Write::Seller(seller.clone()));
        std::mem::replace(&mut self.books.seller, seller)
    }

    /// Adds a webhook, or changes the state of one.
    pub(crate) fn set_webhook(&mut self, webhook: Webhook) {
        self.writes.push(Write::Webhook(Box::new(webhook.clone())));
        self.books.webhooks.insert(webhook.id.clone(), webhook);
    }

    pub(crate) fn set_run_default(&mut self, default: RunDefault) {
        self.writes.push(Write::RunDefault(default.clone()));
        self.books.run_defaults.insert((default.tenant.clone(), default.program.clone()), default);
    }

    pub(crate) fn remove_run_default(&mut self, default: &RunDefault) {
        self.writes.push(Write::RemoveRunDefault(default.clone()));
        self.books.run_defaults.remove(&(default.tenant.clone(), default.program.clone()));
    }

    pub(crate) fn set_consent(&mut self, consent: Consent) {
        self.writes.push(Write::Consent(Box::new(consent.clone())));
        // Its programs are looked at by the new rule.
        self.books.autonomy.ended.insert(consent.tenant.clone());
        self.books.autonomy.rules.set(consent);
        self.server.run_ended.notify_one();
    }

    pub(crate) fn leave_alone(&mut self, left_alone: LeftAlone) {
        self.writes.push(Write::LeftAlone(left_alone.clone()));
        let LeftAlone { tenant, program, .. } = left_alone.clone();
        self.books.autonomy.left_alone.insert(ProgramName { tenant, program }, left_alone);
    }

    pub(crate) fn leave_alone_no_more(&mut self, name: &ProgramName) {
        self.writes.push(Write::NotLeftAlone(name.clone()));
        self.books.autonomy.left_alone.remove(name);
    }

    /// Sets what the next runs of a program get; without a size, what they ask for.
    pub(crate) fn set_program_size(&mut self, name: ProgramName, size: Option<SizedProgram>) {
        self.writes.push(Write::ProgramSize { name: name.clone(), size: size.clone().map(Box::new) });
        match size {
            Some(size) => drop(self.books.autonomy.sizes.insert(name, size)),
            None => drop(self.books.autonomy.sizes.remove(&name)),
        }
    }

    /// A tenant is no more, and its programs are not either.
    pub(crate) fn forget_programs_of(&mut self, tenant: &TenantPath) {
        let autonomy = &mut self.books.autonomy;
        autonomy.rules.remove(tenant);
        autonomy.left_alone.retain(|name, _| name.tenant != *tenant);
        autonomy.sizes.retain(|name, _| name.tenant != *tenant);
    }

    pub(crate) fn remove_webhook(&mut self, id: &str) {
        self.writes.push(Write::RemoveWebhook(id.to_owned()));
        self.books.webhooks.remove(id);
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Counts a usage record, which is of these GPUs, where that is known.
    pub(crate) fn count(&mut self, record: &UsageRecord, cards: Vec<String>) {
        self.write(Write::Usage { record: record.clone(), received_at_ms: self.now_ms, cards });
        let Books { counted, fleet, autonomy, .. } = &mut *self.books;
        autonomy.count(record);
        let last = LastCounted { sequence: record.sequence, until_ms: record.until_ms };
        counted.remember(record.node, record.attempt_of(), last, |lease| fleet.lease(lease).is_some());
    }

    /// A record is counted that was set aside: after the last of a run its program is looked at.
    pub(crate) fn note_run_end(&mut self, record: &UsageRecord) {
        if record.last {
            self.books.autonomy.ended.insert(record.tenant.clone());
        }
    }

    /// An operator has changed which lease starts when.
    pub(crate) fn is_by_hand(&mut self) {
        self.books.history.changed_by_hand();
    }

    /// Says in the audit log who did what.
    pub(crate) fn audit(
        &mut self,
        actor: &Principal,
        action: &str,
        subject: &str,
        detail: serde_json::Value,
    ) {
        let entry =
            Entry::after(&self.books.audit, self.now_ms, &actor.name(), action, subject, &detail.to_string());
        self.books.audit = entry.head();
        if !self.books.webhooks.is_empty()
            && let Some(event) = webhooks::Event::of(&entry, &detail, &self.books.fleet)
        {
            let deliveries = webhooks::deliveries(&self.books.webhooks, &event);
            self.writes.extend(deliveries.into_iter().map(|new| Write::NewDelivery(Box::new(new))));
        }
        let tenant = concern::tenant_of(&self.books.fleet, actor, action, subject, &detail);
        self.writes.push(Write::Audit(entry, tenant));
    }

    /// Adds a test delivery for a webhook, and returns the id of its event.
    pub(crate) fn test_webhook(&mut self, actor: &Principal, webhook: &Webhook) -> String {
        let detail = serde_json::json!({ "tenant": webhook.tenant }).to_string();
        let entry = Entry::after(
            &self.books.audit,
            self.now_ms,
            &actor.name(),
            "webhook.tested",
            &webhook.id,
            &detail,
        );
        self.books.audit = entry.head();
        let event = webhooks::test_event(&entry, webhook.tenant.clone());
        self.writes.push(Write::NewDelivery(Box::new(event.delivery(&webhook.id))));
        self.writes.push(Write::Audit(entry, Some(webhook.tenant.clone())));
        event.id
    }

    /// Says in the audit log what became of leases just now, and whose doing it was.
    pub(crate) fn audit_leases(&mut self, actor: &Principal) {
        for Event { lease, action, detail } in self.fleet().take_events() {
            self.log_lease(lease, action, &detail);
            self.audit(actor, action, &lease.to_string(), detail);
        }
    }

    /// Says in the log what became of a lease.
    fn log_lease(&mut self, lease: LeaseId, action: &str, detail: &serde_json::Value) {
        let record = self.fleet().lease(lease);
        let tenant = record.map(|record| record.tenant.to_string()).unwrap_or_default();
        let what = action.strip_prefix("lease.").unwrap_or(action);
        let places = detail["places"].as_array().map_or(&[][..], Vec::as_slice);
        let mut nodes: Vec<&str> = places.iter().filter_map(|place| place["node"].as_str()).collect();
        nodes.dedup();
        let node = (!nodes.is_empty()).then(|| nodes.join(","));
        let on = node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
        let why = detail["reason"].as_str().map_or_else(String::new, |reason| format!(": {reason}"));
        tracing::info!(lease, tenant, node, "lease {lease} of {tenant}: {what}{on}{why}");
    }

    /// Says in the log and in the audit log what the fleet has noticed.
    pub(crate) fn report_incidents(&mut self) {
        for incident in self.fleet().take_incidents() {
            self.report(incident);
        }
    }

    pub(super) fn report(&mut self, incident: Incident) {
        let (action, subject, detail) = match incident {
            Incident::Lost { node, leases } => {
                tracing::error!(%node,
                    "node {node} is lost; what {} leases have there runs elsewhere",
                    leases.len()
                );
                ("node.lost", node, serde_json::json!({ "leases": leases }))
            }
            Incident::Silent { node } => {
                tracing::warn!(%node, "node {node} has stopped reporting");
                ("node.silent", node, serde_json::json!({}))
            }
            Incident::Reports { node } => {
                tracing::info!(%node, "node {node} reports again");
                ("node.reports", node, serde_json::json!({}))
            }
            Incident::Held { silent, online } => {
                tracing::warn!(
                    "{silent} nodes with leases are silent and {online} report: is this server cut off? \
                     Nothing is queued again; `sluice lease preempt` does so for one lease"
                );
                ("breaker.held", String::new(), serde_json::json!({ "silent": silent, "online": online }))
            }
            Incident::Released => ("breaker.released", String::new(), serde_json::json!({})),
            Incident::Fenced { gpu, fence, leases } => {
                let count = leases.len();
                tracing::error!(%gpu, "GPU {gpu} is fenced: {}; {count} leases leave it", fence.why);
                ("gpu.fenced", gpu.to_string(), serde_json::json!({ "fence": fence, "leases": leases }))
            }
            Incident::Unfenced { gpu, why } => {
                tracing::info!(%gpu, "GPU {gpu} is used again: {why}");
                ("gpu.unfenced", gpu.to_string(), serde_json::json!({ "why": why }))
            }
            Incident::Suspected { gpu, why } => {
                tracing::warn!(%gpu, "GPU {gpu} is suspected and not fenced: {why}");
                ("gpu.suspected", gpu.to_string(), serde_json::json!({ "why": why }))
            }
            Incident::GpusHeld { pool, faulty, gpus } => {
                tracing::error!(%pool,
                    "{faulty} of the {gpus} GPUs of pool {pool} became faulty within minutes: is it something they \
                     have in common? No more are fenced until an operator has looked: `sluice gpus` lists the suspected ones, \
                     `sluice gpu fence` and `sluice gpu unfence` decide"
                );
                ("gpus.held", pool, serde_json::json!({ "faulty": faulty, "gpus": gpus }))
            }
        };
        self.audit(&Principal::server(), action, &subject, detail);
    }

    /// Has the scheduler look at the queue, though nothing is written.
    pub(crate) fn wake(&mut self) {
        self.wakes = true;
    }

    /// When this returns, what was changed before is in the database, and can be asked for there:
    /// no other task adds to it meanwhile.
    pub(crate) async fn see_all_written(&self) -> Result<(), Problem> {
        self.server.durable(self.server.commits.latest_of(self.books.epoch)).await
    }

    /// Makes it true; when this returns, it is in the database.
    pub(crate) async fn commit(self) -> Result<(), Problem> {
        let server = self.server;
        let _forgotten = bills_that_change(server, &self.writes);
        server.durable(self.hand_over()).await
    }

    /// As [`Change::commit`], once the scheduler has looked at the queue as well.
    pub(crate) async fn commit_and_look(self) -> Result<(), Problem> {
        let server = self.server;
        let _forgotten = bills_that_change(server, &self.writes);
        // A look that counts up after this began after the change: both hold the lock.
        let mut cycles = server.cycles.subscribe();
        server.durable(self.hand_over()).await?;
        // A look that fails or takes long leaves the lease in the queue: that is an answer too.
        let _ = tokio::time::timeout(LOOK_TIME_MAX, cycles.changed()).await;
        Ok(())
    }

    /// Ends it without anything that has to be written.
    pub(crate) fn leave(mut self) {
        self.done = self.writes.is_empty() && !self.books.fleet.has_changed();
    }

    /// Lets it be written, after which the fleet is free again. Fails if what the change was built
    /// on has failed.
    pub(super) fn hand_over(mut self) -> Result<Ticket, Lost> {
        // Changes without a request.
        self.audit_leases(&Principal::server());
        let mut writes = std::mem::take(&mut self.writes);
        let changed = self.books.fleet.take_changed();
        let errors = changed.iter().filter_map(|lease| self.books.history.follow(lease));
        writes.extend(errors.map(Write::EstimateError));
        writes.extend(changed.into_iter().map(|lease| Write::Lease(Box::new(lease))));
        let cards = self.books.fleet.take_changed_cards();
        writes.extend(cards.into_iter().map(|(id, record)| Write::Card { id, record }));
        if !writes.is_empty() {
            writes.extend(keys::take().map(Write::Key));
        }
        // What was used is nothing that a look at the queue depends on: budgets are added up in
        // their own rhythm.
        let is_about_leases = |write: &Write| !matches!(write, Write::Usage { .. } | Write::Delivery(_));
        let wakes = self.wakes || writes.iter().any(is_about_leases);
        let ticket = self.server.commits.add(self.books.epoch, writes);
        self.done = ticket.is_ok();
        if wakes {
            self.server.wake.notify_one();
        }
        ticket
    }
}

/// Has kept bills forgotten once the change is made, or its request has been given up, if it
/// changes what they say.
fn bills_that_change<'a>(server: &'a Server, writes: &[Write]) -> Option<Forgotten<'a, Arc<Billed>>> {
    let is_about_bills = |write: &Write| {
        matches!(
            write,
            Write::Price(_)
                | Write::Pool { .. }
                | Write::Seller(_)
                | Write::Correction(_)
                | Write::AsideGone(_)
        )
    };
    writes.iter().any(is_about_bills).then(|| Forgotten(&server.kept.billed))
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.books.stale = true;
        }
    }
}
