//! What changes, as it changes: a stream of events that a watcher resumes wherever it stopped, at any server.
//!
//! Leases are told by their revisions, everything else by the audit log: both are in the database, grow with every change, and lose
//! nothing. So a stream looks at the database, whenever something may have changed, for what came after where it is.

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
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::watch::{Change, kind};
use tokio::sync::watch::Receiver;

use super::answer::Refusal;
use super::extract::{OfTenant, Options, bearer};
use crate::auth::{self, Principal};
use crate::policy::Action;
use crate::server::{Books, Server, unwell};
use crate::store::Told;

/// Of one token, and of all of them, at one server.
const STREAMS_MAX: [usize; 2] = [8, 512];
/// Read at a time.
const NEWS_MAX: u32 = 500;
/// A stream on which nothing happens says so; and its token is looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A look is followed by a pause of at least this, and of so many times what the look took: streams leave the database to others.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE: u32 = 10;
/// A watcher that is cut off comes back after this.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchOptions {
    /// The id of the last event that is known; the header Last-Event-ID says the same, and counts if both are there. What comes from now on
    /// unless said.
    #[serde(default)]
    since: Option<String>,
}

/// What changes, as it changes
///
/// Events as of the HTML standard. `begin` says that whatever is read from then on is told when it changes; it comes first unless the request
/// says where to go on. `lease` has a lease as it is now: one that changed often meanwhile is there once. `tenant`, `node` and `gpu` say what
/// became of one: `{"at_ms", "action", "name"}`, with the action as the audit log names it. Only what the token may see is told; with `tenant`
/// only leases and tenants of that one and below it.
///
/// Every event has an id, from which any server goes on, however long ago that was. Where that cannot be, since the books are others (they were
/// restored from a backup), the event `anew` says so and is the last: read the lists again, and watch without an id. A token may have eight
/// streams; one whose token holds no more ends.
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
    let wrong = || Problem::new(Kind::Invalid, "this is no id of an event of a watch").at("since");
    let last = headers.get("last-event-id").map(|id| id.to_str().map_err(|_| wrong())).transpose()?;
    let since = last.or(options.since.as_deref()).map(|text| text.parse::<Place>().map_err(|()| wrong()));
    let since = since.transpose()?;
    let token = bearer(&headers)?.to_owned();
    let seat = Streams::seat(&server, &principal.token.id)?;
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
            let why = "these books are not those of that id: they have been restored from a backup, or the id is another installation's";
            Some((kind::ANEW, json!({ "why": why })))
        }
    };
    let ready = first.map(|(kind, data)| event(kind, &head, &data)).into_iter().collect();
    let at = since.filter(|_| goes_on).unwrap_or(head);
    let feed = Feed { server, token, tenant: of.tenant, at, news, ready, over: !goes_on, _seat: seat };
    let events = futures_util::stream::unfold(feed, Feed::next);
    let keeps_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(events).keep_alive(keeps_alive).into_response())
}

/// Where a watcher is: after this revision of leases, and after this entry of the audit log, by whose hash the books are known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    revision: u64,
    sequence: u64,
    hash: String,
}

/// Digits of a hash by which it is known again.
const DIGITS: usize = 16;

fn digits(hash: &str) -> String {
    hash.chars().take(DIGITS).collect()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.revision, self.sequence, self.hash)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Place, ()> {
        let mut parts = text.split('.');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).filter(|&n| n <= i64::MAX as u64);
        let (revision, sequence) = (number().ok_or(())?, number().ok_or(())?);
        let hash = parts.next().filter(|hash| hash.len() == DIGITS && parts.next().is_none()).ok_or(())?;
        Ok(Place { revision, sequence, hash: hash.to_owned() })
    }
}

/// Where the books are now.
async fn head(server: &Server) -> Result<Place, Problem> {
    let revision = server.store.leader().await.map_err(unwell)?.revision;
    let audit = server.store.audit_head().await.map_err(unwell)?;
    Ok(Place { revision, sequence: audit.sequence, hash: digits(&audit.hash) })
}

/// Whether the audit log is the one that the watcher has seen.
async fn is_known(server: &Server, since: &Place) -> Result<bool, Problem> {
    let head = server.store.audit_head_at(since.sequence).await.map_err(unwell)?;
    Ok(head.sequence == since.sequence && digits(&head.hash) == since.hash)
}

fn event(kind: &str, at: &Place, data: &impl Serialize) -> Event {
    let event = Event::default().id(at.to_string()).event(kind).retry(RETRY);
    // What has no JSON form is none of our types.
    event.json_data(data).unwrap_or_default()
}

/// One stream.
struct Feed {
    server: Arc<Server>,
    token: String,
    tenant: Option<TenantPath>,
    at: Place,
    news: Receiver<u64>,
    ready: VecDeque<Event>,
    over: bool,
    _seat: Seat,
}

impl Feed {
    /// Ends where the token holds no more, or the database does not answer: who comes back is told which.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Feed)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            if self.over {
                return None;
            }
            self.news.borrow_and_update();
            let begun = tokio::time::Instant::now();
            let more = self.look().await.ok()?;
            let pause = PAUSE_MIN.max(begun.elapsed() * PAUSE);
            if self.ready.is_empty() && !more {
                // Also while this server hears of no news: it may have been overtaken.
                let _ = tokio::time::timeout(KEEP_ALIVE, self.news.changed()).await;
                tokio::time::sleep(pause.min(KEEP_ALIVE)).await;
            }
        }
    }

    /// Takes what is new; true if there may be more.
    async fn look(&mut self) -> Result<bool, Problem> {
        let server = Arc::clone(&self.server);
        let principal = auth::recognise(&server, &self.token, server.now_ms()).await?;
        let scope = principal.sees(Action::See, self.tenant.as_ref());
        let is_seen = |tenant: &TenantPath| scope.as_ref().is_some_and(|scope| scope.contains(tenant));

        let leases = server.store.leases_after(self.at.revision, NEWS_MAX).await.map_err(unwell)?;
        let told: Vec<_> = leases.iter().filter(|lease| is_seen(&lease.tenant)).collect();
        let views = |books: &Books, _| -> Vec<_> { told.iter().map(|lease| books.view(lease)).collect() };
        for lease in if told.is_empty() { Vec::new() } else { server.read(views).await? } {
            self.at.revision = lease.revision;
            self.ready.push_back(event(kind::LEASE, &self.at, &lease));
        }
        self.at.revision = leases.last().map_or(self.at.revision, |lease| lease.revision);

        let head = server.store.audit_head().await.map_err(unwell)?;
        let entries = server.store.audit_told((self.at.sequence, head.sequence), NEWS_MAX).await;
        let entries = entries.map_err(unwell)?;
        let sees_fleet = self.tenant.is_none() && principal.may(Action::SeeFleet, &TenantPath::root());
        let all_entries = entries.len() < NEWS_MAX as usize;
        for Told { sequence, hash, at_ms, action, subject } in entries {
            (self.at.sequence, self.at.hash) = (sequence, digits(&hash));
            let (kind, seen) = match action.split('.').next() {
                Some("node") => (kind::NODE, sees_fleet),
                Some("gpu") => (kind::GPU, sees_fleet),
                _ => (kind::TENANT, subject.parse().is_ok_and(|tenant| is_seen(&tenant))),
            };
            if seen {
                let change = Change { at_ms, action, name: subject };
                self.ready.push_back(event(kind, &self.at, &change));
            }
        }
        if all_entries {
            (self.at.sequence, self.at.hash) = (head.sequence, digits(&head.hash));
        }
        Ok(!all_entries || leases.len() == NEWS_MAX as usize)
    }
}

/// Who has streams at this server, by their tokens.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, usize>>);

/// Of one stream; leaving it makes room for another.
struct Seat {
    server: Arc<Server>,
    token: String,
}

impl Streams {
    fn seat(server: &Arc<Server>, token: &str) -> Result<Seat, Problem> {
        let mut streams = server.streams.lock();
        let [own_max, all_max] = STREAMS_MAX;
        if streams.values().sum::<usize>() >= all_max {
            let detail = format!("{all_max} streams are watched at this server; ask another one, or later");
            return Err(Problem::new(Kind::Unavailable, detail));
        }
        let own = streams.entry(token.to_owned()).or_default();
        if *own >= own_max {
            let detail = format!("{own_max} streams are watched with this token already; end one of them");
            return Err(Problem::new(Kind::TooMany, detail));
        }
        *own += 1;
        Ok(Seat { server: Arc::clone(server), token: token.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut streams = self.server.streams.lock();
        if let Some(own) = streams.get_mut(&self.token) {
            *own -= 1;
            if *own == 0 {
                streams.remove(&self.token);
            }
        }
    }
}
