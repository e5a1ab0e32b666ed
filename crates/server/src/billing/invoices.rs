//! Invoices made of bills: lines in the currency's smallest unit, tax, amounts that came late for
//! earlier invoices, and the cost by day, user and program.

use std::collections::{BTreeMap, HashMap};

use sluice_api::bill::{Bill, Currency, Line, Meter};
use sluice_api::invoice::{
    BillTo, Carried, Detail, Invoice, InvoiceLine, InvoiceState, Invoicing, Party, rounded,
};
use sluice_api::lease::LeaseId;
use sluice_api::pool::Tier;
use sluice_api::tenant::TenantPath;
use sluice_api::written::moment;

use super::{Cursor, DAY_MS, Ledger, Period, day_of};
use crate::store::{Store, StoreError};

/// The most rows by day, user and program on one document. Where there are more, the days are added
/// up.
const DETAILS_MAX: usize = 2_000;
/// The number of charges that are read at a time.
const CHARGES_MAX: usize = 10_000;
/// The number of decimal digits where no currency is declared.
const DIGITS_USUAL: u8 = 2;

/// Makes invoices. It reads the usage of a period once for all invoices of that period.
pub(crate) struct Invoicer<'a> {
    store: &'a Store,
    ledger: Ledger<'a>,
}

impl<'a> Invoicer<'a> {
    pub(crate) async fn new(store: &'a Store) -> Result<Invoicer<'a>, StoreError> {
        Ok(Invoicer { store, ledger: Ledger::new(store).await? })
    }

    /// Makes a draft. `earlier` has the invoices of the tenant and of tenants below it.
    pub(crate) async fn draft(
        &mut self,
        tenant: TenantPath,
        period: Period,
        bill_to: Option<BillTo>,
        earlier: &[Invoice],
        now_ms: u64,
    ) -> Result<Invoice, StoreError> {
        let bill = self.ledger.bill(tenant.clone(), period).await?;
        let carried = self.carried(&tenant, earlier).await?;
        let details = self.details(&tenant, period).await?;
        let invoicing = self.ledger.terms.seller.invoicing.clone().unwrap_or_default();
        Ok(document(bill, carried, details, invoicing, bill_to.unwrap_or_default(), now_ms))
    }

    /// Finds what came late for the periods of earlier invoices and is on no invoice yet.
    pub(crate) async fn carried(
        &mut self,
        tenant: &TenantPath,
        earlier: &[Invoice],
    ) -> Result<Vec<Carried>, StoreError> {
        let mut carried = Vec::new();
        for invoice in
            earlier.iter().filter(|invoice| invoice.covers() && tenant.contains(&invoice.bill.tenant))
        {
            let Bill { from_ms, until_ms, .. } = invoice.bill;
            let now = self.ledger.bill(invoice.bill.tenant.clone(), Period { from_ms, until_ms }).await?;
            carried.extend(differences(invoice, &now, earlier));
        }
        Ok(carried)
    }

    async fn details(&self, tenant: &TenantPath, period: Period) -> Result<Vec<Detail>, StoreError> {
        let mut costs: BTreeMap<(u64, LeaseId), u64> = BTreeMap::new();
        let mut place = Some(Cursor { from_ms: period.from_ms, after: None });
        while let Some(at) = place {
            let day = day_of(self.store, tenant, period, at, CHARGES_MAX, |node| node.to_string()).await?;
            for charge in day.charges {
                let cost = costs.entry((charge.from_ms - charge.from_ms % DAY_MS, charge.lease)).or_default();
                *cost = cost.saturating_add(charge.line.cost_micro);
            }
            place = day.next;
        }
        let leases: Vec<LeaseId> = costs.keys().map(|(_, lease)| *lease).collect();
        let names = self.store.programs_of(&leases).await?;
        Ok(by_person(&costs, &names))
    }
}

/// Compares the bill of an earlier invoice's period now and at the time of issue, less what other
/// invoices bill already.
fn differences(invoice: &Invoice, now: &Bill, all: &[Invoice]) -> Vec<Carried> {
    let then = &invoice.bill;
    let others = all.iter().filter(|other| other.covers()).flat_map(|other| &other.carried);
    let done: Vec<&Carried> = others.filter(|carried| carried.invoice == invoice.number).collect();
    let mut rest = now.total_micro - then.total_micro - done.iter().map(|carried| carried.micro).sum::<i64>();
    let mut carried = Vec::new();
    for correction in &now.corrections {
        let is_known = then.corrections.iter().any(|known| known.id == correction.id)
            || done.iter().any(|known| known.correction == Some(correction.id));
        if !is_known {
            rest -= correction.micro;
            carried.push(Carried {
                invoice: invoice.number,
                correction: Some(correction.id),
                reason: correction.reason.clone(),
                micro: correction.micro,
                records: 0,
            });
        }
    }
    let records =
        now.records as i64 - then.records as i64 - done.iter().map(|carried| carried.records).sum::<i64>();
    if rest != 0 || records != 0 {
        let reason = "usage that arrived after the invoice".to_owned();
        carried.push(Carried { invoice: invoice.number, correction: None, reason, micro: rest, records });
    }
    carried
}

/// Adds up the cost by day, user and program, or without days where that would be too many rows.
fn by_person(
    costs: &BTreeMap<(u64, LeaseId), u64>,
    names: &HashMap<LeaseId, (String, String)>,
) -> Vec<Detail> {
    let rows = |with_days: bool| -> Vec<Detail> {
        let mut sums: BTreeMap<(Option<u64>, &str, &str), u64> = BTreeMap::new();
        for ((day_ms, lease), cost) in costs {
            let (user, program) = names.get(lease).map_or(("", ""), |(user, program)| (user, program));
            let sum = sums.entry((with_days.then_some(*day_ms), user, program)).or_default();
            *sum = sum.saturating_add(*cost);
        }
        let row = |((day_ms, user, program), cost_micro): ((Option<u64>, &str, &str), u64)| Detail {
            day_ms,
            user: user.to_owned(),
            program: program.to_owned(),
            cost_micro,
        };
        sums.into_iter().map(row).collect()
    };
    let by_day = rows(true);
    if by_day.len() <= DETAILS_MAX {
        return by_day;
    }
    let mut all = rows(false);
    all.sort_by_key(|detail| std::cmp::Reverse(detail.cost_micro));
    if all.len() > DETAILS_MAX {
        let others = all.split_off(DETAILS_MAX - 1);
        let cost_micro = others.iter().fold(0_u64, |sum, detail| sum.saturating_add(detail.cost_micro));
        let program = format!("{} others", others.len());
        all.push(Detail { day_ms: None, user: String::new(), program, cost_micro });
    }
    all
}

fn document(
    bill: Bill,
    carried: Vec<Carried>,
    details: Vec<Detail>,
    invoicing: Invoicing,
    bill_to: BillTo,
    now_ms: u64,
) -> Invoice {
    let digits = bill.currency.as_ref().map_or(DIGITS_USUAL, Currency::minor_digits);
    let lines = lines(&bill, &carried, digits);
    let net_minor: i64 = lines.iter().map(|line| line.amount_minor).fold(0, i64::saturating_add);
    let tax = bill_to.tax.or(invoicing.tax);
    let tax_minor = tax.as_ref().map_or(0, |tax| tax.on(net_minor));
    let named = |party: Party, name: String| match party.name.is_empty() {
        true => Party { name, ..party },
        false => party,
    };
    Invoice {
        number: 0,
        name: String::new(),
        state: InvoiceState::Draft,
        issued_at_ms: now_ms,
        due_at_ms: None,
        paid_at_ms: None,
        credits: None,
        credited_by: None,
        reason: None,
        seller: named(invoicing.seller, bill.issuer.clone().unwrap_or_default()),
        buyer: named(bill_to.party, bill.tenant.to_string()),
        reference: bill_to.reference,
        payment: invoicing.payment,
        carried,
        net_minor,
        tax_minor,
        total_minor: net_minor.saturating_add(tax_minor),
        tax,
        lines,
        minor_digits: digits,
        details,
        bill,
    }
}

/// Makes a document of a bill that an earlier release issued. It has no parties and no tax,
/// whatever is declared now.
pub(crate) fn of_bill(bill: Bill, number: u64, issued_at_ms: u64) -> Invoice {
    let made = document(bill, Vec::new(), Vec::new(), Invoicing::default(), BillTo::default(), issued_at_ms);
    Invoice { number, name: number.to_string(), state: InvoiceState::Issued, ..made }
}

/// Makes the lines: usage that has a price, corrections, credits, and what came late for earlier
/// invoices.
fn lines(bill: &Bill, carried: &[Carried], digits: u8) -> Vec<InvoiceLine> {
    let priced = bill.lines.iter().filter(|line| line.price_micro > 0).map(|line| {
        let cost_micro = i64::try_from(line.cost_micro).unwrap_or(i64::MAX);
        InvoiceLine {
            text: describe(bill, line),
            quantity_micro: Some(line.quantity_micro),
            unit: Some(line.unit_name().to_owned()),
            price_micro: Some(line.price_micro),
            cost_micro,
            amount_minor: rounded(cost_micro, digits),
        }
    });
    let plain = |text: String, micro: i64| InvoiceLine {
        text,
        quantity_micro: None,
        unit: None,
        price_micro: None,
        cost_micro: micro,
        amount_minor: rounded(micro, digits),
    };
    let of_tenant =
        |tenant: &TenantPath| if *tenant == bill.tenant { String::new() } else { format!("{tenant}: ") };
    let corrections = bill.corrections.iter().map(|correction| {
        plain(format!("{}{}", of_tenant(&correction.tenant), correction.reason), correction.micro)
    });
    // Most are parts of a cent, so they are added up before they are rounded.
    let mut missed: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for credit in &bill.credits {
        let promise = (&credit.tenant, credit.tier, credit.pool.as_str(), credit.promised.promise);
        let (days, micro) = missed.entry(promise).or_default();
        *days += 1;
        *micro = micro.saturating_add(credit.micro);
    }
    let credits = missed.into_iter().map(|((tenant, tier, pool, promise), (days, micro))| {
        let days = if days == 1 { "1 day of a lease".to_owned() } else { format!("{days} days of leases") };
        let text = format!(
            "{}Credit: {}, pool {pool}: {} promised, missed on {days}",
            of_tenant(tenant),
            tier.name(),
            promise.text()
        );
        plain(text, -i64::try_from(micro).unwrap_or(i64::MAX))
    });
    let late = carried.iter().filter(|carried| carried.micro != 0).map(|carried| {
        plain(format!("Late for invoice {}: {}", carried.invoice, carried.reason), carried.micro)
    });
    priced.chain(corrections).chain(credits).chain(late).collect()
}

fn describe(bill: &Bill, line: &Line) -> String {
    let what = match line.meter {
        Meter::Reserved => "GPU time reserved",
        Meter::Used => "GPU time used",
        Meter::Memory => "Device memory reserved",
        Meter::Transfer => "Data transfer",
        Meter::Suspended => "GPU time of suspended leases",
    };
    let mut text = if line.tenant == bill.tenant { String::new() } else { format!("{}: ", line.tenant) };
    text += what;
    if !line.goods.model.is_empty() {
        text += &format!(", {}", line.goods.model);
    }
    if line.goods.tier != Tier::default() {
        text += &format!(", tier {}", line.goods.tier.name());
    }
    if !line.goods.pool.is_empty() && line.goods.pool != sluice_api::pool::DEFAULT_POOL {
        text += &format!(", pool {}", line.goods.pool);
    }
    text
}

/// Makes the credit note that cancels a whole invoice.
pub(crate) fn credit_note(invoice: &Invoice, reason: String, now_ms: u64) -> Invoice {
    let lines = invoice.lines.iter().map(|line| InvoiceLine {
        cost_micro: -line.cost_micro,
        amount_minor: -line.amount_minor,
        ..line.clone()
    });
    Invoice {
        state: InvoiceState::Issued,
        issued_at_ms: now_ms,
        due_at_ms: None,
        paid_at_ms: None,
        credits: Some(invoice.number),
        reason: Some(reason),
        lines: lines.collect(),
        net_minor: -invoice.net_minor,
        tax_minor: -invoice.tax_minor,
        total_minor: -invoice.total_minor,
        carried: Vec::new(),
        details: Vec::new(),
        ..invoice.clone()
    }
}

/// Formats the period of a bill with its last day, such as `2026-10-01 to 2026-10-31`.
pub(crate) fn period_text(bill: &Bill) -> String {
    let until = moment(bill.until_ms);
    let last = if until.contains('T') { until } else { moment(bill.until_ms - DAY_MS) };
    format!("{} to {last}", moment(bill.from_ms))
}

#[cfg(test)]
mod tests {
    use sluice_api::bill::{Correction, Credit};
    use sluice_api::invoice::Tax;
    use sluice_api::pool::{Promise, Promised};

    use super::*;

    fn bill(total_micro: i64, records: u64, corrections: Vec<Correction>) -> Bill {
        let bill = serde_json::json!({
            "tenant": "acme", "currency": "EUR", "issuer": "Acme Compute", "from_ms": 0, "until_ms": 10, "lines": [],
            "corrections": corrections, "total_micro": total_micro, "records": records,
        });
        serde_json::from_value(bill).unwrap()
    }

    fn correction(id: u64, micro: i64) -> Correction {
        let (at_ms, made_at_ms) = (5, 50);
        let (tenant, reason, made_by) = ("acme".parse().unwrap(), "a fault".to_owned(), "t".to_owned());
        Correction { id, tenant, micro, at_ms, reason, made_at_ms, made_by }
    }

    fn issued(number: u64, bill: Bill, carried: Vec<Carried>) -> Invoice {
        let made = document(bill, carried, Vec::new(), Invoicing::default(), BillTo::default(), 0);
        Invoice { number, state: InvoiceState::Issued, ..made }
    }

    #[test]
    fn what_came_late_is_carried_once_whatever_it_is() {
        let first = issued(1, bill(1_000_000, 10, Vec::new()), Vec::new());
        let now = bill(1_000_000 - 300_000 + 50_000, 12, vec![correction(7, -300_000)]);
        let late = differences(&first, &now, std::slice::from_ref(&first));
        let seen: Vec<_> =
            late.iter().map(|carried| (carried.correction, carried.micro, carried.records)).collect();
        assert_eq!(seen, [(Some(7), -300_000, 0), (None, 50_000, 2)]);
        let second = issued(2, bill(0, 0, Vec::new()), late);
        assert_eq!(differences(&first, &now, &[first.clone(), second.clone()]), []);
        // An invoice that was taken back leaves it to the next one.
        let taken_back = Invoice { state: InvoiceState::Credited, ..second };
        assert_eq!(differences(&first, &now, &[first.clone(), taken_back]).len(), 2);
    }

    #[test]
    fn credits_of_parts_of_a_cent_are_added_up_before_they_are_rounded() {
        let promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 100_000 };
        let credit = |lease| Credit {
            tenant: "acme/a".parse().unwrap(),
            lease,
            tier: Tier::Premium,
            pool: "p".into(),
            from_ms: 0,
            until_ms: 10,
            promised: Promised { promise, waits: 2, within: 1 },
            reserved_micro: 40_000,
            micro: 4_000,
        };
        let bill = Bill { credits: (1..=1000).map(credit).collect(), ..bill(-4_000_000, 1000, Vec::new()) };
        let lines = lines(&bill, &[], 2);
        let text = "acme/a: Credit: premium, pool p: 20ms for 99% promised, missed on 1000 days of leases";
        assert_eq!((lines.len(), lines[0].text.as_str(), lines[0].amount_minor), (1, text, -400));
    }

    #[test]
    fn lines_are_rounded_added_up_and_taxed() {
        let mut of_month = bill(0, 1, vec![correction(1, -1_005_000)]);
        let line = |micro: u64| {
            let goods = sluice_api::bill::Goods {
                pool: "default".into(),
                model: "H100".into(),
                ..Default::default()
            };
            let rate = sluice_api::bill::Rate { micro, per: sluice_api::bill::PricePer::Gpu };
            Line::new(
                "acme/a".parse().unwrap(),
                Meter::Reserved,
                goods,
                sluice_api::usage::GPU_HOUR_PPM_MS,
                rate,
            )
        };
        of_month.lines = vec![line(2_004_000), line(1_005_000), line(0)];
        let tax = Some(Tax { name: "VAT".into(), percent_milli: 19_000 });
        let invoicing = Invoicing { tax: tax.clone(), ..Invoicing::default() };
        let made =
            document(of_month.clone(), Vec::new(), Vec::new(), invoicing.clone(), BillTo::default(), 0);
        let amounts: Vec<i64> = made.lines.iter().map(|line| line.amount_minor).collect();
        assert_eq!(amounts, [200, 101, -101]);
        assert_eq!((made.net_minor, made.tax_minor, made.total_minor), (200, 38, 238));
        assert_eq!(made.amount(made.total_minor), "2.38");
        assert_eq!(made.lines[0].text, "acme/a: GPU time reserved, H100");
        assert_eq!((made.seller.name.as_str(), made.buyer.name.as_str()), ("Acme Compute", "acme"));
        let free = BillTo {
            tax: Some(Tax { name: "reverse charge".into(), percent_milli: 0 }),
            ..BillTo::default()
        };
        let made = document(of_month, Vec::new(), Vec::new(), invoicing, free, 0);
        assert_eq!((made.tax_minor, made.total_minor), (0, 200));
        let note = credit_note(&Invoice { number: 4, ..made }, "twice".into(), 9);
        assert_eq!((note.total_minor, note.credits, note.lines[2].amount_minor), (-200, Some(4), 101));
        assert!(!note.covers());
    }

    #[test]
    fn an_invoice_without_a_document_gets_the_lines_of_its_bill() {
        let old = of_bill(bill(-1_005_000, 0, vec![correction(1, -1_005_000)]), 3, 9);
        assert_eq!((old.number, old.name.as_str(), old.issued_at_ms), (3, "3", 9));
        assert_eq!((old.state, old.total_minor, old.lines.len()), (InvoiceState::Issued, -101, 1));
    }

    #[test]
    fn periods_name_their_last_day() {
        let of = |until_ms| period_text(&Bill { until_ms, ..bill(0, 0, Vec::new()) });
        assert_eq!(of(31 * DAY_MS), "1970-01-01 to 1970-01-31");
        assert_eq!(of(DAY_MS + 1000), "1970-01-01 to 1970-01-02T00:00:01Z");
    }
}
