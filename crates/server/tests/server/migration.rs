//! A database of an earlier release, with data in it, continues under this one.

use sluice_api::bill::{Bill, Meter};
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::node::GpuStatus;
use sluice_api::tenant::TenantStatus;
use sluice_api::usage::BYTES_MAX;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, SqlSafeStr};

use crate::{Server, postgres};

const SCHEMA_1: &str = include_str!("../../migrations/0001_begin.sql");
const DATA_1: &str = include_str!("release-1.sql");

#[test]
fn data_of_the_first_schema_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let database = postgres::database_for(folder.path());
    let file = format!("sqlite://{}/data/sluice.db?mode=rwc", folder.path().display());
    prepare(database.as_deref().unwrap_or(&file));
    std::fs::set_permissions(folder.path().join("data"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();

    let server = Server::start(folder.path());
    let leases: Vec<Lease> = server.admin.list("/leases").unwrap();
    let seen = |lease: &Lease| (lease.id, lease.state, lease.name.clone(), lease.share_ppm, lease.attempt);
    assert_eq!(
        leases.iter().map(seen).collect::<Vec<_>>(),
        [
            (3, LeaseState::Queued, "waits.py".into(), 1_000_000, 1),
            (2, LeaseState::Running, "runs.py".into(), 250_000, 2),
            (1, LeaseState::Ended, "ended.py".into(), 500_000, 1),
        ]
    );
    assert_eq!(leases[1].memory, 4 << 30, "it keeps its place");
    let gpus: Vec<GpuStatus> = server.admin.list("/gpus").unwrap();
    let gpu = &gpus[0].gpu;
    assert_eq!((&*gpu.name, gpu.memory), ("scripted GPU", 16 << 30));
    assert_eq!((&gpu.vendor, &gpu.pci, gpu.nvlinks.len()), (&None, &None, 0), "it said nothing of that");
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    assert_eq!((tenants[1].quota.memory_limit_mib, tenants[1].held_milli), (Some(65536), 250));
    let bill: Bill = server.admin.get("/bill?tenant=acme").unwrap();
    assert_eq!((bill.total_micro, bill.records), (500_000, 1));
    let moved = bill.lines.iter().find(|line| line.meter == Meter::Transfer).unwrap();
    assert_eq!(moved.amount, 2, "what had been moved is summed up");
    let bill: Bill = server.admin.get("/bill?tenant=globex").unwrap();
    let moved = bill.lines.iter().find(|line| line.meter == Meter::Transfer).unwrap();
    assert_eq!(moved.amount, 6 * BYTES_MAX, "as far as it may be");
}

/// Makes a database as the first release would have.
fn prepare(url: &str) {
    let first = Migration::new(1, "begin".into(), MigrationType::Simple, SCHEMA_1.into_sql_str(), false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        sqlx::any::install_default_drivers();
        let mut connection = sqlx::AnyConnection::connect(url).await.unwrap();
        Migrator::with_migrations(vec![first]).run(&mut connection).await.unwrap();
        for statement in DATA_1.split(";\n").filter(|statement| statement.contains("INSERT")) {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
    });
}
