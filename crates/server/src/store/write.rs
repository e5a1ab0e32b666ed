//! Everything that one change writes, in one transaction.

use std::collections::BTreeMap;

use sluice_api::audit::Entry;
use sluice_api::autonomy::{Consent, LeftAlone, ProgramName};
use sluice_api::bill::{Correction, Price, Seller};
use sluice_api::identity::Identity;
use sluice_api::invoice::Invoice;
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::pool::Pool;
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::{Tenant, TenantPath};
use sluice_api::usage::{AsideRecord, UsageRecord};
use sluice_api::webhook::{Delivery, Webhook};

use super::leader::Fence;
use super::leases::KeyUse;
use super::tokens::StoredToken;
use super::webhooks::NewDelivery;
use super::{
    Result, Store, Tx, aside, audit, autonomy, bills, cards, history, identity, leases, ledger, nodes, pools,
    run_defaults, seller, tenants, tokens, webhooks,
};
use crate::autonomy::SizedProgram;
use crate::fleet::{CardId, CardRecord, LeaseRecord, Node};
use crate::history::EstimateError;

/// One thing to write.
pub(crate) enum Write {
    Tenant(Tenant),
    Token(StoredToken),
    Revoke(String),
    Node {
        node: Node,
        joined_at_ms: u64,
    },
    Drain(Node),
    ForgetNode(NodeId),
    RemoveTenant(TenantPath),
    /// Its declarations stay: what was used by them is priced by them.
    RemovePool(String),
    Lease(Box<LeaseRecord>),
    Card {
        id: CardId,
        record: Option<CardRecord>,
    },
    Usage {
        record: UsageRecord,
        received_at_ms: u64,
        /// The names of the GPUs that it is of, where that is known.
        cards: Vec<String>,
    },
    /// A usage record that does not count.
    Aside(Box<AsideRecord>),
    /// It has been decided about.
    AsideGone(String),
    EstimateError(EstimateError),
    Price(Price),
    Pool {
        pool: Pool,
        from_ms: u64,
    },
    Identity(Option<Box<Identity>>),
    Seller(Seller),
    Correction(Correction),
    /// A new one, or one in another state.
    Invoice(Box<Invoice>),
    /// Replaces the draft of this number, or discards it.
    Draft {
        number: u64,
        draft: Option<Box<Invoice>>,
    },
    /// With the tenant that it concerns.
    Audit(Entry, Option<TenantPath>),
    Key(KeyUse),
    /// What a request under a key was answered with, sealed.
    Answer {
        token: String,
        name: String,
        answer: String,
    },
    /// Idempotency keys from before this moment are forgotten.
    ForgetKeys {
        before_ms: u64,
    },
    RunDefault(RunDefault),
    RemoveRunDefault(RunDefault),
    Consent(Box<Consent>),
    LeftAlone(LeftAlone),
    NotLeftAlone(ProgramName),
    /// Without a size the next runs of the program get what they ask for.
    ProgramSize {
        name: ProgramName,
        size: Option<Box<SizedProgram>>,
    },
    /// A webhook that is new, or whose state has changed.
    Webhook(Box<Webhook>),
    /// Removes the webhook with this id, and its deliveries.
    RemoveWebhook(String),
    /// An event for a webhook.
    NewDelivery(Box<NewDelivery>),
    /// A delivery after an attempt.
    Delivery(Box<Delivery>),
    /// Deliveries from before this moment that are over are forgotten.
    ForgetDeliveries {
        before_ms: u64,
    },
}

impl Store {
    /// Writes all of it or nothing; nothing if another leader has come, see [`StoreError::Fenced`].
    pub(crate) async fn commit(&self, fence: Fence, writes: Vec<Write>) -> Result<()> {
        #[cfg(test)]
        let fault = self.faults.before_commit().await?;
        let mut rows = Rows::default();
        let mut transaction = self.pool.begin().await?;
        let tx = &mut transaction;
        for write in writes {
            match write {
                Write::Lease(lease) => drop(rows.leases.insert(lease.id, *lease)),
                Write::Audit(entry, tenant) => rows.entries.push((entry, tenant)),
                Write::Key(key) => rows.keys.push(key),
                Write::Answer { token, name, answer } => rows.answers.push((token, name, answer)),
                Write::Usage { record, received_at_ms, cards } => {
                    rows.usage.push((record, received_at_ms, cards));
                }
                Write::Aside(record) => aside::write(tx, &record).await?,
                Write::AsideGone(id) => aside::remove(tx, &id).await?,
                Write::Revoke(id) => tokens::revoke(tx, &id).await?,
                Write::ForgetKeys { before_ms } => leases::forget_keys(tx, before_ms).await?,
                Write::NewDelivery(new) => webhooks::add(tx, &new).await?,
                Write::Delivery(delivery) => webhooks::write_attempt(tx, &delivery).await?,
                Write::ForgetDeliveries { before_ms } => webhooks::forget(tx, before_ms).await?,
                Write::RunDefault(default) => {
                    rows.settings = true;
                    run_defaults::write(tx, &default).await?;
                }
                Write::RemoveRunDefault(default) => {
                    rows.settings = true;
                    run_defaults::remove(tx, &default.tenant, &default.program).await?;
                }
                Write::Consent(consent) => {
                    rows.settings = true;
                    autonomy::write_consent(tx, &consent).await?;
                }
                Write::LeftAlone(left_alone) => {
                    rows.settings = true;
                    autonomy::write_left_alone(tx, &left_alone).await?;
                }
                Write::NotLeftAlone(name) => {
                    rows.settings = true;
                    autonomy::remove_left_alone(tx, &name).await?;
                }
                Write::ProgramSize { name, size } => {
                    rows.settings = true;
                    autonomy::write_size(tx, &name, size.as_deref()).await?;
                }
                Write::Webhook(webhook) => {
                    rows.settings = true;
                    webhooks::write(tx, &webhook).await?;
                }
                Write::RemoveWebhook(id) => {
                    rows.settings = true;
                    webhooks::remove(tx, &id).await?;
                }
                Write::EstimateError(error) => history::write(tx, &error).await?,
                Write::Price(price) => ledger::write_price(tx, &price).await?,
                Write::Pool { pool, from_ms } => {
                    rows.settings = true;
                    pools::write(tx, &pool, from_ms).await?;
                }
                Write::Identity(identity) => {
                    rows.settings = true;
                    identity::write(tx, identity.as_deref()).await?;
                }
                Write::Seller(seller) => {
                    rows.settings = true;
                    seller::write(tx, &seller).await?;
                }
                Write::Correction(correction) => bills::write_correction(tx, &correction).await?,
                Write::Invoice(invoice) => bills::write_invoice(tx, &invoice).await?,
                Write::Draft { number, draft } => bills::write_draft(tx, number, draft.as_deref()).await?,
                Write::Token(token) => tokens::write(tx, &token).await?,
                Write::Tenant(tenant) => {
                    rows.settings = true;
                    tenants::write(tx, &tenant).await?;
                }
                Write::Card { id, record } => {
                    rows.settings = true;
                    cards::write(tx, &id, record.as_ref()).await?;
                }
                Write::Node { node, joined_at_ms } => {
                    rows.settings = true;
                    nodes::write(tx, &node, joined_at_ms).await?;
                }
                Write::Drain(node) => {
                    rows.settings = true;
                    nodes::write_drain(tx, &node).await?;
                }
                Write::ForgetNode(node) => {
                    rows.settings = true;
                    nodes::forget(tx, node).await?;
                }
                Write::RemoveTenant(tenant) => {
                    rows.settings = true;
                    tenants::remove(tx, &tenant).await?;
                    autonomy::remove_tenant(tx, &tenant).await?;
                }
                Write::RemovePool(name) => {
                    rows.settings = true;
                    pools::remove(tx, &name).await?;
                }
            }
        }
        rows.write(tx).await?;
        // Last, since all writers need the row: it is locked until the commit.
        self.prolong(tx, fence, rows.revision(), rows.settings).await?;
        transaction.commit().await?;
        #[cfg(test)]
        self.faults.after_commit(fault).await?;
        Ok(())
    }
}

/// What is written many rows at a time.
#[derive(Default)]
pub(super) struct Rows {
    /// The last state of each.
    leases: BTreeMap<LeaseId, LeaseRecord>,
    entries: Vec<audit::Concerning>,
    keys: Vec<KeyUse>,
    /// To keys.
    answers: Vec<(String, String, String)>,
    usage: Vec<(UsageRecord, u64, Vec<String>)>,
    /// Something else changed that servers keep in memory.
    settings: bool,
}

impl Rows {
    pub(super) async fn write(&mut self, transaction: &mut Tx<'_>) -> Result<()> {
        let leases: Vec<LeaseRecord> = self.leases.values().cloned().collect();
        leases::write(transaction, &leases).await?;
        audit::write(transaction, &self.entries).await?;
        leases::write_keys(transaction, &self.keys).await?;
        for (token, name, answer) in &self.answers {
            leases::write_answer(transaction, token, name, answer).await?;
        }
        ledger::write_usage(transaction, &self.usage).await
    }

    pub(super) fn revision(&self) -> u64 {
        self.leases.values().map(|lease| lease.revision).max().unwrap_or(0)
    }
}
