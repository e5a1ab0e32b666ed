//! The schema, version by version.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

use super::{Result, Store};

/// In the order of their versions; a file that has been released never changes. For SQLite and for
/// PostgreSQL, where they differ.
pub(super) const MIGRATIONS: &[(i64, &str, [&str; 2])] = &[
    (1, "begin", [include_str!("../../migrations/0001_begin.sql"); 2]),
    (2, "replicas", [include_str!("../../migrations/0002_replicas.sql"); 2]),
    (3, "tasks", [include_str!("../../migrations/0003_tasks.sql"); 2]),
    (4, "pools", [include_str!("../../migrations/0004_pools.sql"); 2]),
    (5, "health", [include_str!("../../migrations/0005_health.sql"); 2]),
    (6, "personalities", [include_str!("../../migrations/0006_personalities.sql"); 2]),
    (7, "identity", [include_str!("../../migrations/0007_identity.sql"); 2]),
    (8, "units", [include_str!("../../migrations/0008_units.sql"); 2]),
    (9, "unit quotas", [include_str!("../../migrations/0009_unit_quotas.sql"); 2]),
    (
        10,
        "usage hours",
        [
            include_str!("../../migrations/0010_usage_hours.sqlite.sql"),
            include_str!("../../migrations/0010_usage_hours.postgres.sql"),
        ],
    ),
    (11, "money", [include_str!("../../migrations/0011_money.sql"); 2]),
    (
        12,
        "histories",
        [
            include_str!("../../migrations/0012_histories.sqlite.sql"),
            include_str!("../../migrations/0012_histories.postgres.sql"),
        ],
    ),
    (13, "drains", [include_str!("../../migrations/0013_drains.sql"); 2]),
    (14, "answers", [include_str!("../../migrations/0014_answers.sql"); 2]),
    (
        15,
        "transfer",
        [
            include_str!("../../migrations/0015_transfer.sqlite.sql"),
            include_str!("../../migrations/0015_transfer.postgres.sql"),
        ],
    ),
    (
        16,
        "tenants",
        [
            include_str!("../../migrations/0016_tenants.sqlite.sql"),
            include_str!("../../migrations/0016_tenants.postgres.sql"),
        ],
    ),
    (
        17,
        "sums",
        [
            include_str!("../../migrations/0017_sums.sqlite.sql"),
            include_str!("../../migrations/0017_sums.postgres.sql"),
        ],
    ),
    (
        18,
        "suspended",
        [
            include_str!("../../migrations/0018_suspended.sqlite.sql"),
            include_str!("../../migrations/0018_suspended.postgres.sql"),
        ],
    ),
    (19, "invoices", [include_str!("../../migrations/0019_invoices.sql"); 2]),
    (20, "node tokens", [include_str!("../../migrations/0020_node_tokens.sql"); 2]),
    (21, "webhooks", [include_str!("../../migrations/0021_webhooks.sql"); 2]),
    (22, "run defaults", [include_str!("../../migrations/0022_run_defaults.sql"); 2]),
    (23, "autonomy", [include_str!("../../migrations/0023_autonomy.sql"); 2]),
    (24, "servers", [include_str!("../../migrations/0024_servers.sql"); 2]),
    (25, "audit of tenants", [include_str!("../../migrations/0025_audit_tenant.sql"); 2]),
    (
        26,
        "promises",
        [
            include_str!("../../migrations/0026_promises.sqlite.sql"),
            include_str!("../../migrations/0026_promises.postgres.sql"),
        ],
    ),
    (27, "last uses", [include_str!("../../migrations/0027_last_uses.sql"); 2]),
    (
        28,
        "devices",
        [
            include_str!("../../migrations/0028_devices.sqlite.sql"),
            include_str!("../../migrations/0028_devices.postgres.sql"),
        ],
    ),
];

impl Store {
    pub(super) async fn migrate(&self, postgres: bool) -> Result<()> {
        let migrations = MIGRATIONS.iter().map(|&(version, name, sql)| {
            let sql = sql[usize::from(postgres)];
            Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
        });
        Migrator::with_migrations(migrations.collect()).run(&self.pool).await?;
        Ok(())
    }
}
