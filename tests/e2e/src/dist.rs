//! Packages as users install them: into a virtual environment, and on a Debian without anything
//! else.
//!
//! The clean system is made by debootstrap, once, under `target/`, and copied for each test. A
//! command runs in it by `chroot`, in a mount namespace of its own.

pub(crate) mod root;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::dist;
use xtask::dist::GLIBC_STATED;

use crate::ci;
use crate::dist::root::{Root, enter};
use crate::node::Node;
use crate::process::{self, Ended};
use crate::python;
use crate::{Test, expect_pass, finish, program_file, tail};

pub(crate) const TESTS: &[Test] = &[("dist: the wheel in a virtual environment", wheel_in_environment)];

pub(crate) const LONG_TESTS: &[Test] = &[
    ("dist: the wheel on a clean system", wheel_on_clean_system),
    ("ci: the guide's commands on a clean system", guide_on_clean_system),
    ("dist: the archive on a clean system", archive_on_clean_system),
    ("dist: the Debian package, from installation to purge", deb_on_clean_system),
    ("dist: the image", image),
];

const LIMIT: Duration = Duration::from_secs(120);

/// A program that computes on a GPU and needs Python alone.
const PROGRAM: &str = "prints.py";

fn wheel_in_environment() -> Result<()> {
    let wheel = dist::package("--wheel")?;
    let bin = environment(&wheel)?;
    let mut command = Command::new(bin.join("sluice"));
    command.args(["run", "--", "python3"]).arg(program_file(PROGRAM));
    let ended = expect_pass(bare(&mut command, &bin), "dist wheel", LIMIT)?;
    ensure!(ended.output.contains("on a private node"), "{}", tail(&ended.output));

    let auditwheel = python::AUDITWHEEL.program("auditwheel")?;
    let audit = process::output_of(Command::new(auditwheel).arg("show").arg(&wheel))?;
    let audit = audit.split_whitespace().collect::<Vec<_>>().join(" ");
    let tag = wheel.file_stem().context("a name")?.to_string_lossy();
    let tag = tag.rsplit('-').next().context("a tag")?;
    ensure!(audit.contains(&format!("following platform tag: \"{tag}\"")), "{tag}: {audit}");

    process::run(pip(&bin).args(["uninstall", "--quiet", "--yes", dist::WHEEL]))?;
    let left = [bin.join("sluice"), bin.join("../lib/sluice")].map(|path| path.exists());
    ensure!(left == [false, false], "pip uninstall leaves files");
    Ok(())
}

/// The `bin` folder of a new virtual environment that has the wheel and nothing else.
fn environment(wheel: &Path) -> Result<PathBuf> {
    let folder = dist::folder().join("environment");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    process::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let bin = folder.join("bin");
    process::run(pip(&bin).args(["install", "--quiet", "--no-index"]).arg(wheel))?;
    Ok(bin)
}

fn pip(bin: &Path) -> Command {
    let mut pip = Command::new(bin.join("python"));
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

/// Takes the environment of this test run away from a command, so that nothing names a node.
fn bare<'a>(command: &'a mut Command, bin: &Path) -> &'a mut Command {
    command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
}

/// The README's commands, with Python alone on the machine.
fn wheel_on_clean_system() -> Result<()> {
    let wheel = dist::package("--wheel")?;
    let root = Root::new("wheel")?;
    let name = root.bring(&wheel)?;
    let program = root.bring(&program_file(PROGRAM))?;
    root.bring(&program_file("driver.py"))?;
    let script = format!(
        "python3 -m venv /env && /env/bin/pip install --quiet --no-index {name} && \
         PATH=/env/bin:$PATH sluice run -- python3 {program}"
    );
    expect_pass(&mut root.shell(&script), "dist wheel on a clean system", LIMIT)?;
    Ok(())
}

/// The commands of the guide on continuous integration, with Python alone on the machine. The
/// packages of the project are downloaded here: the system knows no authority for TLS.
fn guide_on_clean_system() -> Result<()> {
    let wheel = dist::package("--wheel")?;
    let root = Root::new("ci")?;
    let name = root.bring(&wheel)?;
    let project = crate::root().join("tests/ci-project");
    let mut copy = Command::new("cp");
    process::run(copy.arg("--recursive").arg(&project).arg(root.path().join("project")))?;
    let mut download = Command::new(python::PYTEST.ready()?);
    download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
    download.args(["--only-binary", ":all:", "--requirement"]).arg(project.join("requirements.txt"));
    process::run(download.arg("--dest").arg(root.path().join("packages")))?;
    let script = format!(
        "python3 -m venv /env && cd /project\n\
         export PATH=/env/bin:$PATH SLUICE_WHEEL={name} PIP_NO_INDEX=1 PIP_FIND_LINKS=/packages\n{}",
        ci::commands()?
    );
    let ended = expect_success(&mut root.shell(&script), "ci guide on a clean system")?;
    ensure!(ended.output.contains("11 passed"), "{}", tail(&ended.output));
    ensure!(root.path().join("project/sluice.xml").is_file(), "no report");
    Ok(())
}

fn archive_on_clean_system() -> Result<()> {
    let archive = dist::package("--archive")?;
    let root = Root::new("archive")?;
    let name = root.bring(&archive)?;
    let program = root.bring(&program_file(PROGRAM))?;
    root.bring(&program_file("driver.py"))?;
    let script = format!(
        "tar -C /usr/local --strip-components=1 -xzf {name} && sluice --version && sluice run -- python3 {program}"
    );
    expect_pass(&mut root.shell(&script), "dist archive", LIMIT)?;
    let needs = process::output_of(&mut root.shell("ldd /usr/local/bin/sluice"))?;
    ensure!(!needs.contains("not found"), "{needs}");
    check_units(&root, "/usr/local/lib/systemd/system")
}

/// Checks that systemd finds nothing wrong with the units, nor with the programs that they start.
fn check_units(root: &Root, folder: &str) -> Result<()> {
    let verify =
        format!("systemd-analyze verify {folder}/sluice-node.service {folder}/sluice-server.service 2>&1");
    let said = process::output_of(&mut root.shell(&verify))?;
    ensure!(!said.contains("sluice"), "{said}");
    Ok(())
}

fn deb_on_clean_system() -> Result<()> {
    let package = dist::package("--deb")?;
    let root = Root::new("deb")?;
    let before = root.files()?;
    let name = root.bring(&package)?;
    let program = root.bring(&program_file(PROGRAM))?;
    root.bring(&program_file("driver.py"))?;

    expect_success(&mut root.shell(&format!("dpkg --install {name}")), "dist deb install")?;
    let depends = process::output_of(&mut root.shell("dpkg-query --show --showformat '${Depends}' sluice"))?;
    let glibc: Vec<&str> = depends.split(['(', ')']).filter(|part| part.starts_with(">= ")).collect();
    ensure!(glibc == [format!(">= {GLIBC_STATED}")], "{depends}: the documents state glibc {GLIBC_STATED}");
    // Its compiled kernels are its user's, who keeps them.
    let run = format!("HOME=$(dirname {program}) sluice run -- python3 {program}");
    expect_pass(&mut root.shell(&run), "dist deb", LIMIT)?;
    check_units(&root, "/usr/lib/systemd/system")?;
    node_as_its_unit_starts_it(&root, &program)?;
    // As an upgrade does it, with settings that an administrator has changed.
    let upgrade = format!("echo '# mine' >> /etc/default/sluice-node && dpkg --install {name}");
    expect_success(&mut root.shell(&upgrade), "dist deb upgrade")?;
    ensure!(root.read("etc/default/sluice-node")?.ends_with("# mine\n"), "settings are lost by an upgrade");

    expect_success(&mut root.shell("dpkg --remove sluice"), "dist deb remove")?;
    ensure!(root.read("etc/default/sluice-node").is_ok(), "a removal keeps the settings");
    expect_success(&mut root.shell("dpkg --purge sluice"), "dist deb purge")?;
    root.forget_brought()?;
    let after = root.files()?;
    let left: Vec<&String> = after.difference(&before).collect();
    ensure!(left.is_empty(), "a purge leaves {left:?}");
    let lost: Vec<&String> = before.difference(&after).collect();
    ensure!(lost.is_empty(), "a purge takes {lost:?}");
    let users = ["passwd", "group"].map(|name| root.read(&format!("etc/{name}")));
    for file in users {
        ensure!(!file?.contains("sluice"), "a purge leaves the user");
    }
    Ok(())
}

/// Starts the unit's command as the unit's user with folders as systemd makes them, and a program
/// on it.
fn node_as_its_unit_starts_it(root: &Root, program: &str) -> Result<()> {
    let unit = root.read("usr/lib/systemd/system/sluice-node.service")?;
    let setting = |name: &str| {
        let value = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.with_context(|| format!("no {name} in {unit}"))
    };
    let (start, environment) = (setting("ExecStart")?, setting("Environment")?);
    let start = start.replace("$SLUICE_NODE_OPTIONS", "--listen unix:/var/lib/sluice/node/socket");
    let user = setting("User")?;
    let folders = format!(
        "install -d -o {user} -g {user} -m 0700 /var/lib/sluice /var/lib/{} /var/cache/{}",
        setting("StateDirectory")?,
        setting("CacheDirectory")?
    );
    expect_success(&mut root.shell(&folders), "dist deb folders")?;
    let node = Node::start_command(&mut root.shell(&format!(
        "exec setpriv --reuid {user} --regid {user} --init-groups env {environment} {start}"
    )))?;
    let command =
        format!("HOME=$(dirname {program}) sluice run --node {} -- python3 {program}", node.address);
    expect_pass(&mut root.shell(&command), "dist deb node", LIMIT)?;
    Ok(())
}

/// The image unpacked as a container engine does it, with a program outside on a node inside.
fn image() -> Result<()> {
    let layout = dist::package("--oci")?;
    let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json"))?)?;
    let manifest: Value = serde_json::from_slice(&blob(&layout, &index["manifests"][0])?)?;
    let config: Value = serde_json::from_slice(&blob(&layout, &manifest["config"])?)?;
    let root = Root::empty("image")?;
    let layers = manifest["layers"].as_array().context("layers")?;
    let ids = config["rootfs"]["diff_ids"].as_array().context("diff_ids")?;
    ensure!(layers.len() == ids.len() && !layers.is_empty(), "{} layers and {} ids", layers.len(), ids.len());
    for (layer, id) in layers.iter().zip(ids) {
        let archive = root.unpack(&blob(&layout, layer)?)?;
        ensure!(dist::digest(&archive) == *id, "a layer is not what its id says");
    }
    let text = |value: &Value| value.as_str().map(String::from).context("a text");
    let entry = text(&config["config"]["Entrypoint"][0])?;
    let user = text(&config["config"]["User"])?;
    let run = |arguments: &str| {
        let user = user.split(':').next().unwrap_or_default();
        let mut command = enter(root.path());
        command.args(["unshare", "--setuid", user, "--setgid", user]);
        command.arg("--root").arg(root.path());
        command.arg(&entry).args(arguments.split_whitespace());
        command.env_clear();
        for variable in config["config"]["Env"].as_array().into_iter().flatten() {
            if let Some((name, value)) = variable.as_str().and_then(|text| text.split_once('=')) {
                command.env(name, value);
            }
        }
        command
    };
    let help = process::output_of(&mut run(&text(&config["config"]["Cmd"][0])?))?;
    ensure!(help.contains("Usage: sluice"), "{help}");
    let node = Node::start_command(&mut run("node --listen 127.0.0.1:0 --gpus software"))?;
    let mut program = crate::bare_program(&node, &[], PROGRAM);
    expect_pass(&mut program, "dist image", LIMIT)?;
    Ok(())
}

/// The contents of a blob that are as its descriptor says.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().context("a digest")?;
    let name = digest.strip_prefix("sha256:").context("a SHA-256")?;
    let contents = std::fs::read(layout.join("blobs/sha256").join(name)).context(name.to_owned())?;
    ensure!(dist::digest(&contents) == digest, "{digest} names other contents");
    ensure!(descriptor["size"] == contents.len(), "{digest} has another size");
    Ok(contents)
}

fn expect_success(command: &mut Command, name: &str) -> Result<Ended> {
    let ended = finish(command, name, LIMIT)?;
    ensure!(ended.code == Some(0), "exit code {:?}: {}", ended.code, tail(&ended.output));
    Ok(ended)
}
