//! Who changed what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::extract::{OfTenant, Options, PageOptions, page};
use crate::auth::Principal;
use crate::concern::shown_to;
use crate::policy::Action;
use crate::server::Server;

/// The audit log, from its beginning
///
/// Each entry's hash covers the one before; `sluice audit verify` follows them.
#[utoipa::path(get, path = "/audit", tag = "audit", params(PageOptions),
    responses((status = 200, body = Page<Entry>)))]
pub(super) async fn audit(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Entry>> {
    principal.need(Action::SeeAudit, &TenantPath::root())?;
    let limit = options.limit()?;
    let after = options.cursor(|text| text.parse().ok())?.unwrap_or(0);
    let entries = server.store.audit(after, limit).await?;
    Ok(Json(page(entries, limit, |entry| entry.sequence.to_string())))
}

/// Whose entries.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ByActor {
    /// Only those whose `actor` has this text in it, such as the id of a token or a part of a name;
    /// capital and small letters are the same.
    #[serde(default)]
    actor: String,
}

/// The audit log of a tenant and all below it, the latest entry first
///
/// An entry concerns a tenant if it is about the tenant or something that is its own, or was made
/// by one of its people. What it says of leases that others are preempted for is left out for those
/// who may not see the whole log, and its hash is that of the whole entry. Drafts of invoices are
/// not in a tenant's log.
#[utoipa::path(get, path = "/audit/latest", tag = "audit", params(OfTenant, ByActor, PageOptions),
    responses((status = 200, body = Page<Entry>)))]
pub(super) async fn audit_latest(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(ByActor { actor }): Options<ByActor>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Entry>> {
    let tenant = of.tenant.unwrap_or_else(|| principal.token.tenant.clone());
    principal.need(Action::SeeAudit, &tenant)?;
    let limit = options.limit()?;
    let before = options.cursor(|text| text.parse().ok())?.unwrap_or(u64::MAX);
    // The whole log may be read for it.
    let _turn = server.audit_reads.acquire().await;
    let entries = match tenant.is_root() {
        true => server.store.audit_before(before, &actor, limit).await?,
        false => server.store.audit_within(&tenant, before, &actor, limit).await?,
    };
    let Page { items, next } = page(entries, limit, |entry| entry.sequence.to_string());
    Ok(Json(Page { items: items.into_iter().map(|entry| shown_to(&principal, entry)).collect(), next }))
}
