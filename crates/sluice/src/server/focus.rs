//! Bills in the FinOps Open Cost and Usage Specification, FOCUS 1.2 (focus.finops.org): one row per line and correction.

use sluice_api::bill::{Bill, Correction, Line, PricePer};

use super::bills::signed;
use super::lists::millionths;
use crate::moment::Moment;

/// Mandatory columns of FOCUS 1.2, section 2, and of the others those that say something here.
const COLUMNS: [&str; 34] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
];

/// Amounts are in the currency that the prices were declared in, which FOCUS wants named.
const CURRENCY: &str = "USD";
const SELLER: &str = "Sluice";

/// The header and a row for each line and correction of a bill, with the number of its invoice, if it is one's.
pub(super) fn rows(bill: &Bill, invoice: Option<u64>) -> Vec<Vec<String>> {
    let header = COLUMNS.map(String::from).to_vec();
    let lines = bill.lines.iter().map(|line| of_line(bill, invoice, line));
    let corrections = bill.corrections.iter().map(|correction| of_correction(bill, invoice, correction));
    std::iter::once(header).chain(lines).chain(corrections).collect()
}

fn of_line(bill: &Bill, invoice: Option<u64>, line: &Line) -> Vec<String> {
    let (cost, price) = (millionths(line.cost_micro), millionths(line.price_micro));
    let (quantity, unit) = (millionths(line.quantity_micro), line.unit_name().to_owned());
    let sku =
        format!("{}/{}/{}/{}", line.meter.name(), line.goods.tier.name(), line.goods.pool, line.goods.model);
    render(bill, invoice, |column| {
        Some(match column {
            "BilledCost" | "ContractedCost" | "EffectiveCost" | "ListCost" => cost.clone(),
            "ChargeCategory" => "Usage".into(),
            "ChargeDescription" => {
                format!("{} of {}, tier {}", line.meter.name(), line.goods.model, line.goods.tier.name())
            }
            "ChargeFrequency" => "Usage-Based".into(),
            "ConsumedQuantity" | "PricingQuantity" => quantity.clone(),
            "ConsumedUnit" | "PricingUnit" => unit.clone(),
            "ContractedUnitPrice" | "ListUnitPrice" => price.clone(),
            "PricingCategory" => "Standard".into(),
            "ResourceType" => "GPU lease".into(),
            "SkuId" => sku.clone(),
            "SkuPriceId" => match line.per {
                PricePer::Gpu => format!("{sku}/{price}"),
                PricePer::Unit => format!("{sku}/unit/{price}"),
            },
            "SubAccountId" | "SubAccountName" => line.tenant.to_string(),
            _ => return None,
        })
    })
}

fn of_correction(bill: &Bill, invoice: Option<u64>, correction: &Correction) -> Vec<String> {
    render(bill, invoice, |column| {
        Some(match column {
            "BilledCost" | "ContractedCost" | "EffectiveCost" | "ListCost" => signed(correction.micro),
            "ChargeCategory" => "Adjustment".into(),
            "ChargeClass" => "Correction".into(),
            "ChargeDescription" => correction.reason.clone(),
            "ChargeFrequency" => "One-Time".into(),
            "SubAccountId" | "SubAccountName" => correction.tenant.to_string(),
            _ => return None,
        })
    })
}

/// What all rows of a bill have in common stands here; what a row does not say is empty, which is FOCUS's null.
fn render(bill: &Bill, invoice: Option<u64>, special: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let common = |column: &str| match column {
        "BillingAccountId" | "BillingAccountName" => bill.tenant.to_string(),
        "BillingCurrency" => CURRENCY.into(),
        "BillingPeriodStart" | "ChargePeriodStart" => Moment::from_ms(bill.from_ms).to_string(),
        "BillingPeriodEnd" | "ChargePeriodEnd" => Moment::from_ms(bill.until_ms).to_string(),
        "InvoiceId" => invoice.map_or_else(String::new, |number| number.to_string()),
        "InvoiceIssuerName" | "ProviderName" | "PublisherName" | "ServiceName" => SELLER.into(),
        "ServiceCategory" => "Compute".into(),
        "ServiceSubcategory" => "Other (Compute)".into(),
        _ => String::new(),
    };
    COLUMNS.iter().map(|column| special(column).unwrap_or_else(|| common(column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_every_column() {
        let bill: Bill = serde_json::from_value(serde_json::json!({
            "tenant": "acme", "from_ms": 0, "until_ms": 3_600_000, "total_micro": 1_500_000, "records": 4,
            "lines": [{
                "tenant": "acme/a", "meter": "reserved", "tier": "basic", "pool": "default", "model": "GPU, \"one\"",
                "amount": 1, "quantity_micro": 1_000_000, "price_micro": 2_000_000, "cost_micro": 2_000_000
            }, {
                "tenant": "acme/a", "meter": "reserved", "tier": "basic", "pool": "default", "model": "H200", "gflops": 66_908,
                "amount": 1, "per": "unit", "quantity_micro": 1_000_000, "price_micro": 100_000, "cost_micro": 100_000
            }],
            "corrections": [{
                "id": 1, "tenant": "acme", "micro": -500_000, "at_ms": 5, "reason": "a fault, ours", "made_at_ms": 9,
                "made_by": "t"
            }],
        }))
        .unwrap();
        let rows = rows(&bill, Some(7));
        assert!(rows.len() == 4 && rows.iter().all(|row| row.len() == COLUMNS.len()), "{rows:?}");
        let cell =
            |row: usize, column: &str| rows[row][COLUMNS.iter().position(|c| *c == column).unwrap()].as_str();
        for (row, column, expect) in [
            (0, "BilledCost", "BilledCost"),
            (1, "BilledCost", "2"),
            (1, "SubAccountId", "acme/a"),
            (1, "BillingAccountId", "acme"),
            (1, "BillingPeriodStart", "1970-01-01T00:00:00Z"),
            (1, "ChargePeriodEnd", "1970-01-01T01:00:00Z"),
            (1, "InvoiceId", "7"),
            (1, "SkuId", "reserved/basic/default/GPU, \"one\""),
            (1, "PricingUnit", "GPU-hour"),
            (2, "PricingUnit", "unit-hour"),
            (2, "SkuPriceId", "reserved/basic/default/H200/unit/0.1"),
            (3, "BilledCost", "-0.5"),
            (3, "ChargeCategory", "Adjustment"),
            (3, "ChargeClass", "Correction"),
            (3, "ChargeDescription", "a fault, ours"),
        ] {
            assert_eq!(cell(row, column), expect, "{column}");
        }
    }
}
