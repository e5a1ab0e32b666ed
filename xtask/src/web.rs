//! The web view: built from `web/` into `web/dist`, which is committed so that a build without
//! Node.js has it too.
//!
//! Beside it stands the hash of the sources that it was built from. Without Node.js that tells
//! whether it is current; with Node.js it is built once more and compared byte by byte.

#[cfg(test)]
mod commands;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// Beside `dist`: the hash of the sources that it was built from.
const BUILT_FROM: &str = "built-from";
/// What is no source of it.
const NO_SOURCES: [&str; 4] = ["node_modules", "dist", BUILT_FROM, ".gitignore"];
/// Generated for the type checker alone; nothing of it is in what is built.
const TYPES: &str = "src/api/schema.d.ts";
/// The oldest release of Node.js that the build tools run on.
const NODE_MIN: (u32, u32) = (20, 19);

fn folder() -> PathBuf {
    crate::root().join("web")
}

/// `cargo xtask web`.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    match options {
        [] => build(),
        ["--check"] => check(),
        _ => bail!("cargo xtask web takes nothing but --check"),
    }
}

fn build() -> Result<()> {
    ensure!(has_node(), "the web view is built with Node.js {}.{} or newer, and npm", NODE_MIN.0, NODE_MIN.1);
    install()?;
    npm(&["run", "check"])?;
    npm(&["run", "build"])?;
    fs::write(folder().join(BUILT_FROM), format!("{}\n", hash_of_sources()?))?;
    Ok(())
}

/// Whether what is committed was built from the sources as they are.
pub(crate) fn check() -> Result<()> {
    let recorded = fs::read_to_string(folder().join(BUILT_FROM)).unwrap_or_default();
    let stale = "web/dist is not what web/ builds: run `cargo xtask web` and commit what it writes";
    ensure!(recorded.trim() == hash_of_sources()?, "{stale}");
    if !has_node() {
        eprintln!(
            "web/dist is not built anew to compare it: no Node.js of {}.{} or newer",
            NODE_MIN.0, NODE_MIN.1
        );
        return Ok(());
    }
    install()?;
    npm(&["run", "check"])?;
    let again = crate::target_folder().join("web-dist");
    npm(&["run", "build", "--", "--outDir", &again.display().to_string(), "--emptyOutDir"])?;
    ensure!(contents(&folder().join("dist"), &[])? == contents(&again, &[])?, "{stale}");
    Ok(())
}

fn hash_of_sources() -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for (name, bytes) in contents(&folder(), &NO_SOURCES)?.into_iter().filter(|(name, _)| name != TYPES) {
        for part in [name.as_bytes(), &bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// All files below a folder by their path, but what has one of these names directly in it.
fn contents(folder: &Path, without: &[&str]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            match () {
                () if without.contains(&name.as_str()) => {}
                () if path.is_dir() => folders.push(path),
                () => drop(files.insert(name, fs::read(&path)?)),
            }
        }
    }
    Ok(files)
}

fn has_node() -> bool {
    let version = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.trim().strip_prefix('v')?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let said = Command::new("node").arg("--version").stderr(Stdio::null()).output();
    let is_new = said.is_ok_and(|said| version(&String::from_utf8_lossy(&said.stdout)) >= Some(NODE_MIN));
    let npm = || Command::new("npm").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    is_new && npm().is_ok_and(|status| status.success())
}

/// The packages that the lock file names, installed once for each state of it.
fn install() -> Result<()> {
    let (lock, stamp) = (folder().join("package-lock.json"), folder().join("node_modules/.installed-from"));
    let wanted = fs::read(lock)?;
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    npm(&["ci", "--no-audit", "--no-fund"])?;
    fs::write(stamp, wanted)?;
    Ok(())
}

fn npm(arguments: &[&str]) -> Result<()> {
    process::run(Command::new("npm").args(arguments).current_dir(folder()))
}
