//! The root of a clean system, and commands in it.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::Skipped;
use crate::process;

/// The release of Debian, and what it has beyond the least: Python, and systemd for its check of
/// units.
const RELEASE: &str = "bookworm";
const PACKAGES: &str = "python3,python3-venv,systemd";

/// Where files are brought to.
const BROUGHT: &str = "brought";

/// What dpkg and the tools for users keep of all that ever happened.
const RECORDS: [&str; 9] = [
    "run/",
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/debconf/",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
];

/// A copy of a clean system that is gone when the value is dropped.
pub(super) struct Root {
    path: PathBuf,
}

impl Root {
    /// A Debian with Python. Skips the test where it cannot be made.
    pub(super) fn new(name: &str) -> Result<Root> {
        let clean = clean()?;
        let root = Root::at(name)?;
        let mut copy = Command::new("cp");
        process::run(
            copy.args(["--archive", "--reflink=auto", "--no-target-directory"]).arg(clean).arg(&root.path),
        )?;
        std::fs::create_dir(root.path.join(BROUGHT))?;
        Ok(root)
    }

    /// An empty folder.
    pub(super) fn empty(name: &str) -> Result<Root> {
        check_root()?;
        let root = Root::at(name)?;
        std::fs::create_dir_all(&root.path)?;
        Ok(root)
    }

    fn at(name: &str) -> Result<Root> {
        let path = folder().join(name);
        remove(&path)?;
        Ok(Root { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies a file into the system; the answer is its path there.
    pub(super) fn bring(&self, file: &Path) -> Result<String> {
        let name = file.file_name().context("a name")?.to_string_lossy();
        let there = self.path.join(BROUGHT).join(&*name);
        std::fs::copy(file, there).with_context(|| file.display().to_string())?;
        Ok(format!("/{BROUGHT}/{name}"))
    }

    pub(super) fn forget_brought(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.path.join(BROUGHT))?)
    }

    /// A shell's command in the system, as root and with the environment of a fresh login.
    pub(super) fn shell(&self, script: &str) -> Command {
        let mut command = enter(&self.path);
        command.arg("chroot").arg(&self.path).args(["sh", "-ec", script]);
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command.env_clear().env("PATH", path).env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    pub(super) fn read(&self, path: &str) -> Result<String> {
        std::fs::read_to_string(self.path.join(path)).with_context(|| path.to_owned())
    }

    /// Unpacks a compressed archive over what is there; the answer is the archive as it was before
    /// it was compressed.
    pub(super) fn unpack(&self, layer: &[u8]) -> Result<Vec<u8>> {
        let mut archive = Vec::new();
        flate2::read::GzDecoder::new(layer).read_to_end(&mut archive)?;
        let mut unpacked = tar::Archive::new(archive.as_slice());
        unpacked.set_preserve_permissions(true);
        unpacked.set_preserve_ownerships(true);
        unpacked.unpack(&self.path)?;
        Ok(archive)
    }

    /// All files and folders by their paths, but for records of what has happened.
    pub(super) fn files(&self) -> Result<BTreeSet<String>> {
        let find = process::output_of(
            Command::new("find").args([".", "-xdev", "-printf", "%P\n"]).current_dir(&self.path),
        )?;
        let is_record =
            |path: &&str| RECORDS.iter().any(|record| path.starts_with(record)) || path.starts_with(BROUGHT);
        Ok(find.lines().filter(|path| !is_record(path)).map(String::from).collect())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("{}: {error:#}", self.path.display());
        }
    }
}

/// The beginning of a command in a mount namespace in which `root` has processes and devices.
pub(super) fn enter(root: &Path) -> Command {
    // A root without these folders has no use for them.
    const MOUNT: &str = "mkdir -p \"$0/proc\" \"$0/dev\" && mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && \
                         exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "/bin/sh", "-ec", MOUNT]).arg(root);
    command
}

fn folder() -> PathBuf {
    crate::target_folder().join("roots")
}

fn check_root() -> Result<()> {
    // SAFETY: geteuid touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root, to enter another root".into()).into());
    }
    Ok(())
}

/// The system that is copied, made once. Skips the test where it cannot be made.
pub(crate) fn clean() -> Result<PathBuf> {
    check_root()?;
    let clean = folder().join("clean");
    if clean.exists() {
        return Ok(clean);
    }
    let found = Command::new("debootstrap").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(Skipped("needs debootstrap (on Debian: apt install debootstrap)".into()).into());
    }
    std::fs::create_dir_all(folder())?;
    let unfinished = folder().join("unfinished");
    remove(&unfinished)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), RELEASE]).arg(&unfinished);
    process::run(&mut debootstrap)?;
    std::fs::rename(&unfinished, &clean)?;
    Ok(clean)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}
