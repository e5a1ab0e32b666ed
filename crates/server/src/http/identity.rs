//! The identity provider: who it is, for those who sign in; and its rules, for those who may make
//! them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use sluice_api::identity::Identity;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::token::Login;

use super::answer::Answer;
use super::tags;
use crate::auth::Principal;
use crate::policy::Action;
use crate::server::{Books, Change, Server, unwell};

/// The identity provider whose tokens this server takes
///
/// Needs no token. `sluice login` asks the provider for one.
#[utoipa::path(get, path = "/login", tag = "tokens", security(()), responses((status = 200, body = Login)))]
pub(super) async fn login(State(server): State<Arc<Server>>) -> Answer<Login> {
    let none =
        || Problem::new(Kind::NotFound, "this server takes its own tokens only (`sluice token create`)");
    Ok(Json(server.identity.get().ok_or_else(none)?.login()))
}

/// The identity provider, with the rules by which its people get roles
#[utoipa::path(get, path = "/identity", tag = "tokens", responses((status = 200, body = Identity)))]
pub(super) async fn identity(State(server): State<Arc<Server>>, principal: Principal) -> Answer<Identity> {
    // What the audit log says of it as well.
    principal.need(Action::SeeAudit, &TenantPath::root())?;
    let declared = server.read(|books: &Books, _| books.identity.clone()).await?;
    Ok(Json(declared.ok_or_else(nobody)?))
}

/// Take the tokens of the identity provider no more
///
/// Leases that its people have stay theirs; no such token gives access to them until a provider
/// is declared again.
#[utoipa::path(delete, path = "/identity", tag = "tokens", responses((status = 200, body = Identity)))]
pub(super) async fn forget_identity(
    State(server): State<Arc<Server>>,
    principal: Principal,
    headers: HeaderMap,
) -> Answer<Identity> {
    principal.need(Action::SetIdentity, &TenantPath::root())?;
    let mut change = server.change().await?;
    let known = change.books().identity.clone().ok_or_else(nobody);
    let before = match known.and_then(|known| tags::check_read(&headers, &known).map(|()| known)) {
        Ok(before) => before,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    change.set_identity(None);
    change.audit(&principal, "identity.removed", &before.issuer, serde_json::json!({ "before": before }));
    change.commit().await?;
    follow(&server).await?;
    Ok(Json(before))
}

/// Enters a provider that is another than before.
pub(super) fn set(change: &mut Change<'_>, principal: &Principal, identity: Identity) {
    let issuer = identity.issuer.clone();
    let before = change.set_identity(Some(identity.clone()));
    let detail = serde_json::json!({ "before": before, "after": identity });
    change.audit(principal, "identity.changed", &issuer, detail);
}

/// What has been declared counts when this returns.
pub(super) async fn follow(server: &Server) -> Result<(), Problem> {
    if let Err(error) = server.follow_identity().await {
        // It is in the database, and will be read with the rest of the state.
        server.distrust_books().await;
        return Err(unwell(error));
    }
    Ok(())
}

fn nobody() -> Problem {
    Problem::new(Kind::NotFound, "no identity provider is declared; `sluice apply` takes one")
}
