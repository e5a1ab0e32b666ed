//! Reports about a tenant and a period: what was used, what it cost and whose it was, who could do
//! what and who did.

mod compliance;

use std::collections::BTreeMap;

use sluice_api::bill::{Bill, Correction, Credit, Line, Meter};
use sluice_api::report::ReportKind;
use sluice_api::tenant::TenantPath;
use sluice_api::written::{moment, money};

use crate::billing::period_text;
use crate::printed::{Column, Report, Section};

pub(crate) use compliance::compliance;

const LINES: &[Column] = &[
    Column::text("Tenant", "tenant", 2.0),
    Column::text("Meter", "meter", 1.3),
    Column::text("Tier", "tier", 1.3),
    Column::text("Pool", "pool", 1.3),
    Column::text("Model", "model", 2.2),
    Column::number("Quantity", "quantity", 1.5),
    Column::text("Unit", "unit", 1.4),
];
const COSTS: &[Column] = &[
    LINES[0],
    LINES[1],
    LINES[2],
    LINES[3],
    LINES[4],
    LINES[5],
    LINES[6],
    Column::number("Price", "price", 1.2),
    Column::number("Cost", "cost", 1.6),
];
const CORRECTIONS: &[Column] = &[
    LINES[0],
    Column::text("At", "at", 1.6),
    Column::text("Reason", "reason", 4.0),
    Column::text("Made by", "made_by", 2.0),
    COSTS[8],
];
const CREDITS: &[Column] = &[LINES[0], Column::text("Reason", "reason", 7.6), COSTS[8]];
const TENANTS: &[Column] = &[
    LINES[0],
    Column::number("Reserved", "reserved", 1.3),
    Column::number("Used", "used", 1.3),
    Column::number("Suspended", "suspended", 1.3),
    Column::number("Memory", "memory", 1.3),
    Column::number("Transfer", "transfer", 1.3),
    Column::number("Corrections", "corrections", 1.4),
    Column::number("Credits", "credits", 1.3),
    COSTS[8],
];
const POOLS: &[Column] = &[LINES[0], LINES[3], LINES[4], LINES[2], COSTS[8]];

/// Makes a report of a bill. Its amounts are exact, and its costs add up to the bill's total.
pub(crate) fn of_bill(kind: ReportKind, bill: &Bill, made_at_ms: u64) -> Report {
    let sections = match kind {
        ReportKind::Usage => vec![lines(bill, LINES)],
        ReportKind::Cost => vec![lines(bill, COSTS), corrections(bill), credits(bill)],
        ReportKind::Chargeback => vec![by_tenant(bill), by_pool(bill)],
        ReportKind::Compliance => Vec::new(),
    };
    let mut facts = facts(&bill.tenant, period_text(bill), made_at_ms);
    facts.push(("Usage records", bill.records.to_string()));
    if kind != ReportKind::Usage {
        let currency = bill.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
        facts.push(("Total", format!("{}{currency}", signed(i128::from(bill.total_micro)))));
    }
    let exact =
        "Amounts are exact and net of tax; an invoice rounds each of its lines. Days and times are in UTC.";
    Report {
        title: title(kind),
        issuer: bill.issuer.clone().unwrap_or_default(),
        facts,
        sections,
        notes: vec![exact.to_owned()],
    }
}

fn title(kind: ReportKind) -> &'static str {
    match kind {
        ReportKind::Usage => "Usage report",
        ReportKind::Cost => "Cost report",
        ReportKind::Chargeback => "Chargeback report",
        ReportKind::Compliance => "Compliance report",
    }
}

fn facts(tenant: &TenantPath, period: String, made_at_ms: u64) -> Vec<(&'static str, String)> {
    vec![("Tenant", tenant.to_string()), ("Period", period), ("Made at", time(made_at_ms))]
}

/// Formats a moment to the second.
fn time(at_ms: u64) -> String {
    moment(at_ms - at_ms % 1000)
}

/// Millionths as a decimal number.
fn signed(micro: i128) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    format!("{sign}{}", money(u64::try_from(micro.unsigned_abs()).unwrap_or(u64::MAX)))
}

fn lines(bill: &Bill, columns: &'static [Column]) -> Section {
    let row = |line: &Line| {
        let cells = [
            line.tenant.to_string(),
            line.meter.name().to_owned(),
            line.goods.tier.name().to_owned(),
            line.goods.pool.clone(),
            line.goods.model.clone(),
            money(line.quantity_micro),
            line.unit_name().to_owned(),
            money(line.price_micro),
            money(line.cost_micro),
        ];
        cells.into_iter().take(columns.len()).collect()
    };
    Section {
        key: "usage",
        heading: "What was used",
        columns,
        rows: bill.lines.iter().map(row).collect(),
        empty: "Nothing was used in this period.",
    }
}

fn corrections(bill: &Bill) -> Section {
    let row = |Correction { tenant, micro, at_ms, reason, made_by, .. }: &Correction| {
        vec![tenant.to_string(), time(*at_ms), reason.clone(), made_by.clone(), signed(i128::from(*micro))]
    };
    Section {
        key: "correction",
        heading: "Corrections",
        columns: CORRECTIONS,
        rows: bill.corrections.iter().map(row).collect(),
        empty: "There are no corrections.",
    }
}

fn credits(bill: &Bill) -> Section {
    let row =
        |credit: &Credit| vec![credit.tenant.to_string(), credit.reason(), signed(-i128::from(credit.micro))];
    Section {
        key: "credit",
        heading: "Credits for promises that were not kept",
        columns: CREDITS,
        rows: bill.credits.iter().map(row).collect(),
        empty: "There are no credits.",
    }
}

/// Sums the costs of each tenant, without those of tenants below it.
fn by_tenant(bill: &Bill) -> Section {
    let mut sums: BTreeMap<&TenantPath, [i128; Meter::ALL.len() + 2]> = BTreeMap::new();
    for line in &bill.lines {
        let at = Meter::ALL.iter().position(|meter| *meter == line.meter).unwrap_or(0);
        sums.entry(&line.tenant).or_default()[at] += i128::from(line.cost_micro);
    }
    for correction in &bill.corrections {
        sums.entry(&correction.tenant).or_default()[Meter::ALL.len()] += i128::from(correction.micro);
    }
    for credit in &bill.credits {
        sums.entry(&credit.tenant).or_default()[Meter::ALL.len() + 1] -= i128::from(credit.micro);
    }
    let of = |sums: &[i128], meter: Meter| {
        let at = Meter::ALL.iter().position(|other| *other == meter);
        signed(at.map_or(0, |at| sums[at]))
    };
    let row = |(tenant, sums): (&TenantPath, [i128; Meter::ALL.len() + 2])| {
        let meters = [Meter::Reserved, Meter::Used, Meter::Suspended, Meter::Memory, Meter::Transfer];
        let [corrections, credits] = [0, 1].map(|after| signed(sums[Meter::ALL.len() + after]));
        let rest = [corrections, credits, signed(sums.iter().sum())];
        let costs = meters.into_iter().map(|meter| of(&sums, meter)).chain(rest);
        std::iter::once(tenant.to_string()).chain(costs).collect()
    };
    Section {
        key: "tenant",
        heading: "Cost by tenant",
        columns: TENANTS,
        rows: sums.into_iter().map(row).collect(),
        empty: "Nothing was used in this period.",
    }
}

fn by_pool(bill: &Bill) -> Section {
    let mut sums: BTreeMap<[String; 4], i128> = BTreeMap::new();
    for line in &bill.lines {
        let goods = &line.goods;
        let key =
            [line.tenant.to_string(), goods.pool.clone(), goods.model.clone(), goods.tier.name().to_owned()];
        *sums.entry(key).or_default() += i128::from(line.cost_micro);
    }
    let row = |(key, micro): ([String; 4], i128)| key.into_iter().chain([signed(micro)]).collect();
    Section {
        key: "pool",
        heading: "Cost by tenant, pool and model",
        columns: POOLS,
        rows: sums.into_iter().map(row).collect(),
        empty: "Nothing was used in this period.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bill() -> Bill {
        let line = |tenant: &str, meter: &str, cost_micro: u64| {
            serde_json::json!({
                "tenant": tenant, "meter": meter, "tier": "standard", "pool": "default", "model": "H100", "amount": 1,
                "quantity_micro": 1_500_000, "price_micro": 2, "cost_micro": cost_micro,
            })
        };
        let correction = serde_json::json!({
            "id": 1, "tenant": "acme", "micro": -2_000_001, "at_ms": 5, "reason": "slow", "made_at_ms": 6, "made_by": "t",
        });
        let credit = serde_json::json!({
            "tenant": "acme/a", "lease": 7, "tier": "premium", "pool": "default", "from_ms": 0, "until_ms": 86_400_000,
            "wait_us": 20_000, "attained_ppm": 990_000, "credit_ppm": 100_000, "waits": 10, "within": 9,
            "reserved_micro": 1_000_001, "micro": 100_000,
        });
        serde_json::from_value(serde_json::json!({
            "tenant": "acme", "currency": "EUR", "from_ms": 0, "until_ms": 86_400_000, "corrections": [correction],
            "lines": [line("acme/a", "reserved", 1_000_001), line("acme/a", "used", 2), line("acme/b", "reserved", 3)],
            "credits": [credit], "total_micro": 1_000_006 - 2_000_001 - 100_000, "records": 3,
        }))
        .unwrap()
    }

    /// Sums a column of costs in millionths.
    fn sum(section: &Section) -> i128 {
        let at = section.columns.iter().position(|column| column.key == "cost").unwrap();
        let micro = |row: &Vec<String>| {
            let (sign, text) = row[at].strip_prefix('-').map_or((1, row[at].as_str()), |text| (-1, text));
            sign * i128::from(sluice_api::written::decimal(text, 6).unwrap())
        };
        section.rows.iter().map(micro).sum()
    }

    #[test]
    fn costs_add_up_to_the_bill() {
        let bill = bill();
        let cost = of_bill(ReportKind::Cost, &bill, 0);
        assert_eq!(cost.sections.iter().map(sum).sum::<i128>(), i128::from(bill.total_micro));
        let chargeback = of_bill(ReportKind::Chargeback, &bill, 0);
        assert_eq!(sum(&chargeback.sections[0]), i128::from(bill.total_micro));
        let tenants: Vec<&str> = chargeback.sections[0].rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(tenants, ["acme", "acme/a", "acme/b"]);
        assert!(cost.facts.contains(&("Total", "-1.099995 EUR".to_owned())), "{:?}", cost.facts);
        assert_eq!(cost.facts[1], ("Period", "1970-01-01 to 1970-01-01".to_owned()));
    }

    #[test]
    fn usage_says_nothing_of_money() {
        let usage = of_bill(ReportKind::Usage, &bill(), 0);
        assert!(usage.sections[0].columns.iter().all(|column| !["price", "cost"].contains(&column.key)));
        assert_eq!(usage.sections[0].rows[0].len(), usage.sections[0].columns.len());
        assert!(usage.facts.iter().all(|(name, _)| *name != "Total"));
    }
}
