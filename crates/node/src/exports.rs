//! What the sessions of a lease share with each other: device memory and events.
//!
//! An export lives while a session holds it: the one that made it, or one that has imported it. Its
//! memory counts for the lease and for no session, so it counts once. A session that ends lets go
//! of everything it held.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_wire::ExportToken;
use sluice_worker_link::link::Export;

use crate::upgrade::{Passed, Passing, Received};

/// Most exports of one lease at a time: each may keep a descriptor open in the daemon.
const EXPORTS_MAX: usize = 4096;

/// Those of one lease.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    live: BTreeMap<ExportToken, Record>,
}

#[derive(Debug)]
struct Record {
    export: Export,
    file: Option<Arc<OwnedFd>>,
    maker: u64,
    /// How often each session holds it.
    holders: BTreeMap<u64, u32>,
}

/// What a session gets that imports.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) export: Export,
    pub(crate) file: Option<Arc<OwnedFd>>,
    pub(crate) is_own: bool,
}

impl Exports {
    pub(crate) fn is_full(&self) -> bool {
        self.live.len() >= EXPORTS_MAX
    }

    /// Enters what a session exports, and holds from then on.
    pub(crate) fn insert(&mut self, token: ExportToken, export: Export, file: Option<OwnedFd>, session: u64) {
        let holders = BTreeMap::from([(session, 1)]);
        self.live.insert(token, Record { export, file: file.map(Arc::new), maker: session, holders });
    }

    /// What the token stands for, held by the session once more.
    pub(crate) fn import(&mut self, token: ExportToken, session: u64) -> Option<Imported> {
        let record = self.live.get_mut(&token)?;
        let holds = record.holders.entry(session).or_default();
        *holds = holds.checked_add(1)?;
        Some(Imported {
            export: record.export.clone(),
            file: record.file.clone(),
            is_own: record.maker == session,
        })
    }

    /// The session holds it once less; what no session holds any more is returned.
    pub(crate) fn release(&mut self, token: ExportToken, session: u64) -> Option<Export> {
        let record = self.live.get_mut(&token)?;
        let holds = record.holders.get_mut(&session)?;
        *holds -= 1;
        if *holds == 0 {
            record.holders.remove(&session);
        }
        if record.holders.is_empty() { self.live.remove(&token).map(|gone| gone.export) } else { None }
    }

    /// The session is gone; what no other session holds is returned.
    pub(crate) fn leave(&mut self, session: u64) -> Vec<Export> {
        let gone = self.live.extract_if(.., |_, record| {
            record.holders.remove(&session);
            record.holders.is_empty()
        });
        gone.map(|(_, record)| record.export).collect()
    }

    /// Bytes of shared memory that are shown as this session's: what it holds and no older one
    /// does.
    pub(crate) fn bytes_of(&self, session: u64) -> u64 {
        self.shown(session).map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes of shared memory that are shown as this session's on one GPU of the lease.
    pub(crate) fn bytes_of_on(&self, session: u64, gpu: usize) -> u64 {
        self.shown(session).filter(|(on, _)| *on as usize == gpu).map(|(_, bytes)| bytes).sum()
    }

    fn shown(&self, session: u64) -> impl Iterator<Item = (u32, u64)> {
        let first = move |record: &&Record| record.holders.keys().next() == Some(&session);
        self.live.values().filter(first).filter_map(Record::memory)
    }
}

/// One of them, for the next program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedExport {
    #[serde(with = "crate::upgrade::with::wire")]
    token: ExportToken,
    export: Export,
    file: Option<Passed>,
    maker: u64,
    holders: BTreeMap<u64, u32>,
}

impl Exports {
    pub(crate) fn save(&self, passing: &mut Passing) -> Vec<SavedExport> {
        let saved = |(&token, record): (&ExportToken, &Record)| SavedExport {
            token,
            export: record.export.clone(),
            file: record.file.as_ref().map(|file| passing.pass(file.as_fd())),
            maker: record.maker,
            holders: record.holders.clone(),
        };
        self.live.iter().map(saved).collect()
    }
}

impl SavedExport {
    pub(crate) fn restore(all: Vec<SavedExport>, received: &mut Received) -> io::Result<Exports> {
        let mut live = BTreeMap::new();
        for SavedExport { token, export, file, maker, holders } in all {
            let file = file.map(|file| received.take(file)).transpose()?.map(Arc::new);
            live.insert(token, Record { export, file, maker, holders });
        }
        Ok(Exports { live })
    }
}

impl Record {
    /// The GPU of the lease, and the bytes there.
    fn memory(&self) -> Option<(u32, u64)> {
        match self.export {
            Export::Memory { gpu, bytes } => Some((gpu, bytes)),
            Export::Event { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: ExportToken = ExportToken([7; 32]);
    const MEMORY: Export = Export::Memory { gpu: 1, bytes: 100 };

    #[test]
    fn an_export_lives_as_long_as_anybody_holds_it() {
        let mut exports = Exports::default();
        exports.insert(TOKEN, MEMORY, None, 1);
        assert!(exports.import(ExportToken([8; 32]), 2).is_none());
        assert!(!exports.import(TOKEN, 2).unwrap().is_own && exports.import(TOKEN, 1).unwrap().is_own);
        assert_eq!((exports.bytes_of(1), exports.bytes_of(2)), (100, 0));
        assert_eq!(exports.release(TOKEN, 1), None);
        assert_eq!(exports.leave(1), []);
        assert_eq!((exports.bytes_of(1), exports.bytes_of(2)), (0, 100), "the importer has it");
        assert_eq!((exports.bytes_of_on(2, 0), exports.bytes_of_on(2, 1)), (0, 100));
        assert_eq!(exports.release(TOKEN, 3), None);
        assert_eq!(exports.release(TOKEN, 2), Some(MEMORY));
        assert!(exports.import(TOKEN, 2).is_none());
    }

    #[test]
    fn the_last_session_takes_it_along() {
        let mut exports = Exports::default();
        exports.insert(TOKEN, MEMORY, None, 1);
        exports.import(TOKEN, 2).unwrap();
        exports.import(TOKEN, 2).unwrap();
        assert_eq!((exports.leave(2), exports.leave(1)), (vec![], vec![MEMORY]));
    }
}
