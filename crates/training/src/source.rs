//! Files with metrics that grow while they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::tensorboard::Next;
use crate::{Point, json_lines, mlflow, tensorboard};

/// How deep folders are searched, and how many files are followed.
const DEPTH_MAX: usize = 8;
const FILES_MAX: usize = 10_000;
/// What one look reads of a file. A line must fit into it.
const PIECE: u64 = 1 << 20;
/// Records of an event file that one look reads.
const RECORDS: usize = 1000;
/// Points after which a look ends, so that they fit into memory.
const POINTS: usize = 100_000;

/// A file, or a folder with files, that a training run writes.
#[derive(Debug)]
pub struct Source {
    root: PathBuf,
    /// Stands before the names of runs; may be empty.
    label: String,
    files: BTreeMap<PathBuf, Followed>,
    /// What has been reported, so that it is said once.
    reported: BTreeSet<String>,
}

/// What has come since the last look.
#[derive(Debug, Default)]
pub struct Polled {
    pub points: Vec<Point>,
    /// What a person should know, said once: a file that is damaged or cannot be read.
    pub notices: Vec<String>,
    /// A file or folder could not be read.
    pub has_failed: bool,
    /// There is more to read at once.
    pub more: bool,
}

#[derive(Debug)]
struct Followed {
    kind: Kind,
    run: String,
    /// Where the next line or record begins.
    offset: u64,
    /// Lines so far.
    lines: u64,
    /// Nothing more is read of it.
    is_given_up: bool,
    /// A line of another form has been reported.
    is_reported: bool,
}

#[derive(Debug)]
enum Kind {
    JsonLines,
    MlFlow { metric: String },
    TensorBoard,
}

impl Source {
    /// Follows `root`, which may come into being later. Runs are named by their paths below it,
    /// behind the `label` if there is one, so that those of several sources differ.
    pub fn new(root: &Path, label: &str) -> Source {
        Source { root: root.into(), label: label.into(), files: BTreeMap::new(), reported: BTreeSet::new() }
    }

    /// How many files are followed.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Reads what has been written since the last call. With `is_last` a line that has no end yet
    /// counts too.
    pub fn poll(&mut self, is_last: bool) -> Polled {
        let mut polled = Polled::default();
        match fs::metadata(&self.root) {
            Ok(metadata) if metadata.is_dir() => self.search(&self.root.clone(), DEPTH_MAX, &mut polled),
            Ok(_) => self.follow(&self.root.clone(), true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let notice = format!("{} does not exist yet", self.root.display());
                report(&mut self.reported, &mut polled, notice);
            }
            Err(error) => fail(&mut self.reported, &mut polled, &self.root, &error),
        }
        // A file is read to its end before the next: those of a run that was resumed follow each
        // other by their names.
        for (path, followed) in self.files.iter_mut().filter(|(_, followed)| !followed.is_given_up) {
            loop {
                match followed.read(path, is_last, &mut polled) {
                    Ok(true) if polled.points.len() < POINTS => {}
                    Ok(false) => break,
                    Ok(true) => {
                        polled.more = true;
                        return polled;
                    }
                    Err(error) => {
                        fail(&mut self.reported, &mut polled, path, &error);
                        break;
                    }
                }
            }
        }
        polled
    }

    fn search(&mut self, folder: &Path, depth: usize, polled: &mut Polled) {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // It may have been removed since its folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return fail(&mut self.reported, polled, folder, &error),
        };
        for entry in entries.flatten() {
            // Links are not followed, so there is no circle.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => self.search(&entry.path(), depth - 1, polled),
                Ok(kind) if kind.is_file() => self.follow(&entry.path(), false),
                _ => {}
            }
        }
    }

    /// Follows a file if it has metrics. One that was `named` has JSON lines if nothing speaks for
    /// another form.
    fn follow(&mut self, path: &Path, named: bool) {
        if self.files.len() >= FILES_MAX || self.files.contains_key(path) {
            return;
        }
        let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let (file, ending) = (text(path.file_name()), text(path.extension()));
        let is_lines = ["jsonl", "ndjson"].contains(&&*ending);
        let (kind, run) = if file.contains(".tfevents.") {
            (Kind::TensorBoard, self.run_of(path.parent().unwrap_or(path)))
        } else if let Some((run, metric)) = mlflow::names(path).filter(|_| !is_lines) {
            (Kind::MlFlow { metric }, run)
        } else if is_lines || named {
            (Kind::JsonLines, self.run_of(&path.with_extension("")))
        } else {
            return;
        };
        let followed = Followed { kind, run, offset: 0, lines: 0, is_given_up: false, is_reported: false };
        self.files.insert(path.to_owned(), followed);
    }

    /// The name of what lies at a path: its path below the root, or the root's own name.
    fn run_of(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.root).ok().filter(|below| !below.as_os_str().is_empty());
        let own = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match (self.label.as_str(), below.map(|below| below.to_string_lossy())) {
            ("", Some(below)) => below.into_owned(),
            ("", None) => own(),
            (label, Some(below)) => format!("{label}/{below}"),
            (label, None) => label.to_owned(),
        }
    }
}

impl Followed {
    /// Reads a piece; whether there is more.
    fn read(&mut self, path: &Path, is_last: bool, polled: &mut Polled) -> io::Result<bool> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        if size < self.offset {
            // It was begun again.
            (self.offset, self.lines) = (0, 0);
        }
        if size == self.offset {
            return Ok(false);
        }
        match self.kind {
            Kind::TensorBoard => self.read_records(path, &mut file, size, polled),
            Kind::JsonLines | Kind::MlFlow { .. } => self.read_lines(path, &mut file, is_last, polled),
        }
    }

    fn read_records(
        &mut self,
        path: &Path,
        file: &mut File,
        size: u64,
        polled: &mut Polled,
    ) -> io::Result<bool> {
        for _ in 0..RECORDS {
            match tensorboard::record(file, size, self.offset, &self.run)? {
                Next::Record(points, next) => {
                    polled.points.extend(points);
                    self.offset = next;
                }
                Next::Unfinished => return Ok(false),
                Next::Damaged => {
                    self.is_given_up = true;
                    let place = self.offset;
                    let notice = format!("{}: damaged at byte {place}; not read further", path.display());
                    polled.notices.push(notice);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn read_lines(
        &mut self,
        path: &Path,
        file: &mut File,
        is_last: bool,
        polled: &mut Polled,
    ) -> io::Result<bool> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut piece = Vec::new();
        file.take(PIECE).read_to_end(&mut piece)?;
        let is_full = piece.len() as u64 == PIECE;
        // The last line may be unfinished.
        let end = match piece.iter().rposition(|byte| *byte == b'\n') {
            _ if is_last && !is_full => piece.len(),
            Some(end) => end + 1,
            None if is_full => {
                self.is_given_up = true;
                polled.notices.push(format!("{}: a line is longer than {PIECE} bytes", path.display()));
                return Ok(false);
            }
            None => return Ok(false),
        };
        for line in piece[..end].split_inclusive(|byte| *byte == b'\n') {
            self.take_line(path, &String::from_utf8_lossy(line), polled);
        }
        self.offset += end as u64;
        Ok(is_full)
    }

    fn take_line(&mut self, path: &Path, line: &str, polled: &mut Polled) {
        let line = line.trim();
        let points = match &self.kind {
            Kind::MlFlow { metric } => mlflow::point(line, &self.run, metric).map(|point| vec![point]),
            _ => json_lines::points(line, &self.run, self.lines),
        };
        self.lines += 1;
        match points {
            Some(points) => polled.points.extend(points),
            None if line.is_empty() || self.is_reported => {}
            None => {
                self.is_reported = true;
                polled.notices.push(format!("{}: line {} has no metrics", path.display(), self.lines));
            }
        }
    }
}

fn fail(reported: &mut BTreeSet<String>, polled: &mut Polled, path: &Path, error: &io::Error) {
    polled.has_failed = true;
    report(reported, polled, format!("{}: {error}", path.display()));
}

fn report(reported: &mut BTreeSet<String>, polled: &mut Polled, notice: String) {
    if reported.insert(notice.clone()) {
        polled.notices.push(notice);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn values(source: &mut Source) -> Vec<(String, String, u64, f64)> {
        let points = source.poll(false).points;
        points.into_iter().map(|point| (point.run, point.metric, point.step, point.value)).collect()
    }

    #[test]
    fn a_folder_is_followed_in_all_forms() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = Source::new(&folder.path().join("runs"), "");
        let polled = source.poll(false);
        assert!(polled.points.is_empty() && polled.notices[0].ends_with("runs does not exist yet"));
        assert!(source.poll(false).notices.is_empty(), "said once");
        let runs = folder.path().join("runs");
        fs::create_dir_all(runs.join("one")).unwrap();
        fs::create_dir_all(runs.join("0/8f2c/metrics/val")).unwrap();
        let events = runs.join("one/events.out.tfevents.1.host");
        let mut records = tensorboard::written(1, "loss", 4.0);
        records.extend(tensorboard::written(2, "loss", 2.0));
        let (now, later) = records.split_at(records.len() - 3);
        fs::write(&events, now).unwrap();
        fs::write(runs.join("0/8f2c/metrics/val/loss"), "17 0.5 3\n17 0.2").unwrap();
        fs::write(runs.join("two.jsonl"), "{\"step\": 9, \"loss\": 1}\n\nhello\n{\"loss\": 2}\n").unwrap();
        fs::write(runs.join("notes.txt"), "{\"loss\": 7}\n").unwrap();
        let polled = source.poll(false);
        let of = |run: &str, metric: &str, step, value| Point::new(run, metric, step, value);
        let expected = [
            of("8f2c", "val/loss", 3, 0.5),
            of("one", "loss", 1, 4.0),
            of("two", "loss", 9, 1.0),
            of("two", "loss", 3, 2.0),
        ];
        assert_eq!(polled.points, expected);
        assert_eq!(polled.notices, [format!("{}: line 3 has no metrics", runs.join("two.jsonl").display())]);
        assert_eq!(source.files(), 3);
        fs::OpenOptions::new().append(true).open(&events).unwrap().write_all(later).unwrap();
        assert_eq!(values(&mut source), [("one".into(), "loss".into(), 2, 2.0)]);
        fs::write(&events, "short").unwrap();
        assert_eq!(values(&mut source), [], "begun again, and not whole");
    }

    #[test]
    fn a_named_file_has_json_lines_and_may_be_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let lines: String = (0..100_000).map(|step| format!("{{\"step\": {step}, \"loss\": 1}}\n")).collect();
        fs::write(&path, &lines).unwrap();
        let mut source = Source::new(&path, "");
        assert_eq!(source.poll(false).points.len(), 100_000);
        fs::write(&path, vec![b'x'; PIECE as usize + 1]).unwrap();
        let notices = source.poll(false).notices;
        assert!(notices[0].ends_with("a line is longer than 1048576 bytes"), "{notices:?}");
        assert!(source.poll(false).notices.is_empty(), "it is given up");
    }

    #[test]
    fn a_damaged_event_file_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.out.tfevents.1.host");
        let good = tensorboard::written(1, "loss", 4.0);
        let mut bytes = [good.clone(), good.clone()].concat();
        bytes[good.len()] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut source = Source::new(folder.path(), "");
        let polled = source.poll(false);
        assert_eq!(polled.points.len(), 1);
        assert!(
            polled.notices[0].contains(&format!("damaged at byte {}", good.len())),
            "{:?}",
            polled.notices
        );
    }

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        for run in ["a", "b"] {
            fs::create_dir_all(folder.path().join(run).join("train")).unwrap();
            fs::write(folder.path().join(run).join("metrics.jsonl"), "{\"loss\": 1}").unwrap();
            let events = folder.path().join(run).join("train/events.out.tfevents.1.host");
            fs::write(events, tensorboard::written(1, "loss", 4.0)).unwrap();
        }
        let runs = |label: &str, is_last| -> Vec<String> {
            let points = Source::new(folder.path(), label).poll(is_last).points;
            points.into_iter().map(|point| point.run).collect()
        };
        assert_eq!(runs("", false), ["a/train", "b/train"], "lines without an end may be unfinished");
        assert_eq!(runs("", true), ["a/metrics", "a/train", "b/metrics", "b/train"]);
        assert_eq!(runs("x", false), ["x/a/train", "x/b/train"]);
        let named = Source::new(&folder.path().join("a/metrics.jsonl"), "").poll(true);
        assert_eq!(named.points[0].run, "metrics");
    }

    #[test]
    fn what_cannot_be_read_is_said_once_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // A circle of links can be opened by no user, not even by root.
        std::os::unix::fs::symlink("a.jsonl", folder.path().join("a.jsonl")).unwrap();
        fs::write(folder.path().join("b.jsonl"), "{\"loss\": 1}\n").unwrap();
        let mut source = Source::new(folder.path(), "");
        source.follow(&folder.path().join("a.jsonl"), false);
        let polled = source.poll(false);
        assert!(polled.has_failed && polled.points.len() == 1 && polled.notices.len() == 1, "{polled:?}");
        let again = source.poll(false);
        assert!(again.has_failed && again.notices.is_empty());
    }
}
