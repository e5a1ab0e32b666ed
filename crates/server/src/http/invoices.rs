//! The REST API of invoices: drafts, issuing, payments, credit notes, and printed documents.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::bill::Bill;
use sluice_api::invoice::{
    BillTo, Carried, Invoice, InvoiceRun, InvoiceState, NewCreditNote, NewInvoice, NewInvoiceRun, NewPayment,
    Skipped,
};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::text::is_deceptive;

use super::answer::{Answer, Refusal};
use super::extract::{Body, Name, OfTenant, Options, PageOptions, page};
use crate::auth::Principal;
use crate::billing::{Invoicer, Period, credit_note};
use crate::policy::Action;
use crate::printed;
use crate::server::{Books, Change, Server};
use crate::store::Write;

const DAY_MS: u64 = 24 * 3_600_000;
const REASON_MAX: usize = 400;

/// Issue an invoice, or make a draft of one
///
/// The period must be over, and no invoice of this tenant, of one above it or of one below it may
/// cover a part of it. Usage and corrections that came late for the periods of earlier invoices
/// become lines of this one.
#[utoipa::path(post, path = "/invoices", tag = "ledger", request_body = NewInvoice,
    responses((status = 200, body = Invoice)))]
pub(super) async fn issue(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewInvoice>,
) -> Answer<Invoice> {
    principal.need(Action::Bill, &new.tenant)?;
    let is_known = |books: &Books, _| books.fleet.tenants().contains(&new.tenant);
    if !server.read(is_known).await? && !server.store.has_used(&new.tenant).await? {
        return Err(Problem::new(Kind::Invalid, "there is no such tenant").at("tenant").into());
    }
    let period = period(&server, new.from_ms, new.until_ms)?;
    let mut invoicer = Invoicer::new(&server.store).await?;
    let draft = make(&server, &mut invoicer, new.tenant, period).await?;
    Ok(Json(if new.draft {
        keep(&server, &principal, draft).await?
    } else {
        number(&server, &principal, draft, None).await?
    }))
}

/// Invoice all top-level tenants for a period
///
/// Tenants that used nothing with a price, and tenants with an invoice for a part of the period,
/// are skipped, so a run can be repeated. With `draft` it makes drafts, which replace earlier
/// drafts for the same period.
#[utoipa::path(post, path = "/invoices/runs", tag = "ledger", request_body = NewInvoiceRun,
    responses((status = 200, body = InvoiceRun)))]
pub(super) async fn run_invoices(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewInvoiceRun>,
) -> Answer<InvoiceRun> {
    principal.need(Action::Bill, &TenantPath::root())?;
    let period = period(&server, new.from_ms, new.until_ms)?;
    let tenants = top_level(&server, period).await?;
    let mut invoicer = Invoicer::new(&server.store).await?;
    let mut run = InvoiceRun { made: Vec::new(), skipped: Vec::new() };
    for tenant in tenants {
        let made = match make(&server, &mut invoicer, tenant.clone(), period).await {
            Ok(draft) if draft.lines.is_empty() => {
                Err(Problem::new(Kind::Conflict, "no usage that has a price"))
            }
            Ok(draft) if new.draft => keep(&server, &principal, draft).await,
            Ok(draft) => number(&server, &principal, draft, None).await,
            Err(problem) => Err(problem),
        };
        match made {
            Ok(invoice) => run.made.push(brief(invoice)),
            Err(problem) if problem.is(Kind::Conflict) => {
                run.skipped.push(Skipped { tenant, why: problem.detail });
            }
            // The invoices that were issued before stay; a repeated run continues from here.
            Err(problem) => return Err(problem.into()),
        }
    }
    Ok(Json(run))
}

/// Returns the top-level tenants, with those that have been removed and have usage in the period.
async fn top_level(server: &Server, period: Period) -> Result<Vec<TenantPath>, Problem> {
    let declared = |books: &Books, _| -> Vec<TenantPath> {
        let all = books.fleet.tenants().within(&TenantPath::root(), None);
        all.map(|(path, _)| path.clone()).filter(|path| crate::fleet::top(path) == *path).collect()
    };
    let mut tenants = server.read(declared).await?;
    let bill = crate::billing::bill_of(&server.store, TenantPath::root(), period).await;
    let bill = bill.map_err(crate::server::unwell)?;
    tenants.extend(bill.lines.iter().map(|line| crate::fleet::top(&line.tenant)));
    tenants.sort_unstable();
    tenants.dedup();
    Ok(tenants)
}

fn period(server: &Server, from_ms: u64, until_ms: u64) -> Result<Period, Problem> {
    if from_ms >= until_ms || until_ms > server.now_ms() {
        return Err(Problem::new(Kind::Invalid, "the period must have begun and be over").at("until_ms"));
    }
    Ok(Period { from_ms, until_ms })
}

/// Makes a draft without keeping it. The problem names an invoice that covers a part of the period.
async fn make(
    server: &Server,
    invoicer: &mut Invoicer<'_>,
    tenant: TenantPath,
    period: Period,
) -> Result<Invoice, Problem> {
    let unwell = crate::server::unwell;
    let earlier = server.store.invoices_about(&tenant).await.map_err(unwell)?;
    check_free(&earlier, &tenant, period)?;
    let bill_to = |books: &Books, _| -> Option<BillTo> { books.fleet.bill_to(&tenant).cloned() };
    let bill_to = server.read(bill_to).await?;
    let now_ms = server.now_ms();
    invoicer.draft(tenant.clone(), period, bill_to, &earlier, now_ms).await.map_err(unwell)
}

fn check_free(earlier: &[Invoice], tenant: &TenantPath, period: Period) -> Result<(), Problem> {
    let covers = |invoice: &&Invoice| {
        let bill = &invoice.bill;
        invoice.covers() && bill.from_ms < period.until_ms && period.from_ms < bill.until_ms
    };
    let Some(other) = earlier.iter().find(covers) else { return Ok(()) };
    let name = &other.bill.tenant;
    let of = if name == tenant { String::new() } else { format!(" of {name}") };
    Err(Problem::new(Kind::Conflict, format!("invoice {}{of} covers a part of it", other.number)))
}

/// Gives a draft its number, and discards the kept draft of the number `kept` in the same
/// transaction. Nothing else is issued meanwhile; a draft that another invoice has overtaken since
/// it was made is refused, and has to be made anew.
async fn number(
    server: &Server,
    principal: &Principal,
    draft: Invoice,
    kept: Option<u64>,
) -> Result<Invoice, Problem> {
    let unwell = crate::server::unwell;
    let mut change = server.change().await?;
    change.see_all_written().await?;
    let earlier = server.store.invoices_about(&draft.bill.tenant).await.map_err(unwell)?;
    let is_kept = match kept {
        Some(number) => server.store.draft(number).await.map_err(unwell)?.as_ref() == Some(&draft),
        None => true,
    };
    if let Err(problem) = check_current(&draft, is_kept, &earlier) {
        change.leave();
        return Err(problem);
    }
    let number = server.store.last_invoice().await.map_err(unwell)? + 1;
    let invoicing = change.books().seller.invoicing.clone().unwrap_or_default();
    let now_ms = change.now_ms;
    let invoice = Invoice {
        number,
        name: format!("{}{number}", invoicing.number_prefix),
        state: InvoiceState::Issued,
        issued_at_ms: now_ms,
        due_at_ms: invoicing.due_days.map(|days| now_ms + u64::from(days) * DAY_MS),
        ..draft
    };
    if let Some(number) = kept {
        change.write(Write::Draft { number, draft: None });
    }
    write(change, principal, "invoice.issued", &invoice).await?;
    Ok(invoice)
}

/// Says why a draft cannot be issued as it is, given the earlier invoices of its tenant.
fn check_current(draft: &Invoice, is_kept: bool, earlier: &[Invoice]) -> Result<(), Problem> {
    if !is_kept {
        let detail = "the draft was changed or discarded meanwhile: look at it again";
        return Err(Problem::new(Kind::Conflict, detail));
    }
    let period = Period { from_ms: draft.bill.from_ms, until_ms: draft.bill.until_ms };
    check_free(earlier, &draft.bill.tenant, period)?;
    let valid = earlier.iter().filter(|invoice| invoice.covers());
    let carried: Vec<&Carried> = valid.clone().flat_map(|invoice| &invoice.carried).collect();
    let is_carried = |late: &Carried| {
        let key = |carried: &Carried| (carried.invoice, carried.correction, carried.micro);
        carried.iter().any(|other| key(other) == key(late))
    };
    let is_credited = |late: &Carried| valid.clone().all(|invoice| invoice.number != late.invoice);
    if draft.carried.iter().any(|late| is_carried(late) || is_credited(late)) {
        let detail = "what came late for an earlier invoice is billed elsewhere by now: make the draft again";
        return Err(Problem::new(Kind::Conflict, detail));
    }
    Ok(())
}

async fn write(
    mut change: Change<'_>,
    principal: &Principal,
    action: &str,
    invoice: &Invoice,
) -> Result<(), Problem> {
    let detail = serde_json::json!({
        "tenant": invoice.bill.tenant, "total_micro": invoice.bill.total_micro, "total_minor": invoice.total_minor,
        "state": invoice.state, "credits": invoice.credits,
    });
    change.audit(principal, action, &invoice.number.to_string(), detail);
    change.write(Write::Invoice(Box::new(invoice.clone())));
    change.commit().await
}

/// Keeps a draft. It replaces one for the same tenant and period.
async fn keep(server: &Server, principal: &Principal, draft: Invoice) -> Result<Invoice, Problem> {
    let unwell = crate::server::unwell;
    let mut change = server.change().await?;
    change.see_all_written().await?;
    let drafts = server.store.drafts(&draft.bill.tenant).await.map_err(unwell)?;
    let same = |other: &&Invoice| {
        let (new, old) = (&draft.bill, &other.bill);
        (&new.tenant, new.from_ms, new.until_ms) == (&old.tenant, old.from_ms, old.until_ms)
    };
    let number = match drafts.iter().find(same) {
        Some(other) => other.number,
        None => server.store.last_draft().await.map_err(unwell)? + 1,
    };
    let draft = Invoice { number, ..draft };
    let detail = serde_json::json!({ "tenant": draft.bill.tenant, "total_minor": draft.total_minor });
    change.audit(principal, "invoice.drafted", &number.to_string(), detail);
    change.write(Write::Draft { number, draft: Some(Box::new(draft.clone())) });
    change.commit().await?;
    Ok(draft)
}

/// Reduces an invoice to what a list shows.
fn brief(invoice: Invoice) -> Invoice {
    let bill = Bill { lines: Vec::new(), credits: Vec::new(), ..invoice.bill };
    Invoice { bill, lines: Vec::new(), details: Vec::new(), ..invoice }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct InState {
    /// Only those in this state.
    #[serde(default)]
    state: Option<InvoiceState>,
}

/// Invoices of the tenants that the token may see, in the order of their numbers
///
/// They come without lines, details and the bill's lines, which a single invoice has.
#[utoipa::path(get, path = "/invoices", tag = "ledger", params(OfTenant, InState, PageOptions),
    responses((status = 200, body = Page<Invoice>)))]
pub(super) async fn invoices(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(InState { state }): Options<InState>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Invoice>> {
    let (limit, after) = (options.limit()?, options.cursor(|text| text.parse::<u64>().ok())?);
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let invoices = server.store.invoices_within(&scope, state, after.unwrap_or(0), limit).await?;
    let invoices = invoices.into_iter().map(brief).collect();
    Ok(Json(page(invoices, limit, |invoice| invoice.number.to_string())))
}

/// An invoice by its number
#[utoipa::path(get, path = "/invoices/{number}", tag = "ledger", params(("number" = u64, Path)),
    responses((status = 200, body = Invoice)))]
pub(super) async fn invoice(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
) -> Answer<Invoice> {
    Ok(Json(seen(&server, &principal, number).await?))
}

/// Returns an invoice that the token may see. The answer is the same for other tenants' invoices as
/// for unknown numbers.
async fn seen(server: &Server, principal: &Principal, number: u64) -> Result<Invoice, Refusal> {
    let found = server.store.invoice(number).await?;
    let own = found.filter(|invoice| principal.may(Action::See, &invoice.bill.tenant));
    let none = || Problem::new(Kind::NotFound, format!("there is no invoice {number} for this token"));
    Ok(own.ok_or_else(none)?)
}

/// A kind of document.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    #[default]
    Pdf,
    Html,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Printing {
    /// PDF unless said.
    #[serde(default)]
    #[param(inline)]
    format: Format,
}

/// An invoice as a document, in PDF or HTML
#[utoipa::path(get, path = "/invoices/{number}/document", tag = "ledger", params(("number" = u64, Path), Printing),
    responses((status = 200, content((Vec<u8> = "application/pdf"), (Vec<u8> = "text/html")))))]
pub(super) async fn invoice_document(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
    Options(Printing { format }): Options<Printing>,
) -> Result<Response, Refusal> {
    print(seen(&server, &principal, number).await?, format).await
}

/// Renders a document, a PDF in a thread of its own since that takes long.
async fn print(invoice: Invoice, format: Format) -> Result<Response, Refusal> {
    let file = file_name(&invoice, format);
    let (bytes, kind) = match format {
        Format::Html => (printed::html(&invoice).into_bytes(), "text/html; charset=utf-8"),
        Format::Pdf => {
            let made = tokio::task::spawn_blocking(move || printed::pdf(&invoice)).await;
            let failed =
                |cause: String| Problem::new(Kind::Internal, format!("the document cannot be made: {cause}"));
            let made = made.map_err(|error| failed(error.to_string()))?;
            (made.map_err(failed)?, "application/pdf")
        }
    };
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, format!("inline; filename=\"{file}\"")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'".to_owned()),
    ];
    Ok((headers, bytes).into_response())
}

/// Names the file of a document, such as `invoice-ACME-7.pdf`, in letters that every file system
/// takes.
fn file_name(invoice: &Invoice, format: Format) -> String {
    let kind = match (invoice.state, invoice.credits) {
        (InvoiceState::Draft, _) => "draft",
        (_, Some(_)) => "credit-note",
        _ => "invoice",
    };
    let number = if invoice.name.is_empty() { invoice.number.to_string() } else { invoice.name.clone() };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let extension = match format {
        Format::Pdf => "pdf",
        Format::Html => "html",
    };
    format!("{kind}-{}.{extension}", number.chars().map(plain).collect::<String>())
}

/// Record the payment of an invoice
#[utoipa::path(post, path = "/invoices/{number}/payment", tag = "ledger", params(("number" = u64, Path)),
    request_body = NewPayment, responses((status = 200, body = Invoice)))]
pub(super) async fn pay(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
    Body(NewPayment { at_ms }): Body<NewPayment>,
) -> Answer<Invoice> {
    let (change, invoice) = begin(&server, &principal, number).await?;
    if invoice.state != InvoiceState::Issued || invoice.credits.is_some() {
        change.leave();
        return Err(not_open(&invoice).into());
    }
    if at_ms.is_some_and(|at_ms| at_ms > change.now_ms) {
        change.leave();
        return Err(Problem::new(Kind::Invalid, "a payment cannot be in the future").at("at_ms").into());
    }
    let paid_at_ms = Some(at_ms.unwrap_or(change.now_ms));
    let paid = Invoice { state: InvoiceState::Paid, paid_at_ms, ..invoice };
    write(change, &principal, "invoice.paid", &paid).await?;
    Ok(Json(paid))
}

/// Cancel an invoice with a credit note
///
/// The answer is the credit note, a numbered document. The invoice's period can be invoiced again.
/// A later invoice with lines for this period has to be cancelled first.
#[utoipa::path(post, path = "/invoices/{number}/credit", tag = "ledger", params(("number" = u64, Path)),
    request_body = NewCreditNote, responses((status = 200, body = Invoice)))]
pub(super) async fn credit(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
    Body(NewCreditNote { reason }): Body<NewCreditNote>,
) -> Answer<Invoice> {
    let reason: String = reason.chars().filter(|c| !is_deceptive(*c)).take(REASON_MAX).collect();
    if reason.trim().is_empty() {
        return Err(Problem::new(Kind::Invalid, "a credit note needs a reason, which is printed on it")
            .at("reason")
            .into());
    }
    let (mut change, invoice) = begin(&server, &principal, number).await?;
    if !matches!(invoice.state, InvoiceState::Issued | InvoiceState::Paid) || invoice.credits.is_some() {
        change.leave();
        return Err(not_open(&invoice).into());
    }
    let about = match server.store.invoices_about(&invoice.bill.tenant).await {
        Ok(about) => about,
        Err(error) => {
            change.leave();
            return Err(error.into());
        }
    };
    if let Some(later) = has_late(&about, number) {
        change.leave();
        return Err(later.into());
    }
    let last = match server.store.last_invoice().await {
        Ok(last) => last,
        Err(error) => {
            change.leave();
            return Err(error.into());
        }
    };
    let note = credit_note(&invoice, reason, change.now_ms);
    let prefix = change.books().seller.invoicing.clone().unwrap_or_default().number_prefix;
    let note = Invoice { number: last + 1, name: format!("{prefix}{}", last + 1), ..note };
    let credited = Invoice { state: InvoiceState::Credited, credited_by: Some(note.number), ..invoice };
    change.write(Write::Invoice(Box::new(credited)));
    write(change, &principal, "invoice.credited", &note).await?;
    Ok(Json(note))
}

/// Finds an invoice that bills what came late for this one. A new invoice for this one's period
/// would bill that again.
fn has_late(all: &[Invoice], number: u64) -> Option<Problem> {
    let carries = |other: &&Invoice| other.carried.iter().any(|carried| carried.invoice == number);
    let later = all.iter().filter(|other| other.covers()).find(carries)?;
    let detail =
        format!("invoice {} bills what came late for invoice {number}; cancel it first", later.number);
    Some(Problem::new(Kind::Conflict, detail))
}

/// Begins a change of an invoice's state.
async fn begin<'a>(
    server: &'a Server,
    principal: &Principal,
    number: u64,
) -> Result<(Change<'a>, Invoice), Refusal> {
    let found = seen(server, principal, number).await?;
    principal.need(Action::Bill, &found.bill.tenant)?;
    let change = server.change().await?;
    change.see_all_written().await?;
    match seen(server, principal, number).await {
        Ok(invoice) => Ok((change, invoice)),
        Err(refusal) => {
            change.leave();
            Err(refusal)
        }
    }
}

fn not_open(invoice: &Invoice) -> Problem {
    let what = if invoice.credits.is_some() { "a credit note" } else { invoice.state.name() };
    Problem::new(Kind::Conflict, format!("invoice {} is {what}", invoice.number))
}

/// Drafts of invoices of the tenants that the token may bill
#[utoipa::path(get, path = "/drafts", tag = "ledger", params(PageOptions),
    responses((status = 200, body = Page<Invoice>)))]
pub(super) async fn drafts(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Invoice>> {
    let (limit, after) = (options.limit()?, options.cursor(|text| text.parse::<u64>().ok())?.unwrap_or(0));
    principal.need(Action::Bill, &principal.token.tenant)?;
    let all = server.store.drafts(&principal.token.tenant).await?;
    let rest = all.into_iter().filter(|draft| draft.number > after).take(limit as usize).map(brief);
    Ok(Json(page(rest.collect(), limit, |draft| draft.number.to_string())))
}

/// A draft by its number. Numbers of drafts are not numbers of invoices
#[utoipa::path(get, path = "/drafts/{number}", tag = "ledger", params(("number" = u64, Path)),
    responses((status = 200, body = Invoice)))]
pub(super) async fn draft(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
) -> Answer<Invoice> {
    Ok(Json(draft_seen(&server, &principal, number).await?))
}

async fn draft_seen(server: &Server, principal: &Principal, number: u64) -> Result<Invoice, Refusal> {
    let found = server.store.draft(number).await?;
    let own = found.filter(|draft| principal.may(Action::Bill, &draft.bill.tenant));
    let none = || Problem::new(Kind::NotFound, format!("there is no draft {number} for this token"));
    Ok(own.ok_or_else(none)?)
}

/// A draft as a document, in PDF or HTML
#[utoipa::path(get, path = "/drafts/{number}/document", tag = "ledger", params(("number" = u64, Path), Printing),
    responses((status = 200, content((Vec<u8> = "application/pdf"), (Vec<u8> = "text/html")))))]
pub(super) async fn draft_document(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
    Options(Printing { format }): Options<Printing>,
) -> Result<Response, Refusal> {
    print(draft_seen(&server, &principal, number).await?, format).await
}

/// Issue a draft as it is
#[utoipa::path(post, path = "/drafts/{number}/issue", tag = "ledger", params(("number" = u64, Path)),
    responses((status = 200, body = Invoice)))]
pub(super) async fn issue_draft(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(draft): Name<u64>,
) -> Answer<Invoice> {
    let found = draft_seen(&server, &principal, draft).await?;
    Ok(Json(number(&server, &principal, found, Some(draft)).await?))
}

/// Discard a draft
#[utoipa::path(delete, path = "/drafts/{number}", tag = "ledger", params(("number" = u64, Path)),
    responses((status = 200, body = Invoice)))]
pub(super) async fn discard(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(number): Name<u64>,
) -> Answer<Invoice> {
    let found = draft_seen(&server, &principal, number).await?;
    let mut change = server.change().await?;
    change.audit(
        &principal,
        "invoice.discarded",
        &number.to_string(),
        serde_json::json!({ "tenant": found.bill.tenant }),
    );
    change.write(Write::Draft { number, draft: None });
    change.commit().await?;
    Ok(Json(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_plain_names() {
        let bill = serde_json::json!({
            "tenant": "acme", "from_ms": 0, "until_ms": 1, "lines": [], "corrections": [], "total_micro": 0, "records": 0,
        });
        let invoice: Invoice = serde_json::from_value(serde_json::json!({
            "number": 7, "name": "A\u{fc}/\"7", "issued_at_ms": 0, "bill": bill,
        }))
        .unwrap();
        assert_eq!(file_name(&invoice, Format::Pdf), "invoice-A___7.pdf");
        let draft = Invoice { state: InvoiceState::Draft, name: String::new(), ..invoice.clone() };
        assert_eq!(file_name(&draft, Format::Html), "draft-7.html");
        let note = Invoice { credits: Some(1), name: "AC-8".to_owned(), ..invoice };
        assert_eq!(file_name(&note, Format::Pdf), "credit-note-AC-8.pdf");
    }
}
