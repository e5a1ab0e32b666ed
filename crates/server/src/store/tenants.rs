use sluice_api::tenant::{Quota, Tenant};

use super::{Result, Store, Tx, from_json, parsed, signed, small, small_or_null, to_json, unsigned_or_null};

pub(super) async fn write(transaction: &mut Tx<'_>, tenant: &Tenant) -> Result<()> {
    let quota = &tenant.quota;
    sqlx::query(
        "INSERT INTO tenant (path, guaranteed_milli, limit_milli, over_quota_weight, memory_limit_mib, leases_limit, \
         budget) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (path) DO UPDATE SET \
         guaranteed_milli = excluded.guaranteed_milli, limit_milli = excluded.limit_milli, \
         over_quota_weight = excluded.over_quota_weight, memory_limit_mib = excluded.memory_limit_mib, \
         leases_limit = excluded.leases_limit, budget = excluded.budget",
    )
    .bind(tenant.path.to_string())
    .bind(i64::from(quota.guaranteed_milli))
    .bind(quota.limit_milli.map(i64::from))
    .bind(i64::from(quota.over_quota_weight))
    .bind(quota.memory_limit_mib.map(signed))
    .bind(quota.leases_limit.map(i64::from))
    .bind(to_json(&tenant.budget))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

impl Store {
    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>> {
        let rows = sqlx::query("SELECT * FROM tenant ORDER BY path").fetch_all(&self.pool).await?;
        let tenant = |row| {
            let quota = Quota {
                guaranteed_milli: small(row, "guaranteed_milli")?,
                limit_milli: small_or_null(row, "limit_milli")?,
                over_quota_weight: small(row, "over_quota_weight")?,
                memory_limit_mib: unsigned_or_null(row, "memory_limit_mib")?,
                leases_limit: small_or_null(row, "leases_limit")?,
            };
            Ok(Tenant { path: parsed(row, "path")?, quota, budget: from_json(row, "budget")? })
        };
        rows.iter().map(tenant).collect()
    }
}
