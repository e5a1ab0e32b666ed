//! Whose business an entry of the audit log is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sluice_api::audit::Entry;
use sluice_api::lease::LeaseId;
use sluice_api::problem::Problem;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Token;

use crate::server::Server;
use crate::store::Store;

/// Decides which entries of the audit log concern a tenant.
pub(crate) struct Concern<'a> {
    server: &'a Server,
    tenant: &'a TenantPath,
    tokens: BTreeSet<&'a str>,
    /// Leases that were looked up, and whether they are the tenant's.
    leases: BTreeMap<LeaseId, bool>,
}

impl<'a> Concern<'a> {
    /// `tokens` are those of the tenant and of all below it.
    pub(crate) fn new(server: &'a Server, tenant: &'a TenantPath, tokens: &'a [Token]) -> Concern<'a> {
        let tokens = tokens.iter().map(|token| token.id.as_str()).collect();
        Concern { server, tenant, tokens, leases: BTreeMap::new() }
    }

    pub(crate) fn store(&self) -> &'a Store {
        &self.server.store
    }

    /// An entry concerns a tenant if it was made with one of the tenant's tokens, or is about the
    /// tenant, a token, a lease, or something else that is the tenant's.
    pub(crate) async fn concerns(&mut self, entry: &Entry) -> Result<bool, Problem> {
        if self.tenant.is_root() {
            return Ok(true);
        }
        let actor = entry.actor.split(' ').next().unwrap_or_default();
        let kind = entry.action.split('.').next().unwrap_or_default();
        if self.tokens.contains(actor) || (kind == "token" && self.tokens.contains(entry.subject.as_str())) {
            return Ok(true);
        }
        if kind == "lease" {
            return self.has_lease(&entry.subject).await;
        }
        let contains = |text: &str| text.parse::<TenantPath>().is_ok_and(|path| self.tenant.contains(&path));
        if ["tenant", "budget", "bill"].contains(&kind) && contains(&entry.subject) {
            return Ok(true);
        }
        let detail: Value = serde_json::from_str(&entry.detail).unwrap_or_default();
        Ok(detail["tenant"].as_str().is_some_and(contains))
    }

    async fn has_lease(&mut self, subject: &str) -> Result<bool, Problem> {
        let Ok(id) = subject.parse::<LeaseId>() else { return Ok(false) };
        if let Some(known) = self.leases.get(&id) {
            return Ok(*known);
        }
        let lease = self.server.lease(id).await?;
        let is_own = lease.is_some_and(|lease| self.tenant.contains(&lease.tenant));
        self.leases.insert(id, is_own);
        Ok(is_own)
    }
}
