//! The REST API of recommendations, and of the defaults that people make of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::GPU_PPM;
use sluice_api::problem::{Kind, Problem};
use sluice_api::recommendation::{NewRunDefault, ProgramAdvice, RunDefault};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::extract::{Body, OfTenant, Options};
use crate::auth::Principal;
use crate::billing::Period;
use crate::policy::Action;
use crate::recommendations::advice;
use crate::server::{Books, Server};

/// The history that is looked at unless said: two weeks.
const HISTORY_MS: u64 = 14 * 24 * 3_600_000;
/// Defaults of one tenant.
const DEFAULTS_MAX: usize = 1000;
/// Characters of a program's name.
const NAME_LENGTH_MAX: usize = 256;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct History {
    /// Usage records that begin at this moment or later; two weeks before `until_ms` unless said.
    #[serde(default)]
    from_ms: Option<u64>,
    /// Usage records that begin before this moment; now, unless said.
    #[serde(default)]
    until_ms: Option<u64>,
}

/// What programs ask for, what they need, and what asking for that would save
///
/// One entry for each program of the tenants that the token may see, also for those that fit. What
/// saves most comes first.
#[utoipa::path(get, path = "/recommendations", tag = "recommendations", params(OfTenant, History),
    responses((status = 200, body = Vec<ProgramAdvice>)))]
pub(super) async fn recommendations(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(History { from_ms, until_ms }): Options<History>,
) -> Answer<Vec<ProgramAdvice>> {
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Vec::new()));
    };
    let until_ms = until_ms.unwrap_or(server.now_ms() + 1);
    let from_ms = from_ms.unwrap_or(until_ms.saturating_sub(HISTORY_MS));
    if from_ms >= until_ms {
        return Err(Problem::new(Kind::Invalid, "the period ends before it begins").at("until_ms").into());
    }
    let mut found = advice(&server, &scope, Period { from_ms, until_ms }).await?;
    let defaults = server.read(|books: &Books, _| books.run_defaults.clone()).await?;
    for advice in &mut found {
        let key = (advice.tenant.clone(), advice.program.clone());
        advice.run_default = defaults.get(&key).cloned();
    }
    Ok(Json(found))
}

/// Defaults of the next runs of programs
#[utoipa::path(get, path = "/run-defaults", tag = "recommendations", params(OfTenant),
    responses((status = 200, body = Vec<RunDefault>)))]
pub(super) async fn run_defaults(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
) -> Answer<Vec<RunDefault>> {
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Vec::new()));
    };
    let seen = |books: &Books, _| -> Vec<RunDefault> {
        let own = books.run_defaults.values().filter(|default| scope.contains(&default.tenant));
        own.cloned().collect()
    };
    Ok(Json(server.read(seen).await?))
}

/// Set the share and the memory that the next runs of a program get
///
/// Runs that state a share, units or memory are not changed, and programs that run now continue as
/// they are.
#[utoipa::path(post, path = "/run-defaults", tag = "recommendations", request_body = NewRunDefault,
    responses((status = 200, body = RunDefault)))]
pub(super) async fn set_run_default(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewRunDefault>,
) -> Answer<RunDefault> {
    principal.need(Action::SetDefault, &new.tenant)?;
    let wrong = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field).into());
    if !(1..=GPU_PPM).contains(&new.share_ppm) {
        return wrong("share_ppm", format!("1 to {GPU_PPM} (a whole GPU), not {}", new.share_ppm));
    }
    if new.memory > i64::MAX as u64 {
        return wrong("memory", "more bytes than any GPU has".to_owned());
    }
    if let Some(problem) = wrong_name(&new.program) {
        return Err(problem.into());
    }
    let mut change = server.change().await?;
    let in_the_way = match () {
        () if !new.tenant.is_root() && !change.fleet().tenants().contains(&new.tenant) => {
            Some(Problem::new(Kind::Invalid, format!("there is no tenant {}", new.tenant)).at("tenant"))
        }
        () if change.books().run_defaults.keys().filter(|(of, _)| *of == new.tenant).count()
            >= DEFAULTS_MAX =>
        {
            Some(Problem::new(
                Kind::Conflict,
                format!("{} has {DEFAULTS_MAX} defaults; remove some", new.tenant),
            ))
        }
        () => None,
    };
    if let Some(problem) = in_the_way {
        change.leave();
        return Err(problem.into());
    }
    let default = RunDefault {
        tenant: new.tenant,
        program: new.program,
        share_ppm: new.share_ppm,
        memory: new.memory,
        set_at_ms: change.now_ms,
        set_by: principal.name(),
    };
    let before = change.books().run_defaults.get(&(default.tenant.clone(), default.program.clone())).cloned();
    let detail = serde_json::json!({ "tenant": default.tenant, "before": before, "after": default });
    change.audit(&principal, "default.set", &default.program, detail);
    change.set_run_default(default.clone());
    change.commit().await?;
    Ok(Json(default))
}

/// What is wrong about the name of a program.
pub(super) fn wrong_name(program: &str) -> Option<Problem> {
    let detail = format!("the name of the program's leases, up to {NAME_LENGTH_MAX} characters");
    let is_wrong = program.is_empty() || program.chars().count() > NAME_LENGTH_MAX;
    is_wrong.then(|| Problem::new(Kind::Invalid, detail).at("program"))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfProgram {
    #[param(value_type = TenantPath)]
    tenant: TenantPath,
    /// The name of the program's leases.
    program: String,
}

/// Remove the default of a program
///
/// Its next runs get what they ask for, as before.
#[utoipa::path(delete, path = "/run-defaults", tag = "recommendations", params(OfProgram),
    responses((status = 200, body = RunDefault)))]
pub(super) async fn remove_run_default(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(OfProgram { tenant, program }): Options<OfProgram>,
) -> Answer<RunDefault> {
    principal.need(Action::SetDefault, &tenant)?;
    let mut change = server.change().await?;
    let key = (tenant, program);
    let Some(default) = change.books().run_defaults.get(&key).cloned() else {
        change.leave();
        let detail = format!("there is no default for {:?} in {}", key.1, key.0);
        return Err(Problem::new(Kind::NotFound, detail).into());
    };
    let detail = serde_json::json!({ "tenant": default.tenant, "before": default });
    change.audit(&principal, "default.removed", &default.program, detail);
    change.remove_run_default(&default);
    change.commit().await?;
    Ok(Json(default))
}
