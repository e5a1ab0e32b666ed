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
use crate::store::{LEADERSHIP, Leader, Replica, Replicas};

/// The servers of this control plane, and which of them leads
///
/// Each writes down every two seconds that it is there and what it has read. One that says nothing
/// for 15 seconds counts as silent, and is in no list after an hour.
#[utoipa::path(get, path = "/servers", tag = "nodes", responses((status = 200, body = Servers)))]
pub(super) async fn servers(State(server): State<Arc<Server>>, principal: Principal) -> Answer<Servers> {
    principal.need(Action::SeeMetrics, &TenantPath::root())?;
    let replicas = server.store.replicas().await.map_err(unwell)?;
    let own = server.holder.get().map(String::as_str);
    let mut items: Vec<_> = replicas.servers.iter().map(|replica| status(replica, &replicas, own)).collect();
    if !replicas.expired && replicas.servers.iter().all(|replica| replica.holder != replicas.holder) {
        let leader = server.store.leader().await.map_err(unwell)?;
        items.push(leader_without_row(&leader, &replicas, own));
    }
    Ok(Json(Servers { leadership: replicas.fence, now_ms: replicas.now_ms, items }))
}

fn status(replica: &Replica, all: &Replicas, own: Option<&str>) -> ServerStatus {
    let leads = !all.expired && replica.holder == all.holder;
    // Seen in the time to come: the clock was set back since.
    let silent_for_ms = all.now_ms.abs_diff(replica.seen_ms);
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
        leads_since_ms: Some(all.since_ms).filter(|&since_ms| leads && since_ms > 0),
        // The one that leads wrote all of it.
        behind: if leads { 0 } else { all.revision.saturating_sub(replica.revision) },
        settings_behind: !leads && replica.settings_revision < all.settings_revision,
        answers: own == Some(&replica.holder),
    }
}

/// A leader that has no row, as one of an earlier release during an upgrade. It did not write since
/// when it leads either: what stands there may be the time of one before it.
fn leader_without_row(leader: &Leader, all: &Replicas, own: Option<&str>) -> ServerStatus {
    let lead_ms = LEADERSHIP.as_millis() as u64;
    let seen_ms = leader.until_ms.saturating_sub(lead_ms).min(all.now_ms);
    ServerStatus {
        url: leader.url.clone(),
        release: "not known".into(),
        state: ServerState::Leads,
        // At the latest.
        started_ms: seen_ms,
        seen_ms,
        leads_since_ms: None,
        behind: 0,
        settings_behind: false,
        answers: own == Some(all.holder.as_str()),
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
        all.now_ms = 80_000;
        assert_eq!(states(&all)[1].0, Silent, "the clock was set back");
        all.now_ms = 90_000;
        assert_eq!(states(&all)[1].0, Follows, "by a little it may be");
        (all.expired, all.holder) = (false, "b".into());
        assert_eq!(status(&all.servers[1], &all, None).leads_since_ms, Some(50_000));
        all.since_ms = 0;
        assert_eq!(status(&all.servers[1], &all, None).leads_since_ms, None, "nobody wrote it down");
    }

    #[test]
    fn a_leader_that_writes_no_row_leads_all_the_same() {
        let all = Replicas {
            now_ms: 100_000,
            fence: 4,
            holder: "old".into(),
            since_ms: 50_000,
            expired: false,
            revision: 7,
            settings_revision: 4,
            servers: vec![replica("new", 99_000, 7)],
        };
        let leader = Leader {
            url: "http://old".into(),
            until_ms: 102_000,
            expired: false,
            revision: 7,
            settings_revision: 4,
        };
        let item = leader_without_row(&leader, &all, Some("new"));
        assert_eq!((item.url.as_str(), item.state), ("http://old", ServerState::Leads));
        assert_eq!((item.seen_ms, item.leads_since_ms, item.answers), (99_000, None, false));
    }
}
