//! What is declared: checked, compared with what there is, then done, or only shown.

mod checks;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::IF_MATCH;
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_api::bill::{Price, Seller};
use sluice_api::health::GpuName;
use sluice_api::identity::Identity;
use sluice_api::pool::{DEFAULT_POOL, Pool};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{Applied, Declaration, DeclaredTenant, Tenant, TenantPath};
use sluice_api::written;

use super::answer::Answer;
use super::declared::all_declared;
use super::extract::{Options, Yaml};
use super::{identity as provider, tags};
use crate::auth::Principal;
use crate::billing;
use crate::fleet::{Fleet, Guarantee, Tenants};
use crate::identity;
use crate::policy::Action;
use crate::server::{Books, Change, Server};
use crate::store::Write;
use checks::check;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplyOptions {
    /// Only say what would change, also in money.
    #[serde(default)]
    dry_run: bool,
}

/// Declare tenants, quotas, budgets, pools, prices and the identity provider
///
/// All of it or nothing. What the declaration does not mention stays; what is as declared already
/// is no change. The body is YAML or JSON. With a tag of `GET /declaration` in `If-Match` nothing
/// is done if what is declared has changed since. With `dry_run` nothing is done in any case: the
/// answer says what would change, and for prices what use would cost.
#[utoipa::path(post, path = "/apply", tag = "tenants",
    params(ApplyOptions, ("If-Match" = Option<String>, Header, description = "Only if what is declared is as it was when GET /declaration gave this tag")),
    request_body(content = Declaration, content_type = "application/yaml"),
    responses((status = 200, body = Applied)))]
pub(super) async fn apply(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(ApplyOptions { dry_run }): Options<ApplyOptions>,
    headers: HeaderMap,
    Yaml(declaration): Yaml<Declaration>,
) -> Answer<Applied> {
    let mut change = server.change().await?;
    change.see_all_written().await?;
    let (prices, is_billed) = (server.store.prices().await?, server.store.has_invoices().await?);
    let free = match headers.contains_key(IF_MATCH) {
        true => tags::check_read(&headers, &all_declared(change.books(), &prices, &principal, change.now_ms)),
        false => Ok(()),
    };
    let now_ms = change.now_ms;
    let checked = free
        .and_then(|()| check(&declaration, &principal, change.fleet()))
        .and_then(|()| check_currency(&declaration, &change.books().seller, is_billed));
    if let Err(problem) = checked {
        change.leave();
        return Err(problem.into());
    }
    let before = Before { prices: &prices, is_billed, now_ms };
    let differences = differences(declaration.clone(), change.books(), &before);
    let mut warnings = warnings(&declaration, change.fleet(), &before);
    let changes = differences.iter().map(Difference::describe).collect();
    let new_provider = differences.iter().find_map(|difference| match difference {
        Difference::Provider { after, .. } => Some(after.clone()),
        _ => None,
    });
    let sees_all = principal.may(Action::See, &TenantPath::root());
    let mut costs = Vec::new();
    if dry_run {
        let in_vain = guaranteed_in_vain(change.fleet(), &differences);
        warnings.extend(in_vain.filter(|_| sees_all));
        change.leave();
        let new = differences.iter().filter_map(|difference| match difference {
            Difference::Price { price, .. } => Some(price.clone()),
            _ => None,
        });
        costs = billing::cost_changes(&server.store, new.collect(), now_ms).await?;
    } else {
        if !differences.is_empty() {
            change.is_by_hand();
        }
        differences.into_iter().for_each(|difference| difference.make(&mut change, &principal));
        let in_vain = guaranteed_in_vain(change.fleet(), &[]);
        warnings.extend(in_vain.filter(|_| sees_all));
        change.commit().await?;
    }
    if let Some(declared) = new_provider {
        if !dry_run {
            provider::follow(&server).await?;
        }
        warnings.extend(identity::unreachable(declared).await);
    }
    Ok(Json(Applied { changes, warnings, costs }))
}

/// What the declaration is compared with, beside the fleet.
struct Before<'a> {
    prices: &'a [Price],
    /// Whether an invoice has been issued.
    is_billed: bool,
    now_ms: u64,
}

/// One thing that is not as declared.
enum Difference {
    Tenant { before: Option<Tenant>, after: Tenant },
    Pool { before: Option<Box<Pool>>, after: Box<Pool> },
    Price { before: Option<Price>, price: Price },
    Seller { before: Seller, after: Seller },
    Provider { before: Option<Identity>, after: Identity },
}

/// Compares what is declared with what there is. Of things that are declared twice the last counts.
fn differences(declaration: Declaration, books: &Books, known: &Before<'_>) -> Vec<Difference> {
    let Declaration { tenants, pools, prices, currency, issuer, invoicing, identity } = declaration;
    let mut differences = Vec::new();
    let tenants: BTreeMap<TenantPath, DeclaredTenant> =
        tenants.into_iter().map(|tenant| (tenant.path.clone(), tenant)).collect();
    differences
        .extend(tenants.into_values().filter_map(|declared| tenant_difference(&books.fleet, declared)));
    for after in pools {
        let before = books.fleet.pools().get(&after.name).cloned();
        if before.as_ref() != Some(&after) {
            differences.push(Difference::Pool { before: before.map(Box::new), after: Box::new(after) });
        }
    }
    differences.extend(prices.into_iter().filter_map(|price| price_difference(price, known)));
    let before = books.seller.clone();
    let after = Seller {
        currency: currency.or(before.currency.clone()),
        issuer: issuer.or(before.issuer.clone()),
        invoicing: invoicing.or(before.invoicing.clone()),
    };
    if after != before {
        differences.push(Difference::Seller { before, after });
    }
    let before = books.identity.clone();
    if let Some(after) = identity.filter(|after| before.as_ref() != Some(after)) {
        differences.push(Difference::Provider { before, after });
    }
    differences
}

fn tenant_difference(fleet: &Fleet, declared: DeclaredTenant) -> Option<Difference> {
    let path = declared.path.clone();
    let quota = fleet.tenants().get(&path);
    let budget = fleet.budgets().get(&path);
    let bill_to = fleet.bill_to(&path);
    let after = declared.after(quota, budget, bill_to);
    let before = quota.map(|quota| Tenant {
        path,
        quota: quota.clone(),
        budget: budget.cloned(),
        bill_to: bill_to.cloned(),
    });
    (before.as_ref() != Some(&after)).then_some(Difference::Tenant { before, after })
}

/// A price begins now, or later; the past keeps its prices. Only where no price of its meter was
/// ever declared, and nothing has been invoiced, may one begin in the past, and only if the
/// declaration says so.
fn price_difference(price: Price, known: &Before<'_>) -> Option<Difference> {
    let before = known.prices.iter().rfind(|other| other.is_for_the_same(&price));
    if before.is_some_and(|last| (last.micro, last.until_ms) == (price.micro, price.until_ms)) {
        return None;
    }
    let from_ms = match price.from_ms {
        Some(from_ms) if from_ms >= known.now_ms || may_reach_back(&price, known) => from_ms,
        _ => known.now_ms,
    };
    let price = Price { from_ms: Some(from_ms), ..price };
    Some(Difference::Price { before: before.cloned(), price })
}

fn may_reach_back(price: &Price, known: &Before<'_>) -> bool {
    !known.is_billed && known.prices.iter().all(|other| other.meter != price.meter)
}

impl Difference {
    /// What changes, as a person would write it.
    fn describe(&self) -> String {
        match self {
            Difference::Tenant { before: None, after } => format!("tenant {} created", after.path),
            Difference::Tenant { before: Some(before), after } => {
                let of = |tenant: &Tenant| {
                    flattened(
                        &json!({ "": tenant.quota, "budget": tenant.budget, "bill_to": tenant.bill_to }),
                    )
                };
                format!("tenant {} changed: {}", after.path, changed_fields(&of(before), &of(after)))
            }
            Difference::Pool { before: None, after } => format!("pool {} created", after.name),
            Difference::Pool { before: Some(before), after } => {
                let of = |pool: &Pool| flattened(&json!({ "": pool }));
                format!("pool {} changed: {}", after.name, changed_fields(&of(before), &of(after)))
            }
            Difference::Price { before, price } => describe_price(before.as_ref(), price),
            Difference::Seller { after, before } => {
                let currency = after.currency.clone().filter(|_| after.currency != before.currency);
                let currency = currency.map(|currency| format!("amounts are in {currency}"));
                let issuer = after.issuer.clone().filter(|_| after.issuer != before.issuer);
                let issuer = issuer.map(|issuer| format!("{issuer} bills"));
                let invoicing = (after.invoicing != before.invoicing).then(|| {
                    let of = |seller: &Seller| flattened(&json!({ "": seller.invoicing }));
                    format!("invoicing changed: {}", changed_fields(&of(before), &of(after)))
                });
                currency.into_iter().chain(issuer).chain(invoicing).collect::<Vec<_>>().join(", ")
            }
            Difference::Provider { before, after } => {
                let what = if before.is_some() { "changed" } else { "set" };
                format!("identity provider {} {what}", after.issuer)
            }
        }
    }

    fn make(self, change: &mut Change<'_>, principal: &Principal) {
        match self {
            Difference::Tenant { before, after } => {
                change.fleet().set_quota(after.path.clone(), after.quota.clone());
                let budget = before.as_ref().and_then(|before| before.budget.clone());
                if budget != after.budget {
                    change.fleet().set_budget(after.path.clone(), after.budget.clone());
                }
                change.fleet().set_bill_to(after.path.clone(), after.bill_to.clone());
                let bill_to = before.as_ref().and_then(|before| before.bill_to.clone());
                let detail = json!({
                    "before": { "quota": before.map(|before| before.quota), "budget": budget, "bill_to": bill_to },
                    "after": { "quota": after.quota, "budget": after.budget, "bill_to": after.bill_to },
                });
                change.audit(principal, "tenant.changed", after.path.as_str(), detail);
                change.write(Write::Tenant(after));
            }
            Difference::Pool { before, after } => {
                change.fleet().set_pool(Pool::clone(&after));
                change.audit(
                    principal,
                    "pool.changed",
                    &after.name,
                    json!({ "before": before, "after": after }),
                );
                let from_ms = change.now_ms;
                change.write(Write::Pool { pool: *after, from_ms });
            }
            Difference::Price { price, .. } => {
                change.audit(principal, "price.changed", price.meter.name(), json!(price));
                change.write(Write::Price(price));
            }
            Difference::Seller { after, .. } => {
                let before = change.set_seller(after.clone());
                change.audit(principal, "seller.changed", "/", json!({ "before": before, "after": after }));
            }
            Difference::Provider { after, .. } => provider::set(change, principal, after),
        }
    }
}

fn describe_price(before: Option<&Price>, price: &Price) -> String {
    let mut of = price.meter.name().to_owned();
    let named = [price.tier.map(|tier| tier.name().to_owned()), price.pool.clone(), price.model.clone()];
    named.into_iter().flatten().for_each(|name| of += &format!(", {name}"));
    let unit = price.meter.unit_name(price.per);
    let was = before.map_or_else(String::new, |before| format!(", it was {}", written::money(before.micro)));
    let from =
        price.from_ms.map_or_else(String::new, |from_ms| format!(" from {}", written::moment(from_ms)));
    let until = price.until_ms.map_or_else(String::new, |ms| format!(" until {}", written::moment(ms)));
    format!("price of {of} per {unit} is {}{from}{until}{was}", written::money(price.micro))
}

/// The fields of something as a person writes them, those of objects in it by their paths.
fn flattened(value: &Value) -> BTreeMap<String, String> {
    fn enter(fields: &mut BTreeMap<String, String>, path: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::Object(object) => {
                for (name, value) in object {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    enter(fields, &path, value);
                }
            }
            Value::String(text) => drop(fields.insert(path.to_owned(), text.clone())),
            other => drop(fields.insert(path.to_owned(), other.to_string())),
        }
    }
    let mut fields = BTreeMap::new();
    enter(&mut fields, "", &written::as_written(value));
    fields
}

/// `limit 0.5 -> 1, leases_limit removed (was 3)`
fn changed_fields(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> String {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter_map(|name| match (before.get(name), after.get(name)) {
        (Some(before), Some(after)) if before != after => Some(format!("{name} {before} -> {after}")),
        (None, Some(after)) => Some(format!("{name} {after}")),
        (Some(before), None) => Some(format!("{name} removed (was {before})")),
        _ => None,
    });
    changed.collect::<Vec<_>>().join(", ")
}

/// What is allowed, and may not be meant.
fn warnings(declaration: &Declaration, fleet: &Fleet, known: &Before<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let has_joined = |name: &str| fleet.nodes().values().any(|node| node.name == name);
    for pool in &declaration.pools {
        let absent = pool.nodes.iter().filter(|name| !has_joined(name)).cloned();
        let absent_gpus = pool.gpus.iter().filter(|gpu| !has_gpu(fleet, gpu)).map(GpuName::to_string);
        let absent: Vec<String> = absent.chain(absent_gpus).collect();
        if !absent.is_empty() {
            let absent = super::named(&absent);
            warnings.push(format!(
                "pool {}: {absent} has not joined (`sluice nodes` lists those that have)",
                pool.name
            ));
        }
    }
    for price in &declaration.prices {
        let meter = price.meter.name();
        if price.from_ms.is_some_and(|from_ms| from_ms < known.now_ms)
            && !may_reach_back(price, known)
            && price_difference(price.clone(), known).is_some()
        {
            warnings.push(format!(
                "price of {meter}: it counts from now on; what was used before keeps its price"
            ));
        }
        let declared = |name: &String| declaration.pools.iter().any(|pool| pool.name == *name);
        let is_pool =
            |name: &&String| *name == DEFAULT_POOL || fleet.pools().contains_key(*name) || declared(name);
        if let Some(pool) = price.pool.as_ref().filter(|name| !is_pool(name)) {
            warnings.push(format!("price of {meter}: there is no pool {pool}"));
        }
    }
    warnings
}

fn has_gpu(fleet: &Fleet, gpu: &GpuName) -> bool {
    fleet.nodes().values().any(|node| node.name == gpu.node && (gpu.gpu as usize) < node.gpus.len())
}

/// That tenants are guaranteed more GPUs than there are, once these differences are made. Nodes may
/// be yet to come, so it is no mistake.
fn guaranteed_in_vain(fleet: &mut Fleet, differences: &[Difference]) -> Option<String> {
    let gpus: u64 = fleet.nodes().values().map(|node| node.gpus.len() as u64).sum();
    let quotas = differences.iter().filter_map(|difference| match difference {
        Difference::Tenant { after, .. } => Some((after.path.clone(), after.quota.clone())),
        _ => None,
    });
    let quotas: Vec<_> = quotas.collect();
    let below_root = |tenants: &Tenants| tenants.below_of(&TenantPath::root()).unwrap_or_default();
    let Guarantee([milli, ..]) = fleet.trying_quotas(quotas, below_root);
    (milli > gpus * 1000).then(|| {
        let guaranteed = milli as f64 / 1000.0;
        format!("tenants are guaranteed {guaranteed} GPUs in all, and there are {gpus}: each will get its part of them")
    })
}

/// What was issued stays what it is, and so does its currency.
fn check_currency(declaration: &Declaration, known: &Seller, is_billed: bool) -> Result<(), Problem> {
    let other = |before: &&sluice_api::bill::Currency| {
        declaration.currency.as_ref().is_some_and(|currency| currency != *before)
    };
    match known.currency.as_ref().filter(other) {
        Some(before) if is_billed => {
            let detail = format!("invoices have been issued in {before}, so that is what prices are in");
            Err(Problem::new(Kind::Conflict, detail).at("currency"))
        }
        _ => Ok(()),
    }
}
