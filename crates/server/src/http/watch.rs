//! What changes, as it changes: a stream of events that a watcher resumes wherever it stopped, at
//! any server.
//!
//! Leases are reported by their revisions, everything else by the audit log: both are in the
//! database, grow with every change, and lose nothing. So a stream looks at the database, whenever
//! something may have changed, for what came after where it is.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sluice_api::pool::Pool;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::watch::{Change, kind};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

use super::admin::is_shown_to;
use super::answer::Refusal;
use super::extract::{OfTenant, Options, bearer};
use crate::auth::{self, Principal};
use crate::fleet::LeaseRecord;
use crate::policy::Action;
use crate::server::{Books, Server, unwell};
use crate::store::Told;

/// Of one token, of all tokens below one top-level tenant, and of all there are, at one server.
const STREAMS_MAX: [usize; 3] = [8, 512, 2048];
/// Of all, those that are kept for tokens of the root: an operator of the server sees what
/// continues, however many tenants watch.
const STREAMS_KEPT: usize = 64;
/// Leases that are reported at a time; one with many tasks is long.
const LEASES_MAX: u32 = 50;
/// Entries of the audit log that are looked through at a time.
const ENTRIES_MAX: u64 = 1000;
/// Looks at a time, of all streams together.
const LOOKS_MAX: usize = 2;
/// What was found by the last looks: streams that stand at one place share a look.
const FOUND_MAX: usize = 8;
/// A look without news may be as old as this. What another server has written without news of it
/// here is sent with that delay at most, after [`KEEP_ALIVE`].
const FOUND_AGE_MAX: Duration = Duration::from_secs(1);
/// A stream on which nothing happens says so; and its token is looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A look is followed by a pause of at least this, and of this number of times what the database
/// needed for it: streams leave the database to others. The wait for a turn does not count.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE: u32 = 10;
/// Where a stream is that passes over what is not for its watcher is said this often at most.
const PLACES: Duration = Duration::from_secs(1);
/// A stream whose reader takes nothing for this time ends.
const READER_TIME_MAX: Duration = Duration::from_secs(60);
/// A watcher that is cut off comes back after this.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchOptions {
    /// The id of the last event that is known; the header Last-Event-ID says the same, and counts
    /// if both are there. What comes from now on unless said.
    #[serde(default)]
    since: Option<String>,
}

/// What changes, as it changes
///
/// Events as of the HTML standard. `begin` says that every later change is sent; it comes first
/// unless the request says where to continue. `lease` has a lease as it is now: one that changed
/// often meanwhile is there once. `tenant`, `node`, `gpu`, `pool` and `price` say what became of
/// one: `{"at_ms", "action", "name"}`, with the action as the audit log names it; a price has the
/// name of its meter. Only what the token may see is sent; with `tenant` only leases and tenants of
/// that one and below it.
///
/// Changes of a pool are sent to those whom its terms let see it, before the change or after it,
/// and the price of a pool to those who see all.
///
/// Every event has an id, from which any server continues, however long ago that was. An id without
/// data says that what came before it was not for this token. Where that cannot be, since the
/// database was restored from a backup, the event `anew` says so and is the last:
/// read the lists again, and watch without an id. A token may have eight streams at a server: a
/// further one ends the oldest. The tokens of a top-level tenant and of all below it have 512
/// between them. A stream whose token holds no more ends, and one whose reader takes nothing for a
/// minute.
#[utoipa::path(get, path = "/watch", tag = "leases",
    params(WatchOptions, OfTenant, ("Last-Event-ID" = Option<String>, Header, description = "As `since`")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(super) async fn watch(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<WatchOptions>,
    Options(of): Options<OfTenant>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    let wrong = || Problem::new(Kind::Invalid, "this is no id of an event of a watch").at("since");
    let last = headers.get("last-event-id").map(|id| id.to_str().map_err(|_| wrong())).transpose()?;
    let since = last.or(options.since.as_deref()).map(|text| text.parse::<Cursor>().map_err(|()| wrong()));
    let since = since.transpose()?;
    let token = bearer(&headers)?.to_owned();
    let is_wanted = server.streams.take(&principal.token.id, &principal.token.tenant)?;
    let seat = Seat { server: Arc::clone(&server), token: principal.token.id.clone(), is_wanted };
    // Before the look: what happens from here on wakes it.
    let news = server.watches.all();
    let head = head(&server).await?;
    let goes_on = match &since {
        None => true,
        Some(since) => since.revision <= head.revision && is_known(&server, since).await?,
    };
    let first = match since.as_ref().map(|_| goes_on) {
        None => Some((kind::BEGIN, json!({}))),
        Some(true) => None,
        Some(false) => {
            let why = "this state is not the one of that id: it has been restored from a backup, or the id is another installation's";
            Some((kind::ANEW, json!({ "why": why })))
        }
    };
    let at = since.filter(|_| goes_on).unwrap_or(head);
    let said = (at.clone(), Instant::now());
    let mut feed = Feed { server, token, tenant: of.tenant, at, news, ready: VecDeque::new(), said };
    if let Some((kind, data)) = first {
        feed.say(kind, &data);
    }
    let (sender, events) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            _ = feed.tell(&sender, goes_on) => {}
            () = sender.closed() => {}
            () = seat.is_wanted.notified() => {}
        }
        drop(seat);
    });
    let next = |mut events: mpsc::Receiver<Event>| async {
        Some((Ok::<_, Infallible>(events.recv().await?), events))
    };
    let events = futures_util::stream::unfold(events, next);
    let keeps_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keeps_alive).into_response())
}

/// Where a watcher is: after this revision of leases, and after this entry of the audit log, by
/// whose hash the state is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cursor {
    revision: u64,
    sequence: u64,
    hash: String,
}

/// Digits of a hash by which it is known again.
const DIGITS: usize = 16;

fn digits(hash: &str) -> String {
    hash.chars().take(DIGITS).collect()
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.revision, self.sequence, self.hash)
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Cursor, ()> {
        let mut parts = text.split('.');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).filter(|&n| n <= i64::MAX as u64);
        let (revision, sequence) = (number().ok_or(())?, number().ok_or(())?);
        let hash = parts.next().filter(|hash| hash.len() == DIGITS && parts.next().is_none()).ok_or(())?;
        Ok(Cursor { revision, sequence, hash: hash.to_owned() })
    }
}

/// Where the state is now.
async fn head(server: &Server) -> Result<Cursor, Problem> {
    let revision = server.store.leader().await.map_err(unwell)?.revision;
    let audit = server.store.audit_head().await.map_err(unwell)?;
    Ok(Cursor { revision, sequence: audit.sequence, hash: digits(&audit.hash) })
}

/// Whether the audit log is the one that the watcher has seen.
async fn is_known(server: &Server, since: &Cursor) -> Result<bool, Problem> {
    let head = server.store.audit_head_at(since.sequence).await.map_err(unwell)?;
    Ok(head.sequence == since.sequence && digits(&head.hash) == since.hash)
}

/// One stream.
struct Feed {
    server: Arc<Server>,
    token: String,
    tenant: Option<TenantPath>,
    at: Cursor,
    news: tokio::sync::watch::Receiver<u64>,
    ready: VecDeque<Event>,
    /// The last place that was sent to the watcher, and when.
    said: (Cursor, Instant),
}

impl Feed {
    /// Ends where the token holds no more, or the database does not answer: a client that comes
    /// back gets the reason.
    async fn tell(mut self, events: &mpsc::Sender<Event>, goes_on: bool) -> Option<()> {
        let mut rests_until = Instant::now();
        // When the last news came: a look that began before may lack what changed.
        let mut heard = Instant::now();
        loop {
            while let Some(event) = self.ready.pop_front() {
                timeout(READER_TIME_MAX, events.send(event)).await.ok()?.ok()?;
            }
            if !goes_on {
                return None;
            }
            sleep_until(rests_until).await;
            if self.news.has_changed().ok()? {
                self.news.borrow_and_update();
                heard = Instant::now();
            }
            let oldest = Instant::now().checked_sub(FOUND_AGE_MAX);
            let since = oldest.map_or(heard, |oldest| heard.max(oldest));
            let Looked { more, took } = self.look(since).await.ok()?;
            rests_until = Instant::now() + (took * PAUSE).clamp(PAUSE_MIN, KEEP_ALIVE);
            if self.said.0 != self.at && self.said.1.elapsed() >= PLACES {
                let event = self.begin_event();
                self.ready.push_back(event);
            }
            if self.ready.is_empty() && !more {
                // Also while this server receives no news: it may have been overtaken.
                let patience = if self.said.0 == self.at { KEEP_ALIVE } else { PLACES };
                if timeout(patience, self.news.changed()).await.is_ok() {
                    heard = Instant::now();
                }
            }
        }
    }

    fn say(&mut self, kind: &str, data: &impl Serialize) {
        // What has no JSON form is none of our types.
        let event = self.begin_event().event(kind).json_data(data).unwrap_or_default();
        self.ready.push_back(event);
    }

    /// What says where the watcher is then.
    fn begin_event(&mut self) -> Event {
        self.said = (self.at.clone(), Instant::now());
        Event::default().id(self.at.to_string()).retry(RETRY)
    }

    /// Takes what is new, as it was at `since` or later.
    async fn look(&mut self, since: Instant) -> Result<Looked, Problem> {
        let server = Arc::clone(&self.server);
        let principal = auth::recognise(&server, &self.token, server.now_ms()).await?;
        let scope = principal.sees(Action::See, self.tenant.as_ref());
        let is_seen = |tenant: &TenantPath| scope.as_ref().is_some_and(|scope| scope.contains(tenant));

        let found = find(&server, &self.at, since).await?;
        let sees_fleet = self.tenant.is_none() && principal.may(Action::SeeFleet, &TenantPath::root());
        for told in &found.entries {
            (self.at.sequence, self.at.hash) = (told.sequence, digits(&told.hash));
            let is_told = self.tenant.is_none() && concerns(&principal, told);
            let Told { at_ms, action, subject, .. } = told.clone();
            let (kind, seen) = match action.split('.').next() {
                Some("node") => (kind::NODE, sees_fleet),
                Some("gpu") => (kind::GPU, sees_fleet),
                Some("pool") => (kind::POOL, is_told),
                Some("price") => (kind::PRICE, is_told),
                _ => (kind::TENANT, subject.parse().is_ok_and(|tenant| is_seen(&tenant))),
            };
            if seen {
                self.say(kind, &Change { at_ms, action, name: subject });
            }
        }
        (self.at.sequence, self.at.hash) = (found.sequence, found.hash.clone());
        if !found.reads_all {
            return Ok(Looked { more: true, took: found.took });
        }

        let leases = &found.leases;
        let told: Vec<_> = leases.iter().filter(|lease| is_seen(&lease.tenant)).collect();
        let views = |books: &Books, _| -> Vec<_> { told.iter().map(|lease| books.view(lease)).collect() };
        for lease in if told.is_empty() { Vec::new() } else { server.read(views).await? } {
            self.at.revision = lease.revision;
            self.say(kind::LEASE, &lease);
        }
        self.at.revision = leases.last().map_or(self.at.revision, |lease| lease.revision);
        Ok(Looked { more: leases.len() == LEASES_MAX as usize, took: found.took })
    }
}

/// What a stream's look came to.
struct Looked {
    /// Whether there may be more to take at once.
    more: bool,
    /// The time that the database needed, without the wait for a turn.
    took: Duration,
}

/// What the database has after a place.
struct Found {
    after: Cursor,
    /// When the look began.
    begun: Instant,
    /// The time that the database needed for it.
    took: Duration,
    leases: Vec<LeaseRecord>,
    entries: Vec<Told>,
    /// The last entry of the audit log that was looked at, and the digits of its hash.
    sequence: u64,
    hash: String,
    /// Whether there are no further entries.
    reads_all: bool,
}

/// Returns what comes after a place, as it was at `since` or later: what another stream has found,
/// if that is so new.
async fn find(server: &Server, after: &Cursor, since: Instant) -> Result<Arc<Found>, Problem> {
    if let Some(found) = server.streams.found(after, since) {
        return Ok(found);
    }
    let closed = |_| Problem::new(Kind::Unavailable, "the server stops");
    let turn = server.streams.looks.acquire().await.map_err(closed)?;
    // Another stream may have looked while this one waited for its turn.
    if let Some(found) = server.streams.found(after, since) {
        return Ok(found);
    }
    let begun = Instant::now();
    // Before the log, which then has the entries of these changes: the id of a lease names none
    // that is older than its change, and a state that was restored to an older one is recognised as
    // another.
    let leases = server.store.leases_after(after.revision, LEASES_MAX).await.map_err(unwell)?;
    let head = server.store.audit_head().await.map_err(unwell)?;
    // A fixed number, whether they are sent or not: each look gets further.
    let until = head.sequence.min(after.sequence.saturating_add(ENTRIES_MAX));
    let reads_all = until == head.sequence;
    let place = if reads_all { head } else { server.store.audit_head_at(until).await.map_err(unwell)? };
    let entries = server.store.audit_told((after.sequence, until)).await.map_err(unwell)?;
    let (sequence, hash) = (place.sequence, digits(&place.hash));
    let (after, took) = (after.clone(), begun.elapsed());
    let found = Arc::new(Found { after, begun, took, leases, entries, sequence, hash, reads_all });
    server.streams.keep(&found);
    drop(turn);
    Ok(found)
}

/// Whether what became of a pool or of a price is for this watcher, by what the entry itself says:
/// the pool may be another by now.
fn concerns(principal: &Principal, told: &Told) -> bool {
    /// What the details of both have of what counts here.
    #[derive(Deserialize)]
    struct Detail {
        before: Option<Pool>,
        after: Option<Pool>,
        /// That a price is for.
        pool: Option<String>,
    }
    if principal.may(Action::See, &TenantPath::root()) {
        return true;
    }
    let Ok(Detail { before, after, pool }) = serde_json::from_str(&told.detail) else { return false };
    match told.action.starts_with("pool.") {
        true => [before, after].iter().flatten().any(|pool| is_shown_to(principal, pool, told.at_ms)),
        // Its entry does not say whom the pool serves.
        false => pool.is_none(),
    }
}

/// Who has streams at this server, by their tokens. And whose turn it is to look.
pub(crate) struct Streams {
    seats: Mutex<HashMap<String, OfToken>>,
    looks: Semaphore,
    /// The last looks, the oldest first.
    found: Mutex<VecDeque<Arc<Found>>>,
}

struct OfToken {
    /// The top-level tenant at or above the token's; the root for tokens of the root itself.
    organisation: TenantPath,
    /// The oldest first.
    seats: VecDeque<Arc<Notify>>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { seats: Mutex::default(), looks: Semaphore::new(LOOKS_MAX), found: Mutex::default() }
    }
}

/// The seat of one stream; leaving it frees room for another.
struct Seat {
    server: Arc<Server>,
    token: String,
    /// By a newer stream of the token.
    is_wanted: Arc<Notify>,
}

impl Streams {
    /// A token's oldest stream leaves for its newest: its reader may be gone without a word.
    /// Streams of other tokens stay, no organisation can take the room of all others, and all
    /// together leave some to administrators.
    fn take(&self, token: &str, tenant: &TenantPath) -> Result<Arc<Notify>, Problem> {
        let mut tokens = self.lock();
        let [own_max, organisation_max, all_max] = STREAMS_MAX;
        let all_max = if tenant.is_root() { all_max } else { all_max - STREAMS_KEPT };
        let organisation = tenant.lineage().last().unwrap_or_else(TenantPath::root);
        let is_full = tokens.get(token).is_some_and(|own| own.seats.len() >= own_max);
        let count = |is_counted: &dyn Fn(&OfToken) -> bool| {
            tokens.values().filter(|&of| is_counted(of)).map(|of| of.seats.len()).sum::<usize>()
        };
        let too_many = if is_full {
            None
        } else if count(&|_| true) >= all_max {
            Some(format!("{all_max} streams are watched at this server"))
        } else if count(&|of| of.organisation == organisation) >= organisation_max {
            Some(format!("{organisation_max} streams of {organisation} are watched at this server"))
        } else {
            None
        };
        if let Some(what) = too_many {
            return Err(Problem::new(Kind::Unavailable, format!("{what}; ask another one, or later")));
        }
        let own = tokens.entry(token.to_owned());
        let own = &mut own.or_insert_with(|| OfToken { organisation, seats: VecDeque::new() }).seats;
        if let Some(oldest) = if is_full { own.pop_front() } else { None } {
            oldest.notify_one();
        }
        let is_wanted = Arc::new(Notify::new());
        own.push_back(Arc::clone(&is_wanted));
        Ok(is_wanted)
    }

    /// Returns what a look after this place has found that began at `since` or later.
    fn found(&self, after: &Cursor, since: Instant) -> Option<Arc<Found>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().rev().find(|found| found.begun >= since && found.after == *after).cloned()
    }

    fn keep(&self, new: &Arc<Found>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        while found.len() >= FOUND_MAX {
            found.pop_front();
        }
        found.push_back(Arc::clone(new));
    }

    fn leave(&self, token: &str, is_wanted: &Arc<Notify>) {
        let mut tokens = self.lock();
        if let Some(own) = tokens.get_mut(token) {
            own.seats.retain(|seat| !Arc::ptr_eq(seat, is_wanted));
            if own.seats.is_empty() {
                tokens.remove(token);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OfToken>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.server.streams.leave(&self.token, &self.is_wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_shared_by_those_who_stand_where_it_began_and_want_nothing_newer() {
        let streams = Streams::default();
        let place = |revision| Cursor { revision, sequence: 1, hash: "0".into() };
        let began = Instant::now();
        let look = |after, begun| Found {
            after,
            begun,
            took: Duration::ZERO,
            leases: Vec::new(),
            entries: Vec::new(),
            sequence: 1,
            hash: "0".into(),
            reads_all: true,
        };
        streams.keep(&Arc::new(look(place(7), began)));
        assert!(streams.found(&place(7), began).is_some());
        assert!(streams.found(&place(8), began).is_none(), "another place");
        assert!(streams.found(&place(7), began + Duration::from_millis(1)).is_none(), "too old");
        (0..FOUND_MAX as u64).for_each(|revision| streams.keep(&Arc::new(look(place(revision + 10), began))));
        assert!(streams.found(&place(7), began).is_none(), "no more are kept");
    }

    #[test]
    fn no_organisation_takes_the_streams_of_all() {
        let streams = Streams::default();
        let [own_max, organisation_max, all_max] = STREAMS_MAX;
        let take = |token: &str, tenant: &str| streams.take(token, &tenant.parse().unwrap());
        let fill = |organisation: &str| -> Vec<_> {
            let tenants =
                [format!("{organisation}/a"), organisation.to_owned(), format!("{organisation}/b/c")];
            let token =
                |n: usize| (format!("{organisation} {}", n / own_max), &tenants[n / own_max % tenants.len()]);
            let take_one =
                |(token, tenant): (String, &String)| (token.clone(), take(&token, tenant).unwrap());
            (0..organisation_max).map(token).map(take_one).collect()
        };
        let acme = fill("acme");
        let refused = take("another", "acme/d").unwrap_err();
        assert!(
            refused.status == 503 && refused.detail.starts_with("512 streams of acme are"),
            "{refused:?}"
        );
        // A token that has all it may continues in the place of its own oldest.
        let newest = take(&acme[0].0, "acme/a").unwrap();
        streams.leave(&acme[1].0, &acme[1].1);
        streams.leave(&acme[2].0, &acme[2].1);
        take("another", "acme/d").unwrap();
        take("another", "acme/d").unwrap();
        take("another", "acme/d").unwrap_err();
        drop(newest);
        fill("b");
        fill("c");
        let left = all_max - STREAMS_KEPT - 3 * organisation_max;
        for n in 0..left {
            take(&format!("d {}", n / own_max), "d").unwrap();
        }
        let refused = take("last", "acmeister").unwrap_err();
        assert!(refused.status == 503 && refused.detail.starts_with("1984 streams are"), "{refused:?}");
        // The rest is the administrators'.
        for n in 0..STREAMS_KEPT {
            take(&format!("admin {}", n / own_max), "/").unwrap();
        }
        let refused = take("one more", "/").unwrap_err();
        assert!(refused.detail.starts_with("2048 streams are"), "{refused:?}");
    }
}
