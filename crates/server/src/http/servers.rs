//! The servers that share the database, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::replica::{ServerState, ServerStatus, Servers};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use crate::auth::Principal;
use crate::leader::SILENT_AFTER;
use crate::policy::Action;
use crate::server::{Server, unwell};
use crate::store::{Replica, Replicas};

/// The servers of this control plane, and which of them leads
///
/// Each writes down every two seconds that it is there and what it has read. One that says nothing
/// for 15 seconds counts as silent, and is in no list after an hour.
#[utoipa::path(get, path = "/servers", tag = "nodes", responses((status = 200, body = Servers)))]
pub(super) async fn servers(State(server): State<Arc<Server>>, principal: Principal) -> Answer<Servers> {
    principal.need(Action::SeeMetrics, &TenantPath::root())?;
    let replicas = server.store.replicas().await.map_err(unwell)?;
    let own = server.holder.get().map(String::as_str);
    Ok(Json(Servers {
        leadership: replicas.fence,
        now_ms: replicas.now_ms,
        items: replicas.servers.iter().map(|replica| status(replica, &replicas, own)).collect(),
    }))
}

fn status(replica: &Replica, all: &Replicas, own: Option<&str>) -> ServerStatus {
    let leads = !all.expired && replica.holder == all.holder;
    let silent_for_ms = all.now_ms.saturating_sub(replica.seen_ms);
    ServerStatus {
        url: replica.url.clone(),
        release: replica.release.clone(),
        state: match () {
            () if leads => ServerState::Leads,
            () if u128::from(silent_for_ms) > SILENT_AFTER.as_millis() => ServerState::Silent,
            () => ServerState::Follows,
        },
        started_ms: replica.started_ms,
        seen_ms: replica.seen_ms,
        leads_since_ms: leads.then_some(all.since_ms),
        // The one that leads wrote all of it.
        behind: if leads { 0 } else { all.revision.saturating_sub(replica.revision) },
        settings_behind: !leads && replica.settings_revision < all.settings_revision,
        answers: own == Some(&replica.holder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(holder: &str, seen_ms: u64, revision: u64) -> Replica {
        let (url, release) = (format!("http://{holder}"), "1.0.0".into());
        Replica {
            holder: holder.into(),
            url,
            release,
            started_ms: 1,
            seen_ms,
            revision,
            settings_revision: 3,
        }
    }

    #[test]
    fn who_leads_has_read_everything_and_who_is_silent_is_said_to_be() {
        let servers = vec![replica("a", 99_000, 0), replica("b", 99_000, 7), replica("c", 60_000, 2)];
        let mut all = Replicas {
            now_ms: 100_000,
            fence: 4,
            holder: "a".into(),
            since_ms: 50_000,
            expired: false,
            revision: 7,
            settings_revision: 4,
            servers,
        };
        let states = |all: &Replicas| {
            let each = all.servers.iter().map(|one| status(one, all, Some("b")));
            each.map(|one| (one.state, one.behind, one.settings_behind, one.answers)).collect::<Vec<_>>()
        };
        use ServerState::{Follows, Leads, Silent};
        let expect = [(Leads, 0, false, false), (Follows, 0, true, true), (Silent, 5, true, false)];
        assert_eq!(states(&all), expect);
        all.expired = true;
        assert_eq!(states(&all)[0], (Follows, 7, true, false), "nobody leads");
    }
}
