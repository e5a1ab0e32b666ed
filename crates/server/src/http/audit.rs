//! Who changed what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::Value;
use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::tenant::TenantPath;
use sluice_api::token::Token;

use super::answer::{Answer, Refusal};
use super::extract::{OfTenant, Options, PageOptions, page};
use crate::auth::Principal;
use crate::concern::Concern;
use crate::policy::Action;
use crate::server::Server;

/// Entries that one request looks through for those of a tenant.
const LOOKED_THROUGH_MAX: usize = 5_000;
const PAGE: u32 = 1000;

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

/// The audit log of a tenant and all below it, the latest entry first
///
/// An entry concerns a tenant if it was made with one of its tokens or is about the tenant or
/// something that is its own. A page may be short or empty and have a `next` all the same: so many
/// entries of others were looked through. What an entry says of leases of other tenants is left out
/// for those who may not see the whole log, and its hash is that of the whole entry.
#[utoipa::path(get, path = "/audit/latest", tag = "audit", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<Entry>)))]
pub(super) async fn audit_latest(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Entry>> {
    let tenant = of.tenant.unwrap_or_else(|| principal.token.tenant.clone());
    principal.need(Action::SeeAudit, &tenant)?;
    let limit = options.limit()? as usize;
    let mut before = options.cursor(|text| text.parse().ok())?.unwrap_or(u64::MAX);
    let is_whole = principal.may(Action::SeeAudit, &TenantPath::root());
    let tokens = tokens_of(&server, &tenant).await?;
    let mut concern = Concern::new(&server, &tenant, &tokens);
    let (mut items, mut seen) = (Vec::new(), 0);
    while items.len() < limit && seen < LOOKED_THROUGH_MAX {
        let entries = server.store.audit_before(before, PAGE).await?;
        seen += entries.len();
        let is_last = entries.len() < PAGE as usize;
        for entry in entries {
            if items.len() == limit {
                return Ok(Json(Page { items, next: Some(before.to_string()) }));
            }
            before = entry.sequence;
            if concern.concerns(&entry).await? {
                items.push(if is_whole { entry } else { without_others(entry) });
            }
        }
        if is_last {
            return Ok(Json(Page { items, next: None }));
        }
    }
    Ok(Json(Page { items, next: Some(before.to_string()) }))
}

/// The tokens for a tenant and all below it, whether they are valid still or not.
async fn tokens_of(server: &Server, tenant: &TenantPath) -> Result<Vec<Token>, Refusal> {
    let (mut tokens, mut after) = (Vec::new(), String::new());
    // Everything concerns the whole installation.
    while !tenant.is_root() {
        let page = server.store.tokens(tenant, &after, PAGE).await?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map(|stored| stored.token.id.clone()).unwrap_or_default();
        tokens.extend(page.into_iter().map(|stored| stored.token));
        if is_last {
            break;
        }
    }
    Ok(tokens)
}

/// A lease that another is preempted for may be another tenant's.
fn without_others(entry: Entry) -> Entry {
    let Ok(Value::Object(mut detail)) = serde_json::from_str(&entry.detail) else { return entry };
    match detail.remove("for") {
        Some(_) => Entry { detail: Value::Object(detail).to_string(), ..entry },
        None => entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::audit::Head;

    #[test]
    fn the_lease_that_another_gives_way_to_is_not_named() {
        let entry = |detail: &str| Entry::after(&Head::default(), 7, "a", "lease.preempted", "3", detail);
        let shown = without_others(entry(r#"{"for":99,"reason":"room is needed"}"#));
        assert_eq!(shown.detail, r#"{"reason":"room is needed"}"#);
        assert_eq!(shown.hash, entry(r#"{"for":99,"reason":"room is needed"}"#).hash);
        assert_eq!(without_others(entry("{}")), entry("{}"));
    }
}
