use super::{Result, Store, Tx, parsed, signed, small, unsigned};
use crate::history::EstimateError;

pub(super) async fn write(transaction: &mut Tx<'_>, error: &EstimateError) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO estimate_error (lease, attempt, tenant, at_ms, error_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (lease, attempt) DO UPDATE SET at_ms = excluded.at_ms, error_ms = excluded.error_ms",
    );
    query
        .bind(signed(error.lease))
        .bind(i64::from(error.attempt))
        .bind(error.tenant.to_string())
        .bind(signed(error.at_ms))
        .bind(signed(error.error_ms))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    /// The latest, the oldest of them first.
    pub(crate) async fn estimate_errors(&self, limit: u32) -> Result<Vec<EstimateError>> {
        let query = sqlx::query("SELECT * FROM estimate_error ORDER BY at_ms DESC, lease DESC LIMIT $1");
        let rows = query.bind(i64::from(limit)).fetch_all(&self.pool).await?;
        let error = |row| {
            Ok(EstimateError {
                lease: unsigned(row, "lease")?,
                attempt: small(row, "attempt")?,
                tenant: parsed(row, "tenant")?,
                at_ms: unsigned(row, "at_ms")?,
                error_ms: unsigned(row, "error_ms")?,
            })
        };
        rows.iter().rev().map(error).collect()
    }
}
