//! Backups. A backup is a data folder: the database at one moment, as a file of SQLite, and the key
//! for grants.
//!
//! A server can be started on it as it is, and it can be restored into a database of either kind.
//! What the server has taken since is not in it; of usage that nodes have delivered since,
//! `sluice reconcile` finds every record in their journals.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::config::{DATABASE_FILE, GRANT_KEY_FILE, alone, private_folder};
use crate::store::{Database, Store};
use crate::{ServeError, store};

/// Takes the number of rows that were copied so far, and of all rows, as the copy continues.
pub type Watcher<'a> = &'a mut dyn FnMut(u64, u64);

/// Copies the database and the key of a data folder into a new folder; the server may continue
/// meanwhile. Says how many rows were copied.
pub fn back_up(
    folder: &Path,
    database: Option<&Database>,
    to: &Path,
    watcher: Watcher<'_>,
) -> Result<u64, ServeError> {
    let failed = |source| ServeError::File { path: to.into(), source };
    fs::DirBuilder::new().mode(0o700).create(to).map_err(failed)?;
    copy_key(folder, to)?;
    let own = Database::Sqlite(folder.join(DATABASE_FILE));
    run(copy(database.unwrap_or(&own), &Database::Sqlite(to.join(DATABASE_FILE)), watcher))
}

/// Copies a backup into a data folder and its database, which must be empty.
pub fn restore(
    from: &Path,
    folder: &Path,
    database: Option<&Database>,
    watcher: Watcher<'_>,
) -> Result<u64, ServeError> {
    private_folder(folder)?;
    let own = Database::Sqlite(folder.join(DATABASE_FILE));
    let database = database.unwrap_or(&own);
    let _alone = alone(database)?;
    let copied = run(copy(&Database::Sqlite(from.join(DATABASE_FILE)), database, watcher))?;
    copy_key(from, folder)?;
    Ok(copied)
}

async fn copy(from: &Database, to: &Database, watcher: Watcher<'_>) -> Result<u64, store::StoreError> {
    let (source, target) = (Store::open_as_it_is(from).await?, Store::open(to).await?);
    let copied = source.copy_into(&target, from, watcher).await;
    source.close().await;
    target.close().await;
    copied
}

fn run(copying: impl Future<Output = Result<u64, store::StoreError>>) -> Result<u64, ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(copying)?)
}

/// One that is there already must be the same.
fn copy_key(from: &Path, to: &Path) -> Result<(), ServeError> {
    let (from, to) = (from.join(GRANT_KEY_FILE), to.join(GRANT_KEY_FILE));
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |source| ServeError::File { path, source }
    };
    let key = fs::read(&from).map_err(failed(&from))?;
    match fs::read(&to) {
        Ok(other) if other == key => Ok(()),
        Ok(_) => Err(failed(&to)(io::Error::other("is another key than the backup's"))),
        Err(_) => {
            let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&to);
            let mut file = file.map_err(failed(&to))?;
            file.write_all(&key).and_then(|()| file.sync_all()).map_err(failed(&to))
        }
    }
}
