//! Watches: what changes is told, to whom it concerns, and again from where a watcher stopped.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use serde_json::Value;
use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::token::{MadeToken, Role};
use sluice_api::watch::{Change, Event, kind};

use crate::private_postgres::Postgres;
use crate::{
    PATIENCE, ScriptedNode, Server, ServerProcess, TENANTS, ask, insist, problem, request, settings,
};

/// What a stream says, until this is dropped.
struct Watch(Receiver<Event>);

impl Watch {
    /// At most so many events.
    fn begin(client: &Client, query: &str, events: usize) -> Watch {
        let (sender, receiver): (Sender<Event>, _) = channel();
        let (client, path) = (client.clone(), format!("/watch{query}"));
        thread::spawn(move || {
            let mut left = events;
            let _ = client.watch(&path, |event| {
                left -= 1;
                let goes_on = sender.send(event).is_ok() && left > 0;
                if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        });
        Watch(receiver)
    }

    /// The next event but two: that a node was silent for too long, since on a busy machine these
    /// nodes, which report when a test has them do so, may be, and that leases wait for nodes.
    fn next(&self) -> Event {
        loop {
            let event = self.0.recv_timeout(PATIENCE).unwrap();
            let is_passed_over = |action| event.kind == kind::NODE && event.data.contains(action);
            if !["node.silent", "node.wanted"].into_iter().any(is_passed_over) {
                return event;
            }
        }
    }

    /// Once its beginning has been told.
    fn begun(client: &Client, query: &str) -> (Watch, String) {
        let watch = Watch::begin(client, query, usize::MAX);
        let first = watch.next();
        assert_eq!(first.kind, kind::BEGIN);
        (watch, first.id)
    }

    fn lease(&self) -> (Lease, String) {
        let event = self.next();
        assert_eq!(event.kind, kind::LEASE, "{event:?}");
        (serde_json::from_str(&event.data).unwrap(), event.id)
    }

    /// Until this lease is in this state.
    fn until(&self, id: u64, state: LeaseState) -> String {
        loop {
            let (lease, place) = self.lease();
            if (lease.id, lease.state) == (id, state) {
                return place;
            }
        }
    }

    fn change(&self, kind: &str) -> (String, String) {
        let event = self.next();
        assert_eq!(event.kind, kind, "{event:?}");
        let change: Change = serde_json::from_str(&event.data).unwrap();
        (change.action, change.name)
    }
}

/// The lines of a stream, which nobody begins again.
fn raw(server: &Server, token: &str) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(server.admin.server().strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET /api/v1/watch HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.by_ref().any(|line| line.unwrap() == "event: begin"));
    lines
}

#[test]
fn what_is_skipped_is_told_by_its_id_alone() {
    let (_folder, server) = Server::with_tenants();
    // It has room: that leases wait for nodes is not skipped.
    let _node = ScriptedNode::join(&server, "one", 1);
    let new = serde_json::json!({ "tenant": "acme/sales", "role": "member", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let mut lines = raw(&server, &made.secret).map(Result::unwrap);
    let research = server.token("acme/research", Role::Member);
    let (_watch, before) = Watch::begun(&server.admin, "");
    let revision = |id: &str| id.split('.').next().unwrap().parse::<u64>().unwrap();
    request(&research, &ask(1000));
    let passed = loop {
        let line = lines.next().unwrap();
        assert_ne!(line, "event: lease", "it is of others");
        match line.strip_prefix("id: ") {
            Some(id) if revision(id) > revision(&before) => break id.to_owned(),
            _ => {}
        }
    };
    assert!(lines.take_while(|line| !line.is_empty()).all(|line| !line.starts_with("data")), "{passed}");
}

#[test]
fn a_watch_tells_what_the_token_may_see_and_goes_on_where_it_stopped() {
    let (_folder, server) = Server::with_tenants();
    let [research, sales] = ["acme/research", "acme/sales"].map(|path| server.token(path, Role::Member));
    let (watch, begin) = Watch::begun(&research, "");
    let (of_sales, _) = Watch::begun(&server.token("acme", Role::Member), "?tenant=acme/sales");
    ScriptedNode::join(&server, "one", 1);
    assert_eq!(watch.change(kind::NODE), ("node.joined".into(), "one".into()));
    let foreign = request(&sales, &ask(100_000)).id;
    let own = request(&research, &ask(100_000)).id;
    watch.until(own, LeaseState::Granted);
    // Before the fence, which takes back what nobody has claimed: a stream that looks after that
    // tells the last state alone.
    of_sales.until(foreign, LeaseState::Granted);
    let _: Lease = research.delete(&format!("/leases/{own}")).unwrap();
    let ended = watch.until(own, LeaseState::Ended);
    server
        .apply("tenants: [{path: acme/research, quota: {over_quota_weight: 2}}, {path: globex/new}]")
        .unwrap();
    let fence =
        serde_json::json!({ "gpus": [{ "node": "one", "gpu": 0 }], "why": "dust", "sessions": "finish" });
    let _: Value = server.admin.post("/gpus/fences", &fence).unwrap();
    let changes = |watch: &Watch| {
        assert_eq!(watch.change(kind::TENANT), ("tenant.changed".into(), "acme/research".into()));
        assert_eq!(watch.change(kind::GPU), ("gpu.fenced".into(), "one/0".into()));
    };
    changes(&watch);
    // One of a tenant has nothing of nodes and of others.
    let _: Lease = sales.delete(&format!("/leases/{foreign}")).unwrap();
    of_sales.until(foreign, LeaseState::Ended);

    changes(&Watch::begin(&research, &format!("?since={ended}"), 2));
    // Leases come after what the log has: their ids name no entry that is older than their change.
    // Of one that changed often there is its last state.
    let all = Watch::begin(&research, &format!("?since={begin}"), 4);
    assert_eq!(all.change(kind::NODE).0, "node.joined");
    changes(&all);
    let (lease, place) = all.lease();
    assert_eq!((lease.id, lease.state), (own, LeaseState::Ended));
    let sequence = |place: &str| place.split('.').nth(1).unwrap().parse::<u64>().unwrap();
    let later: Page<Entry> = server.admin.get(&format!("/audit?cursor={}", sequence(&place))).unwrap();
    assert!(later.items.iter().all(|entry| entry.subject != own.to_string()), "{place}: {:?}", later.items);
}

#[test]
fn a_watch_tells_of_prices_and_of_pools_that_the_token_may_see() {
    let (_folder, server) = Server::with_tenants();
    let (all, _) = Watch::begun(&server.admin, "");
    let (acme, _) = Watch::begun(&server.token("acme", Role::Viewer), "");
    let (of_one, _) = Watch::begun(&server.admin, "?tenant=acme");
    let pool = |name: &str, tenant: &str| {
        format!("pools: [{{name: {name}, access: {{private: {{tenants: [{tenant}]}}}}}}]")
    };
    let apply = |yaml: &str| server.apply(yaml).unwrap();
    apply(&pool("theirs", "globex"));
    apply("prices: [{meter: reserved, micro: 7}]");
    apply("prices: [{meter: reserved, pool: theirs, micro: 8}]");
    apply(&pool("ours", "acme"));
    let _: Value = server.admin.delete("/pools/ours").unwrap();
    // From everybody's to others'.
    apply("pools: [{name: shared}]");
    apply(&pool("shared", "globex"));
    apply("pools: [{name: shared, sharing: whole, access: {private: {tenants: [globex]}}}]");
    let _: Value = server.admin.delete("/pools/theirs").unwrap();
    // The name of what others had.
    apply(&pool("theirs", "acme"));
    apply("prices: [{meter: memory, micro: 7}]");
    apply("tenants: [{path: acme, quota: {over_quota_weight: 3}}]");
    let mut told = Vec::new();
    // With whether acme hears of it.
    let changes = [
        ("pool.changed", "theirs", false),
        ("price.changed", "reserved", true),
        ("price.changed", "reserved", false),
        ("pool.changed", "ours", true),
        ("pool.removed", "ours", true),
        ("pool.changed", "shared", true),
        ("pool.changed", "shared", true),
        ("pool.changed", "shared", false),
        ("pool.removed", "theirs", false),
        ("pool.changed", "theirs", true),
        ("price.changed", "memory", true),
    ];
    for (action, name, _) in changes {
        let kind = action.split('.').next().unwrap();
        assert_eq!(all.change(kind), (action.into(), name.into()));
    }
    while told.last().is_none_or(|(action, _): &(String, String)| action != "tenant.changed") {
        let change: Change = serde_json::from_str(&acme.next().data).unwrap();
        told.push((change.action, change.name));
    }
    let expect = changes.into_iter().filter(|(.., is_told)| *is_told).map(|(action, name, _)| (action, name));
    let expect: Vec<_> = expect.chain([("tenant.changed", "acme")]).collect();
    let told: Vec<_> = told.iter().map(|(action, name)| (action.as_str(), name.as_str())).collect();
    assert_eq!(told, expect);
    assert_eq!(of_one.change(kind::TENANT).1, "acme", "one of a tenant has nothing of pools and prices");

    apply(&pool("ours", "acme"));
    assert_eq!(acme.change(kind::POOL), ("pool.changed".into(), "ours".into()));
}

#[test]
fn a_watch_of_other_books_begins_anew() {
    let (_folder, server) = Server::with_tenants();
    let (_watch, begin) = Watch::begun(&server.admin, "");
    let [revision, sequence, hash] = begin.split('.').collect::<Vec<_>>()[..] else { panic!("{begin}") };
    let anew = |since: String| {
        let watch = Watch::begin(&server.admin, &format!("?since={since}"), 1);
        assert_eq!(watch.next().kind, kind::ANEW, "{since}");
    };
    let number = |text: &str| text.parse::<u64>().unwrap();
    anew(format!("{}.{sequence}.{hash}", number(revision) + 1));
    anew(format!("{revision}.{}.{hash}", number(sequence) + 1));
    let other: String = hash.chars().rev().collect();
    anew(format!("{revision}.{sequence}.{other}"));
    // Of the beginning of all books.
    let all = Watch::begin(&server.admin, "?since=0.0.0000000000000000", 1);
    assert_eq!(all.change(kind::TENANT).0, "tenant.changed");
    for wrong in ["", "x", "1.2", "1.2.x", "1.2.0000000000000000.4", "-1.2.0000000000000000"] {
        let refused = problem(server.admin.get::<Value>(&format!("/watch?since={wrong}")));
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some("since")), "{wrong}");
    }
}

#[test]
fn a_token_has_so_many_streams_and_none_once_it_is_revoked() {
    let (_folder, server) = Server::with_tenants();
    let new = serde_json::json!({ "tenant": "acme", "role": "member", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let member = server.admin.with_token(&made.secret);
    let mut streams: Vec<_> = (0..8).map(|_| raw(&server, &made.secret)).collect();
    let (last, _) = Watch::begun(&member, "");
    // The ninth has ended the oldest, whose body comes to its end, and no other.
    let ended = streams.remove(0).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(ended.iter().rfind(|line| !line.is_empty()).unwrap(), "0", "{ended:?}");
    drop(streams);

    let _: Value = server.admin.delete(&format!("/tokens/{}", made.token.id)).unwrap();
    // Its streams end, and it gets no other: the watch says so and is over.
    let own = request(&server.token("acme", Role::Member), &ask(1000)).id;
    while let Ok(event) = last.0.recv_timeout(PATIENCE) {
        assert!(event.kind != kind::LEASE, "{own}: {event:?}");
    }
    assert_eq!(last.0.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
}

#[test]
fn a_watch_goes_on_at_another_server_when_its_own_is_gone() {
    let Some(postgres) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = postgres.database("pair");
    let [first, second] = [(); 2].map(|()| ServerProcess::start(folder.path(), Some(&database)));
    let token = settings(folder.path()).token;
    let both = Client::new(&format!("{},{}", first.url, second.url), &token);
    let _: Value = both.post_text("/apply", "application/yaml", TENANTS).unwrap();
    let (watch, _) = Watch::begun(&both, "");
    let one = request(
        &both.with_token(&token),
        &serde_json::from_value(serde_json::json!({ "tenant": "acme" })).unwrap(),
    );
    watch.until(one.id, LeaseState::Queued);
    first.kill();
    let rest = Client::new(&second.url, &token);
    let other: Lease = insist(|| rest.post("/leases", &serde_json::json!({ "tenant": "globex" })));
    watch.until(other.id, LeaseState::Queued);
}
