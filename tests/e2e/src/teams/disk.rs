//! A node whose usage journal finds no room: a small file system of its own, in a mount namespace,
//! which takes root.

use std::io::ErrorKind;

use super::*;
use crate::Skipped;

/// Mounts on the folder `$1`, then runs the rest.
const ON_SMALL_DISK: &str = r#"mount -t tmpfs -o size=64k none "$1" && shift && exec "$@""#;

/// What its program used is billed at once, and is in the journal when there is room again.
pub(super) fn a_nodes_disk_is_full() -> Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root".into()).into());
    }
    let installation = Installation::start("disk", "tenants: [{path: red}, {path: blue}]\n", &[], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let token = admin.text(&["token", "create", "--tenant", "/", "--role", "node"])?;
    let journal = installation.folder.join("small");
    std::fs::create_dir_all(&journal)?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", ON_SMALL_DISK, "sh"]).arg(&journal).arg(sluice());
    command.args([
        "node",
        "--listen",
        "127.0.0.1:0",
        "--gpus",
        "software:1,4GiB",
        "--name",
        "small",
        "--journal",
    ]);
    command.arg(&journal).args(["--join", &admin.server]).env("SLUICE_TOKEN", token.trim());
    let mut node = Process::start("node small", &mut command)?;
    node.listening()?;
    // Each of the programs has become the next one.
    let seen = PathBuf::from(format!("/proc/{}/root{}", node.child.id(), journal.display()));
    let both = |gpus: &Value| {
        let gpus = gpus.as_array().into_iter().flatten();
        gpus.filter(|gpu| gpu["online"] == true).count() == 2
    };
    admin.wait_for(&["gpus"], both)?;
    admin.text(&["gpu", "fence", "one/0", "--why", "the other one is looked at"])?;

    let mut program = red.program("on small", &[])?;
    program.expect_line("ready")?;
    fill(&seen.join("ballast"))?;
    program.go_on_to_its_end()?;
    node.expect_message("the usage journal in")?;
    node.expect_message("cannot be written: No space left on device")?;
    let billed = admin.wait_for(&["bill"], |bill| bill["records"].as_u64() >= Some(1))?;
    ensure!(billed["total_micro"].as_i64().is_some(), "{billed}");

    // It lends as before.
    let mut next = red.program("on small again", &[])?;
    next.expect_line("ready")?;
    std::fs::remove_file(seen.join("ballast"))?;
    node.expect_message("the usage journal is written again")?;
    next.go_on_to_its_end()?;
    let leases = |leases: &Value| {
        leases.as_array().is_some_and(|leases| leases.iter().all(|lease| lease["state"] == "ended"))
    };
    red.wait_for(&["lease", "list"], leases)?;
    let deadline = Instant::now() + PATIENCE;
    let journal = seen.display().to_string();
    loop {
        // The last record may be on its way.
        let mut reconcile = admin.command(&["reconcile", "--journal", &journal]);
        let output = reconcile.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let last = std::fs::read_to_string(seen.join("usage.journal"))?.matches("\"last\":true").count();
        if output.status.success() && last == 2 {
            break;
        }
        ensure!(Instant::now() < deadline, "{last} attempts are recorded: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = node.said();
    ensure!(said.matches("cannot be written").count() == 1, "it is said once: {said}");
    Ok(())
}

fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    loop {
        match file.write_all(&[0; 512]) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
