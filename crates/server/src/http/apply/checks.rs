//! Whether a declaration can be taken: by who declares it, and beside all that is declared already.

use std::collections::{BTreeMap, HashMap, HashSet};

use sluice_api::autonomy::wrong_idle_after;
use sluice_api::bill::PricePer;
use sluice_api::health::GpuName;
use sluice_api::identity::Rule;
use sluice_api::invoice::Party;
use sluice_api::pool::{Access, DEFAULT_POOL, Pool, PoolPrice};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{Declaration, Quota, TenantPath};
use sluice_api::text::is_deceptive;

use crate::auth::Principal;
use crate::fleet::{self, Fleet, Tenants};
use crate::identity;
use crate::plan;
use crate::policy::Action;

pub(super) fn check(
    declaration: &Declaration,
    principal: &Principal,
    fleet: &mut Fleet,
) -> Result<(), Problem> {
    let wrong = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field));
    let declared: HashSet<&TenantPath> = declaration.tenants.iter().map(|tenant| &tenant.path).collect();
    for tenant in &declaration.tenants {
        principal.need(Action::SetQuota, &tenant.path)?;
        // It names a tax: who is billed does not change it.
        if tenant.bill_to.is_some() && tenant.bill_to.as_ref() != fleet.bill_to(&tenant.path) {
            principal.need(Action::Bill, &tenant.path)?;
        }
        if tenant.path.is_root() {
            return wrong("tenants", "the root / is no tenant and has no quota".into());
        }
        let parent = tenant.path.parent().filter(|parent| !parent.is_root());
        if let Some(parent) = parent.filter(|p| !fleet.tenants().contains(p) && !declared.contains(p)) {
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
    check_count(&declared, principal, fleet.tenants())?;
    let quotas = declaration.tenants.iter().map(|tenant| {
        let known = || fleet.tenants().get(&tenant.path).cloned().unwrap_or_default();
        (tenant.path.clone(), tenant.quota.clone().unwrap_or_else(known))
    });
    let quotas: Vec<(TenantPath, Quota)> = quotas.collect();
    if let Some(detail) = fleet.trying_quotas(quotas, |tenants| contradiction(tenants, &declared)) {
        return wrong("tenants", detail);
    }
    let fleet = &*fleet;
    let is_known = |path: &TenantPath| fleet.tenants().contains(path) || declared.contains(path);
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
        check_access(&pool.access, is_known).map_err(of_pool)?;
        pool.check_tiers().map_err(|error| of_pool(error.to_string()))?;
        pool.check_overcommit().map_err(|error| of_pool(error.to_string()))?;
        if let Some(wrong) = pool.idle_after_ms.and_then(wrong_idle_after) {
            return Err(of_pool(format!("idle_after_ms: {wrong}")));
        }
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
                .try_for_each(|access| check_access(access, is_known))
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
        let said = !name.trim().is_empty() && !name.chars().any(is_deceptive);
        said && name.chars().count() <= ISSUER_MAX
    };
    if declaration.issuer.as_ref().is_some_and(|name| !is_name(&name)) {
        return wrong("issuer", format!("issuer: a name of up to {ISSUER_MAX} characters"));
    }
    if declaration.invoicing.is_some() {
        principal.need(Action::SetPrice, &TenantPath::root())?;
    }
    if let Some(fault) = invoicing_fault(declaration) {
        return wrong("invoicing", fault);
    }
    if let Some(identity) = &declaration.identity {
        principal.need(Action::SetIdentity, &TenantPath::root())?;
        if let Err(error) = identity::check(identity) {
            return wrong("identity", error);
        }
        let named = |rule: &&Rule| !rule.tenant.is_root() && !is_known(&rule.tenant);
        if let Some(rule) = identity.rules.iter().find(named) {
            return wrong("identity", format!("rules: {}: there is no tenant {}", rule.claim, rule.tenant));
        }
    }
    Ok(())
}

/// What cannot be on an invoice.
fn invoicing_fault(declaration: &Declaration) -> Option<String> {
    let invoicing = declaration.invoicing.iter();
    let bill_to = declaration.tenants.iter().filter_map(|tenant| tenant.bill_to.as_ref());
    let parties = bill_to.clone().map(|bill_to| &bill_to.party);
    let parties = parties.chain(invoicing.clone().map(|invoicing| &invoicing.seller));
    if parties.clone().any(|party| party.address.len() > ADDRESS_MAX) {
        return Some(format!("address: up to {ADDRESS_MAX} lines"));
    }
    if invoicing.clone().any(|invoicing| invoicing.due_days.is_some_and(|days| days > DUE_DAYS_MAX)) {
        return Some(format!("due_days: up to {DUE_DAYS_MAX}"));
    }
    let taxes = bill_to.clone().filter_map(|bill_to| bill_to.tax.as_ref());
    let taxes = taxes.chain(invoicing.clone().filter_map(|invoicing| invoicing.tax.as_ref()));
    let mut texts = bill_to
        .filter_map(|bill_to| bill_to.reference.as_ref())
        .chain(invoicing.clone().filter_map(|invoicing| invoicing.payment.as_ref()))
        .chain(invoicing.map(|invoicing| &invoicing.number_prefix))
        .chain(taxes.map(|tax| &tax.name))
        .chain(parties.flat_map(texts_of));
    let is_wrong = |text: &String| text.chars().count() > ISSUER_MAX || text.chars().any(is_deceptive);
    texts.any(is_wrong).then(|| format!("texts on invoices are lines of up to {ISSUER_MAX} characters"))
}

/// What a party has on an invoice.
fn texts_of(party: &Party) -> impl Iterator<Item = &String> {
    std::iter::once(&party.name).chain(&party.address).chain(&party.tax_id).chain(&party.email)
}

/// Lines of an address.
const ADDRESS_MAX: usize = 8;
const DUE_DAYS_MAX: u32 = 366;

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

/// Checks that there are not too many tenants once these have been declared.
fn check_count(
    declared: &HashSet<&TenantPath>,
    principal: &Principal,
    tenants: &Tenants,
) -> Result<(), Problem> {
    let mut new: HashMap<TenantPath, usize> = HashMap::new();
    for path in declared.iter().filter(|path| !tenants.contains(path)) {
        *new.entry(fleet::top(path)).or_default() += 1;
    }
    let too_many = |detail: String| Err(Problem::new(Kind::Conflict, detail).at("tenants"));
    if tenants.len() + new.values().sum::<usize>() > TENANTS_MAX {
        return too_many(format!(
            "there may be {TENANTS_MAX} tenants in all; remove some with `sluice tenant delete`"
        ));
    }
    let of_platform = principal.token.tenant.is_root();
    let full = new.iter().find(|(top, new)| tenants.count_in_tree(top) + **new > TENANTS_OF_TREE_MAX);
    match full.filter(|_| !of_platform) {
        Some((top, _)) => too_many(format!(
            "{top} may have {TENANTS_OF_TREE_MAX} tenants, itself included; remove some with `sluice tenant delete`, or \
             have the platform's administrators declare more"
        )),
        None => Ok(()),
    }
}

/// What quotas contradict each other with, of tenants that have been declared and those above them.
fn contradiction(tenants: &Tenants, declared: &HashSet<&TenantPath>) -> Option<String> {
    if let Some((path, field)) = tenants.incomplete() {
        return Some(format!(
            "{path}: {field} is missing, which other guarantees have: a guarantee is within all that is guaranteed to any tenant"
        ));
    }
    let mut declared: Vec<&TenantPath> = declared.iter().copied().collect();
    declared.sort_unstable();
    let contradiction = declared.into_iter().find_map(|path| plan::check_quotas(tenants, path).err());
    contradiction.map(|error| error.to_string())
}

fn check_access(access: &Access, is_known: impl Fn(&TenantPath) -> bool) -> Result<(), String> {
    let (tenants, windows) = match access {
        Access::Public => (&[][..], &[][..]),
        Access::Private { tenants } => (&tenants[..], &[][..]),
        Access::Reserved { tenants, windows } => (&tenants[..], &windows[..]),
    };
    if let Some(unknown) = tenants.iter().find(|tenant| !is_known(tenant)) {
        return Err(format!("there is no tenant {unknown}"));
    }
    if windows.iter().any(|window| window.from_ms >= window.until_ms) || windows.len() > WINDOWS_MAX {
        return Err(format!("up to {WINDOWS_MAX} windows, each ends after it begins"));
    }
    Ok(())
}

const NOT_PER_UNIT: &str =
    "units are of compute; memory is priced per GiB-hour and transfer per GiB: leave `per` out";

/// Thousandths, or MiB: more than any installation has.
const QUOTA_MAX: u64 = 1_000_000_000_000;

/// Of one personality.
const PRICES_MAX: usize = 100;

/// A million of the currency's units for an hour.
const MICRO_MAX: u64 = 1_000_000_000_000;

/// Tenants in all.
const TENANTS_MAX: usize = 250_000;
/// Tenants that the administrators of a tenant right below the root may have there, that one
/// included.
const TENANTS_OF_TREE_MAX: usize = 10_000;

const NAME_MAX: usize = 255;
const ISSUER_MAX: usize = 200;
/// That one pool names.
const POOL_GPUS_MAX: usize = 10_000;
const WINDOWS_MAX: usize = 1000;
