//! The archive, for any distribution: unpacked into `/usr/local`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::product::Product;
use super::tree::Tree;
use super::units;

/// Where the units in the archive expect the program.
const ROOT: &str = "/usr/local";

pub(crate) fn write(product: &Product, folder: &Path) -> Result<PathBuf> {
    let name = format!("sluice-{}-{}-linux", product.version, std::env::consts::ARCH);
    let mut tree = Tree::default();
    product.install(&mut tree, &name, ROOT)?;
    for (service, file) in units::settings() {
        tree.file(&format!("{name}/share/doc/sluice/default/{service}"), &file, 0o644);
    }
    let path = folder.join(format!("{name}.tar.gz"));
    std::fs::write(&path, tree.tar_gz(product.time_s)?)?;
    Ok(path)
}
