//! The Python wheel (PyPA's binary distribution format 1.0): `sluice` and the libraries, as an
//! installation beside the interpreter of a virtual environment.
//!
//! There is no Python code in it. `pip` puts the scripts of a wheel into the environment's `bin`,
//! and its data into the environment's root, so `sluice` finds its libraries as in any other
//! installation.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zip::write::SimpleFileOptions;

use super::product::Product;

/// The name that `pip install` takes. `sluice` is another project's.
pub const NAME: &str = "sluice-gpu";

/// The largest wheel that is good manners to download in each build of a CI system.
pub const SIZE_MAX: u64 = 40_000_000;

pub(crate) fn write(product: &Product, folder: &Path) -> Result<PathBuf> {
    let tag = format!("py3-none-{}", platform(product));
    let stem = format!("{}-{}", NAME.replace('-', "_"), product.version);
    let data = format!("{stem}.data");
    let information = format!("{stem}.dist-info");

    let mut tree = super::tree::Tree::default();
    tree.file(&format!("{data}/scripts/sluice"), product.sluice(), 0o755);
    product.install_libraries(&mut tree, &format!("{data}/data/lib/sluice"));
    product.install_licences(&mut tree, &format!("{information}/licenses"));
    tree.text(&format!("{information}/METADATA"), metadata(product)?);
    tree.text(
        &format!("{information}/WHEEL"),
        format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n"),
    );

    let mut wheel = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let mut record = String::new();
    for (path, mode, contents) in tree.files()? {
        let hash = ring::digest::digest(&ring::digest::SHA256, &contents);
        let hash = URL_SAFE_NO_PAD.encode(hash.as_ref());
        record.push_str(&format!("{path},sha256={hash},{}\n", contents.len()));
        add(&mut wheel, &path, mode, &contents)?;
    }
    let path = format!("{information}/RECORD");
    record.push_str(&format!("{path},,\n"));
    add(&mut wheel, &path, 0o644, record.as_bytes())?;
    let bytes = wheel.finish()?.into_inner();
    ensure!(
        bytes.len() as u64 <= SIZE_MAX,
        "the wheel has {} bytes, more than the {SIZE_MAX} that it may have",
        bytes.len()
    );
    let path = folder.join(format!("{stem}-{tag}.whl"));
    std::fs::write(&path, bytes)?;
    Ok(path)
}

/// The tag of systems with this glibc (PEP 600).
fn platform(product: &Product) -> String {
    let glibc = product.requirements.glibc;
    format!("manylinux_{}_{}_{}", glibc.major, glibc.minor, std::env::consts::ARCH)
}

fn add(wheel: &mut zip::ZipWriter<Cursor<Vec<u8>>>, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
    // The time is the format's earliest, whatever the clock says.
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .compression_level(Some(9))
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(mode);
    wheel.start_file(path, options)?;
    Ok(wheel.write_all(contents)?)
}

/// The core metadata 2.4, with the guide for CI as the description.
fn metadata(product: &Product) -> Result<String> {
    let description = std::fs::read_to_string(super::units::folder().join("wheel/description.md"))?;
    Ok(format!(
        "Metadata-Version: 2.4\nName: {NAME}\nVersion: {}\nSummary: Run CUDA programs on a share of a GPU elsewhere, or on a \
         software GPU\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\nLicense-File: THIRD-PARTY-NOTICES.txt\n\
         Classifier: Operating System :: POSIX :: Linux\nClassifier: Environment :: GPU\n\
         Description-Content-Type: text/markdown\n\n{description}",
        product.version
    ))
}
