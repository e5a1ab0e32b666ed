//! People of the identity provider who have been here.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::Page;
use sluice_api::token::Person;

use super::answer::Answer;
use super::extract::{OfTenant, Options, PageOptions, page};
use crate::auth::Principal;
use crate::policy::Action;
use crate::server::Server;

/// People of the identity provider who have been here
///
/// With the tenant and the role that the provider's rules gave them when they were here last, and
/// when that was. They need no token of this server; who has not been here for 400 days is
/// forgotten.
#[utoipa::path(get, path = "/people", tag = "tokens", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<Person>)))]
pub(super) async fn people(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Person>> {
    let tenant = of.tenant.unwrap_or_else(|| principal.token.tenant.clone());
    principal.need(Action::SeeTokens, &tenant)?;
    let limit = options.limit()?;
    let after = options.cursor(|text| Some(text.to_owned()))?.unwrap_or_default();
    let people = server.people(&tenant, &after, limit).await?;
    Ok(Json(page(people, limit, |person| person.id.clone())))
}
