//! Lists of a tenant and those below it, one tenant at a time: the rows of others are not read.

use sluice_api::tenant::TenantPath;
use sqlx::AssertSqlSafe;

use super::{Result, Store, text, within};

/// Of more tenants all rows are read, in their order: many of them are theirs.
const TENANTS_MAX: usize = 50;

/// Whose rows are wanted.
pub(super) enum Within {
    /// Of these alone.
    Each(Vec<String>),
    /// Of all at and below this one.
    Below(TenantPath),
}

impl Within {
    /// A list of rows that fulfil a condition, in an order. Its parameters after the one that is
    /// its limit are [`Within::names`].
    pub(super) fn sql(&self, table: &str, condition: &str, order: &str, limit_at: usize) -> String {
        let rest = format!("{condition} ORDER BY {order} LIMIT ${limit_at}");
        let (first, second) = (limit_at + 1, limit_at + 2);
        match self {
            Within::Below(_) => {
                format!("SELECT * FROM {table} WHERE (tenant = ${first} OR tenant LIKE ${second}) AND {rest}")
            }
            Within::Each(tenants) => {
                let of_one = |at| {
                    format!(
                        "SELECT * FROM (SELECT * FROM {table} WHERE tenant = ${at} AND {rest}) AS of_{at}"
                    )
                };
                let each: Vec<String> = (first..first + tenants.len()).map(of_one).collect();
                format!(
                    "SELECT * FROM ({}) AS of_each ORDER BY {order} LIMIT ${limit_at}",
                    each.join(" UNION ALL ")
                )
            }
        }
    }

    pub(super) fn names(self) -> Vec<String> {
        match self {
            Within::Each(tenants) => tenants,
            Within::Below(tenant) => <[String; 2]>::from(within(&tenant)).into(),
        }
    }

    pub(super) fn is_nobody(&self) -> bool {
        matches!(self, Within::Each(tenants) if tenants.is_empty())
    }
}

impl Store {
    /// Those at and below a tenant that have rows in a table, also those that have been removed.
    /// The table has an index by tenant, in which this goes from one name to the next.
    pub(super) async fn within(&self, table: &str, tenant: &TenantPath) -> Result<Within> {
        if tenant.is_root() {
            return Ok(Within::Below(tenant.clone()));
        }
        let sql = format!(
            "WITH RECURSIVE known (tenant) AS (SELECT MIN(tenant) FROM {table} UNION ALL \
             SELECT (SELECT MIN(tenant) FROM {table} WHERE tenant > known.tenant) FROM known WHERE known.tenant IS NOT NULL) \
             SELECT tenant FROM known WHERE tenant = $1 OR tenant LIKE $2"
        );
        let (path, below) = within(tenant);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(path).bind(below);
        let rows = query.fetch_all(&self.pool).await?;
        if rows.len() > TENANTS_MAX {
            return Ok(Within::Below(tenant.clone()));
        }
        Ok(Within::Each(rows.iter().map(|row| text(row, "tenant")).collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Row;

    use super::*;
    use crate::store::{Database, signed};

    async fn store(folder: &tempfile::TempDir) -> Store {
        Store::open(&Database::Sqlite(folder.path().join("database"))).await.unwrap()
    }

    async fn add_token(store: &Store, id: u64, tenant: &str) {
        let values = format!("'{id:04}', '', '{tenant}', 'member', '', NULL, 0, 0, 0, ''");
        let sql = format!("INSERT INTO token VALUES ({values})");
        sqlx::query(AssertSqlSafe(sql)).execute(&store.pool).await.unwrap();
    }

    #[tokio::test]
    async fn tenants_one_by_one_and_all_at_once_say_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let names = ["acme", "acme/a", "acme/a/x", "acme2", "b", "acm"];
        for id in 0..60 {
            add_token(&store, id, names[id as usize * 7 % names.len()]).await;
        }
        for scope in ["acme", "acme/a", "acme/a/x", "b", "nobody"] {
            let tenant: TenantPath = scope.parse().unwrap();
            for (after, limit) in [("", 5), ("0020", 7), ("0055", 100)] {
                let mut answers = Vec::new();
                for of in [store.within("token", &tenant).await.unwrap(), Within::Below(tenant.clone())] {
                    if of.is_nobody() {
                        answers.push(Vec::new());
                        continue;
                    }
                    let sql = of.sql("token", "id > $1", "id", 2);
                    let query = sqlx::query(AssertSqlSafe(sql)).bind(after).bind(i64::from(limit));
                    let query = of.names().into_iter().fold(query, sqlx::query::Query::bind);
                    let rows = query.fetch_all(&store.pool).await.unwrap();
                    answers.push(rows.iter().map(|row| text(row, "id").unwrap()).collect());
                }
                assert_eq!(answers[0], answers[1], "{scope} after {after}");
            }
        }
    }

    #[tokio::test]
    async fn a_list_of_a_tenant_is_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        for (table, condition, order) in [
            ("lease", "id < $1 AND state IN ('queued')", "id DESC"),
            ("usage_record", "from_ms >= $1 AND (from_ms > $1 OR id > $2)", "from_ms, id"),
            ("token", "id > $1", "id"),
        ] {
            let of = Within::Each(vec!["acme".into(), "acme/a".into()]);
            let sql = format!("EXPLAIN QUERY PLAN {}", of.sql(table, condition, order, 3));
            let query = sqlx::query(AssertSqlSafe(sql)).bind(signed(1)).bind("").bind(signed(10));
            let query = of.names().into_iter().fold(query, sqlx::query::Query::bind);
            let plan: Vec<String> =
                query.fetch_all(&store.pool).await.unwrap().iter().map(|row| row.get("detail")).collect();
            let index = format!("SEARCH {table} USING INDEX {table}_by_tenant (tenant=?");
            assert_eq!(plan.iter().filter(|step| step.starts_with(&index)).count(), 2, "{plan:#?}");
            assert!(!plan.iter().any(|step| step.starts_with(&format!("SCAN {table}"))), "{plan:#?}");
        }
    }

    #[tokio::test]
    async fn of_very_many_tenants_all_rows_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        for id in 0..=TENANTS_MAX as u64 {
            let acme: TenantPath = "acme".parse().unwrap();
            let each = matches!(store.within("token", &acme).await.unwrap(), Within::Each(of) if of.len() == id as usize);
            assert!(each, "{id}");
            add_token(&store, id, &format!("acme/t{id}")).await;
        }
        let acme: TenantPath = "acme".parse().unwrap();
        assert!(matches!(store.within("token", &acme).await.unwrap(), Within::Below(_)));
    }
}
