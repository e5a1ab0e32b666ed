//! What was used, what it costs, and who changed what.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::bill::{Bill, Price};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;

use super::answer::Answer;
use super::extract::{Options, PageOptions, page};
use crate::auth::Principal;
use crate::billing::{self, Period};
use crate::policy::Action;
use crate::server::{Server, now_ms};

/// All prices, the oldest first
#[utoipa::path(get, path = "/prices", tag = "ledger",
    responses((status = 200, body = Page<Price>), (status = "4XX", body = Problem)))]
pub(super) async fn prices(State(server): State<Arc<Server>>, _: Principal) -> Answer<Page<Price>> {
    Ok(Json(Page { items: server.store.prices().await?, next: None }))
}

/// Usage records of the tenants that the token may see, in the order of their beginning
#[utoipa::path(get, path = "/usage", tag = "ledger", params(PageOptions),
    responses((status = 200, body = Page<UsageRecord>), (status = "4XX", body = Problem)))]
pub(super) async fn usage(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<UsageRecord>> {
    let limit = options.limit()?;
    let parse = |text: &str| {
        let (from_ms, id) = text.split_once('.')?;
        Some((from_ms.parse::<u64>().ok()?, id.to_owned()))
    };
    let (from_ms, id) = options.cursor(parse)?.unwrap_or_default();
    let records = server.store.usage((from_ms, &id), limit).await?;
    let Page { mut items, next } = page(records, limit, |record| format!("{}.{}", record.from_ms, record.id));
    items.retain(|record| principal.may(Action::See, &record.tenant));
    Ok(Json(Page { items, next }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct BillOptions {
    /// The token's own tenant unless named.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    tenant: Option<TenantPath>,
    /// Records that begin at this moment or later.
    #[serde(default)]
    from_ms: Option<u64>,
    /// Records that begin before this moment; now, unless said.
    #[serde(default)]
    until_ms: Option<u64>,
}

/// What a tenant and all below it used, and what that costs
#[utoipa::path(get, path = "/bill", tag = "ledger", params(BillOptions),
    responses((status = 200, body = Bill), (status = "4XX", body = Problem)))]
pub(super) async fn bill(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<BillOptions>,
) -> Answer<Bill> {
    let tenant = options.tenant.unwrap_or_else(|| principal.token.tenant.clone());
    principal.need(Action::See, &tenant)?;
    let period =
        Period { from_ms: options.from_ms.unwrap_or(0), until_ms: options.until_ms.unwrap_or(now_ms() + 1) };
    if period.from_ms >= period.until_ms {
        return Err(Problem::new(Kind::Invalid, "the period ends before it begins").at("until_ms").into());
    }
    let prices = server.store.prices().await?;
    let mut parts = Vec::new();
    for part in billing::at_one_price(&prices, period) {
        parts.push((part, server.store.usage_sums(part.from_ms, part.until_ms).await?));
    }
    Ok(Json(billing::bill(tenant, period, &prices, &parts)))
}

/// The audit log, from its beginning
///
/// Each entry's hash covers the one before; `sluice audit verify` follows them.
#[utoipa::path(get, path = "/audit", tag = "audit", params(PageOptions),
    responses((status = 200, body = Page<Entry>), (status = "4XX", body = Problem)))]
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
