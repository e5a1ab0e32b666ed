//! What was used, and what it costs.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::bill::{Bill, Charge, Correction, DaySpent, NewCorrection, Price};
use sluice_api::node::NodeId;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::text::is_deceptive;
use sluice_api::usage::{UsageHour, UsageRecord};

use super::admin::is_price_shown_to;
use super::answer::{Answer, Refusal};
use super::extract::{Body, ForLease, OfTenant, Options, PageOptions, page};
use super::leases::no_lease;
use crate::auth::Principal;
use crate::billing::{self, Cursor, Day, Period};
use crate::fleet::LeaseRecord;
use crate::policy::Action;
use crate::server::{Books, Server};
use crate::store::Write;

const HOUR_MS: u64 = 3_600_000;

/// All prices but those of pools that are others', the oldest first
#[utoipa::path(get, path = "/prices", tag = "ledger",
    responses((status = 200, body = Page<Price>)))]
pub(super) async fn prices(State(server): State<Arc<Server>>, principal: Principal) -> Answer<Page<Price>> {
    let prices = server.store.prices().await?;
    let seen = |books: &Books, now_ms| {
        let shown = prices.iter().filter(|price| is_price_shown_to(&principal, price, &books.fleet, now_ms));
        shown.cloned().collect()
    };
    Ok(Json(Page { items: server.read(seen).await?, next: None }))
}

/// Usage records of the tenants that the token may see, in the order of their beginning
#[utoipa::path(get, path = "/usage", tag = "ledger", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<UsageRecord>)))]
pub(super) async fn usage(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<UsageRecord>> {
    let limit = options.limit()?;
    let parse = |text: &str| {
        let (from_ms, id) = text.split_once('.')?;
        Some((from_ms.parse::<u64>().ok()?, id.to_owned()))
    };
    let (from_ms, id) = options.cursor(parse)?.unwrap_or_default();
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let records = server.store.usage(&scope, (from_ms, &id), limit).await?;
    Ok(Json(page(records, limit, |record| format!("{}.{}", record.from_ms, record.id))))
}

/// Usage of a tenant and all below it in each hour, by pool
///
/// Sums over usage records, the earliest hour first. `cursor` may also be written by hand: the
/// number of an hour since 1970 and a dot, for the hours from that one on.
#[utoipa::path(get, path = "/usage/hours", tag = "ledger", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<UsageHour>)))]
pub(super) async fn usage_hours(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<UsageHour>> {
    let limit = options.limit()?;
    let parse = |text: &str| {
        let (hour, pool) = text.split_once('.')?;
        Some((hour.parse::<u64>().ok()?, pool.to_owned()))
    };
    let (hour, pool) = options.cursor(parse)?.unwrap_or_default();
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let hours = server.store.usage_hours(&scope, (hour, &pool), limit).await?;
    Ok(Json(page(hours, limit, |hour| format!("{}.{}", hour.from_ms / HOUR_MS, hour.pool))))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct BillOptions {
    /// The token's own tenant unless named.
    #[serde(default)]
    #[param(value_type = Option<TenantPath>)]
    tenant: Option<TenantPath>,
    /// Records that begin at this moment or later.
    #[serde(default)]
    from_ms: Option<u64>,
    /// Records that begin before this moment; now, unless said.
    #[serde(default)]
    until_ms: Option<u64>,
}

/// What a tenant and all below it used, and what that costs
///
/// Without `until_ms`, where it has many records, it is as of a moment some seconds ago, and says
/// of which. Corrections, prices and decisions about usage are on it at once at the server that
/// leads, and within those seconds at others.
#[utoipa::path(get, path = "/bill", tag = "ledger", params(BillOptions),
    responses((status = 200, body = Bill)))]
pub(super) async fn bill(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<BillOptions>,
) -> Answer<Bill> {
    let is_until_now = options.until_ms.is_none();
    let (tenant, period) = options.read(&server, &principal).await?;
    Ok(Json(match is_until_now {
        true => billing::bill_until_now(&server.store, &server.kept.billed, tenant, period).await?,
        false => billing::bill_of(&server.store, tenant, period).await?,
    }))
}

/// What a tenant and all below it spent on each day of a period
///
/// A day's total is that of its bill. Lines are rounded for each day, so the days may add up to a
/// few millionths more or less than the bill of the whole period. The period has up to 100 days.
#[utoipa::path(get, path = "/bill/days", tag = "ledger", params(BillOptions),
    responses((status = 200, body = Vec<DaySpent>)))]
pub(super) async fn bill_days(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<BillOptions>,
) -> Answer<Vec<DaySpent>> {
    let (tenant, period) = options.read(&server, &principal).await?;
    let first_ms = period.from_ms - period.from_ms % DAY_MS;
    if (period.until_ms - first_ms).div_ceil(DAY_MS) > DAYS_MAX {
        let detail = format!("a period of up to {DAYS_MAX} days; name its beginning");
        return Err(Problem::new(Kind::Invalid, detail).at("from_ms").into());
    }
    let days = (first_ms..period.until_ms).step_by(DAY_MS as usize).map(|day_ms| Period {
        from_ms: day_ms.max(period.from_ms),
        until_ms: (day_ms + DAY_MS).min(period.until_ms),
    });
    let wanted = days.map(|day| (tenant.clone(), day)).collect();
    let bills = billing::bills_of(&server.store, wanted).await?;
    let spent = |bill: Bill| DaySpent {
        from_ms: bill.from_ms,
        until_ms: bill.until_ms,
        total_micro: bill.total_micro,
    };
    Ok(Json(bills.into_iter().map(spent).collect()))
}

const DAY_MS: u64 = 24 * 3_600_000;
const DAYS_MAX: u64 = 100;

/// What one lease has used so far, and what that costs
///
/// As its nodes have delivered it. Lines are those of the tenant's bill, of this lease alone;
/// corrections are not on it.
#[utoipa::path(get, path = "/leases/{id}/bill", tag = "ledger", params(("id" = u64, Path)),
    responses((status = 200, body = Bill)))]
pub(super) async fn lease_bill(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
) -> Answer<Bill> {
    let seen = |lease: &LeaseRecord| principal.may(Action::See, &lease.tenant);
    let lease = server.lease(id).await?.filter(seen).ok_or_else(|| no_lease(id))?;
    // A node's clock may be ahead of this server's: what it has used counts all the same.
    let period = Period { from_ms: 0, until_ms: u64::MAX };
    let bill = billing::bill_of_lease(&server.store, id, lease.tenant, period).await?;
    Ok(Json(Bill { from_ms: lease.created_at_ms, until_ms: server.now_ms(), ..bill }))
}

impl BillOptions {
    /// Whose bill of which period is asked for.
    pub(super) async fn read(
        self,
        server: &Server,
        principal: &Principal,
    ) -> Result<(TenantPath, Period), Refusal> {
        let tenant = self.tenant.unwrap_or_else(|| principal.token.tenant.clone());
        principal.need(Action::See, &tenant)?;
        let is_known = |books: &Books, _| tenant.is_root() || books.fleet.tenants().contains(&tenant);
        if !server.read(is_known).await? && !server.store.has_used(&tenant).await? {
            let detail = format!("there is no tenant {tenant}");
            return Err(Problem::new(Kind::Invalid, detail).at("tenant").into());
        }
        let period = Period {
            from_ms: self.from_ms.unwrap_or(0),
            until_ms: self.until_ms.unwrap_or(server.now_ms() + 1),
        };
        if period.from_ms >= period.until_ms {
            return Err(Problem::new(Kind::Invalid, "the period ends before it begins")
                .at("until_ms")
                .into());
        }
        Ok((tenant, period))
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DayOptions {
    /// `next` of the page before.
    #[serde(default)]
    cursor: Option<String>,
}

/// Of one page, and more of the last lease on it.
const CHARGES_MAX: usize = 10_000;

/// `DAY`, or `DAY.LEASE`.
fn place_in_charges(text: &str) -> Option<Cursor> {
    let (day, after) = text.split_once('.').map_or((text, None), |(day, lease)| (day, Some(lease)));
    let after = after.map(str::parse).transpose().ok()?;
    Some(Cursor { from_ms: day.parse().ok()?, after })
}

/// What each lease cost on each node and day
///
/// Each page is of a day of UTC on which something was used; one of more than ten thousand charges
/// has several. What has no price is left out.
#[utoipa::path(get, path = "/charges", tag = "ledger", params(BillOptions, DayOptions),
    responses((status = 200, body = Page<Charge>)))]
pub(super) async fn charges(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<BillOptions>,
    Options(DayOptions { cursor }): Options<DayOptions>,
) -> Answer<Page<Charge>> {
    let (tenant, period) = options.read(&server, &principal).await?;
    let wrong = || Problem::new(Kind::Invalid, "this is no cursor of this list").at("cursor");
    let place = cursor.map(|text| place_in_charges(&text).ok_or_else(wrong)).transpose()?;
    let place = place.unwrap_or(Cursor { from_ms: period.from_ms, after: None });
    let names = |books: &Books, _| -> HashMap<NodeId, String> {
        books.fleet.node_names().map(|(id, name)| (id, name.to_owned())).collect()
    };
    let names = server.read(names).await?;
    let name = |node| names.get(&node).cloned().unwrap_or_else(|| node.to_string());
    let Day { charges, next } =
        billing::day_of(&server.store, &tenant, period, place, CHARGES_MAX, name).await?;
    let cursor = |Cursor { from_ms, after }| match after {
        Some(lease) => format!("{from_ms}.{lease}"),
        None => from_ms.to_string(),
    };
    Ok(Json(Page { items: charges, next: next.map(cursor) }))
}

/// Correct a bill
///
/// A correction stands on the bill of the period that its moment is in, beside what was counted,
/// which never changes. Where that period has been invoiced, it is a line of the next invoice.
#[utoipa::path(post, path = "/corrections", tag = "ledger", request_body = NewCorrection,
    responses((status = 200, body = Correction)))]
pub(super) async fn correct(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewCorrection>,
) -> Answer<Correction> {
    principal.need(Action::Bill, &new.tenant)?;
    let wrong = |field, detail: &str| Err(Problem::new(Kind::Invalid, detail).at(field).into());
    if new.micro == 0 || new.micro.unsigned_abs() > MICRO_MAX {
        return wrong("micro", "not 0, and up to a billion of the currency's units");
    }
    let reason: String = new.reason.chars().filter(|c| !is_deceptive(*c)).take(REASON_MAX).collect();
    if reason.trim().is_empty() {
        return wrong("reason", "who reads the bill wants to know why");
    }
    let has_used = server.store.has_used(&new.tenant).await?;
    let mut change = server.change().await?;
    // One that was removed may still have bills.
    if !change.fleet().tenants().contains(&new.tenant) && !has_used {
        change.leave();
        return wrong("tenant", "there is no such tenant");
    }
    let now_ms = change.now_ms;
    change.see_all_written().await?;
    let correction = Correction {
        id: server.store.corrections().await?.last().map_or(1, |last| last.id + 1),
        tenant: new.tenant,
        micro: new.micro,
        at_ms: new.at_ms.unwrap_or(now_ms),
        reason,
        made_at_ms: now_ms,
        made_by: principal.name(),
    };
    change.audit(&principal, "bill.corrected", correction.tenant.as_str(), serde_json::json!(correction));
    change.write(Write::Correction(correction.clone()));
    change.commit().await?;
    Ok(Json(correction))
}

const MICRO_MAX: u64 = 1_000_000_000_000_000;
const REASON_MAX: usize = 400;
