//! The server with a database of its own: when the queue is looked at, what is spent, and what the
//! next server knows.

use futures_util::FutureExt;
use sluice_api::bill::{Budget, Currency};
use sluice_api::tenant::TenantPath;

use super::budgets::spent_line;
use super::*;
use crate::history::EstimateError;

/// Most of what a server hears is reports with usage and nothing else.
#[tokio::test]
async fn the_queue_is_looked_at_for_what_changed_and_not_for_what_was_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
    let fence = store.lead("a test", "", true).await.unwrap().unwrap();
    let patience = Patience { grace_ms: 0, quiet_ms: 0 };
    let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default()).await.unwrap();
    server.become_role(Role::Leader(fence));
    server.wake.notified().await;
    let record = serde_json::json!({
        "id": "", "node": 1, "lease": 1, "attempt": 1, "sequence": 1, "tenant": "acme", "from_ms": 0, "until_ms": 1,
        "share_ppm": 1, "gpus": 1, "memory_mib": 1, "used_ppm_ms": 1, "kernels": 1, "bytes_in": 1, "bytes_out": 1,
        "memory_peak": 1, "last": false,
    });
    let record = serde_json::from_value(record).unwrap();
    for (write, looks) in [
        (Write::Usage { record, received_at_ms: 0, cards: Vec::new() }, false),
        (Write::ForgetKeys { before_ms: 0 }, true),
    ] {
        let mut change = server.change().await.unwrap();
        change.write(write);
        assert!(change.hand_over().is_ok());
        assert_eq!(server.wake.notified().now_or_never().is_some(), looks);
    }
}

#[tokio::test]
async fn the_queue_is_looked_at_while_budgets_are_added_up() {
    let folder = tempfile::tempdir().unwrap();
    let faults = std::sync::Arc::new(crate::store::faults::Faults::default());
    let store = Store::simulated(&folder.path().join("database"), faults.clone()).await.unwrap();
    store.set_clock(1_000_000).await.unwrap();
    let fence = store.lead("a test", "", true).await.unwrap().unwrap();
    let budget = serde_json::json!({ "micro": 1, "per": "ever", "then": "hold" });
    let tenant = serde_json::json!({ "path": "acme", "budget": budget });
    let tenant = serde_json::from_value(tenant).unwrap();
    store.commit(fence, vec![Write::Tenant(tenant)]).await.unwrap();
    let patience = Patience { grace_ms: 0, quiet_ms: 0 };
    let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default());
    let server = std::sync::Arc::new(server.await.unwrap());
    let mut sums = faults.sums_begun.subscribe();
    let (mut cycles, other) = (server.cycles.subscribe(), server.clone());
    tokio::spawn(async move { other.schedule().await });
    let waits = Duration::from_secs(60);
    // Before the first look at the queue it is known what is spent.
    tokio::time::timeout(waits, sums.changed()).await.unwrap().unwrap();
    let endless = faults.sums.lock().await;
    let other = server.clone();
    tokio::spawn(async move { other.follow_budgets().await });
    tokio::time::timeout(waits, sums.changed()).await.unwrap().unwrap();
    server.become_role(Role::Leader(fence));
    cycles.mark_unchanged();
    let looked = tokio::time::timeout(waits, cycles.changed()).await;
    assert!(looked.is_ok(), "nobody looks at the queue");
    drop(endless);
}

#[tokio::test]
async fn what_is_spent_is_not_taken_for_that_of_a_budget_that_was_declared_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let faults = std::sync::Arc::new(crate::store::faults::Faults::default());
    let store = Store::simulated(&folder.path().join("database"), faults.clone()).await.unwrap();
    store.set_clock(1_000_000).await.unwrap();
    let fence = store.lead("a test", "", true).await.unwrap().unwrap();
    let budget = |per: &str| -> Budget {
        let budget = serde_json::json!({ "micro": 1, "per": per, "then": "preempt" });
        serde_json::from_value(budget).unwrap()
    };
    let acme: TenantPath = "acme".parse().unwrap();
    let tenant = serde_json::json!({ "path": "acme", "budget": budget("ever") });
    let correction = serde_json::json!({
        "id": 1, "tenant": "acme", "micro": 500, "at_ms": 5, "reason": "long ago", "made_at_ms": 5, "made_by": "a test",
    });
    let [tenant, correction] = [
        Write::Tenant(serde_json::from_value(tenant).unwrap()),
        Write::Correction(serde_json::from_value(correction).unwrap()),
    ];
    store.commit(fence, vec![tenant, correction]).await.unwrap();
    let patience = Patience { grace_ms: 0, quiet_ms: 0 };
    let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default());
    let server = server.await.unwrap();
    let spent = async |server: &Server| {
        server.look_at_budgets().await.unwrap();
        let status = |books: &Books, _| books.fleet.budgets().status(&acme).unwrap().spent_micro;
        server.read(status).await.unwrap()
    };
    assert_eq!(spent(&server).await, 500);
    let mut sums = faults.sums_begun.subscribe();
    let slow = faults.sums.lock().await;
    let declares = async {
        sums.changed().await.unwrap();
        let declare = |books: &mut Books, _| _ = books.fleet.set_budget(acme.clone(), Some(budget("day")));
        server.hear(declare).await.unwrap();
        drop(slow);
    };
    assert_eq!(tokio::join!(spent(&server), declares).0, 0);
    assert_eq!(spent(&server).await, 0, "nothing is of this day");
}

#[tokio::test]
async fn how_far_off_estimates_were_is_known_to_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
    let fence = store.lead("a test", "", true).await.unwrap().unwrap();
    let acme: TenantPath = "acme".parse().unwrap();
    let error = |lease, error_ms| {
        let (tenant, at_ms) = (acme.clone(), lease);
        Write::EstimateError(EstimateError { lease, attempt: 1, tenant, at_ms, error_ms })
    };
    let errors = [10, 20, 30, 40, 50].into_iter().zip(1..).map(|(error_ms, lease)| error(lease, error_ms));
    store.commit(fence, errors.collect()).await.unwrap();
    // A lease that was granted once more under the same attempt counts once.
    store.commit(fence, vec![error(5, 60)]).await.unwrap();
    let books = Books::read(&store, Commits::new().epoch(), 0).await.unwrap();
    assert_eq!(books.history.errors(&acme).map(|errors| errors.median_ms), Some(30));
    let kept = store.estimate_errors(2).await.unwrap();
    assert_eq!(kept.iter().map(|error| error.error_ms).collect::<Vec<_>>(), [40, 60], "the latest");
}

#[test]
fn what_is_spent_is_said_in_money() {
    let status = serde_json::json!({
        "micro": 10_000_000, "per": "month", "then": "hold", "spent_micro": 1_208_945_446, "spent_percent": 12089,
    });
    let (acme, status) = ("acme".parse().unwrap(), serde_json::from_value(status).unwrap());
    let line = spent_line(&acme, &status, None);
    assert_eq!(line, "acme has spent 12089 % of its budget (1208.945446 of 10)");
    let euro = Currency::try_from("EUR".to_owned()).unwrap();
    assert!(spent_line(&acme, &status, Some(&euro)).ends_with("of 10 EUR)"));
}

/// A process that is stopped finds the clock that is never set far ahead, as one does whose
/// database did not answer.
#[tokio::test]
async fn a_server_that_stood_still_takes_nobody_for_silent() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
    let mut books = Books::read(&store, Commits::new().epoch(), 0).await.unwrap();
    let join = serde_json::json!({ "name": "one", "address": "h:1", "gpus": [], "release": "" });
    let node = books.fleet.join(serde_json::from_value(join).unwrap(), 0).id;
    let report = sluice_api::node::Report { sequence: 1, ..Default::default() };
    books.fleet.report(node, report, 0).unwrap();
    // The database has been read in true time.
    tokio::time::pause();
    let (begun, stood_still_s) = (tokio::time::Instant::now(), 300);
    books.looked = (0, begun);
    let mut look = |after_s: u64| {
        let now_ms = begun.elapsed().as_millis() as u64;
        books.follow_clock(now_ms);
        books.fleet.look_at_nodes(now_ms, now_ms);
        let online = books.fleet.nodes()[&node].takes_work();
        assert_eq!(online, after_s < 15, "{after_s} s of listening without a word");
    };
    for second in 0..=20 {
        look(second - u64::from(second > 10));
        let stands_still = second == 10;
        let passes_s = if stands_still { stood_still_s } else { 1 };
        tokio::time::advance(Duration::from_secs(passes_s)).await;
    }
}
