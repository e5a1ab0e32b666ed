//! From prices and a budget to an invoice, and journals, ledger and invoices that agree.

use super::*;

/// Red may spend less than its first program costs: a thousand of the currency's units per hour are
/// 0.28 in a second.
const TENANTS: &str = "
currency: EUR
issuer: Acme Compute
tenants:
  - path: red
    budget: {amount: 0.01, per: ever}
  - path: blue
pools:
  - {name: dear, gpus: [two/0], tiers: [basic]}
prices:
  - {meter: reserved, price: 1000.00}
  - {meter: reserved, pool: dear, tier: basic, price: 4000}
";

pub(super) fn prices_budgets_and_invoices() -> Result<()> {
    let mut installation = Installation::start("books", TENANTS, &["two"], &[])?;
    let (admin, red) = (&installation.admin, &installation.red);
    let mut first = red.program("red 1", &["-p", "0.5"])?;
    first.expect_line("ready")?;
    first.go_on_to_its_end()?;

    let gpus = admin.json(&["gpus"])?;
    let pools =
        gpus.as_array().into_iter().flatten().map(|gpu| (gpu["node"] == "two", gpu["pool"] == "dear"));
    ensure!(pools.clone().count() == 2 && pools.clone().all(|(is_two, is_dear)| is_two == is_dear), "{gpus}");

    // It is in the audit log, and what comes then waits; a credit lets it continue.
    let noticed = |tenants: &Value| {
        let tenants = tenants.as_array().into_iter().flatten();
        tenants
            .filter(|tenant| tenant["path"] == "red")
            .any(|red| red["budget"]["spent_percent"].as_u64() >= Some(100))
    };
    admin.wait_for(&["tenants"], noticed)?;
    let mut held = red.program("red 2", &["-p", "0.5", "--tier", "basic", "--pool", "dear"])?;
    held.expect_message("of the budget that red spends from is spent")?;
    held.expect_message("Waiting: red has spent its budget")?;
    let log = admin.text(&["audit", "log"])?;
    ensure!(log.contains("budget.passed"), "{log}");
    admin.text(&[
        "correct",
        "--tenant",
        "red",
        "--amount",
        "-1000",
        "--reason",
        "a gift, \"to begin with\"",
    ])?;
    held.expect_line("ready")?;
    held.go_on_to_its_end()?;

    installation.wait_for_records(2)?;
    let bill = red.json(&["bill"])?;
    let prices: Vec<(&str, u64)> = lines(&bill, "reserved")
        .map(|line| {
            (line["pool"].as_str().unwrap_or_default(), line["price_micro"].as_u64().unwrap_or_default())
        })
        .collect();
    ensure!(prices == [("default", 1_000_000_000), ("dear", 4_000_000_000)], "{bill}");

    let table = red.text(&["bill"])?;
    ensure!(table.contains(" EUR from "), "{table}");

    installation.agree("0 invoices: they agree")?;
    let refused =
        red.command(&["invoice", "issue", "--tenant", "red", "--from", "2020-01-01", "--until", &now_ms()]);
    expect_failure(&mut { refused }, "an invoice by a member", 1, &["role"])?;
    admin.text(&["invoice", "issue", "--tenant", "red", "--from", "2020-01-01", "--until", &now_ms()])?;
    let invoice = red.json(&["invoice", "show", "1"])?;
    ensure!(
        invoice["bill"]["total_micro"] == bill["total_micro"] && invoice["bill"]["lines"] == bill["lines"],
        "{invoice} is not {bill}"
    );
    let pdf = red.command(&["invoice", "show", "1", "-o", "pdf"]).output()?;
    ensure!(pdf.stdout.starts_with(b"%PDF-"), "{}", String::from_utf8_lossy(&pdf.stderr));
    let html = red.text(&["invoice", "show", "1", "-o", "html"])?;
    ensure!(html.contains("Acme Compute") && html.contains("Invoice 1"), "{html}");
    for (format, rows) in [("csv", [",reserved,", ",correction,"]), ("focus", [",Usage,,", ",Adjustment,,"])]
    {
        let text = red.text(&["invoice", "show", "1", "-o", format])?;
        ensure!(
            rows.iter().all(|row| text.contains(row)) && text.contains("\"a gift, \"\"to begin with\"\"\""),
            "{text}"
        );
    }
    let focus = red.text(&["bill", "-o", "focus"])?;
    let row = focus.lines().find(|line| line.contains("GPU-Hours")).context("no row of usage")?;
    let words = [",EUR,", ",Acme Compute,", ",lease/", ",GPU lease,", ",1,"];
    ensure!(words.iter().all(|word| row.contains(word)) && !focus.contains("GiB-Hours"), "{focus}");
    installation.agree("1 invoices: they agree")?;

    // What is said about its period later is due on the next invoice, and then on that one.
    admin.text(&["correct", "--tenant", "red", "--amount", "5", "--at", "2020-01-02", "--reason", "late"])?;
    let said = admin.text(&["reconcile"])?;
    let expect = ["they agree", "invoice 1 of red: 5 came for its period since"];
    ensure!(expect.iter().all(|part| said.contains(part)), "{said}");
    let until_ms = invoice["bill"]["until_ms"].to_string();
    admin.text(&["invoice", "issue", "--tenant", "red", "--from", &until_ms, "--until", &now_ms()])?;
    let next = red.json(&["invoice", "show", "2"])?;
    ensure!(next["carried"][0]["micro"] == 5_000_000, "{next}");
    let said = admin.text(&["reconcile"])?;
    ensure!(said.contains("they agree") && !said.contains("came for its period"), "{said}");
    installation.units_have_their_price()
}

fn lines<'a>(bill: &'a Value, meter: &'a str) -> impl Iterator<Item = &'a Value> {
    bill["lines"].as_array().into_iter().flatten().filter(move |line| line["meter"] == meter)
}

fn now_ms() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis()).to_string()
}

impl Installation {
    /// What is asked for in units is a share of the card that has them, here as its operator says,
    /// and priced by the unit-hour.
    fn units_have_their_price(&mut self) -> Result<()> {
        let mut command = Command::new(sluice());
        let server = self.admin.server();
        command.args(["node", "--listen", "127.0.0.1:0", "--join", server, "--gpus", "software"]);
        command.args(["--tflops", "100"]);
        self.join("three", &mut command)?;
        self.wait_for_gpus(3)?;
        let prices = self.folder.join("prices.yaml");
        std::fs::write(&prices, "prices: [{meter: reserved, tier: standard, per: unit, price: 1000}]")?;
        self.admin.text(&["apply", "-f", &prices.display().to_string()])?;

        let mut command = self.blue.command(&["run", "--units", "6.69", "--", "cat"]);
        let mut program = Process::start("in units", &mut command)?;
        program.tell("runs")?;
        program.expect_line("runs")?;
        let gpus = self.admin.json(&["gpus"])?;
        let card = gpus.as_array().into_iter().flatten().find(|gpu| gpu["node"] == "three");
        let gflops = card.and_then(|card| card["gflops"].as_u64()).context("the card's GFLOPS")?;
        let lease = &self.blue.json(&["lease", "list"])?[0];
        let share_ppm = (6690 * 1_000_000_u64).div_ceil(gflops);
        ensure!(
            gflops == 100_000 && lease["units_milli"] == 6690 && lease["share_ppm"] == share_ppm,
            "{lease} on {gflops} GFLOPS"
        );
        program.end_its_input()?;

        let per_unit = |bill: &Value| lines(bill, "reserved").any(|line| line["per"] == "unit");
        let bill = self.blue.wait_for(&["bill"], per_unit)?;
        let line = lines(&bill, "reserved").find(|line| line["per"] == "unit").context("a line")?;
        let amount = line["amount"].as_u64().context("an amount")?;
        // A GPU-hour is 3.6e12 of the meter's smallest units, and a unit a thousand GFLOPS.
        let (product, of) = (u128::from(amount) * u128::from(gflops) * 1_000_000_000, 3_600_000_000_000_000);
        let cost = (product + of / 2) / of;
        ensure!(
            line["gflops"] == gflops && line["cost_micro"].as_u64().map(u128::from) == Some(cost),
            "{line}"
        );
        ensure!(cost > 0, "{line}");
        let focus = self.blue.text(&["bill", "-o", "focus"])?;
        ensure!(focus.contains(",Unit-Hours,"), "{focus}");
        let direct = self.blue.command(&["run", "--gpus", "software", "--units", "1", "--", "true"]);
        expect_failure(&mut { direct }, "units without a server", 125, &["--units needs a control plane"])
    }

    /// Journals, ledger and invoices say the same.
    fn agree(&self, expect: &str) -> Result<()> {
        let journals = ["one", "two"].map(|node| self.folder.join(node).display().to_string());
        let said = self.admin.text(&["reconcile", "--journal", &journals[0], "--journal", &journals[1]])?;
        ensure!(said.contains(expect) && said.contains(" in 2 journals"), "{said}");
        Ok(())
    }
}
