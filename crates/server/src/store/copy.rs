//! A whole database into an empty one, of either kind.

use futures_util::TryStreamExt;
use sqlx::any::{AnyRow, AnyTypeInfoKind};
use sqlx::{AssertSqlSafe, Column, Row, TypeInfo, ValueRef};

use crate::backup::Watcher;

use super::{Database, MIGRATIONS, Result, Store, StoreError, Tx, clock, unsigned};

/// All that the migrations make, but `usage_hour`, `promised_hour` and `device_hour`, which the
/// database that is copied into derives from `usage_record`, and `replica`, whose rows are of
/// running servers. No table refers to another one.
const TABLES: [&str; 27] = [
    "tenant",
    "token",
    "token_use",
    "person",
    "node",
    "card",
    "pool",
    "pool_declaration",
    "identity",
    "seller",
    "estimate_error",
    "lease",
    "usage_record",
    "price",
    "audit",
    "idempotency",
    "correction",
    "invoice",
    "invoice_draft",
    "usage_aside",
    "run_default",
    "consent",
    "left_alone",
    "program_size",
    "webhook",
    "webhook_delivery",
    LEADER,
];
/// Has its one row from the beginning.
const LEADER: &str = "leader";
/// Rows of one statement.
const ROWS_MAX: usize = 100;

impl Store {
    /// Opens a database as it is: its schema is not brought up to this release, but must be of it.
    pub(crate) async fn open_as_it_is(database: &Database) -> Result<Store> {
        // An empty file would become an empty database.
        if let Database::Sqlite(path) = database
            && !std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0)
        {
            return Err(StoreError::NoDatabase(path.clone()));
        }
        let store = Store::new(super::connect(database).await?, clock(database));
        let latest = MIGRATIONS.iter().map(|&(version, ..)| version).max().unwrap_or(0);
        let query = sqlx::query("SELECT MAX(version) AS version FROM _sqlx_migrations");
        let row = query.fetch_one(&store.pool).await?;
        if row.try_get::<Option<i64>, _>("version")? != Some(latest) {
            return Err(StoreError::OtherRelease);
        }
        Ok(store)
    }

    /// Copies what is here at one moment into `other`, which must be empty, and says how many rows
    /// that were. All of it is there, or nothing.
    pub(crate) async fn copy_into(
        &self,
        other: &Store,
        from: &Database,
        watcher: Watcher<'_>,
    ) -> Result<u64> {
        for table in TABLES.iter().filter(|&&table| table != LEADER) {
            let sql = format!("SELECT COUNT(*) AS count FROM {table}");
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&other.pool).await?;
            if unsigned(&row, "count")? > 0 {
                return Err(StoreError::NotEmpty);
            }
        }
        let mut reads = self.pool.begin().await?;
        for setting in one_moment(from) {
            sqlx::query(*setting).execute(&mut *reads).await?;
        }
        let mut writes = other.pool.begin().await?;
        sqlx::query("DELETE FROM leader").execute(&mut *writes).await?;
        let (mut count, mut all) = (0, 0);
        for table in TABLES {
            let sql = format!("SELECT COUNT(*) AS count FROM {table}");
            all += unsigned(&sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut *reads).await?, "count")?;
        }
        for table in TABLES {
            let mut told = |of_table| watcher(count + of_table, all);
            count += copy_table(&mut reads, &mut writes, table, &mut told).await?;
        }
        // Who leads there is not known here.
        sqlx::query("UPDATE leader SET holder = '', url = '', until_ms = 0").execute(&mut *writes).await?;
        writes.commit().await?;
        Ok(count)
    }

    /// Closes its connections; what was written to a file is in that one file.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }
}

/// What a transaction begins with that sees all tables as of one moment, however long it takes.
fn one_moment(database: &Database) -> &'static [&'static str] {
    match database {
        Database::Sqlite(_) => &[],
        Database::Postgres(_) => &[
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            "SET LOCAL statement_timeout = 0",
            "SET LOCAL idle_in_transaction_session_timeout = 0",
        ],
    }
}

async fn copy_table(
    reads: &mut Tx<'_>,
    writes: &mut Tx<'_>,
    table: &str,
    told: &mut dyn FnMut(u64),
) -> Result<u64> {
    let mut count = 0;
    let mut rows = Vec::with_capacity(ROWS_MAX);
    let sql = format!("SELECT * FROM {table}");
    let mut stream = sqlx::query(AssertSqlSafe(sql)).fetch(&mut **reads);
    while let Some(row) = stream.try_next().await? {
        count += 1;
        rows.push(row);
        if rows.len() == ROWS_MAX {
            insert(writes, table, &rows).await?;
            rows.clear();
            told(count);
        }
    }
    insert(writes, table, &rows).await?;
    told(count);
    Ok(count)
}

enum Value {
    Number(i64),
    Text(String),
}

/// `None` for NULL.
fn value(row: &AnyRow, column: usize) -> Result<Option<Value>> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(None);
    }
    Ok(Some(match raw.type_info().kind() {
        AnyTypeInfoKind::SmallInt | AnyTypeInfoKind::Integer | AnyTypeInfoKind::BigInt => {
            Value::Number(row.try_get(column)?)
        }
        AnyTypeInfoKind::Text => Value::Text(row.try_get(column)?),
        _ => {
            let value = raw.type_info().name().to_owned();
            return Err(StoreError::Content { what: "a value that is neither number nor text", value });
        }
    }))
}

async fn insert(writes: &mut Tx<'_>, table: &str, rows: &[AnyRow]) -> Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let columns: Vec<&str> = first.columns().iter().map(|column| column.name()).collect();
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for row in rows {
        let mut row_places = Vec::with_capacity(columns.len());
        for column in 0..columns.len() {
            // A NULL that is bound would need a type.
            match value(row, column)? {
                Some(value) => {
                    values.push(value);
                    row_places.push(format!("${}", values.len()));
                }
                None => row_places.push("NULL".into()),
            }
        }
        places.push(format!("({})", row_places.join(", ")));
    }
    let sql = format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), places.join(", "));
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    for value in values {
        query = match value {
            Value::Number(number) => query.bind(number),
            Value::Text(text) => query.bind(text),
        };
    }
    query.execute(&mut **writes).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn no_table_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(folder.path().join("sluice.db"))).await.unwrap();
        let query = sqlx::query("SELECT name FROM sqlite_master WHERE type = 'table'");
        let rows = query.fetch_all(&store.pool).await.unwrap();
        let names: BTreeSet<String> = rows.iter().map(|row| row.get("name")).collect();
        let kept = names.iter().map(String::as_str).filter(|name| !name.starts_with('_'));
        let copied = TABLES.into_iter().chain(["replica", "usage_hour", "promised_hour", "device_hour"]);
        assert_eq!(kept.collect::<BTreeSet<_>>(), copied.collect());
    }

    #[tokio::test]
    async fn a_copy_says_how_far_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Database::Sqlite(folder.path().join(name));
        let (one, other) = (Store::open(&at("one")).await.unwrap(), Store::open(&at("other")).await.unwrap());
        let mut told = Vec::new();
        let copied =
            one.copy_into(&other, &at("one"), &mut |rows, all| told.push((rows, all))).await.unwrap();
        assert!(copied > 0 && told.is_sorted(), "{told:?}");
        assert_eq!(told.last(), Some(&(copied, copied)));
    }
}
