use sluice_api::autonomy::{Consent, LeftAlone, ProgramName};
use sluice_api::tenant::TenantPath;

use super::{Result, Store, Tx, from_json, parsed, signed, small, text, to_json, unsigned};
use crate::autonomy::SizedProgram;

pub(super) async fn write_consent(transaction: &mut Tx<'_>, consent: &Consent) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO consent (tenant, mode, floor_percent, idle_after_ms, set_at_ms, set_by) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant) DO UPDATE SET mode = excluded.mode, \
         floor_percent = excluded.floor_percent, idle_after_ms = excluded.idle_after_ms, \
         set_at_ms = excluded.set_at_ms, set_by = excluded.set_by",
    );
    query
        .bind(consent.tenant.to_string())
        .bind(consent.mode.name())
        .bind(i64::from(consent.floor_percent))
        .bind(signed(consent.idle_after_ms.unwrap_or(0)))
        .bind(signed(consent.set_at_ms))
        .bind(consent.set_by.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Removes all that is kept of a tenant's programs, and its consent.
pub(super) async fn remove_tenant(transaction: &mut Tx<'_>, tenant: &TenantPath) -> Result<()> {
    for sql in [
        "DELETE FROM consent WHERE tenant = $1",
        "DELETE FROM left_alone WHERE tenant = $1",
        "DELETE FROM program_size WHERE tenant = $1",
    ] {
        sqlx::query(sql).bind(tenant.to_string()).execute(&mut **transaction).await?;
    }
    Ok(())
}

pub(super) async fn write_left_alone(transaction: &mut Tx<'_>, left_alone: &LeftAlone) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO left_alone (tenant, program, set_at_ms, set_by) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (tenant, program) DO UPDATE SET set_at_ms = excluded.set_at_ms, set_by = excluded.set_by",
    );
    query
        .bind(left_alone.tenant.to_string())
        .bind(left_alone.program.clone())
        .bind(signed(left_alone.set_at_ms))
        .bind(left_alone.set_by.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn remove_left_alone(transaction: &mut Tx<'_>, name: &ProgramName) -> Result<()> {
    let query = sqlx::query("DELETE FROM left_alone WHERE tenant = $1 AND program = $2");
    query.bind(name.tenant.to_string()).bind(name.program.clone()).execute(&mut **transaction).await?;
    Ok(())
}

/// Without a size the program gets what it asks for.
pub(super) async fn write_size(
    transaction: &mut Tx<'_>,
    name: &ProgramName,
    size: Option<&SizedProgram>,
) -> Result<()> {
    let (tenant, program) = (name.tenant.to_string(), name.program.clone());
    let query = match size {
        Some(size) => sqlx::query(
            "INSERT INTO program_size (tenant, program, size) VALUES ($1, $2, $3) \
             ON CONFLICT (tenant, program) DO UPDATE SET size = excluded.size",
        )
        .bind(tenant)
        .bind(program)
        .bind(to_json(size)),
        None => sqlx::query("DELETE FROM program_size WHERE tenant = $1 AND program = $2")
            .bind(tenant)
            .bind(program),
    };
    query.execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn consents(&self) -> Result<Vec<Consent>> {
        let rows = sqlx::query("SELECT * FROM consent").fetch_all(&self.pool).await?;
        let consent = |row| {
            Ok(Consent {
                tenant: parsed(row, "tenant")?,
                mode: parsed(row, "mode")?,
                floor_percent: small(row, "floor_percent")?,
                idle_after_ms: Some(unsigned(row, "idle_after_ms")?).filter(|&ms| ms > 0),
                set_at_ms: unsigned(row, "set_at_ms")?,
                set_by: text(row, "set_by")?,
            })
        };
        rows.iter().map(consent).collect()
    }

    pub(crate) async fn left_alone(&self) -> Result<Vec<LeftAlone>> {
        let rows = sqlx::query("SELECT * FROM left_alone").fetch_all(&self.pool).await?;
        let left_alone = |row| {
            Ok(LeftAlone {
                tenant: parsed(row, "tenant")?,
                program: text(row, "program")?,
                set_at_ms: unsigned(row, "set_at_ms")?,
                set_by: text(row, "set_by")?,
            })
        };
        rows.iter().map(left_alone).collect()
    }

    pub(crate) async fn program_sizes(&self) -> Result<Vec<(ProgramName, SizedProgram)>> {
        let rows = sqlx::query("SELECT * FROM program_size").fetch_all(&self.pool).await?;
        let size = |row| {
            let name = ProgramName { tenant: parsed(row, "tenant")?, program: text(row, "program")? };
            Ok((name, from_json(row, "size")?))
        };
        rows.iter().map(size).collect()
    }
}
