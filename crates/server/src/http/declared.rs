//! What is declared: all of it, and a tenant or a pool by itself, which can be taken away.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sluice_api::bill::Price;
use sluice_api::pool::{Access, Pool};
use sluice_api::problem::{Kind, Problem};
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::{Declaration, DeclaredTenant, Quota, TenantPath};
use sluice_api::written::as_written;

use super::admin::{hide, is_price_shown_to, is_shown_to};
use super::answer::{Answer, Refusal};
use super::extract::Name;
use super::{named, tags};
use crate::auth::Principal;
use crate::fleet::Fleet;
use crate::policy::Action;
use crate::server::{Books, Server};
use crate::store::Write;

/// All that is declared, as far as the token may see it
///
/// As `POST /apply` takes it, which with the tag of this answer in `If-Match` is refused if
/// anything of it has changed meanwhile. Of prices the latest for the same things is there. With
/// `application/yaml` in `Accept` it is written as people write it, which `sluice apply --show`
/// prints.
#[utoipa::path(get, path = "/declaration", tag = "tenants",
    responses((status = 200, content((Declaration = "application/json"), (String = "application/yaml")))))]
pub(super) async fn declaration(
    State(server): State<Arc<Server>>,
    principal: Principal,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let prices = server.store.prices().await?;
    let seen = |books: &Books, now_ms| all_declared(books, &prices, &principal, now_ms);
    let declared = server.read(seen).await?;
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    match accepted {
        Some(accepted) if accepted.contains(YAML) => in_yaml(&declared).map_err(Refusal),
        _ => Ok(Json(declared).into_response()),
    }
}

const YAML: &str = "application/yaml";

/// With the tag that the same has in JSON: either is good for a condition.
fn in_yaml(declared: &Declaration) -> Result<Response, Problem> {
    let failed = |error: &dyn std::fmt::Display| Problem::new(Kind::Internal, error.to_string());
    let value = serde_json::to_value(declared).map_err(|error| failed(&error))?;
    let text = serde_saphyr::to_string(&as_written(&value)).map_err(|error| failed(&error))?;
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static(YAML)), (header::ETAG, tags::of(declared))];
    Ok((headers, text).into_response())
}

pub(super) fn all_declared(
    books: &Books,
    prices: &[Price],
    principal: &Principal,
    now_ms: u64,
) -> Declaration {
    let root = TenantPath::root();
    let (fleet, all) = (&books.fleet, principal.may(Action::See, &root));
    let scope = principal.sees(Action::See, None);
    let tenants = scope.iter().flat_map(|scope| fleet.tenants().within(scope, None));
    let tenants = tenants.map(|(path, quota)| as_declared(fleet, path, quota));
    let pools = fleet
        .pools()
        .values()
        .filter(|pool| principal.may(Action::SeeFleet, &root) && is_shown_to(principal, pool, now_ms));
    let mut of_later = HashSet::new();
    let last = prices.iter().rev().filter(|price| of_later.insert(price.things()));
    let mut last: Vec<Price> = last.cloned().collect();
    last.reverse();
    last.retain(|price| is_price_shown_to(principal, price, fleet, now_ms));
    let sees_identity = principal.may(Action::SeeAudit, &root);
    Declaration {
        tenants: tenants.collect(),
        pools: pools.map(|pool| hide(pool, all)).collect(),
        prices: last,
        currency: books.seller.currency.clone(),
        issuer: books.seller.issuer.clone(),
        invoicing: books.seller.invoicing.clone().filter(|_| principal.may(Action::SetPrice, &root)),
        identity: books.identity.clone().filter(|_| sees_identity),
    }
}

/// A tenant as it is declared
#[utoipa::path(get, path = "/tenants/{path}", tag = "tenants",
    params(("path" = String, Path, description = "With %2F between its parts")),
    responses((status = 200, body = DeclaredTenant)))]
pub(super) async fn tenant(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
) -> Answer<DeclaredTenant> {
    let seen = |books: &Books, _| declared(&books.fleet, &principal, &name);
    Ok(Json(server.read(seen).await??))
}

/// One of a foreign tenant does not exist for them.
fn declared(fleet: &Fleet, principal: &Principal, name: &str) -> Result<DeclaredTenant, Problem> {
    let absent = || Problem::new(Kind::NotFound, format!("there is no tenant {name}"));
    let path: TenantPath = name.parse().map_err(|_| absent())?;
    let quota =
        fleet.tenants().get(&path).filter(|_| principal.may(Action::See, &path)).ok_or_else(absent)?;
    Ok(as_declared(fleet, &path, quota))
}

fn as_declared(fleet: &Fleet, path: &TenantPath, quota: &Quota) -> DeclaredTenant {
    let budget = fleet.budgets().get(path).map(|budget| Some(budget.clone()));
    let bill_to = fleet.bill_to(path).cloned();
    DeclaredTenant { path: path.clone(), quota: Some(quota.clone()), budget, bill_to }
}

/// Take a tenant away
///
/// It has no tenants below it and no leases that have not ended, and no pool or rule of the
/// identity provider names it. Its tokens hold no more. What it has used stays on the bills, under
/// its name.
#[utoipa::path(delete, path = "/tenants/{path}", tag = "tenants",
    params(("path" = String, Path, description = "With %2F between its parts")),
    responses((status = 200, body = DeclaredTenant)))]
pub(super) async fn remove_tenant(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
    headers: HeaderMap,
) -> Answer<DeclaredTenant> {
    let mut change = server.change().await?;
    let seen = declared(change.fleet(), &principal, &name);
    let free = seen.and_then(|tenant| {
        principal.need(Action::SetQuota, &tenant.path)?;
        tags::check_read(&headers, &tenant)?;
        needs_tenant(change.books(), &tenant.path)?;
        Ok(tenant)
    });
    let tenant = match free {
        Ok(tenant) => tenant,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    change.see_all_written().await?;
    let tokens = server.store.tokens_for(&tenant.path).await?;
    change.fleet().remove_tenant(&tenant.path);
    let detail = serde_json::json!({ "before": tenant, "tokens": tokens });
    change.audit(&principal, "tenant.removed", tenant.path.as_str(), detail);
    tokens.into_iter().for_each(|token| change.write(Write::Revoke(token)));
    let webhooks = change.books().webhooks.values().filter(|webhook| webhook.tenant == tenant.path);
    let webhooks: Vec<String> = webhooks.map(|webhook| webhook.id.clone()).collect();
    webhooks.iter().for_each(|id| change.remove_webhook(id));
    let defaults = change.books().run_defaults.values().filter(|default| default.tenant == tenant.path);
    let defaults: Vec<RunDefault> = defaults.cloned().collect();
    defaults.iter().for_each(|default| change.remove_run_default(default));
    change.forget_programs_of(&tenant.path);
    change.write(Write::RemoveTenant(tenant.path.clone()));
    change.commit().await?;
    Ok(Json(tenant))
}

/// What a tenant cannot be taken away for.
fn needs_tenant(books: &Books, path: &TenantPath) -> Result<(), Problem> {
    let fleet = &books.fleet;
    let conflict = |what: &str, names: Vec<String>, way_out: &str| {
        let detail = format!("{path} {what} {}: {way_out}", named(&names));
        if names.is_empty() { Ok(()) } else { Err(Problem::new(Kind::Conflict, detail)) }
    };
    let below = fleet.tenants().within(path, Some(path)).map(|(below, _)| below.to_string());
    conflict("has tenants below it,", below.collect(), "take those away first")?;
    let leases = fleet.leases().filter(|lease| lease.tenant == *path).map(|lease| lease.id.to_string());
    conflict("has leases,", leases.collect(), "`sluice lease end` ends them")?;
    let names = |pool: &&Pool| pool.all_terms().any(|terms| tenants_of(terms.access).contains(path));
    let pools = fleet.pools().values().filter(names).map(|pool| pool.name.clone());
    conflict("is named by pools,", pools.collect(), "declare those without it first")?;
    let rules = books.identity.iter().flat_map(|identity| &identity.rules);
    let rules = rules.filter(|rule| path.contains(&rule.tenant)).map(|rule| rule.claim.clone());
    conflict(
        "is named by rules of the identity provider, for",
        rules.collect(),
        "declare it without them first",
    )
}

fn tenants_of(access: &Access) -> &[TenantPath] {
    match access {
        Access::Public => &[],
        Access::Private { tenants } | Access::Reserved { tenants, .. } => tenants,
    }
}

/// A pool as it is declared
#[utoipa::path(get, path = "/pools/{name}", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = Pool)))]
pub(super) async fn pool(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
) -> Answer<Pool> {
    let seen = |books: &Books, now_ms| declared_pool(&books.fleet, &principal, &name, now_ms);
    Ok(Json(server.read(seen).await??))
}

fn declared_pool(fleet: &Fleet, principal: &Principal, name: &str, now_ms: u64) -> Result<Pool, Problem> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    let pool = fleet.pools().get(name).filter(|pool| is_shown_to(principal, pool, now_ms));
    let all = principal.may(Action::See, &TenantPath::root());
    let absent = || Problem::new(Kind::NotFound, format!("there is no pool {name} that was declared"));
    pool.map(|pool| hide(pool, all)).ok_or_else(absent)
}

/// Take a pool away
///
/// No lease that has not ended asks for it by name. Its nodes are in other pools from then on, or
/// in the pool default, which serves all tenants. What was used in it keeps its price.
#[utoipa::path(delete, path = "/pools/{name}", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = Pool)))]
pub(super) async fn remove_pool(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
    headers: HeaderMap,
) -> Answer<Pool> {
    principal.need(Action::SetPool, &TenantPath::root())?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let free = declared_pool(change.fleet(), &principal, &name, now_ms).and_then(|pool| {
        tags::check_read(&headers, &pool)?;
        let asks = change.fleet().leases().filter(|lease| lease.ask.pool.as_ref() == Some(&name));
        let asks: Vec<String> = asks.map(|lease| lease.id.to_string()).collect();
        let detail = format!("leases ask for pool {name}: {}; `sluice lease end` ends them", named(&asks));
        if asks.is_empty() { Ok(pool) } else { Err(Problem::new(Kind::Conflict, detail)) }
    });
    let pool = match free {
        Ok(pool) => pool,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    change.fleet().remove_pool(&name);
    change.audit(&principal, "pool.removed", &name, serde_json::json!({ "before": pool }));
    change.write(Write::RemovePool(name));
    change.wake();
    change.commit().await?;
    Ok(Json(pool))
}
