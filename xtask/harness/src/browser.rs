//! A browser, and the scripts of `tests/web` that drive it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;

/// The scripts, besides the list of their packages.
const SCRIPTS: [&str; 8] = [
    "web.mjs",
    "pages.mjs",
    "programs.mjs",
    "administration.mjs",
    "installation.mjs",
    "large.mjs",
    "provider.mjs",
    "history.py",
];

/// The path of the browser, if one is installed.
pub fn chromium() -> Option<String> {
    let name = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| runs(name))?;
    Some(process::output_of(Command::new("which").arg(name)).ok()?.trim().to_owned())
}

/// Whether this program is installed and says its version.
pub fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The scripts with their packages, installed once.
pub fn scripts() -> Result<PathBuf> {
    let (source, folder) = (crate::root().join("tests/web"), crate::target_folder().join("web-test"));
    std::fs::create_dir_all(&folder)?;
    // Another test may install them at this moment.
    let lock = std::fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    for name in SCRIPTS {
        std::fs::copy(source.join(name), folder.join(name))?;
    }
    let wanted = std::fs::read_to_string(source.join("package.json"))?;
    let stamp = folder.join("package.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(&folder);
    let packages = serde_json::from_str::<Value>(&wanted)?;
    for (name, version) in packages["dependencies"].as_object().context("packages")? {
        install.arg(format!("{name}@{}", version.as_str().context("a version")?));
    }
    process::run(&mut install)?;
    std::fs::write(stamp, wanted)?;
    Ok(folder)
}
