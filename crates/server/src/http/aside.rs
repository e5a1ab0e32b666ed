//! Usage records that were set aside, for an operator to decide about.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::Page;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::usage::{AsideDecided, AsideDecision, AsideRecord};

use super::answer::Answer;
use super::extract::{Body, Options, PageOptions, page};
use crate::auth::Principal;
use crate::fleet::cards_of;
use crate::policy::Action;
use crate::server::Server;
use crate::store::Write;

/// The most records of one decision.
const IDS_MAX: usize = 1000;

/// Usage records that cannot be true as they are
///
/// By the grant of their lease, the GPUs of their node or the clock. They are on no bill until
/// an operator accepts them.
#[utoipa::path(get, path = "/usage/aside", tag = "ledger", params(PageOptions),
    responses((status = 200, body = Page<AsideRecord>)))]
pub(super) async fn aside(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<AsideRecord>> {
    principal.need(Action::Bill, &TenantPath::root())?;
    let (limit, after) =
        (options.limit()?, options.cursor(|text| Some(text.to_owned()))?.unwrap_or_default());
    let records = server.store.aside(&after, limit).await?;
    Ok(Json(page(records, limit, |aside| aside.record.id.clone())))
}

/// Accept or discard usage records that were set aside
///
/// Accepted ones count from now on; for a period with an invoice they are on the next one. Ids that
/// are not set aside are passed over.
#[utoipa::path(post, path = "/usage/aside", tag = "ledger", request_body = AsideDecision,
    responses((status = 200, body = AsideDecided)))]
pub(super) async fn decide(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(AsideDecision { ids, accept }): Body<AsideDecision>,
) -> Answer<AsideDecided> {
    principal.need(Action::Bill, &TenantPath::root())?;
    if ids.len() > IDS_MAX {
        return Err(Problem::new(Kind::Invalid, format!("up to {IDS_MAX} ids")).at("ids").into());
    }
    let mut change = server.change().await?;
    change.see_all_written().await?;
    let now_ms = change.now_ms;
    let mut records = 0;
    for id in &ids {
        let Some(AsideRecord { record, reason, .. }) = server.store.aside_of(id).await? else { continue };
        records += 1;
        let detail = serde_json::json!({ "reason": reason, "record": record });
        change.audit(&principal, if accept { "usage.accepted" } else { "usage.discarded" }, id, detail);
        change.write(Write::AsideGone(id.clone()));
        if accept {
            change.note_run_end(&record);
            let lease = match change.fleet().lease(record.lease) {
                Some(lease) => Some(lease.clone()),
                None => server.store.lease(record.lease).await?,
            };
            let node = change.fleet().nodes().get(&record.node);
            let cards = node.map_or_else(Vec::new, |node| cards_of(&record, lease.as_ref(), node));
            change.write(Write::Usage { record, received_at_ms: now_ms, cards });
        }
    }
    match records {
        0 => change.leave(),
        _ => change.commit().await?,
    }
    Ok(Json(AsideDecided { records }))
}
