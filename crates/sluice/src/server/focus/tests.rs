use serde_json::json;

use super::*;

/// What a column may hold, from the content constraints of FOCUS 1.3.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    Decimal,
    /// `YYYY-MM-DDTHH:mm:ssZ`.
    Time,
    /// A code of ISO 4217.
    Currency,
    /// `GB-Hours`, `Requests`: words that begin with a capital, units of time in the plural.
    Unit,
    OneOf(&'static [&'static str]),
}

const CATEGORIES: &[&str] = &[
    "AI and Machine Learning",
    "Analytics",
    "Business Applications",
    "Compute",
    "Databases",
    "Developer Tools",
    "Multicloud",
    "Identity",
    "Integration",
    "Internet of Things",
    "Management and Governance",
    "Media",
    "Migration",
    "Mobile",
    "Networking",
    "Security",
    "Storage",
    "Web",
    "Other",
];

/// Subcategories of Compute.
const SUBCATEGORIES: &[&str] = &[
    "Containers",
    "End User Computing",
    "Quantum Compute",
    "Serverless Compute",
    "Virtual Machines",
    "Other (Compute)",
];

/// The columns whose feature level is Mandatory in FOCUS 1.3, whether they may be null, and what
/// they hold.
const MANDATORY: &[(&str, bool, Holds)] = &[
    ("BilledCost", false, Holds::Decimal),
    ("BillingAccountId", false, Holds::Text),
    ("BillingAccountName", true, Holds::Text),
    ("BillingCurrency", false, Holds::Currency),
    ("BillingPeriodEnd", false, Holds::Time),
    ("BillingPeriodStart", false, Holds::Time),
    ("ChargeCategory", false, Holds::OneOf(&["Usage", "Purchase", "Tax", "Credit", "Adjustment"])),
    ("ChargeClass", true, Holds::OneOf(&["Correction"])),
    ("ChargeDescription", true, Holds::Text),
    ("ChargePeriodEnd", false, Holds::Time),
    ("ChargePeriodStart", false, Holds::Time),
    ("ContractedCost", false, Holds::Decimal),
    ("EffectiveCost", false, Holds::Decimal),
    ("HostProviderName", false, Holds::Text),
    ("InvoiceIssuerName", false, Holds::Text),
    ("ListCost", false, Holds::Decimal),
    ("PricingQuantity", true, Holds::Decimal),
    ("PricingUnit", true, Holds::Unit),
    ("ProviderName", false, Holds::Text),
    ("PublisherName", false, Holds::Text),
    ("ServiceCategory", false, Holds::OneOf(CATEGORIES)),
    ("ServiceName", false, Holds::Text),
    ("ServiceProviderName", false, Holds::Text),
];

/// Of the recommended and conditional ones those that are there.
const OTHERS: &[(&str, bool, Holds)] = &[
    ("ChargeFrequency", false, Holds::OneOf(&["One-Time", "Recurring", "Usage-Based"])),
    ("ConsumedQuantity", true, Holds::Decimal),
    ("ConsumedUnit", true, Holds::Unit),
    ("ContractedUnitPrice", true, Holds::Decimal),
    ("InvoiceId", true, Holds::Text),
    ("ListUnitPrice", true, Holds::Decimal),
    ("PricingCategory", true, Holds::OneOf(&["Standard", "Dynamic", "Committed", "Other"])),
    ("ResourceId", true, Holds::Text),
    ("ResourceType", true, Holds::Text),
    ("ServiceSubcategory", false, Holds::OneOf(SUBCATEGORIES)),
    ("SkuId", true, Holds::Text),
    ("SkuMeter", true, Holds::Text),
    ("SkuPriceId", true, Holds::Text),
    ("SubAccountId", true, Holds::Text),
    ("SubAccountName", true, Holds::Text),
];

/// What must not be null in a row of usage that is no correction, and is null in others of ours.
const OF_USAGE: &[&str] = &[
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
];

impl Holds {
    fn allows(self, value: &str) -> bool {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Holds::Text => value.trim() == value,
            Holds::Decimal => {
                let digits = value.strip_prefix('-').unwrap_or(value);
                let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
                is_number(whole) && is_number(part)
            }
            Holds::Time => {
                value.len() == "2026-11-01T00:00:00Z".len()
                    && value.ends_with('Z')
                    && value.parse::<Moment>().is_ok()
            }
            Holds::Currency => value.len() == 3 && value.bytes().all(|byte| byte.is_ascii_uppercase()),
            Holds::Unit => {
                let capital = |word: &str| word.starts_with(|c: char| c.is_ascii_uppercase());
                value.split('-').all(capital) && value.split_once('-').is_none_or(|(_, time)| time == "Hours")
            }
            Holds::OneOf(values) => values.contains(&value),
        }
    }
}

/// Every rule above for every row, and those of the specification that are about several columns.
fn check(rows: &[Vec<String>]) {
    let (header, rows) = rows.split_first().unwrap();
    for (column, ..) in MANDATORY {
        assert!(header.iter().any(|name| name == column), "{column} is missing");
    }
    for (index, column) in header.iter().enumerate() {
        assert!(!header[..index].contains(column), "{column} is there twice");
        let known = MANDATORY.iter().chain(OTHERS).find(|(name, ..)| name == column);
        assert!(known.is_some() || column.starts_with("x_"), "{column} is none of FOCUS's");
        let Some((_, nullable, holds)) = known else { continue };
        for row in rows {
            let value = &row[index];
            let fits = if value.is_empty() { *nullable } else { holds.allows(value) };
            assert!(fits, "{column}: {value:?} in {row:?}");
        }
    }
    for row in rows {
        assert_eq!(row.len(), header.len());
        let cell = |column: &str| row[header.iter().position(|name| name == column).unwrap()].as_str();
        let is_usage = cell("ChargeCategory") == "Usage";
        for column in OF_USAGE {
            assert_eq!(!cell(column).is_empty(), is_usage, "{column} in {row:?}");
        }
        assert_eq!(cell("ResourceId").is_empty(), cell("ResourceType").is_empty(), "{row:?}");
        let time = |column| cell(column).parse::<Moment>().unwrap().ms();
        let [begin, end] = ["BillingPeriodStart", "BillingPeriodEnd"].map(time);
        let [from, until] = ["ChargePeriodStart", "ChargePeriodEnd"].map(time);
        assert!(begin <= from && from < until && until <= end, "{row:?}");
        assert!(until - from <= DAY_MS || cell("ResourceId").is_empty(), "{row:?}");
        if is_usage {
            let number = |column| cell(column).parse::<f64>().unwrap();
            let (quantity, price) = (number("PricingQuantity"), number("ListUnitPrice"));
            // What rounding left of the row before is in its cost.
            let off = (quantity * price - number("ListCost")).abs();
            assert!(off <= 1.001e-6, "{quantity} x {price} in {row:?}");
        }
    }
}

fn sum(rows: &[Vec<String>]) -> i64 {
    let micro = |row: &Vec<String>| row[0].parse::<crate::cli::Micro>().unwrap().0;
    rows[1..].iter().map(micro).sum()
}

const NOVEMBER_MS: u64 = 1_793_491_200_000;

fn line(tenant: &str, meter: Meter, gflops: u64, amount: u64, rate: Rate) -> Line {
    let goods = Goods { pool: "default".into(), model: "GPU, \"one\"".into(), gflops, ..Goods::default() };
    Line::new(tenant.parse().unwrap(), meter, goods, amount, rate)
}

fn charge(day: u64, lease: u64, line: Line) -> Charge {
    let from_ms = NOVEMBER_MS + day * DAY_MS;
    Charge { from_ms, until_ms: from_ms + DAY_MS, lease, node: "gpu1".into(), line }
}

/// Thirds of GPU-hours on several days, in unit-hours as well; memory without a price; corrections.
fn november() -> (Bill, Vec<Charge>) {
    let third = sluice_api::usage::GPU_HOUR_PPM_MS / 3;
    let (gpu, unit) =
        (Rate { micro: 2_000_001, per: PricePer::Gpu }, Rate { micro: 50_000, per: PricePer::Unit });
    let reserved = |amount| line("acme/a", Meter::Reserved, 0, amount, gpu);
    let units = |amount| line("acme/b", Meter::Reserved, 66_908, amount, unit);
    let charges = vec![
        charge(0, 1, reserved(third)),
        charge(0, 2, reserved(third)),
        charge(1, 2, reserved(third + 7)),
        charge(1, 3, units(third)),
        charge(29, 3, units(1)),
    ];
    let free = line("acme/a", Meter::Memory, 0, 1 << 40, Rate::default());
    let lines = vec![reserved(3 * third + 7), units(third + 1), free];
    let correction = |id, micro, made_at_ms| {
        json!({ "id": id, "tenant": "acme", "micro": micro, "at_ms": NOVEMBER_MS + 5, "reason": "a fault, \"ours\"",
                "made_at_ms": made_at_ms, "made_by": "t" })
    };
    let until_ms = NOVEMBER_MS + 30 * DAY_MS;
    let corrections = [correction(1, -500_000, NOVEMBER_MS + 9), correction(2, 250_000, until_ms + DAY_MS)];
    let used: u64 = lines.iter().map(|line| line.cost_micro).sum();
    let bill = json!({
        "tenant": "acme", "currency": "EUR", "issuer": "Acme Compute", "from_ms": NOVEMBER_MS, "until_ms": until_ms,
        "total_micro": used as i64 - 250_000, "records": 4, "lines": lines, "corrections": corrections,
    });
    (serde_json::from_value(bill).unwrap(), charges)
}

#[test]
fn every_row_is_as_the_specification_says_and_all_add_up_to_the_bill() {
    let (bill, charges) = november();
    let rows = Export { bill: &bill, number: None, charges, invoices: &[] }.rows().unwrap();
    assert_eq!(rows.len(), 1 + 5 + 2, "a row for each lease and day, none for what has no price");
    check(&rows);
    assert_eq!(sum(&rows), bill.total_micro);
    let cell =
        |row: usize, column: &str| rows[row][COLUMNS.iter().position(|c| *c == column).unwrap()].as_str();
    for (row, column, expect) in [
        (1, "SubAccountId", "acme/a"),
        (1, "BillingAccountId", "acme"),
        (1, "BillingCurrency", "EUR"),
        (1, "InvoiceIssuerName", "Acme Compute"),
        (1, "BillingPeriodStart", "2026-11-01T00:00:00Z"),
        (1, "BillingPeriodEnd", "2026-12-01T00:00:00Z"),
        (3, "ChargePeriodStart", "2026-11-02T00:00:00Z"),
        (3, "ResourceId", "lease/2"),
        (3, "x_Node", "gpu1"),
        (3, "InvoiceId", ""),
        (1, "SkuId", "reserved/standard/default/GPU, \"one\""),
        (1, "PricingUnit", "GPU-Hours"),
        (4, "PricingUnit", "Unit-Hours"),
        (4, "SkuPriceId", "reserved/standard/default/GPU, \"one\"/unit/0.05"),
        (6, "BilledCost", "-0.5"),
        (6, "ChargeCategory", "Adjustment"),
        (6, "ChargeClass", ""),
        (7, "ChargeClass", ""),
    ] {
        assert_eq!(cell(row, column), expect, "{column} of {row}");
    }
}

#[test]
fn bytes_that_were_moved_are_told_in_gib() {
    let (bill, _) = november();
    let moved = line("acme/a", Meter::Transfer, 0, 3 << 29, Rate { micro: 100_000, per: PricePer::Gpu });
    let bill = Bill { lines: vec![moved.clone()], corrections: Vec::new(), total_micro: 150_000, ..bill };
    let export = Export { bill: &bill, number: None, charges: vec![charge(0, 1, moved)], invoices: &[] };
    let rows = export.rows().unwrap();
    check(&rows);
    assert_eq!(sum(&rows), bill.total_micro);
    let cell = |column: &str| rows[1][COLUMNS.iter().position(|c| *c == column).unwrap()].as_str();
    assert_eq!(["ConsumedQuantity", "PricingUnit", "SkuMeter"].map(cell), ["1.5", "GiB", "transfer"]);
}

#[test]
fn credits_are_rows_of_their_day_and_lease() {
    let (bill, charges) = november();
    let credit = json!({
        "tenant": "acme/a", "lease": 2, "tier": "premium", "pool": "default", "from_ms": NOVEMBER_MS + DAY_MS,
        "until_ms": NOVEMBER_MS + 2 * DAY_MS, "wait_us": 20_000, "attained_ppm": 990_000, "credit_ppm": 100_000,
        "waits": 1000, "within": 982, "reserved_micro": 666_667, "micro": 66_667,
    });
    let credits = vec![serde_json::from_value(credit).unwrap()];
    let bill = Bill { credits, total_micro: bill.total_micro - 66_667, ..bill };
    let invoice = |bill: &Bill| -> Invoice {
        let issued_at_ms = bill.until_ms + 5;
        serde_json::from_value(json!({ "number": 7, "issued_at_ms": issued_at_ms, "bill": bill })).unwrap()
    };
    let has_it = invoice(&bill);
    let without = invoice(&Bill { credits: Vec::new(), ..bill.clone() });
    for (invoice, number) in [(has_it, "7"), (without, "")] {
        let export = Export {
            bill: &bill,
            number: None,
            charges: charges.clone(),
            invoices: std::slice::from_ref(&invoice),
        };
        let rows = export.rows().unwrap();
        check(&rows);
        assert_eq!(sum(&rows), bill.total_micro);
        let row = rows.last().unwrap();
        let cell = |column: &str| row[COLUMNS.iter().position(|c| *c == column).unwrap()].as_str();
        assert_eq!(
            ["BilledCost", "ChargeCategory", "ResourceId"].map(cell),
            ["-0.066667", "Credit", "lease/2"]
        );
        assert_eq!(
            ["ChargePeriodStart", "InvoiceId", "x_Tier"].map(cell),
            ["2026-11-02T00:00:00Z", number, "premium"]
        );
        assert!(cell("ChargeDescription").contains("98.2% of 1000 waits; 99% within 20ms promised: missed"));
    }
}

#[test]
fn an_invoice_is_told_as_it_was_issued() {
    let (mut bill, mut charges) = november();
    let late = bill.corrections.pop().unwrap();
    bill.total_micro -= late.micro;
    let issued = |number: u64, carried: serde_json::Value| -> Invoice {
        let issued_at_ms = bill.until_ms + 5;
        let invoice =
            json!({ "number": number, "issued_at_ms": issued_at_ms, "bill": bill, "carried": carried });
        serde_json::from_value(invoice).unwrap()
    };
    let invoice = issued(7, json!([]));
    // Another one for the next day, which has what came late.
    let mut next = issued(
        8,
        json!([{ "invoice": 7, "correction": late.id, "reason": late.reason, "micro": late.micro }]),
    );
    (next.bill.from_ms, next.bill.until_ms) = (bill.until_ms, bill.until_ms + 1);
    let of = |charges: &[Charge]| {
        let export = Export {
            bill: &invoice.bill,
            number: Some(7),
            charges: charges.to_vec(),
            invoices: std::slice::from_ref(&invoice),
        };
        export.rows().unwrap()
    };
    let rows = of(&charges);
    check(&rows);
    assert_eq!((rows.len(), sum(&rows)), (1 + 5 + 1, bill.total_micro));
    // What arrived later is of one line, which is told as a whole; the other line's days still are.
    charges[0].line.amount += 1;
    let rows = of(&charges);
    check(&rows);
    assert_eq!((rows.len(), sum(&rows)), (1 + 2 + 1 + 1, bill.total_micro));

    // A bill of the time in which it was issued names it, and what was corrected afterwards.
    bill.corrections.push(late);
    let (_, charges) = november();
    let export = Export { bill: &bill, number: None, charges, invoices: std::slice::from_ref(&invoice) };
    let rows = export.rows().unwrap();
    check(&rows);
    let column = |name: &str| -> Vec<&str> {
        let index = COLUMNS.iter().position(|column| *column == name).unwrap();
        rows[1..].iter().map(|row| row[index].as_str()).collect()
    };
    assert_eq!(column("InvoiceId"), ["7", "7", "7", "7", "7", "7", ""]);
    assert_eq!(column("ChargeClass"), ["", "", "", "", "", "", "Correction"]);
    let (_, charges) = november();
    let invoices = [invoice, next];
    let rows = Export { bill: &bill, number: None, charges, invoices: &invoices }.rows().unwrap();
    let index = COLUMNS.iter().position(|column| *column == "InvoiceId").unwrap();
    assert_eq!(rows.last().unwrap()[index], "8");
}

#[test]
fn who_bills_in_what_has_to_be_declared() {
    let (bill, _) = november();
    for bill in [Bill { currency: None, ..bill.clone() }, Bill { issuer: None, ..bill.clone() }] {
        let export = Export { bill: &bill, number: None, charges: Vec::new(), invoices: &[] };
        assert!(export.rows().unwrap_err().to_string().contains("none is declared"));
    }
}
