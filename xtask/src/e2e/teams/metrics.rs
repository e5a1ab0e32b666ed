//! The alert rules: `promtool` of a real Prometheus checks them, and runs their tests.

use std::collections::BTreeSet;

use super::*;
use crate::test::Skipped;

/// `promtool` on the rules, and on their tests: each alert fires when it should and not otherwise.
pub(super) fn rules() -> Result<()> {
    let promtool = tool("promtool")?;
    let folder = crate::root().join("deploy/prometheus");
    for arguments in [["check", "rules", "sluice.rules.yaml"], ["test", "rules", "sluice.rules.test.yaml"]] {
        succeed(Command::new(&promtool).args(arguments).current_dir(&folder))?;
    }
    let rules = std::fs::read_to_string(folder.join("sluice.rules.yaml"))?;
    let tests = std::fs::read_to_string(folder.join("sluice.rules.test.yaml"))?;
    let mut pages = BTreeSet::new();
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - ");
        let rests = format!("alertname: {alert}, exp_alerts: []");
        ensure!(
            tests.contains(&fires) && tests.contains(&rests),
            "{alert} has no test that it fires, and that it does not"
        );
    }
    for page in rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")) {
        pages.insert(page);
        ensure!(crate::root().join(page).exists(), "there is no {page}");
    }
    ensure!(pages.len() > 5, "{pages:?}");
    Ok(())
}

/// A program of Debian's package `prometheus`: the one in PATH, or else unpacked below the target
/// folder, without installing it.
fn tool(name: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&paths).map(|path| path.join(name)).find(|path| path.is_file())
    {
        return Ok(found);
    }
    let folder = crate::target_folder().join("prometheus-package");
    let unpacked = folder.join("usr/bin").join(name);
    if !unpacked.is_file() {
        let script = "apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .";
        std::fs::create_dir_all(&folder)?;
        let fetched = Command::new("sh").args(["-c", script]).current_dir(&folder).output();
        if !fetched.is_ok_and(|output| output.status.success()) || !unpacked.is_file() {
            return Err(Skipped(format!("no {name} (apt install prometheus)")).into());
        }
    }
    Ok(unpacked)
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| process::show(command))?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", process::show(command));
    Ok(())
}
