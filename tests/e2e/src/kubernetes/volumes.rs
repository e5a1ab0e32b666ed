//! The server of the chart in a volume as a kubelet prepares one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::Skipped;
use crate::node::sluice;
use crate::process;
use crate::teams::Process;

/// The user and group of the chart's pods.
const USER: u32 = 65532;

/// A volume's root belongs to root and is open to the pod's group, and the server runs as another
/// user. It starts there, and again; and `sluice` in its pod is the administrator.
pub(super) fn the_server_starts_in_its_volume() -> Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root, to become another user".into()).into());
    }
    let objects = super::rendered(&[])?;
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).context("an object");
    let pod = &of_kind("StatefulSet")?["spec"]["template"]["spec"];
    ensure!(pod["securityContext"]["fsGroup"] == USER, "{}", pod["securityContext"]);
    // With `Always`, the kubelet opens what is in the volume at each start, too.
    let policy = &pod["securityContext"]["fsGroupChangePolicy"];
    ensure!(policy == "OnRootMismatch", "the folder with keys is opened to the group: {policy}");

    let folder = tempfile::tempdir()?;
    open_to_group(folder.path(), 0o755)?;
    let data = folder.path().join("data");
    fs::create_dir(&data)?;
    open_to_group(&data, 0o2775)?;
    let tls = folder.path().join("tls");
    fs::create_dir(&tls)?;
    open_to_group(&tls, 0o755)?;
    for (name, text) in of_kind("Secret")?["data"].as_object().context("data")? {
        let file = tls.join(name);
        fs::write(&file, BASE64.decode(text.as_str().context("text")?)?)?;
        open_to_group(&file, 0o440)?;
    }

    let inside = |text: &str| {
        let text = text.replace("/etc/sluice/tls", &tls.display().to_string());
        let text = text.replace("/data", &data.display().to_string());
        text.replace("0.0.0.0:7580", "127.0.0.1:0")
    };
    let container = &pod["containers"][0];
    let words = container["args"].as_array().context("arguments")?.iter().filter_map(Value::as_str);
    let words: Vec<String> = words.map(inside).collect();
    let variables = container["env"].as_array().context("variables")?.iter();
    let variables: BTreeMap<String, String> = variables
        .filter_map(|variable| Some((variable["name"].as_str()?.into(), inside(variable["value"].as_str()?))))
        .collect();
    let as_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
        command.arg(sluice()).args(words).env_clear().envs(&variables).current_dir("/");
        command
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for start in ["first", "second"] {
        let mut server = Process::start("chart-server", &mut as_user(&words))?;
        let url = server.listening().with_context(|| format!("the {start} start"))?;
        process::output_of(&mut as_user(&["gpus", "--server", &url]))?;
        server.signal(libc::SIGTERM);
        server.end()?;
    }
    Ok(())
}

fn open_to_group(path: &Path, mode: u32) -> Result<()> {
    chown(path, Some(0), Some(USER))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}
