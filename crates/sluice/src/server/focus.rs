//! Bills in the FinOps Open Cost and Usage Specification, FOCUS 1.3 (focus.finops.org): a row for
//! each lease, node, meter and day, for each correction, and for each credit.

use std::collections::HashMap;

use anyhow::{Context, Result};
use sluice_api::bill::{Bill, Charge, Correction, Credit, Goods, Line, Meter, PricePer, Rate};
use sluice_api::invoice::Invoice;
use sluice_api::tenant::TenantPath;

use super::bills::signed;
use super::lists::millionths;
use crate::moment::Moment;

/// Mandatory columns of FOCUS 1.3, chapter 2 (`ProviderName` and `PublisherName` are deprecated
/// there, and mandatory), of the others those that say something here, and, beginning with `x_`,
/// our own.
const COLUMNS: [&str; 43] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "x_GpuModel",
    "x_Lease",
    "x_Node",
    "x_Pool",
    "x_Tier",
];

const DAY_MS: u64 = 24 * 3_600_000;

/// A bill, and what is known of it besides.
pub(super) struct Export<'a> {
    pub(super) bill: &'a Bill,
    /// The number of its invoice, if it is one's.
    pub(super) number: Option<u64>,
    /// Of the bill's period.
    pub(super) charges: Vec<Charge>,
    /// All that have been issued.
    pub(super) invoices: &'a [Invoice],
}

/// What a line is of; charges of the same add up to it.
type Key = (TenantPath, Meter, Goods, Rate);

fn key(line: &Line) -> Key {
    let rate = Rate { micro: line.price_micro, per: line.per };
    (line.tenant.clone(), line.meter, line.goods.clone(), rate)
}

impl Export<'_> {
    /// The header and the rows. Their costs add up to the bill's total: what rounding leaves of a
    /// line goes to the next row of it.
    pub(super) fn rows(self) -> Result<Vec<Vec<String>>> {
        let currency =
            self.bill.currency.as_ref().context(
                "FOCUS wants a currency, and none is declared: `sluice apply` takes `currency: EUR`",
            )?;
        let issuer = self.bill.issuer.as_ref().context(
            "FOCUS wants the name of who bills, and none is declared: `sluice apply` takes `issuer: NAME`",
        )?;
        let (currency, issuer) = (currency.to_string(), issuer.as_str());
        let mut amounts: HashMap<Key, u64> = HashMap::new();
        for charge in &self.charges {
            *amounts.entry(key(&charge.line)).or_default() += charge.line.amount;
        }
        let lines = self.bill.lines.iter().filter(|line| line.price_micro > 0);
        let wholes: HashMap<Key, u64> = lines.clone().map(|line| (key(line), line.amount)).collect();
        // Usage that arrived after an invoice was issued is not on it: its lines are shown as they
        // were issued. What arrived since a bill was made is on the next one.
        let is_whole =
            |line: &Line| self.number.is_none() || amounts.get(&key(line)) == wholes.get(&key(line));
        let mut rows = vec![COLUMNS.map(String::from).to_vec()];
        let mut so_far: HashMap<Key, u64> = HashMap::new();
        for charge in self.charges.iter().filter(|charge| is_whole(&charge.line)) {
            let before = so_far.entry(key(&charge.line)).or_default();
            let line = part(&charge.line, *before);
            *before += line.amount;
            let row = Row { from_ms: charge.from_ms, until_ms: charge.until_ms, currency: &currency, issuer };
            rows.push(row.of_line(&self, &line, Some(charge)));
        }
        for line in lines.filter(|line| !is_whole(line)) {
            let Bill { from_ms, until_ms, .. } = *self.bill;
            rows.push(Row { from_ms, until_ms, currency: &currency, issuer }.of_line(&self, line, None));
        }
        for correction in &self.bill.corrections {
            let day_ms = correction.at_ms - correction.at_ms % DAY_MS;
            let from_ms = day_ms.max(self.bill.from_ms);
            let until_ms = (day_ms + DAY_MS).min(self.bill.until_ms);
            rows.push(
                Row { from_ms, until_ms, currency: &currency, issuer }.of_correction(&self, correction),
            );
        }
        for credit in &self.bill.credits {
            let Credit { from_ms, until_ms, .. } = *credit;
            rows.push(Row { from_ms, until_ms, currency: &currency, issuer }.of_credit(&self, credit));
        }
        Ok(rows)
    }

    /// The invoice that a charge is on, where one is issued.
    fn invoice_of(&self, tenant: &TenantPath, from_ms: u64, until_ms: u64) -> Option<&Invoice> {
        let covers = |invoice: &&Invoice| {
            let bill = &invoice.bill;
            let has_period = bill.from_ms <= from_ms && until_ms <= bill.until_ms;
            invoice.covers() && has_period && bill.tenant.contains(tenant)
        };
        self.invoices.iter().find(covers)
    }

    /// The invoice that has a correction of an earlier one's period.
    fn invoice_carrying(&self, correction: &Correction) -> Option<&Invoice> {
        let mut invoices = self.invoices.iter().filter(|invoice| invoice.covers());
        invoices
            .find(|invoice| invoice.carried.iter().any(|carried| carried.correction == Some(correction.id)))
    }
}

/// The part of a line that comes after `before` of it, its cost rounded so that all parts add up to
/// the line.
fn part(line: &Line, before: u64) -> Line {
    let rate = Rate { micro: line.price_micro, per: line.per };
    let until = |amount| Line::new(line.tenant.clone(), line.meter, line.goods.clone(), amount, rate);
    let (from, to) = (until(before), until(before + line.amount));
    Line { cost_micro: to.cost_micro - from.cost_micro, ..line.clone() }
}

/// What all columns are about.
struct Row<'a> {
    from_ms: u64,
    until_ms: u64,
    currency: &'a str,
    issuer: &'a str,
}

impl Row<'_> {
    fn of_line(&self, export: &Export<'_>, line: &Line, charge: Option<&Charge>) -> Vec<String> {
        let (cost, price) = (millionths(line.cost_micro), millionths(line.price_micro));
        let quantity = quantity(line);
        let Goods { tier, pool, model, .. } = &line.goods;
        let sku = format!("{}/{}/{pool}/{model}", line.meter.name(), tier.name());
        let lease = charge.map_or_else(String::new, |charge| charge.lease.to_string());
        let number = match export.number {
            None => {
                export.invoice_of(&line.tenant, self.from_ms, self.until_ms).map(|invoice| invoice.number)
            }
            number => number,
        };
        self.render(export, |column| {
            Some(match column {
                "BilledCost" | "ContractedCost" | "EffectiveCost" | "ListCost" => cost.clone(),
                "ChargeCategory" => "Usage".into(),
                "ChargeDescription" => format!("{} of {model}, tier {}", line.meter.name(), tier.name()),
                "ChargeFrequency" => "Usage-Based".into(),
                "ConsumedQuantity" | "PricingQuantity" => quantity.clone(),
                "ConsumedUnit" | "PricingUnit" => unit_name(line).into(),
                "ContractedUnitPrice" | "ListUnitPrice" => price.clone(),
                "InvoiceId" => number.map_or_else(String::new, |number| number.to_string()),
                "PricingCategory" => "Standard".into(),
                "ResourceId" if charge.is_some() => format!("lease/{lease}"),
                "ResourceType" if charge.is_some() => "GPU lease".into(),
                "SkuId" => sku.clone(),
                "SkuMeter" => line.meter.name().into(),
                "SkuPriceId" => match line.per {
                    PricePer::Gpu => format!("{sku}/{price}"),
                    PricePer::Unit => format!("{sku}/unit/{price}"),
                },
                "SubAccountId" | "SubAccountName" => line.tenant.to_string(),
                "x_GpuModel" => model.clone(),
                "x_Lease" => lease.clone(),
                "x_Node" => charge.map_or_else(String::new, |charge| charge.node.clone()),
                "x_Pool" => pool.clone(),
                "x_Tier" => tier.name().into(),
                _ => return None,
            })
        })
    }

    fn of_correction(&self, export: &Export<'_>, correction: &Correction) -> Vec<String> {
        let Correction { tenant, micro, at_ms, made_at_ms, reason, .. } = correction;
        let invoice = export.invoice_of(tenant, *at_ms, at_ms + 1);
        // It stands on the invoice that was issued after it, or corrects the one that was issued
        // before and stands on a later one.
        let is_later = invoice.is_some_and(|invoice| invoice.issued_at_ms < *made_at_ms);
        let has_it = if is_later { export.invoice_carrying(correction) } else { invoice };
        let number = has_it.map(|invoice| invoice.number);
        self.render(export, |column| {
            Some(match column {
                "BilledCost" | "ContractedCost" | "EffectiveCost" | "ListCost" => signed(*micro),
                "ChargeCategory" => "Adjustment".into(),
                "ChargeClass" if is_later => "Correction".into(),
                "ChargeDescription" => reason.clone(),
                "ChargeFrequency" => "One-Time".into(),
                "InvoiceId" => export.number.or(number).map_or_else(String::new, |number| number.to_string()),
                "SubAccountId" | "SubAccountName" => tenant.to_string(),
                _ => return None,
            })
        })
    }

    fn of_credit(&self, export: &Export<'_>, credit: &Credit) -> Vec<String> {
        let Credit { tenant, lease, tier, pool, micro, .. } = credit;
        let cost = signed(-i64::try_from(*micro).unwrap_or(i64::MAX));
        // One that came of usage that arrived later is not on the invoice of its period.
        let invoice = export.invoice_of(tenant, self.from_ms, self.until_ms);
        let invoice = invoice.filter(|invoice| invoice.bill.credits.contains(credit));
        let number = export.number.or(invoice.map(|invoice| invoice.number));
        self.render(export, |column| {
            Some(match column {
                "BilledCost" | "ContractedCost" | "EffectiveCost" | "ListCost" => cost.clone(),
                "ChargeCategory" => "Credit".into(),
                "ChargeDescription" => credit.reason(),
                "ChargeFrequency" => "One-Time".into(),
                "InvoiceId" => number.map_or_else(String::new, |number| number.to_string()),
                "ResourceId" => format!("lease/{lease}"),
                "ResourceType" => "GPU lease".into(),
                "SubAccountId" | "SubAccountName" => tenant.to_string(),
                "x_Lease" => lease.to_string(),
                "x_Pool" => pool.clone(),
                "x_Tier" => tier.name().into(),
                _ => return None,
            })
        })
    }

    /// What all rows of a bill have in common stands here; what a row does not say is empty, which
    /// is FOCUS's null.
    fn render(&self, export: &Export<'_>, special: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let bill = export.bill;
        let (begin_ms, end_ms) = match export.number {
            Some(_) => (bill.from_ms, bill.until_ms),
            None => month_of(self.from_ms),
        };
        let time = |ms| Moment::from_ms(ms).to_string();
        let common = |column: &str| match column {
            "BillingAccountId" | "BillingAccountName" => bill.tenant.to_string(),
            "BillingCurrency" => self.currency.into(),
            "BillingPeriodStart" => time(begin_ms),
            "BillingPeriodEnd" => time(end_ms),
            "ChargePeriodStart" => time(self.from_ms),
            "ChargePeriodEnd" => time(self.until_ms),
            "HostProviderName"
            | "InvoiceIssuerName"
            | "ProviderName"
            | "PublisherName"
            | "ServiceProviderName" => self.issuer.into(),
            "ServiceCategory" => "Compute".into(),
            "ServiceName" => "Sluice".into(),
            "ServiceSubcategory" => "Other (Compute)".into(),
            _ => String::new(),
        };
        COLUMNS.iter().map(|column| special(column).unwrap_or_else(|| common(column))).collect()
    }
}

/// To twelve digits: its product with any price is the cost, to the millionth.
fn quantity(line: &Line) -> String {
    const DIGITS: u128 = 1_000_000_000_000;
    let (times, of) = match line.per {
        PricePer::Gpu => (1, 1),
        PricePer::Unit => (line.goods.gflops, sluice_api::UNIT_GFLOPS),
    };
    let unit = u128::from(line.meter.unit()) * u128::from(of);
    let scaled = u128::from(line.amount).checked_mul(u128::from(times)).and_then(|n| n.checked_mul(DIGITS));
    let Some(scaled) = scaled else { return millionths(line.quantity_micro) };
    let number = scaled.saturating_add(unit / 2) / unit;
    let text = format!("{}.{:012}", number / DIGITS, number % DIGITS);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As FOCUS writes units (its attribute Unit Format).
fn unit_name(line: &Line) -> &'static str {
    match (line.meter, line.per) {
        (Meter::Memory, _) => "GiB-Hours",
        (Meter::Transfer, _) => "GiB",
        (_, PricePer::Gpu) => "GPU-Hours",
        (_, PricePer::Unit) => "Unit-Hours",
    }
}

/// The beginning of the month that a moment is in, and of the next one.
pub(super) fn month_of(at_ms: u64) -> (u64, u64) {
    let month = sluice_api::bill::BudgetPeriod::Month;
    (month.began_ms(at_ms), month.ends_ms(at_ms).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
