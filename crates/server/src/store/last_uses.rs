use std::collections::HashMap;

use sluice_api::tenant::TenantPath;
use sluice_api::token::Person;
use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;
use sqlx::query::Query;

use super::{Result, Store, parsed, signed, text, unsigned};
use crate::last_uses::Noted;

impl Store {
    /// Writes when tokens were used and people were here last, unless another server has written
    /// something later.
    pub(crate) async fn write_last_uses(&self, noted: &Noted, forgotten_before_ms: u64) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        for (token, at_ms) in &noted.tokens {
            let query = sqlx::query(
                "INSERT INTO token_use (token, last_at_ms) VALUES ($1, $2) ON CONFLICT (token) DO UPDATE \
                 SET last_at_ms = excluded.last_at_ms WHERE token_use.last_at_ms < excluded.last_at_ms",
            );
            query.bind(token.clone()).bind(signed(*at_ms)).execute(&mut *transaction).await?;
        }
        for person in noted.people.values() {
            let query = sqlx::query(
                "INSERT INTO person (id, tenant, role, name, issuer, first_at_ms, last_at_ms) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, \
                 role = excluded.role, name = excluded.name, issuer = excluded.issuer, \
                 last_at_ms = excluded.last_at_ms WHERE person.last_at_ms < excluded.last_at_ms",
            );
            query
                .bind(person.id.clone())
                .bind(person.tenant.to_string())
                .bind(person.role.name())
                .bind(person.name.clone())
                .bind(person.issuer.clone())
                .bind(signed(person.first_seen_ms))
                .bind(signed(person.last_seen_ms))
                .execute(&mut *transaction)
                .await?;
        }
        if !noted.people.is_empty() {
            let query = sqlx::query("DELETE FROM person WHERE last_at_ms < $1");
            query.bind(signed(forgotten_before_ms)).execute(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// When each of these tokens was used last, as far as that is written.
    pub(crate) async fn last_uses(&self, tokens: Vec<String>) -> Result<HashMap<String, u64>> {
        if tokens.is_empty() {
            return Ok(HashMap::new());
        }
        let places: Vec<String> = (1..=tokens.len()).map(|at| format!("${at}")).collect();
        let sql = format!("SELECT token, last_at_ms FROM token_use WHERE token IN ({})", places.join(", "));
        let query = sqlx::query(AssertSqlSafe(sql));
        let rows = tokens.into_iter().fold(query, Query::bind).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok((text(row, "token")?, unsigned(row, "last_at_ms")?))).collect()
    }

    /// People of a tenant and those below it whose id comes after `after`, in their order.
    pub(crate) async fn people(&self, tenant: &TenantPath, after: &str, limit: u32) -> Result<Vec<Person>> {
        let of = self.within("person", tenant).await?;
        if of.is_nobody() {
            return Ok(Vec::new());
        }
        let query = sqlx::query(AssertSqlSafe(of.sql("person", "id > $1", "id", 2)));
        let query = query.bind(after.to_owned()).bind(i64::from(limit));
        let rows = of.names().into_iter().fold(query, Query::bind).fetch_all(&self.pool).await?;
        rows.iter().map(person).collect()
    }
}

fn person(row: &AnyRow) -> Result<Person> {
    Ok(Person {
        id: text(row, "id")?,
        tenant: parsed(row, "tenant")?,
        role: parsed(row, "role")?,
        name: text(row, "name")?,
        issuer: text(row, "issuer")?,
        first_seen_ms: unsigned(row, "first_at_ms")?,
        last_seen_ms: unsigned(row, "last_at_ms")?,
    })
}
