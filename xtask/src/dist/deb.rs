//! The Debian package (deb(5)): an `ar` archive of a version, the control files and the installed
//! files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::elf::Requirements;
use super::product::Product;
use super::tree::Tree;
use super::units;

/// Where Debian installs.
const PREFIX: &str = "usr";

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

pub(crate) fn write(product: &Product, folder: &Path) -> Result<PathBuf> {
    let mut data = Tree::default();
    product.install(&mut data, PREFIX, "/usr")?;
    data.text("usr/share/doc/sluice/copyright", read("copyright")?);
    let mut settings = Vec::new();
    for (service, file) in units::settings() {
        let path = format!("etc/default/{service}");
        data.file(&path, &file, 0o644);
        settings.push(format!("/{path}\n"));
    }

    let fields = [
        ("@VERSION@", product.version.to_owned()),
        ("@ARCHITECTURE@", architecture()?.to_owned()),
        ("@KIB@", data.size()?.div_ceil(1024).to_string()),
        ("@DEPENDS@", depends(&product.requirements)?),
    ];
    let replace = |text: String, (field, value): &(&str, String)| text.replace(field, value);
    let mut control = Tree::default();
    control.text("control", fields.iter().fold(read("control")?, replace));
    // dpkg keeps what an administrator has changed in these.
    control.text("conffiles", settings.concat());
    for script in SCRIPTS {
        control.script(script, read(script)?);
    }

    let path = folder.join(format!("sluice_{}_{}.deb", product.version, architecture()?));
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    let mut package = ar::Builder::new(file);
    let mut member = |name: &str, contents: &[u8]| {
        let mut header = ar::Header::new(name.into(), contents.len() as u64);
        header.set_mode(0o100644);
        header.set_mtime(product.time_s);
        package.append(&header, contents)
    };
    member("debian-binary", b"2.0\n")?;
    member("control.tar.gz", &control.tar_gz(product.time_s)?)?;
    member("data.tar.gz", &data.tar_gz(product.time_s)?)?;
    Ok(path)
}

fn read(name: &str) -> Result<String> {
    let path = units::folder().join("deb").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What Debian calls the architecture of this build.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name for {other} is not known here"),
    }
}

/// The packages that bring the required libraries, in the versions that have the required symbols.
fn depends(requirements: &Requirements) -> Result<String> {
    let mut packages = BTreeSet::new();
    for library in &requirements.libraries {
        packages.insert(match library.as_str() {
            "libc.so.6" | "libm.so.6" => format!("libc6 (>= {})", requirements.glibc),
            loader if loader.starts_with("ld-linux") => format!("libc6 (>= {})", requirements.glibc),
            "libgcc_s.so.1" => "libgcc-s1".to_owned(),
            other => bail!("the Debian package of {other} is not known here"),
        });
    }
    Ok(packages.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::elf::Glibc;
    use super::*;

    #[test]
    fn dependencies_follow_from_the_libraries() {
        let of = |libraries: &[&str]| {
            let libraries = libraries.iter().map(|library| (*library).to_owned()).collect();
            depends(&Requirements { libraries, glibc: Glibc { major: 2, minor: 34 } })
        };
        let found = of(&["libm.so.6", "libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"]);
        assert_eq!(found.unwrap(), "libc6 (>= 2.34), libgcc-s1");
        let error = of(&["libssl.so.3"]).unwrap_err().to_string();
        assert!(error.contains("libssl.so.3"), "{error}");
    }
}
