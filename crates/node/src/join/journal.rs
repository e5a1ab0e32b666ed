//! Usage records on disk, until the server has confirmed them.
//!
//! Two files: `usage.journal`, appended to and synced, one line per record with its checksum; and
//! `usage.confirmed`, the number of bytes of it that the server has. A line at the end that a crash
//! tore is cut off at the next start. A whole line whose checksum does not fit was damaged on the
//! disk: it is moved to `usage.damaged`, and those behind it count as ever. Once everything is
//! confirmed and the journal is large, it is put aside under the number of its first unused byte,
//! for reconciliation.
//!
//! What the disk does not take, for want of room or for any other reason, waits in memory, is
//! delivered all the same, and is written when the disk takes it. The amount that waits is limited,
//! so that a node that continues ([`Journal::is_full`]) stays as small as it was.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sluice_api::node::{Attempt, NodeId};
use sluice_api::usage::{UsageRecord, journal_line, read_journal_line};

/// A journal is put aside beyond this.
const SIZE_MAX: u64 = 64 << 20;
/// Records that wait for the disk, some 400 bytes each, before the node takes no more leases.
const UNSAVED_MAX: usize = 10_000;
/// Lines that are written together where many wait: a disk with little room takes some of them.
const LINES_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    file: File,
    size: u64,
    confirmed: u64,
    /// Not confirmed yet, with the bytes of each on disk: 0 of the last ones, which are not there.
    pending: VecDeque<(UsageRecord, u64)>,
    /// What the disk has not taken, in order. It comes behind all that is on disk.
    unsaved: VecDeque<Vec<u8>>,
    /// How many of them, from the first, are confirmed.
    unsaved_confirmed: usize,
    /// The file may be longer than `size` by what was written of lines that it did not take.
    torn: bool,
    /// What the disk said first, while it takes nothing.
    trouble: Option<String>,
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
            confirmed: 0,
            pending: VecDeque::new(),
            unsaved: VecDeque::new(),
            unsaved_confirmed: 0,
            torn: false,
            trouble: None,
            last: BTreeMap::new(),
        };
        let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let last = text.get(end..text.len().saturating_sub(1)).map(|last| [last, b"\n"].concat());
        // Of a last line with a damaged newline nothing is missing.
        let is_whole = last.is_some_and(|last| read_journal_line(&last).is_some());
        let (whole, torn) = text.split_at(if is_whole { text.len() } else { end });
        let mut damaged = Vec::new();
        for (line, end) in lines_of(whole) {
            let Some(record) = read_journal_line(&line) else {
                damaged.push(line);
                // Its bytes leave the file, and what is confirmed is counted without them.
                continue;
            };
            journal.size += line.len() as u64;
            let last = journal.last.entry((record.node, record.attempt_of())).or_default();
            *last = record.sequence.max(*last);
            match end as u64 > confirmed {
                true => journal.pending.push_back((record, line.len() as u64)),
                false => journal.confirmed = journal.size,
            }
        }
        journal.confirmed = journal.confirmed.min(journal.size);
        if confirmed > text.len() as u64 {
            journal.note_shortened(confirmed - text.len() as u64)?;
        }
        if !damaged.is_empty() {
            return journal.without(&damaged, whole);
        }
        if !torn.is_empty() {
            tracing::warn!("{}: {} bytes that a crash tore are cut off", path.display(), torn.len());
            journal.file.set_len(journal.size)?;
        }
        Ok(journal)
    }

    /// Says that the journal has lost bytes that the server had confirmed, so that what was behind
    /// them may be lost, too. From now on no more counts as confirmed than what is there: the next
    /// records would otherwise take the place of those that were, and never be sent.
    fn note_shortened(&self, bytes: u64) -> io::Result<()> {
        tracing::error!(
            "{}: the last {bytes} bytes that the server has confirmed are missing, and so may be records behind them that it \
             has not; look after the disk; docs/billing.md says how to correct a bill",
            self.folder.join("usage.journal").display()
        );
        self.note_confirmed()
    }

    /// Moves damaged lines out of the journal, whose whole text this is.
    fn without(mut self, damaged: &[Vec<u8>], whole: &[u8]) -> io::Result<Journal> {
        let (path, aside) = (self.folder.join("usage.journal"), self.folder.join("usage.damaged"));
        let mut kept_aside = File::options().append(true).create(true).open(&aside)?;
        kept_aside.write_all(&damaged.concat())?;
        kept_aside.sync_data()?;
        let good = lines_of(whole).into_iter().map(|(line, _)| line).filter(|line| !damaged.contains(line));
        let temporary = self.folder.join("usage.journal.new");
        let mut file = File::create(&temporary)?;
        file.write_all(&good.collect::<Vec<_>>().concat())?;
        file.sync_data()?;
        // First what is confirmed: should only this arrive, records are sent again, and none is
        // left out.
        self.note_confirmed()?;
        fs::rename(&temporary, &path)?;
        self.file = File::options().read(true).append(true).open(&path)?;
        tracing::error!(
            "{}: {} records are damaged; they are in {} now, and their usage is not reported. All others are kept. Look \
             after the disk; docs/billing.md says how to correct a bill",
            path.display(),
            damaged.len(),
            aside.display()
        );
        Ok(self)
    }

    /// Whether all that was recorded is on the disk.
    pub(super) fn is_saved(&self) -> bool {
        self.unsaved.is_empty()
    }

    /// Records that the server has not confirmed.
    pub(super) fn undelivered(&self) -> usize {
        self.pending.len()
    }

    /// How many records of an attempt there have been: should a program claim it again, the next
    /// ones are others.
    pub(super) fn last(&self, node: NodeId, attempt: Attempt) -> u32 {
        self.last.get(&(node, attempt)).copied().unwrap_or(0)
    }

    /// On disk when this returns, with all that waited, unless the disk fails: that is in the log
    /// then.
    pub(super) fn append(&mut self, records: &[UsageRecord]) {
        for record in records {
            let last = self.last.entry((record.node, record.attempt_of())).or_default();
            *last = record.sequence.max(*last);
            self.unsaved.push_back(line(record));
            self.pending.push_back((record.clone(), 0));
        }
        self.save();
    }

    /// Writes what waits, if anything does.
    pub(super) fn save(&mut self) {
        if self.unsaved.is_empty() {
            return;
        }
        let waited = self.unsaved.len();
        while !self.unsaved.is_empty() {
            if let Err(error) = self.save_some() {
                return self.note_trouble(&error);
            }
        }
        // Where records find room what is confirmed need not.
        if self.trouble.is_some() && self.note_confirmed().is_ok() {
            self.end_trouble(waited);
        }
    }

    fn end_trouble(&mut self, waited: usize) {
        if self.trouble.take().is_some() {
            tracing::info!("the usage journal is written again, with {waited} records that waited");
        }
    }

    fn save_some(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.size)?;
            self.torn = false;
        }
        let count = self.unsaved.len().min(LINES_MAX);
        let lines: Vec<&[u8]> = self.unsaved.iter().take(count).map(Vec::as_slice).collect();
        let bytes = lines.concat();
        if let Err(error) = self.file.write_all(&bytes).and_then(|()| self.file.sync_data()) {
            // What was written of them must not stand in front of the next line.
            self.torn = self.file.set_len(self.size).is_err();
            return Err(error);
        }
        self.size += bytes.len() as u64;
        let confirmed = self.unsaved_confirmed.min(count);
        self.unsaved_confirmed -= confirmed;
        let (known, wait) = lines.split_at(confirmed);
        self.confirmed += known.iter().map(|line| line.len() as u64).sum::<u64>();
        let unsaved = self.pending.iter_mut().filter(|(_, bytes)| *bytes == 0);
        unsaved.zip(wait).for_each(|((_, bytes), line)| *bytes = line.len() as u64);
        self.unsaved.drain(..count);
        if confirmed > 0 { self.note_confirmed() } else { Ok(()) }
    }

    /// Says so once, whatever fails then.
    fn note_trouble(&mut self, error: &io::Error) {
        if self.trouble.is_none() {
            tracing::error!(
                "the usage journal in {} cannot be written: {error}. Sessions continue; what they use waits in memory \
                 and goes to the server; with {UNSAVED_MAX} records there this node takes no new leases",
                self.folder.display()
            );
            self.trouble = Some(error.to_string());
        }
    }

    /// Why nothing more should begin that is to be recorded here.
    pub(super) fn is_full(&self) -> Option<JournalFull> {
        let error = || self.trouble.clone().unwrap_or_default();
        (self.unsaved.len() >= UNSAVED_MAX)
            .then(|| JournalFull { waiting: self.unsaved.len(), error: error() })
    }

    /// The oldest records that are not confirmed.
    pub(super) fn pending(&self, most: usize) -> Vec<UsageRecord> {
        self.pending.iter().take(most).map(|(record, _)| record.clone()).collect()
    }

    /// The server has the oldest `count` of them.
    pub(super) fn confirm(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        for (_, bytes) in self.pending.drain(..count.min(self.pending.len())) {
            self.confirmed += bytes;
            self.unsaved_confirmed += usize::from(bytes == 0);
        }
        let mut noted = self.note_confirmed();
        if noted.is_ok() && self.pending.is_empty() && self.unsaved.is_empty() && self.size > SIZE_MAX {
            noted = self.put_aside();
        }
        match noted {
            Err(error) => self.note_trouble(&error),
            Ok(()) if self.unsaved.is_empty() => self.end_trouble(0),
            Ok(()) => {}
        }
    }

    /// Losing this file would only send records again.
    fn note_confirmed(&self) -> io::Result<()> {
        let path = self.folder.join("usage.confirmed");
        let temporary = self.folder.join("usage.confirmed.new");
        fs::write(&temporary, format!("{}\n", self.confirmed))?;
        fs::rename(temporary, path)
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

/// The lines of a text that ends with a newline, and where each ends in it. Where a newline was
/// damaged the record before it is a line all the same.
fn lines_of(text: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let (mut lines, mut end) = (Vec::new(), 0);
    for mut line in text.split_inclusive(|&byte| byte == b'\n') {
        while !line.is_empty() {
            let (record, bytes) = match first_record(line) {
                Some(record) if read_journal_line(line).is_none() => {
                    let bytes = record.len();
                    (record, bytes)
                }
                _ => (line.to_vec(), line.len()),
            };
            end += bytes;
            lines.push((record, end));
            line = &line[bytes..];
        }
    }
    lines
}

/// The record that a line begins with, with a newline in place of the byte behind it.
fn first_record(line: &[u8]) -> Option<Vec<u8>> {
    let braces = (0..line.len().saturating_sub(1)).filter(|&at| line[at] == b'}');
    let mut candidates = braces.map(|brace| [&line[..=brace], b"\n"].concat());
    candidates.find(|candidate| read_journal_line(candidate).is_some())
}

/// The disk takes nothing, and too much waits for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node takes no new leases: its usage journal cannot be written ({error}), and {waiting} records wait for that; make room on its \
     disk"
)]
pub(crate) struct JournalFull {
    waiting: usize,
    error: String,
}

fn line(record: &UsageRecord) -> Vec<u8> {
    journal_line(record).into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use sluice_api::node::Attempt;

    use super::*;

    pub(in super::super) fn record(sequence: u32) -> UsageRecord {
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
            gflops: 66_908,
            from_ms: 0,
            until_ms: 1,
            share_ppm: 1,
            suspended: false,
            gpus: 1,
            memory_mib: 1,
            used_ppm_ms: 0,
            kernels: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_peak: 0,
            promised: None,
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
        journal.append(&[record(1), record(2), record(3)]);
        journal.confirm(1);
        let mut journal = Journal::open(&folder).unwrap();
        assert_eq!(sequences(&journal), [2, 3]);
        journal.append(&[record(4)]);
        journal.confirm(2);
        assert_eq!(sequences(&Journal::open(&folder).unwrap()), [4]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Wherever a crash cuts the file, the whole records before the cut are there, and writing goes
    /// on after them.
    #[test]
    fn a_torn_line_costs_itself_only() {
        let folder = folder("torn");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1), record(2)]);
        let path = folder.join("usage.journal");
        let whole = fs::read(&path).unwrap();
        let first = line(&record(1)).len();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&folder).unwrap();
            let kept: &[u32] = if cut < first { &[] } else { &[1] };
            assert_eq!(sequences(&journal), kept, "cut at {cut}");
            journal.append(&[record(9)]);
            assert_eq!(sequences(&Journal::open(&folder).unwrap()), [kept, &[9]].concat());
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Whichever bit is flipped, in front of what is confirmed or behind it: its record is set
    /// aside, and the others are there.
    #[test]
    fn a_damaged_record_costs_itself_only() {
        let folder = folder("damaged");
        let lines = [1, 2, 3, 4].map(|sequence| line(&record(sequence)));
        let whole = lines.concat();
        let path = folder.join("usage.journal");
        for confirmed in [0, 2] {
            // Some bytes of each part of a line, and all around its newlines.
            let near_newline = |at: &usize| at % lines[0].len() < 2 || (at + 2) % lines[0].len() < 2;
            let places = (0..whole.len()).filter(|at| at % 37 == 0 || near_newline(at));
            for (at, bit) in places.map(|at| (at, at % 8)) {
                let _ = fs::remove_dir_all(&folder);
                fs::create_dir_all(&folder).unwrap();
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                fs::write(&path, damaged).unwrap();
                let bytes: usize = lines[..confirmed].iter().map(Vec::len).sum();
                fs::write(folder.join("usage.confirmed"), format!("{bytes}\n")).unwrap();
                let hit = 1 + at / lines[0].len();
                let is_newline = (at + 1).is_multiple_of(lines[0].len());
                let expect: Vec<u32> = (1..=4)
                    .filter(|&sequence| {
                        sequence as usize > confirmed && (sequence as usize != hit || is_newline)
                    })
                    .collect();
                let mut journal = Journal::open(&folder).unwrap();
                assert_eq!(sequences(&journal), expect, "bit {bit} of byte {at}, {confirmed} confirmed");
                assert_eq!(folder.join("usage.damaged").exists(), !is_newline);
                journal.append(&[record(9)]);
                assert_eq!(sequences(&Journal::open(&folder).unwrap()), [&expect[..], &[9]].concat());
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Wherever the file ends that was longer: what is written next is reported, also after another
    /// start.
    #[test]
    fn records_in_the_place_of_lost_ones_that_were_confirmed_are_reported() {
        let folder = folder("shortened");
        let path = folder.join("usage.journal");
        let length = line(&record(1)).len();
        for (kept, confirmed) in [(0, 3), (length, 2), (length + length / 2, 3)] {
            let _ = fs::remove_dir_all(&folder);
            let mut journal = Journal::open(&folder).unwrap();
            journal.append(&[record(1), record(2), record(3)]);
            journal.confirm(confirmed);
            File::options().write(true).open(&path).unwrap().set_len(kept as u64).unwrap();
            let mut journal = Journal::open(&folder).unwrap();
            assert_eq!(sequences(&journal), [0_u32; 0], "{kept} bytes of it");
            journal.append(&[record(8), record(9)]);
            assert_eq!(sequences(&Journal::open(&folder).unwrap()), [8, 9], "{kept} bytes of it");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// From now on the disk takes nothing.
    pub(in super::super) fn fill_up(journal: &mut Journal) {
        journal.file = File::options().write(true).open("/dev/full").unwrap();
    }

    pub(in super::super) fn make_room(journal: &mut Journal) {
        let path = journal.folder.join("usage.journal");
        journal.file = File::options().read(true).append(true).open(path).unwrap();
    }

    #[test]
    fn trouble_ends_where_everything_can_be_written() {
        let folder = folder("trouble");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1)]);
        let in_the_way = folder.join("usage.confirmed.new");
        fs::create_dir(&in_the_way).unwrap();
        journal.confirm(1);
        journal.append(&[record(2)]);
        assert!(journal.trouble.is_some(), "what is confirmed is not on the disk");
        fs::remove_dir(&in_the_way).unwrap();
        journal.append(&[record(3)]);
        assert_eq!(journal.trouble, None);
        assert_eq!(sequences(&Journal::open(&folder).unwrap()), [2, 3]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// All records that are on the disk.
    fn on_disk(folder: &Path) -> Vec<u32> {
        let text = fs::read(folder.join("usage.journal")).unwrap();
        let lines = text.split_inclusive(|&byte| byte == b'\n');
        lines.map(|line| read_journal_line(line).unwrap().sequence).collect()
    }

    #[test]
    fn what_a_full_disk_does_not_take_waits_and_is_written_when_there_is_room() {
        let folder = folder("full");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1)]);
        fill_up(&mut journal);
        journal.append(&[record(2), record(3)]);
        journal.append(&[record(4)]);
        assert_eq!((sequences(&journal), on_disk(&folder)), (vec![1, 2, 3, 4], vec![1]));
        // The records are sent to the server all the same, and what it has is not sent again after
        // a new start.
        journal.confirm(2);
        journal.save();
        assert_eq!((sequences(&journal), on_disk(&folder)), (vec![3, 4], vec![1]));
        make_room(&mut journal);
        journal.append(&[record(5)]);
        assert_eq!((sequences(&journal), on_disk(&folder)), (vec![3, 4, 5], vec![1, 2, 3, 4, 5]));
        assert_eq!(sequences(&Journal::open(&folder).unwrap()), [3, 4, 5]);
        journal.confirm(3);
        assert_eq!(sequences(&Journal::open(&folder).unwrap()), [0_u32; 0]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn half_a_line_that_a_full_disk_took_stands_in_front_of_nothing() {
        let folder = folder("half");
        let mut journal = Journal::open(&folder).unwrap();
        journal.append(&[record(1)]);
        fill_up(&mut journal);
        journal.append(&[record(2)]);
        let path = folder.join("usage.journal");
        File::options().append(true).open(path).unwrap().write_all(&line(&record(2))[..50]).unwrap();
        make_room(&mut journal);
        journal.save();
        assert_eq!(on_disk(&folder), [1, 2]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Also where more waits than is written together, some of it confirmed.
    #[test]
    fn too_much_that_waits_is_said_until_it_is_written() {
        let folder = folder("many");
        let mut journal = Journal::open(&folder).unwrap();
        fill_up(&mut journal);
        let records: Vec<UsageRecord> = (1..=UNSAVED_MAX as u32).map(record).collect();
        journal.append(&records[1..]);
        assert_eq!(journal.is_full(), None);
        journal.append(&records[..1]);
        let full = journal.is_full().unwrap();
        assert!(full.to_string().contains("No space left"), "{full}");
        journal.confirm(LINES_MAX + 1);
        assert!(journal.is_full().is_some(), "they are not written");
        make_room(&mut journal);
        journal.save();
        assert_eq!((journal.is_full(), on_disk(&folder).len()), (None, UNSAVED_MAX));
        assert_eq!(sequences(&Journal::open(&folder).unwrap()).len(), UNSAVED_MAX - LINES_MAX - 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
