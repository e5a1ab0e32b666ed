use sluice_api::tenant::{Quota, Tenant, TenantPath};

use super::{
    Result, Store, Tx, from_json, parsed, signed, small, small_or_null, text, to_json, unsigned,
    unsigned_or_null,
};

pub(super) async fn write(transaction: &mut Tx<'_>, tenant: &Tenant) -> Result<()> {
    let quota = &tenant.quota;
    sqlx::query(
        "INSERT INTO tenant (path, guaranteed_milli, limit_milli, over_quota_weight, memory_limit_mib, leases_limit, \
         budget, guaranteed_units_milli, guaranteed_memory_mib, units_limit_milli, bill_to) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (path) DO UPDATE SET \
         guaranteed_milli = excluded.guaranteed_milli, limit_milli = excluded.limit_milli, \
         over_quota_weight = excluded.over_quota_weight, memory_limit_mib = excluded.memory_limit_mib, \
         leases_limit = excluded.leases_limit, budget = excluded.budget, \
         guaranteed_units_milli = excluded.guaranteed_units_milli, \
         guaranteed_memory_mib = excluded.guaranteed_memory_mib, units_limit_milli = excluded.units_limit_milli, \
         bill_to = excluded.bill_to",
    )
    .bind(tenant.path.to_string())
    .bind(i64::from(quota.guaranteed_milli))
    .bind(quota.limit_milli.map(i64::from))
    .bind(i64::from(quota.over_quota_weight))
    .bind(quota.memory_limit_mib.map(signed))
    .bind(quota.leases_limit.map(i64::from))
    .bind(to_json(&tenant.budget))
    .bind(signed(quota.guaranteed_units_milli))
    .bind(signed(quota.guaranteed_memory_mib))
    .bind(quota.units_limit_milli.map(signed))
    .bind(tenant.bill_to.as_ref().map_or_else(String::new, to_json))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Tx<'_>, tenant: &TenantPath) -> Result<()> {
    let query = sqlx::query("DELETE FROM tenant WHERE path = $1");
    query.bind(tenant.to_string()).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>> {
        let rows = sqlx::query("SELECT * FROM tenant ORDER BY path").fetch_all(&self.pool).await?;
        let tenant = |row| {
            let quota = Quota {
                guaranteed_milli: small(row, "guaranteed_milli")?,
                guaranteed_units_milli: unsigned(row, "guaranteed_units_milli")?,
                guaranteed_memory_mib: unsigned(row, "guaranteed_memory_mib")?,
                limit_milli: small_or_null(row, "limit_milli")?,
                units_limit_milli: unsigned_or_null(row, "units_limit_milli")?,
                over_quota_weight: small(row, "over_quota_weight")?,
                memory_limit_mib: unsigned_or_null(row, "memory_limit_mib")?,
                leases_limit: small_or_null(row, "leases_limit")?,
            };
            let bill_to = match text(row, "bill_to")?.is_empty() {
                true => None,
                false => Some(from_json(row, "bill_to")?),
            };
            Ok(Tenant { path: parsed(row, "path")?, quota, budget: from_json(row, "budget")?, bill_to })
        };
        rows.iter().map(tenant).collect()
    }
}
