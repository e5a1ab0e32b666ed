//! Which of several servers leads: the one whose fence stands in the database.
//!
//! A leader writes, and every write says anew that it leads; without anything to write it says so
//! all the same. A follower reads what is written, and leads once the leader has said nothing for
//! [`LEADERSHIP`]. Clocks of servers do not matter: the database's does, and only for how soon;
//! that two write is excluded by the fence, which each transaction checks.

use std::time::Duration;

use tokio::time::Instant;

use crate::server::Server;
use crate::store::{Fence, LEADERSHIP, Leader, Presence, StoreError, Write};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Leader(Fence),
    Follower {
        /// Where the leader is, if there is one.
        leader: Option<String>,
    },
}

/// How this server takes part.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// Of this process.
    pub(crate) holder: String,
    /// At which other servers reach it.
    pub(crate) url: String,
    /// No other server uses the database: the previous leader is gone.
    pub(crate) alone: bool,
}

/// A leader says that it leads.
const RENEW_EVERY: Duration = LEADERSHIP.checked_div(3).unwrap();
/// Old idempotency keys are forgotten whenever this number of seconds has passed.
const FORGET_EVERY: u64 = 600;
/// A request may be repeated under its key for a week.
const KEYS_KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// A follower looks for news and for a leader's silence.
const FOLLOW_EVERY: Duration = Duration::from_millis(300);
/// A server writes down that it is there, for people who look at all of them.
const SAY_HERE_EVERY: Duration = Duration::from_secs(2);
/// Writing it must not take longer: a leader that renews nothing meanwhile may be replaced.
const SAY_HERE_PATIENCE: Duration = Duration::from_millis(500);
/// One that has not done so for this time counts as silent.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(15);

/// What a follower has seen of its leader's writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    revision: u64,
    settings: u64,
    /// Until when it leads; none before the first look.
    until_ms: Option<u64>,
}

impl Server {
    /// Leads or follows, for ever.
    pub(crate) async fn take_part(&self, candidate: &Candidate) {
        let (mut renewed, mut away) = (Instant::now(), false);
        let mut said_here: Option<Instant> = None;
        for count in 0.. {
            self.step_down_if_blind(candidate).await;
            let (every, went_well) = match self.fence() {
                Some(fence) => (RENEW_EVERY, self.renew(fence, count).await),
                None => (FOLLOW_EVERY, self.follow(candidate).await),
            };
            match went_well {
                Ok(()) => {
                    (renewed, away) = (Instant::now(), false);
                    if said_here.is_none_or(|at| at.elapsed() >= SAY_HERE_EVERY) {
                        // One that cannot say so is shown as silent, which is what it is.
                        let _ = tokio::time::timeout(SAY_HERE_PATIENCE, self.say_here(candidate)).await;
                        said_here = Some(Instant::now());
                    }
                }
                Err(error) => {
                    let is_full = matches!(error, StoreError::DiskFull(_));
                    if !std::mem::replace(&mut away, true) && !is_full {
                        tracing::warn!("{error}");
                    }
                    if self.fence().is_some() && !candidate.alone && renewed.elapsed() > LEADERSHIP {
                        // Another may lead by now: what this one has in memory is not the truth any
                        // more.
                        self.become_role(Role::Follower { leader: None });
                    }
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Leaves the lead to a server that can read the state.
    async fn step_down_if_blind(&self, candidate: &Candidate) {
        let Some(fence) = self.fence().filter(|_| !candidate.alone && self.is_blind()) else { return };
        tracing::error!(
            "it cannot read its state, which a later release may have written, and leads no more for a while; \
             another server can"
        );
        self.become_role(Role::Follower { leader: None });
        if let Err(error) = self.store.resign(fence).await {
            // Then others wait until it has said nothing for long enough.
            tracing::warn!("{error}");
        }
    }

    async fn renew(&self, fence: Fence, count: u64) -> Result<(), StoreError> {
        let before_ms = self.now_ms().saturating_sub(KEYS_KEPT_MS);
        let tidy = count.is_multiple_of(FORGET_EVERY).then_some(Write::ForgetKeys { before_ms });
        let renewed = self.store.commit(fence, tidy.into_iter().collect()).await;
        self.disk.note(&renewed);
        if matches!(renewed, Err(StoreError::Fenced)) {
            self.become_role(Role::Follower { leader: None });
        }
        renewed
    }

    /// Writes down that this server is there, and what it has read.
    async fn say_here(&self, candidate: &Candidate) -> Result<(), StoreError> {
        let seen = *self.seen.lock().await;
        let (holder, url) = (candidate.holder.as_str(), candidate.url.as_str());
        let (revision, settings_revision) = (seen.revision, seen.settings);
        self.store.say_here(&Presence { holder, url, revision, settings_revision }).await
    }

    /// Learns who leads and what is new; leads if no server does.
    pub(crate) async fn follow(&self, candidate: &Candidate) -> Result<(), StoreError> {
        let row = self.look_at_leader().await?;
        if candidate.alone || (row.expired && !self.is_blind()) {
            return self.lead(candidate).await;
        }
        let leader = (!row.expired).then_some(row.url);
        if *self.role.borrow() != (Role::Follower { leader: leader.clone() }) {
            self.become_role(Role::Follower { leader });
        }
        Ok(())
    }

    /// Reads what the leader has written, and what the row says of it.
    pub(crate) async fn look_at_leader(&self) -> Result<Leader, StoreError> {
        let mut seen = self.seen.lock().await;
        let row = self.store.leader().await?;
        let now =
            Seen { revision: row.revision, settings: row.settings_revision, until_ms: Some(row.until_ms) };
        if seen.until_ms.is_some_and(|until_ms| until_ms < row.until_ms) {
            // A server has just written: there is room.
            self.disk.note(&Ok(()));
        }
        seen.until_ms = now.until_ms;
        if now != *seen {
            self.catch_up(now.settings != seen.settings).await?;
            *seen = now;
        }
        Ok(row)
    }

    /// Takes the lead if it is free.
    async fn lead(&self, candidate: &Candidate) -> Result<(), StoreError> {
        let lead = self.store.lead(&candidate.holder, &candidate.url, candidate.alone).await;
        // Where no leader was replaced, nothing was written.
        if !matches!(lead, Ok(None)) {
            self.disk.note(&lead);
        }
        if let Some(fence) = lead? {
            tracing::info!("leads from now on");
            self.become_role(Role::Leader(fence));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use sluice_api::grant::Signer;

    use super::*;
    use crate::fleet::Patience;
    use crate::server::Surroundings;
    use crate::store::Store;
    use crate::store::faults::Faults;

    async fn open(folder: &Path) -> Server {
        let store = Store::simulated(&folder.join("database"), Arc::new(Faults::default())).await.unwrap();
        store.set_clock(1_000_000).await.unwrap();
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        Server::open(store, Signer::new([7; 32]), patience, Surroundings::default()).await.unwrap()
    }

    fn candidate(name: &str) -> Candidate {
        Candidate { holder: name.into(), url: name.into(), alone: false }
    }

    #[tokio::test]
    async fn a_server_that_cannot_read_its_books_leaves_the_lead() {
        let folder = tempfile::tempdir().unwrap();
        let (server, other) = (open(folder.path()).await, open(folder.path()).await);
        server.follow(&candidate("server")).await.unwrap();
        server.store.execute("INSERT INTO identity (declared) VALUES ('{\"of a later release\": 1}')").await;
        server.distrust_books().await;
        assert!(server.read(|_, _| ()).await.is_err());
        server.step_down_if_blind(&candidate("server")).await;
        assert!(server.fence().is_none());
        server.follow(&candidate("server")).await.unwrap();
        assert!(server.fence().is_none(), "it does not take it again");
        other.follow(&candidate("other")).await.unwrap();
        assert!(other.fence().is_some());
    }

    #[tokio::test]
    async fn a_follower_sees_that_there_is_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let (leader, follower) = (open(folder.path()).await, open(folder.path()).await);
        leader.follow(&candidate("leader")).await.unwrap();
        follower.follow(&candidate("follower")).await.unwrap();
        follower.disk.note::<()>(&Err(StoreError::DiskFull(sqlx::Error::PoolClosed)));
        follower.follow(&candidate("follower")).await.unwrap();
        assert!(follower.disk.is_full(), "nobody has written");
        leader.store.set_clock(1_001_000).await.unwrap();
        leader.renew(leader.fence().unwrap(), 1).await.unwrap();
        follower.follow(&candidate("follower")).await.unwrap();
        assert!(!follower.disk.is_full() && follower.fence().is_none());
    }
}
