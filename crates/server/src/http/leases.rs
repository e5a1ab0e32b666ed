//! Leases: asked for, waited for, ended.

pub(super) mod change;
pub(super) mod read;
pub(super) mod request;

use axum::http::HeaderMap;
use sluice_api::lease::LeaseId;
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;
use super::tags;
use crate::server::Change;

pub(super) use read::view;

/// What the header If-Match asks for.
pub(super) fn unchanged(change: &mut Change<'_>, headers: &HeaderMap, id: LeaseId) -> Result<(), Problem> {
    let revision = change.fleet().lease(id).map(|lease| lease.revision);
    tags::check(headers, revision.unwrap_or(0))
}

pub(super) fn no_lease(id: LeaseId) -> Refusal {
    Problem::new(Kind::NotFound, format!("there is no lease {id}")).into()
}
