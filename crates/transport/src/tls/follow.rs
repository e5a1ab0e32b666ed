//! Files that are read again when they change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The files are looked at this often; what has changed is read once it has stayed the same from
/// one look to the next.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What was read from some files, and can be read again.
pub(super) trait Files: Send + Sync + 'static {
    /// The files before they were read at the start.
    fn loaded(&self) -> Stamp;
    /// What the files are now, without a look inside.
    fn stamp(&self) -> Stamp;
    /// Uses what is in the files from now on; true if that is something else. If they are of no
    /// use, nothing changes.
    fn reload(&self) -> Result<bool, String>;
    /// What is said when it was something else.
    fn news(&self) -> String;
    /// What is logged when the files are unusable.
    fn kept(&self) -> &'static str;
}

/// Device, inode, size, and in seconds and nanoseconds when it was written and when anything of it
/// changed, such as who may read it.
type FileStamp = (u64, u64, u64, [i64; 4]);

/// Of each file; nothing for one that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Vec<Option<FileStamp>>);

impl Stamp {
    pub(super) fn of(files: &[&Path]) -> Stamp {
        let stamp = |path: &&Path| {
            let file = fs::metadata(path).ok()?;
            let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
            Some((file.dev(), file.ino(), file.size(), times))
        };
        Stamp(files.iter().map(stamp).collect())
    }
}

/// Follows the files.
#[derive(Debug)]
pub(super) struct Look {
    /// As they were when they were read last.
    read: Stamp,
    /// As they were at the last look.
    last: Stamp,
    /// Why they could not be read when that was tried last.
    failed: Option<String>,
}

impl Look {
    pub(super) fn new(files: &impl Files) -> Look {
        Look { read: files.loaded(), last: files.stamp(), failed: None }
    }

    /// Reads the files if they have changed, and did not change since the last look: their writer
    /// may not be done. What came of it then. What fails is tried again at each look, and logged
    /// again only if it fails for another reason.
    pub(super) fn again(&mut self, files: &impl Files) -> Option<Result<bool, String>> {
        let now = files.stamp();
        let rests = now == self.last;
        self.last = now.clone();
        if !rests || now == self.read {
            return None;
        }
        match files.reload() {
            Ok(is_other) => {
                (self.read, self.failed) = (now, None);
                Some(Ok(is_other))
            }
            Err(error) if self.failed.as_ref() == Some(&error) => None,
            Err(error) => {
                self.failed = Some(error.clone());
                Some(Err(error))
            }
        }
    }
}

/// Where it is logged what becomes of the files of a certificate.
#[derive(Clone, Copy, Debug)]
pub struct FileLog {
    /// They were read again.
    pub changed: fn(&str),
    /// They are of no use.
    pub failed: fn(&str),
}

/// Follows the files in a thread, for as long as their contents are used, and logs what changes.
pub(super) fn follow<F: Files>(files: &Arc<F>, log: FileLog) -> io::Result<()> {
    let mut look = Look::new(&**files);
    let files: Weak<F> = Arc::downgrade(files);
    let follow = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let Some(files) = files.upgrade() else { return };
            match look.again(&*files) {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => (log.changed)(&files.news()),
                Some(Err(error)) => (log.failed)(&format!("{error}. {}", files.kept())),
            }
        }
    };
    std::thread::Builder::new().name("certificate".into()).spawn(follow).map(drop)
}
