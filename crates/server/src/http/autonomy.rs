//! The REST API of consent: what the server may change by itself, what it has changed, and undoing
//! that.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::json;
use sluice_api::autonomy::{
    Autonomy, Consent, LeftAlone, NewConsent, ProgramName, Undone, UndoneLater, wrong_idle_after,
};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::token::Role;

use super::answer::Answer;
use super::extract::{Body, OfTenant, Options};
use crate::auth::Principal;
use crate::policy::Action;
use crate::server::{Books, Change, Server};

/// Programs of one tenant that are left alone.
const LEFT_ALONE_MAX: usize = 1000;

/// What tenants let the server change by itself, and what came of it
#[utoipa::path(get, path = "/autonomy", tag = "recommendations", params(OfTenant),
    responses((status = 200, body = Autonomy)))]
pub(super) async fn autonomy(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
) -> Answer<Autonomy> {
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Autonomy::default()));
    };
    let seen = |books: &Books, _| {
        let all = &books.autonomy;
        let tenants = books.fleet.tenants().within(&scope, None).map(|(path, _)| path);
        let root = Some(TenantPath::root()).filter(|root| scope.contains(root));
        let sizes = all.sizes.iter().filter(|(name, _)| scope.contains(&name.tenant));
        let left_alone = all.left_alone.values().filter(|left| scope.contains(&left.tenant));
        Autonomy {
            tenants: root.iter().chain(tenants).map(|tenant| all.rules.in_force(tenant)).collect(),
            programs: sizes.map(|(name, size)| size.shown(name)).collect(),
            left_alone: left_alone.cloned().collect(),
        }
    };
    Ok(Json(server.read(seen).await?))
}

/// Say what the server may change by itself
///
/// It counts for the tenant's own programs, and bounds what those of tenants below it consent to.
/// Administrators of the tenant and of those above it may allow less; only an administrator of the
/// tenant itself may allow more.
#[utoipa::path(post, path = "/autonomy", tag = "recommendations", request_body = NewConsent,
    responses((status = 200, body = Consent)))]
pub(super) async fn consent(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewConsent>,
) -> Answer<Consent> {
    principal.need(Action::SetDefault, &new.tenant)?;
    check(&new)?;
    let mut change = server.change().await?;
    if !new.tenant.is_root() && !change.fleet().tenants().contains(&new.tenant) {
        change.leave();
        let detail = format!("there is no tenant {}", new.tenant);
        return Err(Problem::new(Kind::Invalid, detail).at("tenant").into());
    }
    let known = change.books().autonomy.rules.get(&new.tenant).cloned();
    let before = known.clone().unwrap_or_else(|| Consent::unsaid(new.tenant.clone()));
    let after = Consent {
        mode: new.mode.unwrap_or(before.mode),
        floor_percent: new.floor_percent.unwrap_or(before.floor_percent),
        idle_after_ms: new.idle_after_ms.or(before.idle_after_ms).filter(|&ms| ms > 0),
        set_at_ms: change.now_ms,
        set_by: principal.name(),
        tenant: new.tenant,
    };
    if after.allows_more_than(&before) && !is_its_own(&principal, &after.tenant) {
        change.leave();
        let tenant = &after.tenant;
        let detail = format!(
            "only an administrator of {tenant} itself lets the server change more of its programs; \
             `sluice token create --tenant {tenant} --role tenant-admin` makes a token for one"
        );
        return Err(Problem::new(Kind::Forbidden, detail).into());
    }
    change.audit(
        &principal,
        "consent.changed",
        after.tenant.as_str(),
        json!({ "before": known, "after": after }),
    );
    change.set_consent(after.clone());
    for id in change.books().resized_without_consent(change.now_ms) {
        // What cannot be done now is tried again.
        let _ = change.give_back(id);
    }
    change.audit_leases(&principal);
    change.commit().await?;
    Ok(Json(after))
}

fn check(new: &NewConsent) -> Result<(), Problem> {
    let wrong = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field));
    if let Some(percent) = new.floor_percent.filter(|percent| !(5..=100).contains(percent)) {
        return wrong("floor_percent", format!("5 to 100, not {percent}"));
    }
    if let Some(detail) = new.idle_after_ms.and_then(wrong_idle_after) {
        return wrong("idle_after_ms", detail);
    }
    Ok(())
}

/// Whether this is an administrator of the tenant itself, and not of one above it.
fn is_its_own(principal: &Principal, tenant: &TenantPath) -> bool {
    principal.token.tenant == *tenant && matches!(principal.token.role, Role::TenantAdmin | Role::Platform)
}

/// Undo what the server has changed about a program
///
/// Its leases get back what they asked for, as soon as there is room for that, and its next
/// runs get what they ask for. From then on the program is left alone. Tokens that may ask for
/// leases of the tenant may do so.
#[utoipa::path(post, path = "/autonomy/undo", tag = "recommendations", request_body = ProgramName,
    responses((status = 200, body = Undone)))]
pub(super) async fn undo(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(name): Body<ProgramName>,
) -> Answer<Undone> {
    principal.need(Action::Lease, &name.tenant)?;
    let mut change = server.change().await?;
    if let Err(problem) = may_be_left_alone(&mut change, &name) {
        change.leave();
        return Err(problem.into());
    }
    let left_alone = LeftAlone {
        tenant: name.tenant.clone(),
        program: name.program.clone(),
        set_at_ms: change.now_ms,
        set_by: principal.name(),
    };
    let (mut leases, mut later) = (Vec::new(), Vec::new());
    for lease in change.fleet().changed_of(&name) {
        match change.give_back(lease) {
            Ok(()) => leases.push(lease),
            Err(reason) => later.push(UndoneLater { lease, reason }),
        }
    }
    change.audit_leases(&principal);
    let detail = json!({ "tenant": name.tenant, "leases": leases, "later": later });
    change.audit(&principal, "autonomy.undone", &name.program, detail);
    change.leave_alone(left_alone.clone());
    change.set_program_size(name, None);
    change.commit().await?;
    Ok(Json(Undone { left_alone, leases, later }))
}

fn may_be_left_alone(change: &mut Change<'_>, name: &ProgramName) -> Result<(), Problem> {
    let invalid = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field));
    if !name.tenant.is_root() && !change.fleet().tenants().contains(&name.tenant) {
        return invalid("tenant", format!("there is no tenant {}", name.tenant));
    }
    if let Some(problem) = super::recommendations::wrong_name(&name.program) {
        return Err(problem);
    }
    let left_alone = &change.books().autonomy.left_alone;
    if left_alone.keys().filter(|other| other.tenant == name.tenant).count() >= LEFT_ALONE_MAX {
        let detail = format!("{} leaves {LEFT_ALONE_MAX} programs alone; take some up again", name.tenant);
        return Err(Problem::new(Kind::Conflict, detail));
    }
    Ok(())
}

/// Let the server change a program again
///
/// It was left alone since a person undid what the server had changed.
#[utoipa::path(post, path = "/autonomy/allow", tag = "recommendations", request_body = ProgramName,
    responses((status = 200, body = LeftAlone)))]
pub(super) async fn allow(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(name): Body<ProgramName>,
) -> Answer<LeftAlone> {
    principal.need(Action::SetDefault, &name.tenant)?;
    let mut change = server.change().await?;
    let Some(left_alone) = change.books().autonomy.left_alone.get(&name).cloned() else {
        change.leave();
        let detail = format!("{:?} of {} is not left alone", name.program, name.tenant);
        return Err(Problem::new(Kind::NotFound, detail).into());
    };
    let detail = json!({ "tenant": name.tenant, "before": left_alone });
    change.audit(&principal, "autonomy.allowed", &name.program, detail);
    change.leave_alone_no_more(&name);
    change.commit().await?;
    Ok(Json(left_alone))
}
