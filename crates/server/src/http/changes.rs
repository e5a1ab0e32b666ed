//! What has changed since a revision: a stream in pieces that a watcher resumes wherever it stopped, at any server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use sluice_api::lease::Lease;

use super::answer::Answer;
use super::extract::{Options, wait};
use crate::auth::Principal;
use crate::policy::Action;
use crate::server::{Books, Server};

/// Leases of one answer.
const CHANGES_MAX: u32 = 500;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangesOptions {
    /// The revision that is known: `revision` of the answer before. 0 begins with all leases there ever were.
    #[serde(default)]
    after: u64,
    /// Up to 20,000: how long to wait if nothing has changed yet.
    #[serde(default)]
    #[param(maximum = 20_000)]
    wait_ms: u64,
}

/// Leases that have changed
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct Changes {
    /// As they are now, in the order of their last change. A lease that changed often is there once.
    items: Vec<Lease>,
    /// Where to go on.
    revision: u64,
}

/// What has changed since a revision
///
/// The answer waits until something has, or until the time is up. Nothing is left out, whichever server is asked and however long ago
/// the revision is.
#[utoipa::path(get, path = "/changes", tag = "leases", params(ChangesOptions),
    responses((status = 200, body = Changes)))]
pub(super) async fn changes(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<ChangesOptions>,
) -> Answer<Changes> {
    let deadline = tokio::time::Instant::now() + wait(options.wait_ms)?;
    let mut news = server.watches.all();
    let mut after = options.after.min(i64::MAX as u64);
    loop {
        news.borrow_and_update();
        let changed = server.store.leases_after(after, CHANGES_MAX).await?;
        after = changed.last().map_or(after, |lease| lease.revision);
        let visible: Vec<_> =
            changed.iter().filter(|lease| principal.may(Action::See, &lease.tenant)).collect();
        if !visible.is_empty() {
            let view = |books: &Books, _| visible.iter().map(|lease| books.view(lease)).collect();
            return Ok(Json(Changes { items: server.read(view).await?, revision: after }));
        }
        let more = changed.len() == CHANGES_MAX as usize;
        if !more && tokio::time::timeout_at(deadline, news.changed()).await.is_err() {
            return Ok(Json(Changes { items: Vec::new(), revision: after }));
        }
    }
}
