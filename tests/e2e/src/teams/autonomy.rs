//! What the server changes by itself, with programs that would notice: idle ones leave their GPU
//! and come back, and shares follow use.

use super::*;

const MIB: u64 = 1 << 20;
const HELD: u64 = 200 * MIB;

/// A program that holds memory whose contents it knows, and does what it is told.
fn start(account: &Account, name: &str, options: &[&str]) -> Result<Process> {
    let mut command = account.command(&["run"]);
    command.args(options).args(["--memory", "320MiB", "--", "python3"]).arg(program_file("moved.py"));
    let mut program = Process::start(name, command.args([&HELD.to_string(), "7"]))?;
    program.expect_line("ready")?;
    Ok(program)
}

fn does(program: &mut Process, lines: &[(&str, &str)]) -> Result<()> {
    lines.iter().try_for_each(|(line, answer)| {
        program.tell(line)?;
        program.expect_line(answer)
    })
}

const COMPUTES: &[(&str, &str)] = &[("compute", "computed"), ("check", "right")];

/// The lease that was asked for last, once it runs.
fn last_lease(account: &Account) -> Result<String> {
    let leases = account.wait_for(&["lease", "list"], |leases| leases[0]["state"] == "running")?;
    Ok(leases[0]["id"].to_string())
}

fn wait_for_lease(account: &Account, id: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let shown = account.wait_for(&["lease", "show", id], |shown| wanted(&shown["lease"]))?;
    Ok(shown["lease"].clone())
}

/// A program that does nothing is told, leaves its GPU, and comes back at its next CUDA call with
/// the right result; where its room is gone meanwhile, the call waits.
pub(super) fn idle_programs_leave_their_gpu() -> Result<()> {
    let installation = Installation::start("idle", "tenants: [{path: red}, {path: blue}]", &[], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let mut refused = admin.command(&["iq", "--idle-after", "10s", "--tenant", "red"]);
    expect_failure(&mut refused, "an operator", 1, &["only an administrator of red itself"])?;
    let own = admin.make("red", "tenant-admin")?;
    own.text(&["iq", "--idle-after", "10s"])?;

    let mut program = start(red, "idles", &["-p", "0.75"])?;
    does(&mut program, COMPUTES)?;
    let id = last_lease(red)?;
    program.expect_message("the program is idle; it is suspended in")?;
    let is_suspended = |lease: &Value| lease["suspended"] == true && lease["resizing"].is_null();
    let lease = wait_for_lease(red, &id, is_suspended)?;
    ensure!(lease["idle"]["suspended"] == true, "{lease}");
    let sessions = red.text(&["sessions"])?;
    ensure!(sessions.contains("suspended while idle"), "{sessions}");
    let gpus = admin.json(&["gpus"])?;
    ensure!(gpus[0]["share_leased_ppm"] == 0, "{gpus}");
    does(&mut program, COMPUTES)?;
    let back = wait_for_lease(red, &id, |lease| lease["idle"].is_null() && lease["resizing"].is_null())?;
    ensure!(back["suspended"].is_null() && back["share_ppm"] == 750_000, "{back}");

    // Others have its room when it comes back.
    wait_for_lease(red, &id, is_suspended)?;
    let mut other = start(&installation.blue, "has its room", &["-p", "1"])?;
    program.tell("compute")?;
    let waits = wait_for_lease(red, &id, |lease| lease["resizing"]["state"] == "waiting")?;
    let reason = waits["resizing"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("up to 0 % of the compute"), "{waits}");
    does(&mut other, COMPUTES)?;
    other.end_its_input()?;
    program.expect_line("computed")?;
    does(&mut program, &[("check", "right")])?;
    let shown = red.text(&["lease", "show", &id])?;
    for words in ["idle_suspended", "woken", "a CUDA call"] {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    let used = red.json(&["lease", "show", &id])?["history"]["used"].clone();
    ensure!(used["suspended_ppm_ms"].as_u64() > Some(0), "it is charged as suspended: {used}");
    program.end_its_input()
}

/// A program that asks for much and uses little gives back share while it runs, and one command
/// undoes that.
pub(super) fn shares_follow_use() -> Result<()> {
    let installation = Installation::start("live", "tenants: [{path: red}, {path: blue}]", &[], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let own = admin.make("red", "tenant-admin")?;
    own.text(&["iq", "--consent", "live", "--floor", "30%"])?;
    let listed = red.json(&["iq", "--autonomy"])?;
    ensure!(listed["tenants"][0]["mode"] == "live", "{listed}");
    let mut program = start(red, "asks for much", &["-p", "1"])?;
    let mut firm = red.command(&["run", "-p", "0.3", "--as-asked", "--dry-run"]);
    ensure!(firm.arg("true").output()?.status.success(), "--as-asked");
    does(&mut program, COMPUTES)?;
    let id = last_lease(red)?;
    let less = wait_for_lease(red, &id, |lease| lease["share_ppm"] == 300_000)?;
    ensure!(
        less["automatic"]["kind"] == "live" && less["automatic"]["asked_share_ppm"] == 1_000_000,
        "{less}"
    );
    let shown = red.text(&["lease", "show", &id])?;
    ensure!(shown.contains("changed") && shown.contains("--undo") && shown.contains("sized"), "{shown}");
    does(&mut program, COMPUTES)?;
    red.text(&["iq", "moved.py", "--undo"])?;
    let back =
        wait_for_lease(red, &id, |lease| lease["share_ppm"] == 1_000_000 && lease["resizing"].is_null())?;
    ensure!(back["automatic"].is_null(), "{back}");
    let listed = red.json(&["iq", "--autonomy"])?;
    ensure!(
        listed["left_alone"][0]["program"].as_str().is_some_and(|name| name.contains("moved.py")),
        "{listed}"
    );
    does(&mut program, COMPUTES)?;
    program.end_its_input()
}
