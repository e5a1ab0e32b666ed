//! Tokens that end, and the leases that were asked for with them.

use super::*;

/// A program whose token has expired is told to make room, ends, waits and runs again; the lease of
/// one that is revoked continues, or ends with it.
pub(super) fn a_lease_outlives_its_token() -> Result<()> {
    let installation = Installation::start("tokens", "tenants: [{path: red}, {path: blue}]", &[], &[])?;
    let admin = &installation.admin;
    let token = admin.text(&["token", "create", "--tenant", "red", "--lifetime", "15s"])?;
    let short = Account { token: token.trim().to_owned(), ..admin.clone() };
    let mut program = short.program("outlives its token", &[])?;
    program.expect_line("ready")?;
    let deadline = Instant::now() + PATIENCE;
    while short.text(&["queue"]).is_ok() {
        ensure!(Instant::now() < deadline, "the token does not expire");
        // Who asks too often is refused, too.
        std::thread::sleep(Duration::from_millis(200));
    }
    let leases = admin.wait_for(&["lease", "list"], |leases| leases[0]["state"] == "running")?;
    admin.text(&["lease", "preempt", &leases[0]["id"].to_string()])?;
    program.expect_message("preempted: ")?;
    program.expect_line("ready").context("the program did not run again")?;
    program.go_on_to_its_end()?;
    ensure!(!program.said().contains("expired"), "{}", program.said());

    let (id, mut goes_on) = leaver(&installation, "goes on")?;
    let said = revoke(admin, &[&id])?;
    ensure!(said.contains("continue: "), "{said}");
    goes_on.go_on_to_its_end()?;
    let (id, mut ends) = leaver(&installation, "ends with it")?;
    let said = revoke(admin, &[&id, "--end-leases"])?;
    ensure!(said.contains("ended with it: "), "{said}");
    ends.expect_message("its token was revoked, and its leases with it")?;
    ensure!(!ends.child.wait()?.success(), "its program goes on");
    Ok(())
}

/// The id of a new token, and a program that runs with it.
fn leaver(installation: &Installation, name: &str) -> Result<(String, Process)> {
    let account = installation.admin.make("blue", "member")?;
    let id = account.token.split('_').nth(1).context("a token has an id")?.to_owned();
    let mut program = account.program(name, &[])?;
    program.expect_line("ready")?;
    Ok((id, program))
}

/// What is said of it.
fn revoke(admin: &Account, arguments: &[&str]) -> Result<String> {
    let output = admin.command(&["token", "revoke"]).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{said}");
    Ok(said)
}
