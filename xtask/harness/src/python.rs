//! Python environments with packages from PyPI, in the cache that all checkouts share, made once.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

pub use crate::packages::*;

/// A named set of packages, with fixed versions: a test that fails tomorrow fails because of us.
pub struct Environment {
    pub name: &'static str,
    pub packages: &'static [&'static str],
}

/// The README's program.
pub const TINYGRAD: Environment = Environment { name: "tinygrad", packages: &["tinygrad==0.14.0"] };

impl Environment {
    /// Where it is installed: another folder for each list of packages, so that checkouts share
    /// them.
    pub fn folder(&self) -> PathBuf {
        let digest = blake3::hash(self.packages.join("\n").as_bytes()).to_hex();
        crate::cache_folder().join("python").join(format!("{}-{}", self.name, &digest[..12]))
    }

    /// Whether all packages are installed.
    pub fn is_ready(&self) -> bool {
        let folder = self.folder();
        let installed = std::fs::read_to_string(folder.join("installed"));
        installed.is_ok_and(|installed| installed == self.packages.join("\n"))
            && folder.join("bin/python").is_file()
    }

    /// The environment's interpreter; installs what is missing.
    pub fn ready(&self) -> Result<PathBuf> {
        let folder = self.folder();
        let python = folder.join("bin/python");
        std::fs::create_dir_all(folder.parent().context("a folder")?)?;
        // Another checkout may install it at this moment.
        let lock = File::create(folder.with_extension("lock"))?;
        lock.lock()?;
        if self.is_ready() {
            return Ok(python);
        }
        let _ = std::fs::remove_dir_all(&folder);
        create(&folder)?;
        process::run(
            Command::new(&python)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(self.packages),
        )?;
        std::fs::write(folder.join("installed"), self.packages.join("\n"))?;
        Ok(python)
    }

    /// A program that came with the environment's packages.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(self.ready()?.with_file_name(name))
    }

    /// The folder that holds the environment's packages.
    pub fn site_packages(&self) -> Result<PathBuf> {
        let lib = self.folder().join("lib");
        let versions = std::fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
        let mut folders = versions.flatten().map(|entry| entry.path().join("site-packages"));
        folders
            .find(|folder| folder.is_dir())
            .with_context(|| format!("no site-packages in {}", lib.display()))
    }
}

/// Makes a virtual environment that has `pip` alone.
pub fn create(folder: &std::path::Path) -> Result<()> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(folder);
    eprintln!("$ {}", process::show(&venv));
    let output = venv.output().context("python3 (on Debian: apt install python3 python3-venv)")?;
    if !output.status.success() {
        bail!(
            "python3 cannot make a virtual environment (on Debian: apt install python3-venv)\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
