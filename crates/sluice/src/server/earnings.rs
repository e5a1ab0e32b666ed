//! `sluice bill --gpus`: what each GPU earned, and what its idle time would have.

use anyhow::{Result, bail};
use sluice_api::bill::{Bill, CardEarnings, Currency};
use sluice_api::client::Client;
use sluice_api::usage::GPU_HOUR_PPM_MS;

use super::bills::{print_csv, signed};
use super::lists::{millionths, show};
use crate::cli::{BillFormat, Output};
use crate::table::Align::{Left, Right};

/// `period` has the options of the bill of the same period, which is of the whole installation.
pub(super) fn print(client: &Client, bill: &Bill, period: &str, format: BillFormat) -> Result<()> {
    let cards: Vec<CardEarnings> = client.list(&format!("/gpus/earnings?{period}"))?;
    let currency = bill.currency.as_ref().map_or_else(String::new, Currency::to_string);
    match format {
        BillFormat::Json => println!("{}", serde_json::to_string_pretty(&cards)?),
        BillFormat::Csv => print_csv(rows(&cards, &currency))?,
        BillFormat::Focus => bail!("FOCUS has rows of leases, not of GPUs: `-o csv`"),
        BillFormat::Table => {
            table(&cards)?;
            println!("{}", rest(&cards, bill, &currency));
        }
    }
    Ok(())
}

fn table(cards: &[CardEarnings]) -> Result<()> {
    let columns = &[
        ("NODE", Left),
        ("GPU", Left),
        ("MODEL", Left),
        ("POOL", Left),
        ("EARNED", Right),
        ("RESERVED", Right),
        ("USED", Right),
        ("IDLE", Right),
        ("IDLE COST", Right),
    ];
    let cells = |card: &CardEarnings| {
        vec![
            card.node.clone(),
            card.gpu.map_or_else(|| format!("{} (gone)", card.card), |gpu| gpu.to_string()),
            card.model.clone(),
            card.pool.clone(),
            millionths(card.income_micro),
            hours(card.reserved_ppm_ms),
            hours(card.used_ppm_ms),
            hours(card.idle_ppm_ms),
            card.idle_micro.map_or_else(|| "-".to_owned(), millionths),
        ]
    };
    show(cards, Output::Table, "there are no GPUs", columns, cells)
}

fn rows(cards: &[CardEarnings], currency: &str) -> Vec<Vec<String>> {
    let header = [
        "node",
        "gpu",
        "device",
        "model",
        "pool",
        "earned",
        "reserved_gpu_hours",
        "used_gpu_hours",
        "idle_gpu_hours",
        "idle_cost",
        "currency",
    ];
    let row = |card: &CardEarnings| {
        vec![
            card.node.clone(),
            card.gpu.map_or_else(String::new, |gpu| gpu.to_string()),
            card.card.clone(),
            card.model.clone(),
            card.pool.clone(),
            millionths(card.income_micro),
            hours(card.reserved_ppm_ms),
            hours(card.used_ppm_ms),
            hours(card.idle_ppm_ms),
            card.idle_micro.map_or_else(String::new, millionths),
            currency.to_owned(),
        ]
    };
    std::iter::once(header.map(String::from).to_vec()).chain(cards.iter().map(row)).collect()
}

/// `all GPUs 12.50 EUR; the bill 12.40 EUR: -0.10 EUR are corrections, credits, rounding and what
/// is known of no GPU`
fn rest(cards: &[CardEarnings], bill: &Bill, currency: &str) -> String {
    let all = cards.iter().map(|card| card.income_micro).fold(0, u64::saturating_add);
    let rest = bill.total_micro.saturating_sub_unsigned(all);
    let money = |text: String| format!("{text} {currency}").trim_end().to_owned();
    format!(
        "all GPUs {}; the bill {}: {} are corrections, credits, rounding and what is known of no GPU",
        money(millionths(all)),
        money(signed(bill.total_micro)),
        money(signed(rest))
    )
}

/// GPU-hours with six decimals.
fn hours(ppm_ms: u64) -> String {
    let millionths = u128::from(ppm_ms) * 1_000_000 / u128::from(GPU_HOUR_PPM_MS);
    super::lists::millionths(u64::try_from(millionths).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(income_micro: u64) -> CardEarnings {
        CardEarnings {
            node: "one".into(),
            gpu: Some(0),
            card: "GPU-1".into(),
            model: "A100".into(),
            pool: "default".into(),
            income_micro,
            reserved_ppm_ms: GPU_HOUR_PPM_MS / 4,
            used_ppm_ms: 0,
            idle_ppm_ms: GPU_HOUR_PPM_MS,
            idle_micro: Some(2_000_000),
        }
    }

    #[test]
    fn a_row_has_amounts_and_money_as_decimals() {
        let rows = rows(&[card(500_000)], "EUR");
        assert_eq!(rows[0].len(), rows[1].len());
        assert_eq!(rows[1][5..].join(" "), "0.5 0.25 0 1 2 EUR");
    }

    #[test]
    fn what_is_of_no_gpu_is_the_rest_of_the_bill() {
        let bill = serde_json::json!({
            "tenant": "/", "from_ms": 0, "until_ms": 1, "lines": [], "corrections": [], "total_micro": 400_000, "records": 1,
        });
        let text = rest(&[card(300_000), card(200_000)], &serde_json::from_value(bill).unwrap(), "EUR");
        assert!(text.starts_with("all GPUs 0.5 EUR; the bill 0.4 EUR: -0.1 EUR"), "{text}");
    }
}
