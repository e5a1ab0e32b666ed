//! HTML in one file, without scripts and without references to anything else, for the screen and
//! for printing.

use maud::{DOCTYPE, Markup, PreEscaped, html as markup};
use sluice_api::invoice::Invoice;

use super::Sheet;
use super::report::{Report, Section};

const STYLE: &str = "\
    :root{color-scheme:light}\
    body{font:10.5pt/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;color:#1a1f29;\
      background:#fff;max-width:52rem;margin:2.5rem auto;padding:0 1.5rem}\
    header{display:flex;justify-content:space-between;gap:2rem;padding-bottom:1.2rem;border-bottom:2px solid #1a1f29}\
    h1{font-size:1.9rem;line-height:1.1;margin:0;text-align:right}\
    header p{margin:.2rem 0 0;text-align:right;color:#566070}\
    .party strong{font-size:1.1em}.label{color:#566070;font-size:.85em;text-transform:uppercase;letter-spacing:.05em}\
    .banner{margin:1.2rem 0 0;padding:.5rem .8rem;border:1px solid #1a1f29;font-weight:600}\
    .about{display:flex;justify-content:space-between;gap:2rem;margin:1.5rem 0 1.8rem}\
    dl{display:grid;grid-template-columns:auto auto;gap:.15rem 1.2rem;margin:0;align-content:start}\
    dt{color:#566070}dd{margin:0;text-align:right}\
    table{border-collapse:collapse;width:100%}\
    th{text-align:left;background:#eef1f5;font-weight:600;padding:.45rem .6rem;vertical-align:bottom}\
    td{padding:.45rem .6rem;border-bottom:1px solid #d9dee6;vertical-align:top}\
    th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}\
    .totals{width:auto;min-width:20rem;margin:.8rem 0 0 auto}.totals td{border:0;padding:.25rem .6rem}\
    .totals tr:last-child td{font-weight:700;font-size:1.1em;border-top:2px solid #1a1f29;padding-top:.45rem}\
    h2{font-size:1.05rem;margin:2rem 0 .5rem}.notes{color:#566070;font-size:.9em;margin-top:1.5rem}\
    thead{display:table-header-group}tr{break-inside:avoid}\
    @page{size:A4;margin:18mm}@media print{body{margin:0;max-width:none;padding:0;font-size:9.5pt}}\
    @media(max-width:40rem){header,.about{flex-direction:column;gap:1rem}h1,header p{text-align:left}dd{text-align:left}}";

/// What reports look like beside that: long texts break, and tables are small.
const REPORT_STYLE: &str = "\
    body{max-width:64rem}h2{margin-top:1.6rem}.wide{overflow-x:auto}.wide table{font-size:.86em}\
    td{overflow-wrap:anywhere}td.n,th{overflow-wrap:normal}dd{text-align:left}.about{margin:1.2rem 0 0}\
    @media print{@page{size:A4 landscape}}";

/// Columns of numbers, which are aligned to the right.
const LINE_NUMBERS: &[usize] = &[1, 3, 4];
const DETAIL_NUMBERS: &[usize] = &[3];

pub(crate) fn html(invoice: &Invoice) -> String {
    let sheet = Sheet::of(invoice);
    let page = markup! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (sheet.title()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (party(&sheet.seller)) div { h1 { (sheet.kind) } p { (sheet.number) } } }
                @if let Some(banner) = &sheet.banner { p.banner { (banner) } }
                div.about {
                    div { div.label { "Bill to" } (party(&sheet.buyer)) }
                    dl { @for (name, value) in &sheet.facts { dt { (name) } dd { (value) } } }
                }
                (table(&sheet.line_titles, &sheet.lines, |column| LINE_NUMBERS.contains(&column)))
                table.totals {
                    @for (name, amount) in &sheet.totals { tr { td { (name) } td.n { (amount) } } }
                }
                @if let Some(payment) = &sheet.payment { h2 { "Payment" } p { (payment) } }
                @if !sheet.details.is_empty() {
                    h2 { "Usage by day, user and program" }
                    (table(&sheet.detail_titles, &sheet.details, |column| DETAIL_NUMBERS.contains(&column)))
                }
                div.notes { @for note in &sheet.notes { p { (note) } } }
            }
        }
    };
    page.into_string()
}

pub(crate) fn report_html(report: &Report) -> String {
    let page = markup! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (report.title) }
                style { (PreEscaped(STYLE)) (PreEscaped(REPORT_STYLE)) }
            }
            body {
                header { (party(std::slice::from_ref(&report.issuer))) h1 { (report.title) } }
                div.about { dl { @for (name, value) in &report.facts { dt { (name) } dd { (value) } } } }
                @for section in &report.sections { (section_html(section)) }
                div.notes { @for note in &report.notes { p { (note) } } }
            }
        }
    };
    page.into_string()
}

fn section_html(section: &Section) -> Markup {
    let titles: Vec<&str> = section.columns.iter().map(|column| column.title).collect();
    markup! {
        h2 { (section.heading) }
        @if section.rows.is_empty() { p { (section.empty) } } @else {
            div.wide { (table(&titles, &section.rows, |column| section.columns[column].is_number)) }
        }
    }
}

fn party(lines: &[String]) -> Markup {
    markup! {
        div.party {
            @for (at, line) in lines.iter().enumerate() {
                @if at == 0 { strong { (line) } } @else { br; (line) }
            }
        }
    }
}

fn table(
    titles: &[impl AsRef<str>],
    rows: &[impl AsRef<[String]>],
    is_number: impl Fn(usize) -> bool,
) -> Markup {
    markup! {
        table {
            thead {
                tr { @for (at, title) in titles.iter().enumerate() { th.n[is_number(at)] scope="col" { (title.as_ref()) } } }
            }
            tbody {
                @for row in rows {
                    tr { @for (at, cell) in row.as_ref().iter().enumerate() { td.n[is_number(at)] { (cell) } } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::invoice;
    use super::*;

    #[test]
    fn reports_show_texts_of_others_as_text() {
        let page = report_html(&super::super::report::tests::report());
        assert!(page.contains("Acme &lt;Compute&gt;") && !page.contains("<Compute>"), "{page}");
        assert!(page.contains("119.5") && page.contains("=HYPERLINK(&quot;x&quot;)"));
    }

    #[test]
    fn texts_of_others_are_text() {
        let page = html(&invoice());
        assert!(
            page.contains("Zak\u{142}ad &lt;Obliczeniowy&gt;") && !page.contains("<Obliczeniowy>"),
            "{page}"
        );
        // To look at it: INVOICE_HTML=/tmp/invoice.html cargo test -p sluice-server
        // texts_of_others_are_text
        if let Some(path) = std::env::var_os("INVOICE_HTML") {
            std::fs::write(path, &page).unwrap();
        }
        assert!(page.contains("439.65 EUR") && page.contains("ada@example.org") && !page.contains("<script"));
    }
}
