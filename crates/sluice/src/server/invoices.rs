//! `sluice invoice`: drafts, invoices, payments, credit notes and documents.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use sluice_api::client::Client;
use sluice_api::invoice::{
    Invoice, InvoiceLine, InvoiceRun, InvoiceState, NewCreditNote, NewInvoice, NewInvoiceRun, NewPayment,
};

use super::lists::{millionths, show};
use super::{bills, client};
use crate::cli::{BillFormat, InvoiceCommand, InvoiceFormat, Output};
use crate::moment::Moment;
use crate::output::Stdout;
use crate::table::{
    self,
    Align::{Left, Right},
};

pub(crate) fn invoice(command: &InvoiceCommand) -> Result<ExitCode> {
    match command {
        InvoiceCommand::Issue { at, tenant, from, until, draft } => {
            let new = NewInvoice {
                tenant: tenant.clone(),
                from_ms: from.ms(),
                until_ms: until.ms(),
                draft: *draft,
            };
            say(&client(at)?.post("/invoices", &new)?);
        }
        InvoiceCommand::Run { at, month, draft } => {
            let (from_ms, until_ms) = (month.from.ms(), month.until.ms());
            let run: InvoiceRun =
                client(at)?.post("/invoices/runs", &NewInvoiceRun { from_ms, until_ms, draft: *draft })?;
            run.made.iter().for_each(say);
            for skipped in &run.skipped {
                eprintln!("sluice: {}: skipped: {}", skipped.tenant, skipped.why);
            }
        }
        InvoiceCommand::List { list, state } => {
            let state = state.map_or_else(String::new, |state| format!("?state={}", state.name()));
            let invoices: Vec<Invoice> = client(&list.at)?.list(&format!("/invoices{state}"))?;
            table(&invoices, list.output, "there is no such invoice")?;
        }
        InvoiceCommand::Drafts(list) => {
            let drafts: Vec<Invoice> = client(&list.at)?.list("/drafts")?;
            table(&drafts, list.output, "there is no draft")?;
        }
        InvoiceCommand::Show { at, number, draft, output, file } => {
            print(&client(at)?, *number, *draft, *output, file.as_deref())?;
        }
        InvoiceCommand::IssueDraft { at, number } => {
            say(&client(at)?.post(&format!("/drafts/{number}/issue"), &serde_json::json!({}))?);
        }
        InvoiceCommand::Discard { at, number } => {
            let _: Invoice = client(at)?.delete(&format!("/drafts/{number}"))?;
            eprintln!("sluice: draft {number} is discarded");
        }
        InvoiceCommand::Paid { at, number, on } => {
            let payment = NewPayment { at_ms: on.map(Moment::ms) };
            say(&client(at)?.post(&format!("/invoices/{number}/payment"), &payment)?);
        }
        InvoiceCommand::Credit { at, number, reason } => {
            let note = NewCreditNote { reason: reason.clone() };
            say(&client(at)?.post(&format!("/invoices/{number}/credit"), &note)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one line about an invoice that was made or has changed.
fn say(invoice: &Invoice) {
    let what = match (invoice.state, invoice.credits) {
        (InvoiceState::Draft, _) => "draft",
        (_, Some(_)) => "credit note",
        _ => "invoice",
    };
    let (number, tenant) = (invoice.number, &invoice.bill.tenant);
    eprintln!("sluice: {what} {number} of {tenant} is {}, {}", invoice.state.name(), total(invoice));
}

fn total(invoice: &Invoice) -> String {
    in_currency(invoice, invoice.total_minor)
}

fn in_currency(invoice: &Invoice, minor: i64) -> String {
    let currency = invoice.bill.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
    format!("{}{currency}", invoice.amount(minor))
}

/// Renders the lines and totals of the document.
fn document_text(invoice: &Invoice) -> String {
    let columns =
        &[("DESCRIPTION", Left), ("QUANTITY", Right), ("UNIT", Left), ("PRICE", Right), ("AMOUNT", Right)];
    let row = |text: &str, amount: i64| {
        let empty = String::new;
        vec![text.to_owned(), empty(), empty(), empty(), in_currency(invoice, amount)]
    };
    let line = |line: &InvoiceLine| {
        vec![
            line.text.clone(),
            line.quantity_micro.map(millionths).unwrap_or_default(),
            line.unit.clone().unwrap_or_default(),
            line.price_micro.map(millionths).unwrap_or_default(),
            in_currency(invoice, line.amount_minor),
        ]
    };
    let mut rows: Vec<Vec<String>> = invoice.lines.iter().map(line).collect();
    rows.push(row("subtotal", invoice.net_minor));
    if let Some(tax) = &invoice.tax {
        let rate = sluice_api::written::thousandths(u64::from(tax.percent_milli));
        rows.push(row(&format!("{} {rate} %", tax.name), invoice.tax_minor));
    }
    rows.push(row("total", invoice.total_minor));
    table::render(columns, &rows)
}

fn table(invoices: &[Invoice], output: Output, none: &str) -> Result<()> {
    let columns = &[
        ("NUMBER", Left),
        ("TENANT", Left),
        ("FROM", Left),
        ("UNTIL", Left),
        ("STATE", Left),
        ("TOTAL", Right),
    ];
    let cells = |invoice: &Invoice| {
        let bill = &invoice.bill;
        let state = match invoice.credits {
            Some(number) => format!("credits {number}"),
            None => invoice.state.name().to_owned(),
        };
        vec![
            if invoice.name.is_empty() { invoice.number.to_string() } else { invoice.name.clone() },
            bill.tenant.to_string(),
            Moment::from_ms(bill.from_ms).to_string(),
            Moment::from_ms(bill.until_ms).to_string(),
            state,
            total(invoice),
        ]
    };
    show(invoices, output, none, columns, cells)
}

fn print(
    client: &Client,
    number: u64,
    draft: bool,
    format: InvoiceFormat,
    file: Option<&Path>,
) -> Result<()> {
    let path = if draft { format!("/drafts/{number}") } else { format!("/invoices/{number}") };
    let kind = match format {
        InvoiceFormat::Pdf => "pdf",
        InvoiceFormat::Html => "html",
        InvoiceFormat::Table | InvoiceFormat::Json | InvoiceFormat::Csv | InvoiceFormat::Focus => {
            let invoice: Invoice = client.get(&path)?;
            let number = (!draft).then_some(invoice.number);
            let format = match format {
                InvoiceFormat::Json => {
                    println!("{}", serde_json::to_string_pretty(&invoice)?);
                    return Ok(());
                }
                InvoiceFormat::Csv => BillFormat::Csv,
                InvoiceFormat::Focus => BillFormat::Focus,
                _ => {
                    print!("{}", document_text(&invoice));
                    return Ok(());
                }
            };
            return bills::print(client, &invoice.bill, number, format);
        }
    };
    let bytes = client.get_bytes(&format!("{path}/document?format={kind}"))?;
    match file {
        Some(file) => fs::write(file, bytes).with_context(|| file.display().to_string()),
        None => Stdout.write_all(&bytes).map_err(Into::into),
    }
}
