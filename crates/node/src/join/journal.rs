//! Usage records on disk, until the server has confirmed them.
//!
//! Two files: `usage.journal`, appended to and synced, one line per record with its checksum; and `usage.confirmed`, the
//! number of bytes of it that the server has. A line that a crash tore is cut off at the next start. Once everything is
//! confirmed and the journal is large, it is put aside under the number of its first unused byte, for reconciliation.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sluice_api::node::{Attempt, NodeId};
use sluice_api::usage::{UsageRecord, journal_line, read_journal_line};

/// A journal is put aside beyond this.
const SIZE_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    file: File,
    size: u64,
    confirmed: u64,
    /// Not confirmed yet, with the bytes of each on disk.
    pending: VecDeque<(UsageRecord, u64)>,
    /// The last record of each attempt from before the start.
    last: BTreeMap<(NodeId, Attempt), u32>,
}

impl Journal {
    pub(crate) fn open(folder: &Path) -> io::Result<Journal> {
        fs::create_dir_all(folder)?;
        let path = folder.join("usage.journal");
        let mut file = File::options().read(true).append(true).create(true).open(&path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let confirmed = fs::read_to_string(folder.join("usage.confirmed")).unwrap_or_default();
        let confirmed = confirmed.trim().parse().unwrap_or(0);
        let mut journal = Journal {
            folder: folder.into(),
            file,
            size: 0,
            confirmed,
            pending: VecDeque::new(),
            last: BTreeMap::new(),
        };
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            let Some(record) = read_journal_line(line) else { break };
            journal.size += line.len() as u64;
            let last = journal.last.entry((record.node, record.attempt_of())).or_default();
            *last = record.sequence.max(*last);
            if journal.size > confirmed {
                journal.pending.push_back((record, line.len() as u64));
            }
        }
        if journal.size < text.len() as u64 {
            let torn = text.len() as u64 - journal.size;
            eprintln!("sluice node: {}: {torn} bytes that a crash tore are cut off", path.display());
            journal.file.set_len(journal.size)?;
        }
        journal.confirmed = journal.confirmed.min(journal.size);
        Ok(journal)
    }

    /// How many records of an attempt there have been: should somebody claim it again, the next ones are others.
    pub(super) fn last(&self, node: NodeId, attempt: Attempt) -> u32 {
        self.last.get(&(node, attempt)).copied().unwrap_or(0)
    }

    /// On disk when this returns. If the disk fails, the records stay in memory and are delivered all the same.
    pub(super) fn append(&mut self, records: &[UsageRecord]) -> io::Result<()> {
        for record in records {
            let last = self.last.entry((record.node, record.attempt_of())).or_default();
            *last = record.sequence.max(*last);
        }
        let lines: Vec<Vec<u8>> = records.iter().map(line).collect();
        let bytes = lines.concat();
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.size += bytes.len() as u64;
                let sized = records.iter().cloned().zip(lines.iter().map(|line| line.len() as u64));
                self.pending.extend(sized);
                Ok(())
            }
            Err(error) => {
                // What was written of them must not stand in front of the next line.
                let _ = self.file.set_len(self.size);
                self.pending.extend(records.iter().cloned().map(|record| (record, 0)));
                Err(error)
            }
        }
    }

    /// The oldest records that are not confirmed.
    pub(super) fn pending(&self, most: usize) -> Vec<UsageRecord> {
        self.pending.iter().take(most).map(|(record, _)| record.clone()).collect()
    }

    /// The server has the oldest `count` of them.
    pub(super) fn confirm(&mut self, count: usize) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let count = count.min(self.pending.len());
        self.confirmed += self.pending.drain(..count).map(|(_, bytes)| bytes).sum::<u64>();
        // Losing this file would only send records again.
        let path = self.folder.join("usage.confirmed");
        let temporary = self.folder.join("usage.confirmed.new");
        fs::write(&temporary, format!("{}\n", self.confirmed))?;
        fs::rename(temporary, path)?;
        if self.pending.is_empty() && self.size > SIZE_MAX { self.put_aside() } else { Ok(()) }
    }

    /// Keeps a record that the server does not count, for people to look at.
    pub(super) fn refuse(&self, record: &UsageRecord) -> io::Result<()> {
        let path = self.folder.join("usage.refused");
        File::options().append(true).create(true).open(path)?.write_all(&line(record))
    }

    fn put_aside(&mut self) -> io::Result<()> {
        let path = self.folder.join("usage.journal");
        let number = (1..).find(|n| !self.folder.join(format!("usage.journal.{n}")).exists()).unwrap_or(0);
        fs::write(self.folder.join("usage.confirmed"), "0\n")?;
        fs::rename(&path, self.folder.join(format!("usage.journal.{number}")))?;
        self.file = File::options().read(true).append(true).create(true).open(&path)?;
        self.file.rewind()?;
        (self.size, self.confirmed) = (0, 0);
        Ok(())
    }
}

fn line(record: &UsageRecord) -> Vec<u8> {
    journal_line(record).into_bytes()
}

#[cfg(test)]
mod tests {
    use sluice_api::node::Attempt;

    use super::*;

    fn record(sequence: u32) -> UsageRecord {
        UsageRecord {
            id: UsageRecord::id_of(1, Attempt { lease: 2, attempt: 1, task: 0 }, sequence),
            node: 1,
            lease: 2,
            attempt: 1,
            task: 0,
            sequence,
            tenant: "acme".parse().unwrap(),
            tier: Default::default(),
            pool: "default".into(),
            model: "H100".into(),
            from_ms: 0,
            until_ms: 1,
            share_ppm: 1,
            gpus: 1,
            memory_mib: 1,
            used_ppm_ms: 0,
            kernels: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_peak: 0,
            last: false,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn sequences(journal: &Journal) -> Vec<u32> {
        journal.pending(usize::MAX).iter().map(|record| record.sequence).collect()
    }

    #[test]
    fn what_is_not_confirmed_survives_a_restart() {
        let folder = folder("restart");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1), record(2), record(3)]).unwrap();
        journal.confirm(1).unwrap();
        let mut journal = Journal::open(&folder).unwrap();
        assert_eq!(sequences(&journal), [2, 3]);
        journal.append(&[record(4)]).unwrap();
        journal.confirm(2).unwrap();
        assert_eq!(sequences(&Journal::open(&folder).unwrap()), [4]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Wherever a crash cuts the file, the whole records before the cut are there, and writing goes on after them.
    #[test]
    fn a_torn_line_costs_itself_only() {
        let folder = folder("torn");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1), record(2)]).unwrap();
        let path = folder.join("usage.journal");
        let whole = fs::read(&path).unwrap();
        let first = line(&record(1)).len();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&folder).unwrap();
            let kept: &[u32] = if cut < first { &[] } else { &[1] };
            assert_eq!(sequences(&journal), kept, "cut at {cut}");
            journal.append(&[record(9)]).unwrap();
            assert_eq!(sequences(&Journal::open(&folder).unwrap()), [kept, &[9]].concat());
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
