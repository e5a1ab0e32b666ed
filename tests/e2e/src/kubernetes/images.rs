//! Images of the test's own, as OCI layouts that containerd imports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use xtask::dist::digest;

use crate::dist::root;
use crate::process;

/// What of a Debian no program here needs.
const LEFT_OUT: [&str; 6] = [
    "./usr/share/doc",
    "./usr/share/locale",
    "./usr/share/man",
    "./usr/lib/systemd",
    "./var/cache",
    "./var/lib/apt",
];

/// The image that holds a pod's namespaces: one static program.
pub(super) fn pause(folder: &Path) -> Result<PathBuf> {
    let root = folder.join("pause-root");
    fs::create_dir_all(&root)?;
    let mut compile = Command::new("gcc");
    compile.args(["-static", "-Os", "-o"]).arg(root.join("pause"));
    process::output_of(compile.arg(crate::root().join("tests/kubernetes/pause.c")))?;
    layout(&folder.join("pause"), &archive(&root, &[])?, &json!({ "Entrypoint": ["/pause"] }))
}

/// A Debian with Python and the test programs in `/programs`. It knows nothing of Sluice.
pub(super) fn python(folder: &Path) -> Result<PathBuf> {
    let mut options: Vec<String> = LEFT_OUT.iter().map(|path| format!("--exclude={path}")).collect();
    options.push(".".into());
    for program in ["counts.py", "driver.py"] {
        options.push(format!("--directory={}", crate::root().join("tests").display()));
        options.push(format!("programs/{program}"));
    }
    let archive = archive(&root::clean()?, &options)?;
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    layout(&folder.join("python"), &archive, &json!({ "Env": [path], "Cmd": ["python3"] }))
}

/// A tar archive of a folder.
fn archive(folder: &Path, options: &[String]) -> Result<Vec<u8>> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--one-file-system", "--directory"]).arg(folder);
    if options.is_empty() {
        tar.arg(".")
    } else {
        tar.args(options)
    };
    let output = tar.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("tar")?;
    anyhow::ensure!(output.status.success(), "{} ended with {}", process::show(&tar), output.status);
    Ok(output.stdout)
}

/// Writes an image of one layer with the tag 1.
fn layout(folder: &Path, archive: &[u8], settings: &Value) -> Result<PathBuf> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let blob = |kind: &str, bytes: &[u8]| -> Result<Value> {
        let digest = digest(bytes);
        fs::write(blobs.join(digest.trim_start_matches("sha256:")), bytes)?;
        let media_type = format!("application/vnd.oci.image.{kind}");
        Ok(json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() }))
    };
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": settings,
        "rootfs": { "type": "layers", "diff_ids": [digest(archive)] },
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", config.to_string().as_bytes())?,
        "layers": [blob("layer.v1.tar", archive)?],
    });
    let mut described = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    described["annotations"] = json!({ "org.opencontainers.image.ref.name": "1" });
    let index = json!({ "schemaVersion": 2, "manifests": [described] });
    fs::write(folder.join("index.json"), index.to_string())?;
    fs::write(folder.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    Ok(folder.to_owned())
}
