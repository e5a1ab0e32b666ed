//! Invoices and reports as documents: HTML and PDF from one and the same content.

mod html;
mod pdf;
mod report;

use sluice_api::invoice::{Detail, Invoice, InvoiceLine, InvoiceState, Party, rounded};
use sluice_api::text::escaped;
use sluice_api::written::{moment, money, thousandths};

use crate::billing::period_text;

pub(crate) use html::{html, report_html};
pub(crate) use pdf::{pdf, report_pdf};
pub(crate) use report::{Column, Report, Section, csv};

/// The content of a document, in reading order. Texts that come from people are escaped.
struct Sheet {
    /// `Invoice`, `Credit note` or `Draft invoice`.
    kind: &'static str,
    /// The printed number; empty for a draft.
    number: String,
    /// The state, where it is not simply issued.
    banner: Option<String>,
    facts: Vec<(&'static str, String)>,
    seller: Vec<String>,
    buyer: Vec<String>,
    line_titles: [String; 5],
    lines: Vec<[String; 5]>,
    totals: Vec<(String, String)>,
    payment: Option<String>,
    notes: Vec<String>,
    detail_titles: [String; 4],
    details: Vec<[String; 4]>,
}

impl Sheet {
    fn of(invoice: &Invoice) -> Sheet {
        let currency = invoice.bill.currency.as_ref().map(ToString::to_string).unwrap_or_default();
        let titled = |title: &str| match currency.is_empty() {
            true => title.to_owned(),
            false => format!("{title} ({currency})"),
        };
        let is_payable = invoice.credits.is_none() && invoice.total_minor > 0;
        let rounding = "Prices and amounts are net of tax. Each line is rounded to the smallest unit of the currency, \
                        and tax is computed on the sum of the lines. Days and times are in UTC.";
        let detail_note = "The usage table shows the cost by day, user and program, without corrections; its rows are rounded one by one.";
        let details_note = (!invoice.details.is_empty()).then(|| detail_note.to_owned());
        Sheet {
            kind: kind(invoice),
            number: escaped(&invoice.name).into_owned(),
            banner: banner(invoice),
            facts: facts(invoice),
            seller: party(&invoice.seller),
            buyer: party(&invoice.buyer),
            line_titles: [
                "Description".into(),
                "Quantity".into(),
                "Unit".into(),
                titled("Unit price"),
                titled("Amount"),
            ],
            lines: invoice.lines.iter().map(|line| line_cells(invoice, line)).collect(),
            totals: totals(invoice, &currency),
            payment: invoice.payment.as_ref().filter(|_| is_payable).map(|text| escaped(text).into_owned()),
            notes: std::iter::once(rounding.to_owned()).chain(details_note).collect(),
            detail_titles: ["Day".into(), "User".into(), "Program".into(), titled("Cost")],
            details: invoice.details.iter().map(|detail| detail_cells(invoice, detail)).collect(),
        }
    }

    /// `Invoice ACME-7`.
    fn title(&self) -> String {
        format!("{} {}", self.kind, self.number).trim_end().to_owned()
    }
}

fn kind(invoice: &Invoice) -> &'static str {
    match (invoice.state, invoice.credits) {
        (InvoiceState::Draft, _) => "Draft invoice",
        (_, Some(_)) => "Credit note",
        _ => "Invoice",
    }
}

fn banner(invoice: &Invoice) -> Option<String> {
    match invoice.state {
        InvoiceState::Draft => Some("Draft for review. This is not an invoice.".to_owned()),
        InvoiceState::Paid => invoice.paid_at_ms.map(|paid_ms| format!("Paid on {}", day(paid_ms))),
        InvoiceState::Credited => {
            invoice.credited_by.map(|number| format!("Cancelled by credit note no. {number}"))
        }
        InvoiceState::Issued => None,
    }
}

fn facts(invoice: &Invoice) -> Vec<(&'static str, String)> {
    let clean = |text: &String| escaped(text).into_owned();
    let number = (!invoice.name.is_empty()).then(|| ("Number", clean(&invoice.name)));
    let mut facts: Vec<_> = number.into_iter().collect();
    facts.extend([("Date", day(invoice.issued_at_ms)), ("Service period", period_text(&invoice.bill))]);
    facts.extend(invoice.credits.map(|number| ("Cancels", format!("invoice no. {number}"))));
    facts.extend(invoice.reason.as_ref().map(|reason| ("Reason", clean(reason))));
    facts.extend(invoice.due_at_ms.map(|due_ms| ("Due date", day(due_ms))));
    facts.extend(invoice.reference.as_ref().map(|text| ("Your reference", clean(text))));
    facts.push(("Account", invoice.bill.tenant.to_string()));
    facts
}

/// The day of a moment, such as `2026-11-01`.
fn day(ms: u64) -> String {
    moment(ms).chars().take(10).collect()
}

fn line_cells(invoice: &Invoice, line: &InvoiceLine) -> [String; 5] {
    let price = |micro: u64| with_digits(money(micro), usize::from(invoice.minor_digits));
    [
        escaped(&line.text).into_owned(),
        line.quantity_micro.map(money).unwrap_or_default(),
        line.unit.clone().unwrap_or_default(),
        line.price_micro.map(price).unwrap_or_default(),
        invoice.amount(line.amount_minor),
    ]
}

fn detail_cells(invoice: &Invoice, detail: &Detail) -> [String; 4] {
    let cost = i64::try_from(detail.cost_micro).unwrap_or(i64::MAX);
    [
        detail.day_ms.map(day).unwrap_or_default(),
        escaped(&detail.user).into_owned(),
        escaped(&detail.program).into_owned(),
        invoice.amount(rounded(cost, invoice.minor_digits)),
    ]
}

fn totals(invoice: &Invoice, currency: &str) -> Vec<(String, String)> {
    let amount = |minor: i64| format!("{} {currency}", invoice.amount(minor)).trim_end().to_owned();
    let mut totals = vec![("Subtotal".to_owned(), amount(invoice.net_minor))];
    if let Some(tax) = &invoice.tax {
        let rate = thousandths(u64::from(tax.percent_milli));
        totals.push((format!("{} {rate} %", escaped(&tax.name)), amount(invoice.tax_minor)));
    }
    let name = if invoice.credits.is_some() { "Total credit" } else { "Total" };
    totals.push((name.to_owned(), amount(invoice.total_minor)));
    totals
}

/// A decimal number with at least this number of digits after the point.
fn with_digits(number: String, digits: usize) -> String {
    let has = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    if has >= digits {
        return number;
    }
    let point = if has == 0 { "." } else { "" };
    format!("{number}{point}{}", "0".repeat(digits - has))
}

fn party(party: &Party) -> Vec<String> {
    let lines = std::iter::once(&party.name).chain(&party.address).chain(&party.tax_id).chain(&party.email);
    lines.filter(|line| !line.is_empty()).map(|line| escaped(line).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn invoice() -> Invoice {
        let line = |text: &str, quantity: u64, price: u64, minor: i64| {
            serde_json::json!({
                "text": text, "quantity_micro": quantity, "unit": "GPU-hour", "price_micro": price,
                "cost_micro": minor * 10_000, "amount_minor": minor,
            })
        };
        let detail = |day: u64, user: &str, program: &str| serde_json::json!({ "day_ms": 1_790_812_800_000_u64 + day * 86_400_000, "user": user, "program": program, "cost_micro": 4_105_000 });
        let details: Vec<_> = (0..90).map(|day| detail(day, "ada@example.org", "python3 train.py")).collect();
        serde_json::from_value(serde_json::json!({
            "number": 7, "name": "ACME-7", "state": "issued", "issued_at_ms": 1_793_491_200_000_u64, "due_at_ms": 1_794_700_800_000_u64,
            "seller": { "name": "Acme Compute GmbH", "address": ["Musterstra\u{df}e 1", "10115 Berlin"], "tax_id": "VAT DE123456789" },
            "buyer": { "name": "Zak\u{142}ad <Obliczeniowy>", "address": ["\u{141}\u{f3}d\u{17a}"] },
            "payment": "IBAN DE00 0000 0000 0000 0000 00", "reference": "PO 4711",
            "bill": {
                "tenant": "acme", "currency": "EUR", "issuer": "Acme Compute GmbH", "from_ms": 1_790_812_800_000_u64,
                "until_ms": 1_793_491_200_000_u64, "lines": [], "corrections": [], "total_micro": 369_450_000, "records": 9,
            },
            "lines": [line("GPU time reserved, NVIDIA H100 80GB HBM3, tier premium, pool training", 120_500_000, 2_000_000, 24_100),
                      line("acme/research: GPU time used, NVIDIA H100 80GB HBM3", 256_900_000, 500_000, 12_845)],
            "net_minor": 36_945, "tax": { "name": "VAT", "percent_milli": 19_000 }, "tax_minor": 7_020, "total_minor": 43_965,
            "minor_digits": 2, "details": details,
        }))
        .unwrap()
    }

    #[test]
    fn a_sheet_says_who_owes_whom_what_for_when() {
        let sheet = Sheet::of(&invoice());
        assert_eq!(sheet.title(), "Invoice ACME-7");
        assert_eq!(sheet.totals.last().unwrap(), &("Total".to_owned(), "439.65 EUR".to_owned()));
        assert_eq!(sheet.totals[1], ("VAT 19 %".to_owned(), "70.20 EUR".to_owned()));
        let facts = [
            ("Number", "ACME-7".to_owned()),
            ("Date", "2026-11-01".to_owned()),
            ("Service period", "2026-10-01 to 2026-10-31".to_owned()),
            ("Due date", "2026-11-15".to_owned()),
        ];
        assert_eq!(sheet.facts[..4], facts);
        assert_eq!(sheet.line_titles[3..], ["Unit price (EUR)", "Amount (EUR)"]);
        assert_eq!(sheet.lines[0][1..], ["120.5", "GPU-hour", "2.00", "241.00"].map(String::from));
        assert_eq!(sheet.details[0][3], "4.11");
        assert!(sheet.payment.is_some() && sheet.banner.is_none());
    }

    #[test]
    fn a_document_says_its_state() {
        let draft =
            Sheet::of(&Invoice { state: InvoiceState::Draft, name: String::new(), number: 1, ..invoice() });
        assert_eq!(draft.title(), "Draft invoice");
        assert!(draft.banner.unwrap().contains("not an invoice"));
        let paid_at_ms = Some(1_794_700_800_000);
        let paid = Sheet::of(&Invoice { state: InvoiceState::Paid, paid_at_ms, ..invoice() });
        assert_eq!(paid.banner.unwrap(), "Paid on 2026-11-15");
        let credited =
            Sheet::of(&Invoice { state: InvoiceState::Credited, credited_by: Some(9), ..invoice() });
        assert!(credited.banner.unwrap().contains("credit note no. 9"));
        let note = Sheet::of(&Invoice { credits: Some(3), total_minor: -1, ..invoice() });
        assert_eq!((note.title().as_str(), note.payment), ("Credit note ACME-7", None));
    }

    #[test]
    fn prices_have_the_digits_of_their_currency() {
        for (number, digits, expect) in [
            ("2", 2, "2.00"),
            ("0.5", 2, "0.50"),
            ("0.0125", 2, "0.0125"),
            ("7", 0, "7"),
            ("1.5", 3, "1.500"),
        ] {
            assert_eq!(with_digits(number.to_owned(), digits), expect);
        }
    }
}
