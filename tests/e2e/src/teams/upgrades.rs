//! The nodes of a server are upgraded while programs run on them.

use anyhow::{Result, ensure};

use super::moves::{computes, last_lease, records_tile, start_on_share};
use super::{Installation, TENANTS};

/// The program continues through several upgrades of its node, also while the server is away, and
/// has another size afterwards. What it has used is recorded once.
pub(super) fn a_node_is_upgraded() -> Result<()> {
    let installation = Installation::start("upgrades", TENANTS, &["two"], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    admin.text(&["node", "drain", "one", "--no-move"])?;
    let options = ["-p", "0.3", "--memory", "320MiB"];
    let mut program = start_on_share(red, "upgraded", 20 << 20, &options, &[])?;
    computes(&mut program)?;
    let (id, place) = last_lease(red)?;
    ensure!(place == "two", "it is on {place}");
    let node = &installation.others[0];
    for count in 1..4 {
        program.tell("compute")?;
        if count == 2 {
            // Nothing of the upgrade needs the server.
            installation.up.signal(libc::SIGSTOP);
        }
        node.signal(libc::SIGUSR2);
        node.expect_messages("the node is upgraded from release", count)?;
        installation.up.signal(libc::SIGCONT);
        program.expect_line("computed")?;
        computes(&mut program)?;
    }
    red.text(&["resize", &id, "-p", "0.4"])?;
    computes(&mut program)?;
    let mut another = start_on_share(red, "another", 20 << 20, &options, &[])?;
    computes(&mut another)?;
    another.end_its_input()?;
    program.end_its_input()?;
    let records = installation.wait_for_records(2)?;
    records_tile(&records, &id, 1)?;
    installation.check_bill(&records)
}
