//! A small file system of its own, in a mount namespace, which takes root.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Mounts on the folder `$1`, and keeps what is mounted until its input ends.
const HOLD: &str = r#"mount -t tmpfs -o "size=$2,mode=755" none "$1" && echo mounted && exec cat"#;

pub(crate) struct SmallDisk {
    pub(crate) folder: TempDir,
    holder: Child,
}

impl SmallDisk {
    /// `None`, and says so, where nothing may be mounted.
    pub(crate) fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", HOLD, "sh"]).arg(folder.path()).arg(size);
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mounted = holder.ok().and_then(|mut holder| {
            let mut line = String::new();
            BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
            if line.trim() != "mounted" {
                // It has ended, or is about to.
                holder.wait().ok()?;
                return None;
            }
            Some(holder)
        });
        let Some(holder) = mounted else {
            // Past the capture of the test harness: a skipped test is seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED: mounting a small file system takes root");
            return None;
        };
        Some(SmallDisk { folder, holder })
    }

    /// A process that sees it.
    pub(crate) fn process(&self) -> u32 {
        self.holder.id()
    }

    /// A program that sees it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.process().to_string(), program]);
        command
    }

    /// A file on it as this process sees it.
    pub(crate) fn seen(&self, name: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root{}", self.process(), self.folder.path().display())).join(name)
    }

    pub(crate) fn fill(&self) {
        let mut file = File::create(self.seen("ballast")).unwrap();
        loop {
            match file.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.seen("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
