//! Tenants and their quotas, prices, and tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::IF_MATCH;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::bill::{BudgetStatus, Price, PricePer, Seller};
use sluice_api::health::GpuName;
use sluice_api::identity::Rule;
use sluice_api::lease::LeaseId;
use sluice_api::pool::{Access, DEFAULT_POOL, Pool, PoolPrice, PoolStatus};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{Applied, Declaration, DeclaredTenant, Quota, TenantPath, TenantStatus};
use sluice_api::token::{MadeToken, NewToken, RevokedToken, Role, Token};

use super::answer::{Answer, Refusal};
use super::declared::all_declared;
use super::extract::{Body, Name, OfTenant, Options, PageOptions, Yaml, cut, page};
use super::tags;
use crate::auth::{self, Principal};
use crate::fleet::Fleet;
use crate::identity;
use crate::plan;
use crate::policy::Action;
use crate::server::{Books, Change, Server};
use crate::store::Write;

/// Tenants with their quotas and what they hold
#[utoipa::path(get, path = "/tenants", tag = "tenants", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<TenantStatus>)))]
pub(super) async fn tenants(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<TenantStatus>> {
    let (limit, after) = (options.limit()?, options.cursor(|text| text.parse::<TenantPath>().ok())?);
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let seen = |books: &Books, now_ms| {
        let fleet = &books.fleet;
        let units = fleet.held_units_milli();
        let visible = fleet.tenants().iter().filter(|(path, _)| scope.contains(path));
        let visible = visible.map(|(path, quota)| (path.clone(), (path, quota)));
        let Page { items, next } = cut(visible, after.as_ref(), limit, TenantPath::to_string);
        let status = |(path, quota)| TenantStatus {
            tightest_budget: fleet.budgets().tightest(path, now_ms),
            ..tenant_status(books, path, quota, units.get(path).copied())
        };
        Page { items: items.into_iter().map(status).collect(), next }
    };
    Ok(Json(server.read(seen).await?))
}

fn tenant_status(books: &Books, path: &TenantPath, quota: &Quota, units: Option<u64>) -> TenantStatus {
    let holding = books.fleet.holding(path);
    let budget = books.fleet.budgets().status(path);
    let currency = &books.seller.currency;
    TenantStatus {
        path: path.clone(),
        quota: quota.clone(),
        held_milli: holding.ppm.div_ceil(1000),
        held_units_milli: units.unwrap_or(0),
        held_memory_mib: holding.memory >> 20,
        leases: holding.leases,
        queued: holding.queued,
        budget: budget.map(|status| BudgetStatus { currency: currency.clone(), ..status }),
        tightest_budget: None,
    }
}

/// Pools with the nodes and tenants that they name, and the personality that is in force
#[utoipa::path(get, path = "/pools", tag = "nodes", params(PageOptions),
    responses((status = 200, body = Page<PoolStatus>)))]
pub(super) async fn pools(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<PoolStatus>> {
    let (limit, after) = (options.limit()?, options.cursor(|text| Some(text.to_owned()))?);
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    // Whom a pool is for is for those to see who see these tenants.
    let all = principal.may(Action::See, &TenantPath::root());
    let seen = |books: &Books, now_ms| {
        let pools = books.fleet.pools().values().filter(|pool| is_shown_to(&principal, pool, now_ms));
        let pools = pools.map(|pool| (pool.name.clone(), pool));
        let Page { items, next } = cut(pools, after.as_ref(), limit, String::clone);
        let status = |pool: &Pool| PoolStatus::at(hide(pool, all), now_ms);
        Page { items: items.into_iter().map(status).collect(), next }
    };
    Ok(Json(server.read(seen).await?))
}

/// Whether somebody of whom nothing else is hidden, or whom it may serve, asks.
pub(super) fn is_shown_to(principal: &Principal, pool: &Pool, now_ms: u64) -> bool {
    let lets_in = |access: &Access| access.lets_in(&principal.token.tenant, Some(now_ms));
    principal.may(Action::See, &TenantPath::root()) || pool.all_terms().any(|terms| lets_in(terms.access))
}

/// Others' pools are not named to a token; one that is not declared is nobody's.
pub(super) fn is_named_to(principal: &Principal, pool: &str, fleet: &Fleet, now_ms: u64) -> bool {
    fleet.pools().get(pool).is_none_or(|pool| is_shown_to(principal, pool, now_ms))
}

pub(super) fn is_price_shown_to(principal: &Principal, price: &Price, fleet: &Fleet, now_ms: u64) -> bool {
    price.pool.as_ref().is_none_or(|pool| is_named_to(principal, pool, fleet, now_ms))
}

/// Without the names of tenants, unless all may be seen.
pub(super) fn hide(pool: &Pool, all: bool) -> Pool {
    let mut pool = pool.clone();
    let personalities = pool.personalities.iter_mut().filter_map(|personality| personality.access.as_mut());
    for access in std::iter::once(&mut pool.access).chain(personalities).filter(|_| !all) {
        if let Access::Private { tenants } | Access::Reserved { tenants, .. } = access {
            tenants.clear();
        }
    }
    pool
}

/// Declare tenants, quotas, budgets, pools, prices and the identity provider
///
/// All of it or nothing. What the declaration does not mention stays; what is as declared already is no change. The body is YAML or JSON.
/// With a tag of `GET /declaration` in `If-Match` nothing is done if what is declared has changed since.
#[utoipa::path(post, path = "/apply", tag = "tenants",
    params(("If-Match" = Option<String>, Header, description = "Only if what is declared is as it was when GET /declaration gave this tag")),
    request_body(content = Declaration, content_type = "application/yaml"),
    responses((status = 200, body = Applied)))]
pub(super) async fn apply(
    State(server): State<Arc<Server>>,
    principal: Principal,
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
    if let Err(problem) = free.and_then(|()| check(&declaration, &principal, change.fleet())) {
        change.leave();
        return Err(problem.into());
    }
    let known = change.books().seller.clone();
    let seller = Seller {
        currency: declaration.currency.or(known.currency.clone()),
        issuer: declaration.issuer.or(known.issuer),
    };
    if let Some(before) = known.currency.filter(|before| Some(before) != seller.currency.as_ref()) {
        // What was issued stays what it is.
        if is_billed {
            change.leave();
            let detail = format!("invoices have been issued in {before}, so that is what prices are in");
            return Err(Problem::new(Kind::Conflict, detail).at("currency").into());
        }
    }
    let mut changes = Vec::new();
    for tenant in declaration.tenants {
        changes.extend(set_tenant(&mut change, &principal, tenant));
    }
    for pool in declaration.pools {
        changes.extend(set_pool(&mut change, &principal, pool));
    }
    for price in declaration.prices {
        changes.extend(set_price(&mut change, &principal, price, &prices, is_billed));
    }
    changes.extend(set_seller(&mut change, &principal, seller));
    let known = change.books().identity.clone();
    let identity = declaration.identity.filter(|identity| known.as_ref() != Some(identity));
    let other_people = identity.is_some();
    changes.extend(identity.map(|identity| super::identity::set(&mut change, &principal, identity)));
    if !changes.is_empty() {
        change.is_by_hand();
    }
    // The sum is of all tenants.
    let sees_all = principal.may(Action::See, &TenantPath::root());
    let warnings = if sees_all { Vec::from_iter(guaranteed_in_vain(change.fleet())) } else { Vec::new() };
    change.commit().await?;
    if other_people {
        super::identity::follow(&server).await?;
    }
    Ok(Json(Applied { changes, warnings }))
}

/// That tenants are guaranteed more GPUs than there are. Nodes may be yet to come, so it is no mistake.
fn guaranteed_in_vain(fleet: &Fleet) -> Option<String> {
    let gpus: u64 = fleet.nodes().values().map(|node| node.gpus.len() as u64).sum();
    let top = fleet.tenants().iter().filter(|(path, _)| path.parent().is_some_and(|above| above.is_root()));
    let milli: u64 = top.map(|(_, quota)| u64::from(quota.guaranteed_milli)).sum();
    (milli > gpus * 1000).then(|| {
        let guaranteed = milli as f64 / 1000.0;
        format!("tenants are guaranteed {guaranteed} GPUs in all, and there are {gpus}: each will get its part of them")
    })
}

fn check(declaration: &Declaration, principal: &Principal, fleet: &Fleet) -> Result<(), Problem> {
    let wrong = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field));
    for tenant in &declaration.tenants {
        principal.need(Action::SetQuota, &tenant.path)?;
        if tenant.path.is_root() {
            return wrong("tenants", "the root / is no tenant and has no quota".into());
        }
        let declared = |path: &TenantPath| declaration.tenants.iter().any(|other| other.path == *path);
        let parent = tenant.path.parent().filter(|parent| !parent.is_root());
        if let Some(parent) = parent.filter(|p| !fleet.tenants().contains_key(p) && !declared(p)) {
            return wrong(
                "tenants",
                format!("{} needs its parent {parent}; declare that as well", tenant.path),
            );
        }
        let Some(quota) = &tenant.quota else { continue };
        if quota.limit_milli.is_some_and(|limit| limit < quota.guaranteed_milli) {
            return wrong(
                "tenants",
                format!("{}: limit (limit_milli) is below guaranteed (guaranteed_milli)", tenant.path),
            );
        }
        let guaranteed = quota.guaranteed_units_milli;
        if quota.units_limit_milli.is_some_and(|limit| limit < guaranteed) {
            let detail = format!(
                "{}: units_limit (units_limit_milli) is below guaranteed_units (guaranteed_units_milli)",
                tenant.path
            );
            return wrong("tenants", detail);
        }
        let most = [guaranteed, quota.guaranteed_memory_mib, quota.units_limit_milli.unwrap_or(0)];
        if most.iter().any(|&amount| amount > QUOTA_MAX) {
            return wrong("tenants", format!("{}: quotas are up to {QUOTA_MAX}", tenant.path));
        }
    }
    let mut known = fleet.tenants().clone();
    for tenant in &declaration.tenants {
        let quota = known.entry(tenant.path.clone()).or_default();
        *quota = tenant.quota.clone().unwrap_or_else(|| quota.clone());
    }
    if let Some((path, field)) = plan::incomplete(&known) {
        let detail = format!(
            "{path}: {field} is missing, which other guarantees have: a guarantee is within all that is guaranteed to anybody"
        );
        return wrong("tenants", detail);
    }
    if let Err(error) = plan::tree(&known) {
        return wrong("tenants", error.to_string());
    }
    for pool in &declaration.pools {
        principal.need(Action::SetPool, &TenantPath::root())?;
        let plain =
            |name: &str| (1..=NAME_MAX).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic());
        if !plain(&pool.name) || pool.name == DEFAULT_POOL {
            return wrong(
                "pools",
                format!("{:?}: 1 to {NAME_MAX} visible characters, and not {DEFAULT_POOL}", pool.name),
            );
        }
        let of_pool =
            |error: String| Problem::new(Kind::Invalid, format!("{}: {error}", pool.name)).at("pools");
        if pool.gpus.len() > POOL_GPUS_MAX || pool.models.len() > POOL_GPUS_MAX {
            return Err(of_pool(format!("up to {POOL_GPUS_MAX} gpus and as many models")));
        }
        if pool.models.iter().any(|model| model.trim().is_empty()) {
            return Err(of_pool("models: an empty name is part of every name".into()));
        }
        check_access(&pool.access, &known).map_err(of_pool)?;
        pool.check_overcommit().map_err(|error| of_pool(error.to_string()))?;
        pool.check_personalities().map_err(|error| of_pool(error.to_string()))?;
        for personality in &pool.personalities {
            let name = &personality.name;
            let of_personality = |error| of_pool(format!("personality {name}: {error}"));
            if !plain(name) {
                return Err(of_pool(format!("{name:?}: 1 to {NAME_MAX} visible characters")));
            }
            personality
                .access
                .iter()
                .try_for_each(|access| check_access(access, &known))
                .map_err(of_personality)?;
            if !personality.prices.is_empty() {
                principal.need(Action::SetPrice, &TenantPath::root())?;
            }
            if personality.prices.len() > PRICES_MAX
                || personality.prices.iter().any(|price| price.micro > MICRO_MAX)
            {
                let error = format!("up to {PRICES_MAX} prices, each up to {MICRO_MAX} micro-units");
                return Err(of_personality(error));
            }
            let per_unit = |price: &PoolPrice| !price.meter.is_of_gpus() && price.per == PricePer::Unit;
            if personality.prices.iter().any(per_unit) {
                return Err(of_personality(NOT_PER_UNIT.into()));
            }
        }
    }
    if let Some((gpu, one, other)) = named_twice(fleet.pools(), &declaration.pools) {
        return wrong(
            "pools",
            format!("gpus: {gpu} is in {one} and in {other}, and can be in one pool only"),
        );
    }
    for price in &declaration.prices {
        principal.need(Action::SetPrice, &TenantPath::root())?;
        if price.until_ms.is_some_and(|until_ms| until_ms <= price.from_ms.unwrap_or(0)) {
            return wrong("prices", format!("{}: it ends before it begins", price.meter.name()));
        }
        if !price.meter.is_of_gpus() && price.per == PricePer::Unit {
            return wrong("prices", NOT_PER_UNIT.into());
        }
        if price.micro > MICRO_MAX {
            return wrong("prices", format!("{}: more than {MICRO_MAX} micro-units", price.meter.name()));
        }
    }
    if declaration.currency.is_some() || declaration.issuer.is_some() {
        principal.need(Action::SetPrice, &TenantPath::root())?;
    }
    let is_name = |name: &&String| {
        let said = !name.trim().is_empty() && !name.chars().any(char::is_control);
        said && name.chars().count() <= ISSUER_MAX
    };
    if declaration.issuer.as_ref().is_some_and(|name| !is_name(&name)) {
        return wrong("issuer", format!("issuer: a name of up to {ISSUER_MAX} characters"));
    }
    if let Some(identity) = &declaration.identity {
        principal.need(Action::SetIdentity, &TenantPath::root())?;
        if let Err(error) = identity::check(identity) {
            return wrong("identity", error);
        }
        let named = |rule: &&Rule| !rule.tenant.is_root() && !known.contains_key(&rule.tenant);
        if let Some(rule) = identity.rules.iter().find(named) {
            return wrong("identity", format!("rules: {}: there is no tenant {}", rule.claim, rule.tenant));
        }
    }
    Ok(())
}

/// A GPU that two pools name, once these have been declared.
fn named_twice<'a>(
    known: &'a BTreeMap<String, Pool>,
    declared: &'a [Pool],
) -> Option<(&'a GpuName, &'a str, &'a str)> {
    let mut pools: BTreeMap<&str, &Pool> = known.iter().map(|(name, pool)| (&**name, pool)).collect();
    pools.extend(declared.iter().map(|pool| (&*pool.name, pool)));
    let mut of: BTreeMap<&GpuName, &str> = BTreeMap::new();
    let each = pools.into_iter().flat_map(|(name, pool)| pool.gpus.iter().map(move |gpu| (gpu, name)));
    each.filter_map(|(gpu, name)| Some((gpu, of.insert(gpu, name)?, name)))
        .find(|(_, one, other)| one != other)
}

fn check_access(access: &Access, known: &BTreeMap<TenantPath, Quota>) -> Result<(), String> {
    let (tenants, windows) = match access {
        Access::Public => (&[][..], &[][..]),
        Access::Private { tenants } => (&tenants[..], &[][..]),
        Access::Reserved { tenants, windows } => (&tenants[..], &windows[..]),
    };
    if let Some(unknown) = tenants.iter().find(|tenant| !known.contains_key(tenant)) {
        return Err(format!("there is no tenant {unknown}"));
    }
    if windows.iter().any(|window| window.from_ms >= window.until_ms) || windows.len() > WINDOWS_MAX {
        return Err(format!("up to {WINDOWS_MAX} windows, each ends after it begins"));
    }
    Ok(())
}

const NOT_PER_UNIT: &str =
    "units are of compute; memory is priced per GiB-hour and transfer per GiB: leave `per` out";

/// Thousandths, or MiB: more than anybody has.
const QUOTA_MAX: u64 = 1_000_000_000_000;

/// Of one personality.
const PRICES_MAX: usize = 100;

/// A million of the currency's units for an hour.
const MICRO_MAX: u64 = 1_000_000_000_000;

const NAME_MAX: usize = 255;
const ISSUER_MAX: usize = 200;
/// That one pool names.
const POOL_GPUS_MAX: usize = 10_000;
const WINDOWS_MAX: usize = 1000;

fn set_tenant(change: &mut Change<'_>, principal: &Principal, declared: DeclaredTenant) -> Option<String> {
    let before = change.fleet().tenants().get(&declared.path).cloned();
    let budget = change.fleet().budgets().status(&declared.path).map(|status| status.budget);
    let tenant = declared.after(before.as_ref(), budget.as_ref());
    if before.as_ref() == Some(&tenant.quota) && budget == tenant.budget {
        return None;
    }
    change.fleet().set_quota(tenant.path.clone(), tenant.quota.clone());
    if budget != tenant.budget {
        change.fleet().set_budget(tenant.path.clone(), tenant.budget.clone());
    }
    let detail = serde_json::json!({
        "before": { "quota": before, "budget": budget },
        "after": { "quota": tenant.quota, "budget": tenant.budget },
    });
    change.audit(principal, "tenant.changed", tenant.path.as_str(), detail);
    let line = format!("tenant {} {}", tenant.path, if before.is_some() { "changed" } else { "created" });
    change.write(Write::Tenant(tenant));
    Some(line)
}

fn set_pool(change: &mut Change<'_>, principal: &Principal, pool: Pool) -> Option<String> {
    let before = change.fleet().pools().get(&pool.name).cloned();
    if before.as_ref() == Some(&pool) {
        return None;
    }
    change.fleet().set_pool(pool.clone());
    let detail = serde_json::json!({ "before": before, "after": pool });
    change.audit(principal, "pool.changed", &pool.name, detail);
    let line = format!("pool {} {}", pool.name, if before.is_some() { "changed" } else { "created" });
    let from_ms = change.now_ms;
    change.write(Write::Pool { pool, from_ms });
    Some(line)
}

fn set_seller(change: &mut Change<'_>, principal: &Principal, seller: Seller) -> Option<String> {
    if change.books().seller == seller {
        return None;
    }
    let before = change.set_seller(seller.clone());
    let detail = serde_json::json!({ "before": before, "after": seller });
    change.audit(principal, "seller.changed", "/", detail);
    let currency = seller.currency.map(|currency| format!("amounts are in {currency}"));
    let issuer = seller.issuer.map(|issuer| format!("{issuer} bills"));
    Some(currency.into_iter().chain(issuer).collect::<Vec<_>>().join(", "))
}

/// A price begins now, or later; the past keeps its prices.
fn set_price(
    change: &mut Change<'_>,
    principal: &Principal,
    price: Price,
    before: &[Price],
    is_billed: bool,
) -> Option<String> {
    let from_ms = price.from_ms.unwrap_or(0).max(change.now_ms);
    let last = before.iter().rfind(|other| other.is_for_the_same(&price));
    if last.is_some_and(|last| (last.micro, last.until_ms) == (price.micro, price.until_ms)) {
        return None;
    }
    // The first price of a meter also holds for what was used before it, which no other did, unless some of that is on an invoice.
    let is_first = !is_billed && before.iter().all(|other| other.meter != price.meter);
    let from_ms = if is_first && price.from_ms.is_none() { 0 } else { from_ms };
    let price = Price { from_ms: Some(from_ms), ..price };
    change.audit(principal, "price.changed", price.meter.name(), serde_json::json!(price));
    let mut of = price.meter.name().to_owned();
    let named = [price.tier.map(|tier| tier.name().to_owned()), price.pool.clone(), price.model.clone()];
    named.into_iter().flatten().for_each(|name| of += &format!(", {name}"));
    let line = format!("price of {of} per {} set", price.meter.unit_name(price.per));
    change.write(Write::Price(price));
    Some(line)
}

/// Whose token this is
#[utoipa::path(get, path = "/whoami", tag = "tokens",
    responses((status = 200, body = Token)))]
pub(super) async fn whoami(principal: Principal) -> Answer<Token> {
    Ok(Json(principal.token))
}

/// Tokens, without their secrets
#[utoipa::path(get, path = "/tokens", tag = "tokens", params(PageOptions),
    responses((status = 200, body = Page<Token>)))]
pub(super) async fn tokens(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Token>> {
    let scope = principal.token.tenant.clone();
    principal.need(Action::SeeTokens, &scope)?;
    let limit = options.limit()?;
    let after = options.cursor(|text| Some(text.to_owned()))?.unwrap_or_default();
    let stored = server.store.tokens(&scope, &after, limit).await?;
    let stored = page(stored, limit, |stored| stored.token.id.clone());
    Ok(Json(Page { items: stored.items.into_iter().map(|stored| stored.token).collect(), next: stored.next }))
}

/// Make a token
///
/// The answer is the only place where its secret ever stands.
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = NewToken,
    responses((status = 200, body = MadeToken)))]
pub(super) async fn make_token(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewToken>,
) -> Answer<MadeToken> {
    principal.need(Action::Token(new.role), &new.tenant)?;
    if !(1..=LIFETIME_S_MAX).contains(&new.lifetime_s) {
        let detail = format!("1 to {LIFETIME_S_MAX} seconds (ten years)");
        return Err(Problem::new(Kind::Invalid, detail).at("lifetime_s").into());
    }
    if new.role == Role::Node && !new.tenant.is_root() {
        let detail = "nodes lend their GPUs to all: a token of role node is for /";
        return Err(Problem::new(Kind::Invalid, detail).at("tenant").into());
    }
    let name: String = new.name.chars().filter(|c| !c.is_control()).take(100).collect();
    let mut change = server.change().await?;
    if !new.tenant.is_root() && !change.fleet().tenants().contains_key(&new.tenant) {
        change.leave();
        let detail = format!("there is no tenant {}; `sluice apply -f` creates tenants", new.tenant);
        return Err(Problem::new(Kind::Invalid, detail).at("tenant").into());
    }
    let made = auth::make(new.tenant, new.role, name, None, new.lifetime_s * 1000, change.now_ms);
    let (stored, secret) =
        made.map_err(|error| Problem::new(Kind::Internal, format!("no random numbers: {error}")))?;
    let token = stored.token.clone();
    change.audit(&principal, "token.made", &token.id, serde_json::json!(token));
    change.write(Write::Token(stored));
    change.commit().await?;
    Ok(Json(MadeToken { token, secret }))
}

const LIFETIME_S_MAX: u64 = 10 * 366 * 24 * 3600;

/// A token, without its secret
#[utoipa::path(get, path = "/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 200, body = Token)))]
pub(super) async fn token(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
) -> Answer<Token> {
    Ok(Json(token_seen(&server, &principal, &id).await?))
}

/// One of a foreign tenant does not exist for them.
async fn token_seen(server: &Server, principal: &Principal, id: &str) -> Result<Token, Refusal> {
    let found = server.store.token(id).await?.map(|stored| stored.token);
    let seen = found.filter(|token| principal.may(Action::SeeTokens, &token.tenant));
    seen.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no token {id}")).into())
}

/// What becomes of the leases of a token that is revoked.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Revocation {
    /// End them, and their programs. Else they go on: a lease has a key of its own.
    #[serde(default)]
    end_leases: bool,
}

/// Revoke a token
///
/// The answer says which leases were asked for with it and have not ended.
#[utoipa::path(delete, path = "/tokens/{id}", tag = "tokens", params(("id" = String, Path), Revocation),
    responses((status = 200, body = RevokedToken)))]
pub(super) async fn revoke_token(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
    Options(Revocation { end_leases: ended }): Options<Revocation>,
    headers: HeaderMap,
) -> Answer<RevokedToken> {
    let token = token_seen(&server, &principal, &id).await?;
    principal.need(Action::Token(token.role), &token.tenant)?;
    tags::check_read(&headers, &token)?;
    let mut change = server.change().await?;
    let of_token = change.fleet().leases_of_token(&id);
    if ended
        && let Err(problem) =
            of_token.iter().try_for_each(|(_, tenant)| principal.need(Action::Lease, tenant))
    {
        change.leave();
        return Err(problem.into());
    }
    let (leases, now_ms): (Vec<LeaseId>, u64) =
        (of_token.iter().map(|(lease, _)| *lease).collect(), change.now_ms);
    change.audit(&principal, "token.revoked", &id, serde_json::json!({ "leases": leases, "ended": ended }));
    for lease in leases.iter().filter(|_| ended) {
        change.fleet().end(*lease, "its token was revoked, and its leases with it", now_ms);
    }
    change.audit_leases(&principal);
    change.write(Write::Revoke(id));
    change.commit().await?;
    Ok(Json(RevokedToken { token: Token { revoked: true, ..token }, leases, ended }))
}
