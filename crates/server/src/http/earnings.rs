//! What each GPU earned.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::bill::{CardEarnings, Goods};
use sluice_api::node::NodeId;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::extract::{Options, PageOptions};
use crate::auth::Principal;
use crate::billing::{self, CardNow, CardsOfNode, Period};
use crate::fleet::{Fleet, card_of};
use crate::policy::Action;
use crate::server::{Books, Server};

/// When.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct When {
    /// Records that begin at this moment or later.
    #[serde(default)]
    from_ms: Option<u64>,
    /// Records that begin before this moment; now, unless said.
    #[serde(default)]
    until_ms: Option<u64>,
}

/// What each GPU earned in a period, and what its idle time would have
///
/// By the usage records that are known to be of it: of leases of several GPUs each has its part.
/// Records of a lease that was moved away from a node with several GPUs may be of none, and so are
/// those from before the server noted this. A page has the GPUs of whole nodes, so it may have some
/// more than `limit`.
#[utoipa::path(get, path = "/gpus/earnings", tag = "ledger", params(When, PageOptions),
    responses((status = 200, body = Page<CardEarnings>)))]
pub(super) async fn card_earnings(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(When { from_ms, until_ms }): Options<When>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<CardEarnings>> {
    principal.need(Action::Bill, &TenantPath::root())?;
    let (limit, after) = (options.limit()?, options.cursor(|text| text.parse::<NodeId>().ok())?);
    let now_ms = server.now_ms();
    let period = Period { from_ms: from_ms.unwrap_or(0), until_ms: until_ms.unwrap_or(now_ms + 1) };
    if period.from_ms >= period.until_ms {
        return Err(Problem::new(Kind::Invalid, "the period ends before it begins").at("until_ms").into());
    }
    let known = server.store.nodes_since().await?;
    let look = |books: &Books, _| {
        let mut rest = known.iter().filter(|(id, _)| after.is_none_or(|after| **id > after)).peekable();
        let (mut nodes, mut count) = (Vec::new(), 0);
        while count < limit as usize
            && let Some((id, (name, first_joined_ms))) = rest.next()
        {
            let cards = cards(&books.fleet, *id);
            count += cards.len().max(1);
            let (name, first_joined_ms) = (name.clone(), *first_joined_ms);
            nodes.push(CardsOfNode { id: *id, name, first_joined_ms, cards });
        }
        let next = nodes.last().filter(|_| rest.peek().is_some()).map(|node| node.id.to_string());
        (nodes, next)
    };
    let (nodes, next) = server.read(look).await?;
    let items = billing::earnings(&server.store, period, now_ms, &nodes).await?;
    Ok(Json(Page { items, next }))
}

/// Those that a node has; none of a node that is gone.
fn cards(fleet: &Fleet, id: NodeId) -> Vec<CardNow> {
    let Some(node) = fleet.nodes().get(&id) else { return Vec::new() };
    let of = |(index, gpu): (u32, &sluice_api::node::Gpu)| {
        let (pool, model) = (fleet.pool_of(node, index).to_owned(), gpu.name.clone());
        let goods = Goods { pool, model, gflops: gpu.gflops, ..Goods::default() };
        Some(CardNow { card: card_of(node, index)?, goods })
    };
    (0..).zip(&node.gpus).filter_map(of).collect()
}
