//! When tokens were used last, and which people of an identity provider have been here.
//!
//! A request only notes it in memory. Once a minute each server writes what it has noted, so a
//! token costs at most one row a minute. It is no part of a change: a server that is killed loses
//! up to a minute of it, and a full disk only delays it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_api::tenant::TenantPath;
use sluice_api::token::{Person, Token};

use crate::server::Server;
use crate::store::StoreError;

const WRITE_EVERY: Duration = Duration::from_secs(60);
/// Of people who have not been here for longer nothing is kept: about thirteen months.
const PEOPLE_KEPT_MS: u64 = 400 * 24 * 3_600_000;

/// What is not written yet.
#[derive(Default)]
pub(crate) struct LastUses(Mutex<Noted>);

/// By the ids of tokens and of people. Only what is valid is noted, so there are no more than of
/// those.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Noted {
    pub(crate) tokens: HashMap<String, u64>,
    pub(crate) people: HashMap<String, Person>,
}

impl LastUses {
    /// A token of this server's was used.
    pub(crate) fn note(&self, token: &str, now_ms: u64) {
        let mut noted = self.lock();
        match noted.tokens.get_mut(token) {
            Some(at_ms) => *at_ms = now_ms.max(*at_ms),
            None => drop(noted.tokens.insert(token.to_owned(), now_ms)),
        }
    }

    /// A person of the identity provider was here.
    pub(crate) fn note_person(&self, token: &Token, issuer: &str, now_ms: u64) {
        let mut noted = self.lock();
        let first_seen_ms = noted.people.get(&token.id).map_or(now_ms, |known| known.first_seen_ms);
        let person = Person {
            id: token.id.clone(),
            tenant: token.tenant.clone(),
            role: token.role,
            name: token.name.clone(),
            issuer: issuer.to_owned(),
            first_seen_ms,
            last_seen_ms: now_ms,
        };
        noted.people.insert(person.id.clone(), person);
    }

    /// What the database does not know yet of people of a tenant and those below it.
    fn people(&self, tenant: &TenantPath) -> Vec<Person> {
        let noted = self.lock();
        noted.people.values().filter(|person| tenant.contains(&person.tenant)).cloned().collect()
    }

    fn take(&self) -> Noted {
        std::mem::take(&mut self.lock())
    }

    /// It was not written, and is to be written with what has come since.
    fn put_back(&self, before: Noted) {
        let mut noted = self.lock();
        for (token, at_ms) in before.tokens {
            let known = noted.tokens.entry(token).or_default();
            *known = at_ms.max(*known);
        }
        for (id, person) in before.people {
            let first_seen_ms = person.first_seen_ms;
            noted.people.entry(id).or_insert(person).first_seen_ms = first_seen_ms;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Writes for as long as the server runs.
    pub(crate) async fn write_last_uses(&self) {
        loop {
            tokio::time::sleep(WRITE_EVERY).await;
            match self.write_noted().await {
                // The next minute tries again; the leader says that the disk is full.
                Ok(()) | Err(StoreError::DiskFull(_)) => {}
                Err(error) => tracing::warn!("last uses of tokens: {error}"),
            }
        }
    }

    pub(crate) async fn write_noted(&self) -> Result<(), StoreError> {
        let noted = self.last_uses.take();
        let forgotten_before_ms = self.now_ms().saturating_sub(PEOPLE_KEPT_MS);
        let written = self.store.write_last_uses(&noted, forgotten_before_ms).await;
        if written.is_err() {
            self.last_uses.put_back(noted);
        }
        written
    }

    /// Adds to tokens when they were used last.
    pub(crate) async fn add_last_uses(&self, tokens: &mut [Token]) -> Result<(), StoreError> {
        let ids = tokens.iter().map(|token| token.id.clone()).collect();
        let written = self.store.last_uses(ids).await?;
        let noted = self.last_uses.lock();
        for token in tokens {
            let [written, noted] = [&written, &noted.tokens].map(|of| of.get(&token.id).copied());
            token.last_used_at_ms = written.max(noted);
        }
        Ok(())
    }

    /// People of a tenant and those below it whose id comes after `after`, in their order; up to
    /// `limit`.
    pub(crate) async fn people(
        &self,
        tenant: &TenantPath,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Person>, StoreError> {
        let mut people = self.store.people(tenant, after, limit).await?;
        for noted in self.last_uses.people(tenant).into_iter().filter(|person| person.id.as_str() > after) {
            match people.iter_mut().find(|known| known.id == noted.id) {
                Some(known) => *known = Person { first_seen_ms: known.first_seen_ms, ..noted },
                None => people.push(noted),
            }
        }
        people.sort_by(|one, other| one.id.cmp(&other.id));
        people.truncate(limit as usize);
        Ok(people)
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::grant::Signer;
    use sluice_api::token::{PROVIDER_PREFIX, Role};

    use super::*;
    use crate::auth;
    use crate::fleet::Patience;
    use crate::server::Surroundings;
    use crate::store::{Database, Store};

    async fn server(folder: &std::path::Path) -> Server {
        let store = Store::open(&Database::Sqlite(folder.join("database"))).await.unwrap();
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        Server::open(store, Signer::new([7; 32]), patience, Surroundings::default()).await.unwrap()
    }

    fn token(id: &str, tenant: &str, role: Role) -> Token {
        let made = auth::make(tenant.parse().unwrap(), role, "ada".into(), None, 1000, 0).unwrap();
        Token { id: id.to_owned(), ..made.0.token }
    }

    #[tokio::test]
    async fn a_use_is_known_at_once_and_after_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let server = server(folder.path()).await;
        let uses = async || {
            let mut tokens = ["a", "b", "c"].map(|id| token(id, "acme", Role::Member));
            server.add_last_uses(&mut tokens).await.unwrap();
            tokens.map(|token| token.last_used_at_ms)
        };
        server.last_uses.note("a", 5000);
        server.last_uses.note("a", 4000);
        assert_eq!(uses().await, [Some(5000), None, None]);
        server.write_noted().await.unwrap();
        assert_eq!(server.last_uses.take(), Noted::default(), "it is written once");
        server.last_uses.note("b", 6000);
        // Another server was asked later.
        server.last_uses.note("a", 4500);
        server.write_noted().await.unwrap();
        assert_eq!(uses().await, [Some(5000), Some(6000), None]);
    }

    #[tokio::test]
    async fn people_are_listed_within_their_tenants_with_the_role_of_their_last_visit() {
        let folder = tempfile::tempdir().unwrap();
        let server = server(folder.path()).await;
        let person = |number: u32| format!("{PROVIDER_PREFIX}{number}");
        let here = |number: u32, tenant: &str, role: Role, at_ms: u64| {
            server.last_uses.note_person(&token(&person(number), tenant, role), "https://id.example", at_ms);
        };
        let list = async |tenant: &str, after: &str, limit: u32| {
            let people = server.people(&tenant.parse().unwrap(), after, limit).await.unwrap();
            people
                .into_iter()
                .map(|one| (one.id, one.role, one.first_seen_ms, one.last_seen_ms))
                .collect::<Vec<_>>()
        };
        let now_ms = server.now_ms();
        here(1, "acme/vision", Role::Viewer, now_ms);
        here(3, "globex", Role::Member, now_ms);
        assert_eq!(list("acme", "", 10).await, [(person(1), Role::Viewer, now_ms, now_ms)]);
        server.write_noted().await.unwrap();
        here(1, "acme/vision", Role::Member, now_ms + 7);
        here(2, "acme", Role::TenantAdmin, now_ms);
        let (first, second) =
            ((person(1), Role::Member, now_ms, now_ms + 7), (person(2), Role::TenantAdmin, now_ms, now_ms));
        assert_eq!(list("acme", "", 10).await, [first.clone(), second.clone()]);
        server.write_noted().await.unwrap();
        assert_eq!(list("acme", "", 10).await, [first.clone(), second.clone()]);
        assert_eq!(list("acme", "", 1).await, [first]);
        assert_eq!(list("acme", &person(1), 1).await, [second]);
        assert_eq!(list("/", "", 10).await.len(), 3);
    }

    #[tokio::test]
    async fn people_who_have_long_been_away_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let server = server(folder.path()).await;
        let old = token("oidc-old", "acme", Role::Member);
        server.last_uses.note_person(&old, "https://id.example", 1000);
        server.write_noted().await.unwrap();
        assert_eq!(server.people(&TenantPath::root(), "", 10).await.unwrap(), []);
    }

    #[test]
    fn what_was_not_written_is_kept_with_what_came_since() {
        let uses = LastUses::default();
        let ada =
            |at_ms| uses.note_person(&token("oidc-ada", "acme", Role::Member), "https://id.example", at_ms);
        uses.note("a", 5000);
        uses.note("b", 1000);
        ada(1000);
        let before = uses.take();
        uses.note("b", 2000);
        ada(3000);
        uses.put_back(before);
        let Noted { tokens, people } = uses.take();
        assert_eq!((tokens["a"], tokens["b"]), (5000, 2000));
        let ada = &people["oidc-ada"];
        assert_eq!((ada.first_seen_ms, ada.last_seen_ms), (1000, 3000));
    }
}
