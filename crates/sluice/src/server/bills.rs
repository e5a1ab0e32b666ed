//! Bills, invoices and corrections, for people and for other programs.

use std::process::ExitCode;

use anyhow::Result;
use sluice_api::bill::{Bill, Correction, Credit, Currency, Line, NewCorrection};
use sluice_api::client::Client;
use sluice_api::tenant::TenantPath;

use super::lists::{millionths, now_ms, show};
use super::{client, earnings, focus};
use crate::cli::{BillArgs, BillFormat, CorrectArgs, Output};
use crate::moment::Moment;
use crate::output::Stdout;
use crate::table::Align::{Left, Right};

pub(crate) fn bill(arguments: &BillArgs) -> Result<ExitCode> {
    let path = bill_path(arguments, now_ms());
    let client = client(&arguments.at)?;
    let bill: Bill = client.get(&path)?;
    match arguments.gpus {
        true => earnings::print(&client, &bill, path.trim_start_matches("/bill?"), arguments.output)?,
        false => print(&client, &bill, None, arguments.output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn bill_path(arguments: &BillArgs, now_ms: u64) -> String {
    let BillArgs { tenant, last, month, from, until, .. } = arguments;
    let last_ms = last.map(|last| now_ms.saturating_sub(last.duration().as_millis() as u64));
    let from_ms = from.or(month.map(|month| month.from)).map(Moment::ms).or(last_ms);
    let is_export = arguments.output == BillFormat::Focus && until.is_none();
    let from_ms = from_ms.or(is_export.then(|| focus::month_of(now_ms).0));
    let until_ms = until.or(month.map(|month| month.until)).map(Moment::ms);
    // What of it is of GPUs is a part of the whole installation's bill.
    let tenant = if arguments.gpus { Some("/") } else { tenant.as_ref().map(TenantPath::as_str) };
    let options = [
        tenant.map(|tenant| format!("tenant={tenant}")),
        from_ms.map(|ms| format!("from_ms={ms}")),
        until_ms.map(|ms| format!("until_ms={ms}")),
    ];
    format!("/bill?{}", options.into_iter().flatten().collect::<Vec<_>>().join("&"))
}

/// With the number of its invoice, if it is one's.
pub(super) fn print(client: &Client, bill: &Bill, invoice: Option<u64>, format: BillFormat) -> Result<()> {
    match format {
        BillFormat::Json => println!("{}", serde_json::to_string_pretty(bill)?),
        BillFormat::Csv => print_csv(rows(bill))?,
        BillFormat::Focus => {
            let Bill { tenant, from_ms, until_ms, .. } = bill;
            let path = format!("/charges?tenant={tenant}&from_ms={from_ms}&until_ms={until_ms}");
            let (charges, invoices) = (client.list(&path)?, client.list("/invoices")?);
            print_csv(focus::Export { bill, number: invoice, charges, invoices: &invoices }.rows()?)?;
        }
        BillFormat::Table => table(bill)?,
    }
    Ok(())
}

fn table(bill: &Bill) -> Result<()> {
    let columns = &[
        ("TENANT", Left),
        ("METER", Left),
        ("TIER", Left),
        ("POOL", Left),
        ("MODEL", Left),
        ("QUANTITY", Right),
        ("UNIT", Left),
        ("PRICE", Right),
        ("COST", Right),
    ];
    let cells = |line: &Line| {
        vec![
            line.tenant.to_string(),
            line.meter.name().into(),
            line.goods.tier.name().into(),
            line.goods.pool.clone(),
            line.goods.model.clone(),
            millionths(line.quantity_micro),
            line.unit_name().into(),
            millionths(line.price_micro),
            millionths(line.cost_micro),
        ]
    };
    show(&bill.lines, Output::Table, "nothing was used", columns, cells)?;
    for Correction { tenant, micro, reason, .. } in &bill.corrections {
        println!("correction for {tenant}: {} ({reason})", signed(*micro));
    }
    for credit @ Credit { tenant, micro, .. } in &bill.credits {
        println!("credit for {tenant}: -{} ({})", millionths(*micro), credit.reason());
    }
    println!("total {} from {} usage records", total(bill), bill.records);
    Ok(())
}

/// The header, and a row for each line, correction and credit.
fn rows(bill: &Bill) -> Vec<Vec<String>> {
    let header = [
        "tenant", "meter", "tier", "pool", "model", "gflops", "amount", "quantity", "unit", "price", "cost",
        "reason", "currency",
    ];
    let currency = bill.currency.as_ref().map_or_else(String::new, Currency::to_string);
    let line = |line: &Line| {
        vec![
            line.tenant.to_string(),
            line.meter.name().into(),
            line.goods.tier.name().into(),
            line.goods.pool.clone(),
            line.goods.model.clone(),
            // Those of a line in unit-hours, by which its quantity follows from its amount.
            if line.goods.gflops > 0 { line.goods.gflops.to_string() } else { String::new() },
            line.amount.to_string(),
            millionths(line.quantity_micro),
            line.unit_name().into(),
            millionths(line.price_micro),
            millionths(line.cost_micro),
            String::new(),
            currency.clone(),
        ]
    };
    let correction = |Correction { tenant, micro, reason, .. }: &Correction| {
        let cost = signed(*micro);
        [tenant.as_str(), "correction", "", "", "", "", "", "", "", "", &cost, reason, &currency]
            .map(String::from)
            .to_vec()
    };
    let credit = |credit: &Credit| {
        let Credit { tenant, tier, pool, micro, .. } = credit;
        let (cost, reason) = (format!("-{}", millionths(*micro)), credit.reason());
        let of =
            [tenant.as_str(), "credit", tier.name(), pool, "", "", "", "", "", "", &cost, &reason, &currency];
        of.map(String::from).to_vec()
    };
    let rows = bill.lines.iter().map(line).chain(bill.corrections.iter().map(correction));
    let rows = rows.chain(bill.credits.iter().map(credit));
    std::iter::once(header.map(String::from).to_vec()).chain(rows).collect()
}

pub(super) fn print_csv(rows: Vec<Vec<String>>) -> Result<()> {
    let mut writer = csv::Writer::from_writer(Stdout);
    for row in rows {
        writer.write_record(row)?;
    }
    writer.flush().map_err(Into::into)
}

/// `12.5 EUR`
fn total(bill: &Bill) -> String {
    let currency = bill.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
    format!("{}{currency}", signed(bill.total_micro))
}

/// Millionths as a decimal number.
pub(super) fn signed(micro: i64) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    format!("{sign}{}", millionths(micro.unsigned_abs()))
}

pub(crate) fn correct(arguments: &CorrectArgs) -> Result<ExitCode> {
    let new = NewCorrection {
        tenant: arguments.tenant.clone(),
        micro: arguments.amount.0,
        at_ms: arguments.moment.map(Moment::ms),
        reason: arguments.reason.clone(),
    };
    let made: Correction = client(&arguments.at)?.post("/corrections", &new)?;
    eprintln!("sluice: correction {} of {} for {}", made.id, signed(made.micro), made.tenant);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: BillArgs,
    }

    #[test]
    fn a_bill_is_of_the_period_that_is_asked_for() {
        for (words, path) in [
            ("", "/bill?"),
            ("--tenant acme --last 10s", "/bill?tenant=acme&from_ms=90000"),
            ("--month 2026-11", "/bill?from_ms=1793491200000&until_ms=1796083200000"),
            ("--from 2026-11-01", "/bill?from_ms=1793491200000"),
            ("-o focus", "/bill?from_ms=0"),
            ("-o focus --last 10s", "/bill?from_ms=90000"),
            ("--from 2026-11-01 --until 2026-11-02", "/bill?from_ms=1793491200000&until_ms=1793577600000"),
        ] {
            let words = std::iter::once("bill").chain(words.split_whitespace());
            let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(bill_path(&line.arguments, 100_000), path);
        }
        assert!(Line::try_parse_from(["bill", "--month", "2026-11", "--last", "1h"]).is_err());
        assert!(Line::try_parse_from(["bill", "--month", "2026-11", "--until", "2026-12-01"]).is_err());
    }
}
