//! The container image, as a layout of the OCI Image Specification: a folder of blobs that are
//! named by their SHA-256, which registries, Podman, Docker and containerd take.
//!
//! There is no distribution below. The first layer has what the binaries load: the glibc of the
//! machine that builds, the certificates of public authorities if that machine has them, and a
//! user. The second layer has Sluice.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::elf::{Requirements, libraries};
use super::product::Product;
use super::tree::Tree;

/// The user and group that programs have in the image by default.
const USER: u32 = 65532;

/// Where glibc's loader looks by default; Debian's places and others'.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
];

/// Parts of glibc that NVIDIA's driver names, which a container runtime mounts into the container.
const FOR_DRIVERS: [&str; 3] = ["libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// The certificates of public authorities, in one file, where Debian and others have them.
const CERTIFICATES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

pub(crate) fn write(product: &Product, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("sluice-{}-oci", product.version));
    if path.exists() {
        std::fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
    }
    let blobs = path.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;

    let mut software = Tree::default();
    product.install(&mut software, "usr", "/usr")?;
    product.install_kubernetes(&mut software, "usr");
    let mut layers = Vec::new();
    for tree in [base(&product.requirements)?, software] {
        layers.push(layer(&tree, product.time_s, &blobs)?);
    }
    let config = blob(&blobs, &serde_json::to_vec(&config(product, &layers)?)?)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer.blob))
            .collect::<Vec<_>>(),
    });
    let manifest = blob(&blobs, &serde_json::to_vec(&manifest)?)?;
    let mut described = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    described["platform"] = json!({ "architecture": architecture()?, "os": "linux" });
    described["annotations"] = json!({ "org.opencontainers.image.ref.name": product.version });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described],
    });
    std::fs::write(path.join("index.json"), serde_json::to_vec(&index)?)?;
    std::fs::write(path.join("oci-layout"), serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?)?;
    Ok(path)
}

/// A blob that is in the layout.
struct Blob {
    digest: String,
    size: usize,
}

struct Layer {
    blob: Blob,
    /// The digest of the archive before it was compressed.
    diff_id: String,
}

fn layer(tree: &Tree, time_s: u64, blobs: &Path) -> Result<Layer> {
    let mut archive = Vec::new();
    tree.write_tar(time_s, &mut archive)?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&archive)?;
    Ok(Layer { blob: blob(blobs, &encoder.finish()?)?, diff_id: digest(&archive) })
}

fn blob(blobs: &Path, contents: &[u8]) -> Result<Blob> {
    let digest = digest(contents);
    let name = digest.trim_start_matches("sha256:");
    std::fs::write(blobs.join(name), contents)?;
    Ok(Blob { digest, size: contents.len() })
}

/// The digest of bytes as the specification writes it.
pub fn digest(bytes: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, bytes);
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({ "mediaType": media_type, "digest": blob.digest, "size": blob.size })
}

fn config(product: &Product, layers: &[Layer]) -> Result<Value> {
    let created = jiff::Timestamp::from_second(product.time_s.try_into()?)?.to_string();
    let history = ["glibc and certificates", "Sluice"]
        .map(|comment| json!({ "created": created, "created_by": "cargo xtask dist", "comment": comment }));
    Ok(json!({
        "created": created,
        "architecture": architecture()?,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/sluice", "XDG_DATA_HOME=/var/lib"],
            "Entrypoint": ["/usr/bin/sluice"],
            "Cmd": ["help"],
            "WorkingDir": "/var/lib/sluice",
            "Labels": {
                "org.opencontainers.image.title": "sluice",
                "org.opencontainers.image.version": product.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": layers.iter().map(|layer| layer.diff_id.as_str()).collect::<Vec<_>>(),
        },
        "history": history,
    }))
}

/// What the specification, after Go, calls the architecture of this build.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("the name of {other} in images is not known here"),
    }
}

/// The files below Sluice's own.
fn base(requirements: &Requirements) -> Result<Tree> {
    let mut tree = Tree::default();
    let mut open: Vec<String> = requirements.libraries.iter().cloned().collect();
    open.extend(FOR_DRIVERS.map(String::from));
    let mut seen = BTreeSet::new();
    while let Some(library) = open.pop() {
        if !seen.insert(library.clone()) {
            continue;
        }
        let path = find(&library)?;
        open.extend(libraries(&path)?);
        tree.file(relative(&path), &path, 0o755);
    }
    // The kernel takes the loader from the path that each program names.
    let loader = program_loader();
    tree.file(relative(Path::new(loader)), Path::new(loader), 0o755);
    if let Some(certificates) = CERTIFICATES.iter().map(Path::new).find(|path| path.is_file()) {
        tree.file("etc/ssl/certs/ca-certificates.crt", certificates, 0o644);
    }
    tree.text("etc/passwd", format!("root:x:0:0::/:\nsluice:x:{USER}:{USER}::/var/lib/sluice:\n"));
    tree.text("etc/group", format!("root:x:0:\nsluice:x:{USER}:\n"));
    tree.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
    tree.folder("tmp", 0o1777, 0);
    tree.folder("var/lib/sluice", 0o700, USER);
    Ok(tree)
}

/// The path of a library where the loader of this machine finds it.
fn find(library: &str) -> Result<PathBuf> {
    let mut paths = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(library));
    paths.find(|path| path.is_file()).with_context(|| format!("{library} is in none of {LIBRARY_FOLDERS:?}"))
}

fn program_loader() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "/lib/ld-linux-aarch64.so.1",
        _ => "/lib64/ld-linux-x86-64.so.2",
    }
}

fn relative(path: &Path) -> &str {
    path.to_str().unwrap_or_default().trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    #[test]
    fn blobs_are_named_by_their_sha256() {
        // FIPS 180-4's example of one block.
        let digest = super::digest(b"abc");
        assert_eq!(digest, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
