use sqlx::{AssertSqlSafe, Row};

use super::database::options;
use super::*;

/// Longer than what fits into the pages that are there.
const LONG: usize = 1 << 20;

fn key(name: &str, length: usize) -> Vec<Write> {
    let request = "x".repeat(length);
    vec![Write::Key(KeyUse {
        token: "t".into(),
        name: name.into(),
        request,
        lease: 1,
        at_ms: 1,
        answer: String::new(),
    })]
}

/// SQLite may find out only at its end that what a statement writes cannot be written: here
/// since a row refers to one that is not there, and else where there is no room.
#[tokio::test]
async fn who_leads_is_said_once_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Database::Sqlite(folder.path().join("database"))).await.unwrap();
    let first = store.lead("first", "http://127.0.0.1:1", true).await.unwrap().unwrap();
    store.execute("CREATE TABLE known (id INTEGER PRIMARY KEY)").await;
    store.execute("CREATE TABLE refers (id INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED)").await;
    store
        .execute(
            "CREATE TRIGGER refuse AFTER UPDATE ON leader WHEN NEW.holder = 'second' \
             BEGIN INSERT INTO refers VALUES (1); END",
        )
        .await;
    let second = store.lead("second", "http://127.0.0.1:2", true).await;
    assert!(second.is_err(), "{second:?}");
    store.commit(first, Vec::new()).await.unwrap();
    let third = store.lead("third", "http://127.0.0.1:3", true).await.unwrap().unwrap();
    assert!(matches!(store.commit(first, Vec::new()).await, Err(StoreError::Fenced)));
    store.commit(third, Vec::new()).await.unwrap();
}

/// SQLite ends a transaction by itself when it finds no room. That one, and one that is given
/// up after it, take nothing with them that is reported as written later.
#[tokio::test]
async fn what_is_written_after_there_was_no_room_stays_written() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::Sqlite(folder.path().join("database"));
    let other = Store::open(&database).await.unwrap();
    let before = other.lead("before", "http://127.0.0.1:1", true).await.unwrap().unwrap();
    let fence = other.lead("a test", "http://127.0.0.1:1", true).await.unwrap().unwrap();
    // One connection, so that each transaction finds what the one before has left.
    let pool = options(&database).max_connections(1).connect(&database.url()).await.unwrap();
    let store = Store::new(pool, clock(&database));
    let pages: i64 = sqlx::query("PRAGMA page_count").fetch_one(&store.pool).await.unwrap().get(0);
    let limit = AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::query(limit).execute(&store.pool).await.unwrap();

    let refused = store.commit(fence, key("long", LONG)).await;
    assert!(matches!(refused, Err(StoreError::DiskFull(_))), "{refused:?}");
    let refused = store.commit(before, key("fenced", 1)).await;
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    store.commit(fence, key("short", 1)).await.unwrap();

    assert!(other.idempotent("t", "short").await.unwrap().is_some(), "it was reported as written");
    for name in ["long", "fenced"] {
        assert!(other.idempotent("t", name).await.unwrap().is_none(), "{name}");
    }
}
