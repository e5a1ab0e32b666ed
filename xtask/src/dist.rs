//! `cargo xtask dist`: the packages that users install, in `target/dist`.
//!
//! ```text
//!  cargo build --release ─▶ strip ─▶ Product ─┬▶ sluice-VERSION-ARCH-linux.tar.gz
//!                                             ├▶ sluice_VERSION_ARCH.deb
//!                                             ├▶ sluice-VERSION-oci/ (an OCI image layout)
//!                                             └▶ sluice_gpu-VERSION-….whl
//! ```
//! Packages are made by this program alone, without Docker, dpkg or a Python package. What they
//! need of the system follows from the symbol versions of the binaries in them ([`elf`]).

pub(crate) mod archive;
pub(crate) mod deb;
pub(crate) mod elf;
mod notices;
pub(crate) mod oci;
pub(crate) mod product;
mod tree;
mod units;
pub(crate) mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use product::Product;

pub use elf::Glibc;
pub use oci::digest;
pub use product::GLIBC_STATED;
pub use wheel::{NAME as WHEEL, SIZE_MAX as WHEEL_SIZE_MAX};

/// A kind of package: the option that names it, and what makes it in a folder.
type Kind = (&'static str, fn(&Product, &Path) -> Result<PathBuf>);

const KINDS: [Kind; 4] =
    [("--archive", archive::write), ("--deb", deb::write), ("--oci", oci::write), ("--wheel", wheel::write)];

/// Makes the kinds of package that the options name, or all.
pub(crate) fn run(options: &[&str]) -> Result<ExitCode> {
    if let Some(unknown) = options.iter().find(|option| KINDS.iter().all(|(kind, _)| kind != *option)) {
        let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        bail!("{unknown} is no kind of package: {}", kinds.join(", "));
    }
    let product = Product::build(&folder())?;
    for (kind, write) in KINDS {
        if options.is_empty() || options.contains(&kind) {
            let path = write(&product, &folder())?;
            println!("{:9.1} MB  {}", megabytes(size(&path)?), path.display());
        }
    }
    let libraries: Vec<&str> = product.requirements.libraries.iter().map(String::as_str).collect();
    println!("needs glibc {} or newer: {}", product.requirements.glibc, libraries.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Makes one kind of package, for a test of it.
pub fn package(kind: &str) -> Result<PathBuf> {
    let Some((_, write)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        bail!("{kind} is no kind of package");
    };
    write(&Product::build(&folder())?, &folder())
}

/// Where packages are put.
pub fn folder() -> PathBuf {
    crate::target_folder().join("dist")
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The size of a file, or of all files in a folder, in bytes.
fn size(path: &Path) -> Result<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    std::fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}
