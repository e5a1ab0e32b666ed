//! Files with metrics that grow while they are read.

use std::collections::BTreeMap;
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
const RECORDS: usize = 10_000;

/// A file, or a folder with files, that a training run writes.
#[derive(Debug)]
pub struct Source {
    root: PathBuf,
    files: BTreeMap<PathBuf, Followed>,
    is_missing: bool,
}

/// What has come since the last look.
#[derive(Debug, Default)]
pub struct Polled {
    pub points: Vec<Point>,
    /// What a person should know, said once: a file that is damaged or has another form.
    pub notices: Vec<String>,
    /// There is more to read at once.
    pub more: bool,
}

/// A file or folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct SourceError {
    path: String,
    error: io::Error,
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
    /// Follows `root`, which may come into being later.
    pub fn new(root: &Path) -> Source {
        Source { root: root.to_owned(), files: BTreeMap::new(), is_missing: false }
    }

    /// How many files are followed.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Reads what has been written since the last call.
    pub fn poll(&mut self) -> Result<Polled, SourceError> {
        let mut polled = Polled::default();
        match fs::metadata(&self.root) {
            Ok(metadata) if metadata.is_dir() => self.search(&self.root.clone(), DEPTH_MAX)?,
            Ok(_) => self.follow(&self.root.clone(), true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.is_missing, true) {
                    polled.notices.push(format!("{} does not exist yet", self.root.display()));
                }
            }
            Err(error) => return Err(failed(&self.root, error)),
        }
        for (path, followed) in self.files.iter_mut().filter(|(_, followed)| !followed.is_given_up) {
            followed.read(path, &mut polled).map_err(|error| failed(path, error))?;
        }
        Ok(polled)
    }

    fn search(&mut self, folder: &Path, depth: usize) -> Result<(), SourceError> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // It may have been removed since its folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(folder, error)),
        };
        for entry in entries.flatten() {
            // Links are not followed, so there is no circle.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => self.search(&entry.path(), depth - 1)?,
                Ok(kind) if kind.is_file() => self.follow(&entry.path(), false),
                _ => {}
            }
        }
        Ok(())
    }

    /// Follows a file if it has metrics. One that was `named` has JSON lines if nothing speaks for
    /// another form.
    fn follow(&mut self, path: &Path, named: bool) {
        if self.files.len() >= FILES_MAX || self.files.contains_key(path) {
            return;
        }
        let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let (file, ending) = (text(path.file_name()), text(path.extension()));
        let folder = path.parent().filter(|folder| *folder != self.root).and_then(Path::file_name);
        let (kind, run) = if file.contains(".tfevents.") {
            (Kind::TensorBoard, text(folder.or(self.root.file_name())))
        } else if ["jsonl", "ndjson"].contains(&&*ending) {
            (Kind::JsonLines, text(path.file_stem()))
        } else if let Some((run, metric)) = mlflow::names(path) {
            (Kind::MlFlow { metric }, run)
        } else if named {
            (Kind::JsonLines, text(path.file_stem()))
        } else {
            return;
        };
        let followed = Followed { kind, run, offset: 0, lines: 0, is_given_up: false, is_reported: false };
        self.files.insert(path.to_owned(), followed);
    }
}

impl Followed {
    fn read(&mut self, path: &Path, polled: &mut Polled) -> io::Result<()> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        if size < self.offset {
            // It was begun again.
            (self.offset, self.lines) = (0, 0);
        }
        if size == self.offset {
            return Ok(());
        }
        match self.kind {
            Kind::TensorBoard => self.read_records(path, &mut file, size, polled),
            Kind::JsonLines | Kind::MlFlow { .. } => self.read_lines(path, &mut file, size, polled),
        }
    }

    fn read_records(
        &mut self,
        path: &Path,
        file: &mut File,
        size: u64,
        polled: &mut Polled,
    ) -> io::Result<()> {
        for _ in 0..RECORDS {
            match tensorboard::record(file, size, self.offset, &self.run)? {
                Next::Record(points, next) => {
                    polled.points.extend(points);
                    self.offset = next;
                }
                Next::Unfinished => return Ok(()),
                Next::Damaged => {
                    self.is_given_up = true;
                    let place = self.offset;
                    let notice = format!("{}: damaged at byte {place}; not read further", path.display());
                    polled.notices.push(notice);
                    return Ok(());
                }
            }
        }
        polled.more = true;
        Ok(())
    }

    fn read_lines(&mut self, path: &Path, file: &mut File, size: u64, polled: &mut Polled) -> io::Result<()> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut piece = Vec::new();
        file.take(PIECE).read_to_end(&mut piece)?;
        // The last line may be unfinished.
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else {
            if piece.len() as u64 == PIECE {
                self.is_given_up = true;
                polled.notices.push(format!("{}: a line is longer than {PIECE} bytes", path.display()));
            }
            return Ok(());
        };
        for line in piece[..end].split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            let points = match &self.kind {
                Kind::MlFlow { metric } => mlflow::point(&line, &self.run, metric).map(|point| vec![point]),
                _ => json_lines::points(&line, &self.run, self.lines),
            };
            self.lines += 1;
            match points {
                Some(points) => polled.points.extend(points),
                None if line.trim().is_empty() || self.is_reported => {}
                None => {
                    self.is_reported = true;
                    let notice = format!("{}: line {} has no metrics", path.display(), self.lines);
                    polled.notices.push(notice);
                }
            }
        }
        self.offset += end as u64 + 1;
        polled.more |= self.offset < size && piece.len() as u64 == PIECE;
        Ok(())
    }
}

fn failed(path: &Path, error: io::Error) -> SourceError {
    SourceError { path: path.display().to_string(), error }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn values(source: &mut Source) -> Vec<(String, String, u64, f64)> {
        let points = source.poll().unwrap().points;
        points.into_iter().map(|point| (point.run, point.metric, point.step, point.value)).collect()
    }

    #[test]
    fn a_folder_is_followed_in_all_forms() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = Source::new(&folder.path().join("runs"));
        let polled = source.poll().unwrap();
        assert!(polled.points.is_empty() && polled.notices[0].ends_with("runs does not exist yet"));
        assert!(source.poll().unwrap().notices.is_empty(), "said once");
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
        let polled = source.poll().unwrap();
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
        let mut source = Source::new(&path);
        let (mut count, mut looks) = (0, 0);
        loop {
            let polled = source.poll().unwrap();
            count += polled.points.len();
            looks += 1;
            if !polled.more {
                break;
            }
        }
        assert_eq!((count, looks > 1), (100_000, true));
        fs::write(&path, vec![b'x'; PIECE as usize + 1]).unwrap();
        let notices = source.poll().unwrap().notices;
        assert!(notices[0].ends_with("a line is longer than 1048576 bytes"), "{notices:?}");
        assert!(source.poll().unwrap().notices.is_empty(), "it is given up");
    }

    #[test]
    fn a_damaged_event_file_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.out.tfevents.1.host");
        let good = tensorboard::written(1, "loss", 4.0);
        let mut bytes = [good.clone(), good.clone()].concat();
        bytes[good.len()] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut source = Source::new(folder.path());
        let polled = source.poll().unwrap();
        assert_eq!(polled.points.len(), 1);
        assert!(
            polled.notices[0].contains(&format!("damaged at byte {}", good.len())),
            "{:?}",
            polled.notices
        );
    }
}
