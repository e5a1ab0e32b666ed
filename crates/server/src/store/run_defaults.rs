use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::TenantPath;

use super::{Result, Store, Tx, parsed, signed, small, text, unsigned};

pub(super) async fn write(transaction: &mut Tx<'_>, default: &RunDefault) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO run_default (tenant, program, share_ppm, memory, set_at_ms, set_by) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, program) DO UPDATE SET share_ppm = excluded.share_ppm, \
         memory = excluded.memory, set_at_ms = excluded.set_at_ms, set_by = excluded.set_by",
    );
    query
        .bind(default.tenant.to_string())
        .bind(default.program.clone())
        .bind(i64::from(default.share_ppm))
        .bind(signed(default.memory))
        .bind(signed(default.set_at_ms))
        .bind(default.set_by.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Tx<'_>, tenant: &TenantPath, program: &str) -> Result<()> {
    let query = sqlx::query("DELETE FROM run_default WHERE tenant = $1 AND program = $2");
    query.bind(tenant.to_string()).bind(program.to_owned()).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn run_defaults(&self) -> Result<Vec<RunDefault>> {
        let rows = sqlx::query("SELECT * FROM run_default").fetch_all(&self.pool).await?;
        let default = |row| {
            Ok(RunDefault {
                tenant: parsed(row, "tenant")?,
                program: text(row, "program")?,
                share_ppm: small(row, "share_ppm")?,
                memory: unsigned(row, "memory")?,
                set_at_ms: unsigned(row, "set_at_ms")?,
                set_by: text(row, "set_by")?,
            })
        };
        rows.iter().map(default).collect()
    }
}
