//! Data folders, and what a server does with them when it starts.

use std::sync::atomic::Ordering;

use super::*;
use crate::store::faults::Faults;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server without TLS, limits and anything beside it.
fn on_its_own(folder: &Path) -> Config {
    Config {
        listen: "127.0.0.1:0".into(),
        tls: None,
        folder: folder.join("data"),
        database: None,
        advertise: None,
        requests_per_s: 0,
        failures_per_s: 0,
        grace_ms: 0,
        quiet_ms: 0,
        half_life_ms: None,
        node_idle_ms: None,
        webhook_allow: Vec::new(),
        mail: None,
        otlp: None,
        metrics: None,
    }
}

#[test]
fn a_server_that_is_dropped_gives_up_the_lead() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let running = Running::start(&on_its_own(folder.path()));
    let runtime = Runtime::new().unwrap();
    let until_ms = || {
        let database = Database::Sqlite(data.join(DATABASE_FILE));
        runtime.block_on(async { Store::open(&database).await?.leader().await }).unwrap().until_ms
    };
    assert_ne!(until_ms(), 0);
    drop(running.unwrap());
    assert_eq!(until_ms(), 0);
}

#[test]
fn a_database_that_is_gone_or_empty_is_not_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let config = on_its_own(folder.path());
    Running::start(&config).unwrap().stop().unwrap();
    let path = config.folder.join(DATABASE_FILE);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, "").unwrap();
    let refused = |state: &str| {
        let error = Running::start(&config).unwrap_err().to_string();
        assert!(
            error.contains(&format!("the database is {state}")) && error.contains("sluice restore"),
            "{error}"
        );
    };
    refused("empty");
    fs::write(&path, [7; 8192]).unwrap();
    refused("none of SQLite's");
    fs::write(&path, [&whole[..16], &[7; 8192]].concat()).unwrap();
    refused("damaged");
    fs::write(&path, &whole[..whole.len() / 8]).unwrap();
    refused("damaged");
    fs::remove_file(&path).unwrap();
    refused("missing");
    assert!(!path.exists());
    // Its log alone says that there was one.
    fs::remove_file(config.folder.join(GRANT_KEY_FILE)).unwrap();
    fs::write(config.folder.join("sluice.db-wal"), "log").unwrap();
    refused("missing");
    assert!(!config.folder.join(GRANT_KEY_FILE).exists());
}

#[test]
fn a_damaged_file_of_a_token_gets_another_token() {
    let folder = tempfile::tempdir().unwrap();
    let config = on_its_own(folder.path());
    Running::start(&config).unwrap().stop().unwrap();
    let token =
        |file: &str| Settings::read(&config.folder.join(file)).map(|settings| settings.unwrap().token);
    for file in [ADMIN_FILE, NODE_FILE] {
        let first = token(file).unwrap();
        let path = config.folder.join(file);
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..0], &whole[..whole.len() / 2]] {
            fs::write(&path, damaged).unwrap();
            assert!(token(file).is_err());
            Running::start(&config).unwrap().stop().unwrap();
            assert_ne!(token(file).unwrap(), first);
        }
    }
}

#[tokio::test]
async fn a_server_starts_while_its_disk_is_full_and_leads_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::new(Faults::default());
    let start = || async {
        let store = Store::simulated(&folder.path().join("database"), Arc::clone(&faults)).await?;
        store.set_clock(1_000_000).await?;
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default()).await?;
        let server = Arc::new(server);
        let candidate = Candidate { holder: "a test".into(), url: String::new(), alone: true };
        let tasks = work(&server, candidate, folder.path().into(), "http://h:1".into()).await?;
        Ok::<_, ServeError>((server, tasks))
    };
    let (server, tasks) = start().await.unwrap();
    assert!(server.fence().is_some());
    tasks.into_iter().for_each(|task| task.abort());
    let admin = fs::read(folder.path().join(ADMIN_FILE)).unwrap();
    faults.full.store(true, Ordering::Relaxed);
    let (server, _tasks) = start().await.unwrap();
    assert!(server.fence().is_none() && server.disk.is_full());
    let mut role = server.role.subscribe();
    faults.full.store(false, Ordering::Relaxed);
    let leads = role.wait_for(|role| matches!(role, Role::Leader(_)));
    tokio::time::timeout(PATIENCE, leads).await.unwrap().unwrap();
    assert!(!server.disk.is_full());
    assert_eq!(fs::read(folder.path().join(ADMIN_FILE)).unwrap(), admin);
}
