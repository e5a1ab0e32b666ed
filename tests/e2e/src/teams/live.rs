//! Programs that a server moves by itself, so that others fit in their place, or away from a faulty
//! GPU.

use super::moves::{MIB, computes, does, last_lease, leased, place_of, records_tile, start_on_share};
use super::*;

const TENANTS: &str = "
tenants: [{path: red, quota: {limit: 1}}, {path: blue, quota: {guaranteed: 0.5}}]
prices:
  - {meter: reserved, price: 3600}
";

/// Starts a program on a node, though there is room on the other one.
fn start_on(
    installation: &Installation,
    (node, other): (&str, &str),
    account: &Account,
    options: &[&str],
    more: &[&str],
) -> Result<(Process, String)> {
    let admin = &installation.admin;
    admin.text(&["node", "drain", other, "--no-move"])?;
    let options = [options, &["--memory", "128MiB"]].concat();
    let mut program = start_on_share(account, node, 64 * MIB, &options, more)?;
    computes(&mut program)?;
    let (id, on) = last_lease(account)?;
    ensure!(on == node, "lease {id} is on {on}");
    admin.text(&["node", "drain", other, "--undo"])?;
    Ok((program, id))
}

/// A program on each node, so that none has a whole GPU free.
fn in_the_way(installation: &Installation, more: &[&str]) -> Result<[(Process, String); 2]> {
    let red = &installation.red;
    let start = |on| start_on(installation, on, red, &["-p", "0.3"], more);
    Ok([start(("one", "two"))?, start(("two", "one"))?])
}

/// Kernels are under way while the program in the way moves, with right results, and the other gets
/// the whole GPU.
pub(super) fn a_program_moves_so_that_another_fits() -> Result<()> {
    let installation = Installation::start("makes-room", TENANTS, &["two"], &[])?;
    let (admin, red, blue) = (&installation.admin, &installation.red, &installation.blue);
    let [(mut moves, id), (mut stays, _)] = in_the_way(&installation, &[])?;
    moves.tell("compute")?;
    let mut whole = start_on_share(blue, "whole", 8 * MIB, &["-p", "1"], &[])?;
    moves.expect_line("computed")?;
    does(&mut moves, &[("check", "right")])?;
    computes(&mut stays)?;
    computes(&mut whole)?;
    ensure!(last_lease(blue)?.1 == "one" && place_of(red, &id)? == "two", "it has made room");
    ensure!((leased(admin, "one")?, leased(admin, "two")?) == (1_000_000, 600_000), "nothing else is held");
    let shown = red.text(&["lease", "show", &id])?;
    let line = shown.lines().find(|line| line.contains("  moving ")).context("its move")?;
    ensure!(
        line.ends_with("attempt 1: to two/0; so that a lease of another tenant fits in its place"),
        "{line}"
    );
    for words in
        ["running, attempt 1", "attempt 1: from one to two/0; ", " were copied, and it stood still for "]
    {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    [&mut moves, &mut stays, &mut whole].into_iter().try_for_each(|program| program.end_its_input())?;
    let records = installation.wait_for_records(3)?;
    records_tile(&records, &id, 2)?;
    installation.check_bill(&records)
}

/// What holds something that cannot move is ended and starts again, and its lease says why.
pub(super) fn a_program_that_cannot_move_starts_again() -> Result<()> {
    let installation = Installation::start("cannot-move", TENANTS, &["two"], &[])?;
    let (red, blue) = (&installation.red, &installation.blue);
    let [(mut again, id), (mut stays, _)] = in_the_way(&installation, &["graph"])?;
    let mut whole = start_on_share(blue, "whole", 8 * MIB, &["-p", "1"], &[])?;
    again.expect_message("it does not move there while it runs: ")?;
    again.expect_line("ready")?;
    [&mut again, &mut stays, &mut whole].into_iter().try_for_each(computes)?;
    ensure!(last_lease(blue)?.1 == "one" && place_of(red, &id)? == "two", "it has made room");
    let shown = red.text(&["lease", "show", &id])?;
    for words in ["running, attempt 2", "it holds graphs", "preempted", "requeued"] {
        ensure!(shown.contains(words), "{words}: {shown}");
    }
    [&mut again, &mut stays, &mut whole].into_iter().try_for_each(|program| program.end_its_input())?;
    let records = installation.wait_for_records(4)?;
    installation.check_bill(&records)
}

/// Of two victims of a higher priority, the one that has a place elsewhere continues there.
pub(super) fn a_preempted_program_moves() -> Result<()> {
    let installation = Installation::start("gives-way", TENANTS, &["two"], &[])?;
    let blue = &installation.blue;
    let on_one = |priority| {
        let options = ["-p", "0.5", "--priority", priority];
        start_on(&installation, ("one", "two"), blue, &options, &[])
    };
    let [(mut moves, id), (mut waits, waiting)] = [on_one("10")?, on_one("10")?];
    let fixed = ["-p", "0.5", "--no-preempt"];
    let (mut stays, _) = start_on(&installation, ("two", "one"), blue, &fixed, &[])?;
    let mut high = start_on_share(blue, "high", 8 * MIB, &["-p", "1", "--priority", "90"], &[])?;
    waits.expect_message("has a higher priority")?;
    [&mut moves, &mut stays, &mut high].into_iter().try_for_each(computes)?;
    ensure!(place_of(blue, &id)? == "two", "it continues there");
    let shown = blue.text(&["lease", "show", &id])?;
    ensure!(shown.contains("running, attempt 1") && shown.contains("fits in its place"), "{shown}");
    let shown = blue.json(&["lease", "show", &waiting])?;
    ensure!(shown["lease"]["attempt"] == 2, "{shown}");
    high.end_its_input()?;
    waits.expect_line("ready")?;
    [&mut moves, &mut stays, &mut waits].into_iter().try_for_each(computes)?;
    [&mut moves, &mut stays, &mut waits].into_iter().try_for_each(|program| program.end_its_input())?;
    let records = installation.wait_for_records(5)?;
    records_tile(&records, &id, 2)?;
    installation.check_bill(&records)
}

/// What runs on a GPU that is fenced continues elsewhere; what cannot move starts again there.
pub(super) fn programs_leave_a_faulty_gpu() -> Result<()> {
    let installation = Installation::start("leaves-faulty", TENANTS, &["two"], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let on_one = |more| start_on(&installation, ("one", "two"), red, &["-p", "0.3"], more);
    let ((mut moves, id), (mut again, stuck)) = (on_one(&[])?, on_one(&["graph"])?);
    moves.tell("compute")?;
    admin.text(&["gpu", "fence", "one/0", "--why", "ticket 4711"])?;
    moves.expect_line("computed")?;
    does(&mut moves, &[("check", "right")])?;
    again.expect_message("it does not move while it runs: ")?;
    again.expect_line("ready")?;
    [&mut moves, &mut again].into_iter().try_for_each(computes)?;
    ensure!([&id, &stuck].map(|id| place_of(red, id).ok()) == [Some("two".into()), Some("two".into())]);
    ensure!((leased(admin, "one")?, leased(admin, "two")?) == (0, 600_000), "nothing is left on the GPU");
    for (id, words) in [
        (&id, ["running, attempt 1", "to two/0; since its GPU one/0 is fenced: ticket 4711"]),
        (&stuck, ["running, attempt 2", "it holds graphs"]),
    ] {
        let shown = red.text(&["lease", "show", id])?;
        ensure!(words.iter().all(|words| shown.contains(words)), "{words:?}: {shown}");
    }
    [&mut moves, &mut again].into_iter().try_for_each(|program| program.end_its_input())?;
    let records = installation.wait_for_records(3)?;
    records_tile(&records, &id, 2)?;
    installation.check_bill(&records)
}
