//! Several rows in one statement: what waits together is written together.

use std::sync::OnceLock;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::{Result, Tx};

pub(super) type Statement<'q> = Query<'q, Any, AnyArguments>;

/// Rows of one statement, the most first. A few fixed numbers, so that the database plans each
/// statement once.
const CHUNKS: [usize; 5] = [128, 32, 8, 2, 1];

/// `INSERT INTO table (columns) VALUES ... conflict`.
pub(super) struct Insert {
    into: &'static str,
    columns: usize,
    conflict: &'static str,
    statements: OnceLock<[String; CHUNKS.len()]>,
}

impl Insert {
    /// `into` is `table (columns)`, of which there are as many as commas say.
    pub(super) const fn new(into: &'static str, conflict: &'static str) -> Insert {
        let (mut columns, mut at) = (1, 0);
        while at < into.len() {
            columns += (into.as_bytes()[at] == b',') as usize;
            at += 1;
        }
        Insert { into, columns, conflict, statements: OnceLock::new() }
    }

    /// Writes rows, of which `bind` binds each column in its order.
    pub(super) async fn write<T>(
        &self,
        transaction: &mut Tx<'_>,
        mut rows: &[T],
        bind: impl for<'q> Fn(Statement<'q>, &T) -> Statement<'q>,
    ) -> Result<()> {
        let statements = self.statements.get_or_init(|| CHUNKS.map(|rows| self.statement(rows)));
        while let Some(size) = CHUNKS.iter().position(|&size| size <= rows.len()) {
            let (chunk, rest) = rows.split_at(CHUNKS[size]);
            let query = sqlx::query(AssertSqlSafe(statements[size].clone()));
            chunk.iter().fold(query, &bind).execute(&mut **transaction).await?;
            rows = rest;
        }
        Ok(())
    }

    fn statement(&self, rows: usize) -> String {
        let row = |row: usize| {
            let places = (1..=self.columns).map(|column| format!("${}", row * self.columns + column));
            format!("({})", places.collect::<Vec<_>>().join(", "))
        };
        let rows = (0..rows).map(row).collect::<Vec<_>>().join(", ");
        format!("INSERT INTO {} VALUES {rows} {}", self.into, self.conflict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_place_for_every_column() {
        let insert = Insert::new("pair (a, b)", "ON CONFLICT DO NOTHING");
        assert_eq!(
            insert.statement(2),
            "INSERT INTO pair (a, b) VALUES ($1, $2), ($3, $4) ON CONFLICT DO NOTHING"
        );
    }
}
