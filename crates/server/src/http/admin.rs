//! Tenants with what they hold, pools, and tokens.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::AppendHeaders;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::bill::{BudgetStatus, Price};
use sluice_api::lease::LeaseId;
use sluice_api::pool::{Access, Pool, PoolStatus};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{Quota, TenantPath, TenantStatus};
use sluice_api::text::is_deceptive;
use sluice_api::token::{MadeToken, NewToken, RevokedToken, Role, Token};

use super::answer::{Answer, Refusal};
use super::extract::{Body, Name, OfTenant, Options, PageOptions, cut, page};
use super::nodes::is_node_name;
use super::tags;
use crate::auth::{self, Principal};
use crate::fleet::Fleet;
use crate::policy::Action;
use crate::server::{Books, Server};
use crate::store::Write;

/// Tenants with their quotas and what they hold
///
/// The units that a large fleet's tenants hold are up to four seconds old.
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
        let units = server.kept.units.get().unwrap_or_else(|| {
            let round = server.kept.units.round();
            let units = Arc::new(fleet.held_units_milli());
            server.kept.units.keep(&units, fleet.leases().count() as u64, round);
            units
        });
        let visible = fleet.tenants().within(&scope, after.as_ref());
        let visible = visible.map(|(path, quota)| (path, (path, quota)));
        let Page { items, next } = cut(visible, after.as_ref().as_ref(), limit, |path| path.to_string());
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
        fair_share_milli: books.fair_share_milli(path),
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

/// Whether the principal may see everything, or is one whom the pool may serve.
pub(super) fn is_shown_to(principal: &Principal, pool: &Pool, now_ms: u64) -> bool {
    let lets_in = |access: &Access| access.lets_in(&principal.token.tenant, Some(now_ms));
    principal.may(Action::See, &TenantPath::root()) || pool.all_terms().any(|terms| lets_in(terms.access))
}

/// Others' pools are not named to a token; one that is not declared has no owner.
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
    let mut items: Vec<Token> = stored.items.into_iter().map(|stored| stored.token).collect();
    server.add_last_uses(&mut items).await?;
    Ok(Json(Page { items, next: stored.next }))
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
    if let Some(node) = &new.node
        && (new.role != Role::Node || !is_node_name(node))
    {
        let detail = "the name of a node, for a token of role node: 1 to 255 visible ASCII characters";
        return Err(Problem::new(Kind::Invalid, detail).at("node").into());
    }
    let name: String = new.name.chars().filter(|c| !is_deceptive(*c)).take(100).collect();
    let mut change = server.change().await?;
    if !new.tenant.is_root() && !change.fleet().tenants().contains(&new.tenant) {
        change.leave();
        let detail = format!("there is no tenant {}; `sluice apply -f` creates tenants", new.tenant);
        return Err(Problem::new(Kind::Invalid, detail).at("tenant").into());
    }
    let made = auth::make(new.tenant, new.role, name, None, new.lifetime_s * 1000, change.now_ms);
    let (mut stored, secret) =
        made.map_err(|error| Problem::new(Kind::Internal, format!("no random numbers: {error}")))?;
    stored.token.node = new.node;
    let token = stored.token.clone();
    change.audit(&principal, "token.made", &token.id, serde_json::json!(token));
    change.write(Write::Token(stored));
    change.commit().await?;
    Ok(Json(MadeToken { token, secret }))
}

const LIFETIME_S_MAX: u64 = 10 * 366 * 24 * 3600;

/// With a tag that is not that of the whole answer.
type Tagged<T> = (AppendHeaders<[(HeaderName, HeaderValue); 1]>, Json<T>);

/// A token, without its secret
///
/// Its tag stays the same while the token is only used.
#[utoipa::path(get, path = "/tokens/{id}", tag = "tokens", params(("id" = String, Path)),
    responses((status = 200, body = Token)))]
pub(super) async fn token(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
) -> Result<Tagged<Token>, Refusal> {
    let mut token = token_seen(&server, &principal, &id).await?;
    let tag = tags::of(&token);
    server.add_last_uses(std::slice::from_mut(&mut token)).await?;
    Ok((AppendHeaders([(header::ETAG, tag)]), Json(token)))
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
    /// End them, and their programs. Else they continue: a lease has a key of its own.
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
