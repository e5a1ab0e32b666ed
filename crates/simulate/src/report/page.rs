//! The frame of every report: style, header, tiles, tables.

use std::fmt::Write;

use crate::plot::{self, escape};
use crate::report::{Figure, Source};

const STYLE: &str = "\
:root{--ground:#f4f5f7;--card:#fff;--ink:#16181d;--soft:#5b6069;--line:#e4e6ea;--accent:#2a78d6}
@media(prefers-color-scheme:dark){:root{--ground:#121418;--card:#1b1e24;--ink:#f2f4f7;--soft:#a6adb8;--line:#2b2f37;--accent:#4c93ee}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:980px;margin:0 auto;padding:40px 20px 60px}
h1{font-size:28px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}h2{font-size:17px;margin:0 0 4px}
.eyebrow{color:var(--accent);font-size:12px;font-weight:600;letter-spacing:.08em;text-transform:uppercase;margin:0 0 8px}
p{margin:0 0 12px}.soft,figcaption,.note{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:24px 0}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:14px 16px}.tile b{display:block;font-size:24px;line-height:1.2;font-weight:650}
.tile span{color:var(--soft);font-size:13px}
.card{padding:20px 22px;margin:0 0 16px}figure{margin:0}figure svg{width:100%;height:auto;display:block;margin-top:10px}
figcaption{font-size:14px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums;margin-top:10px}
th,td{padding:7px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left;padding-left:0}
tr:last-child td{border-bottom:0}tr.best td{font-weight:650}td small{color:var(--soft);font-weight:400}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
.key svg{display:block}details summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;background:var(--ground);border-radius:8px;padding:12px;font-size:13px;margin:8px 0 0}";

/// A headline figure.
pub(super) struct Tile {
    pub(super) value: String,
    pub(super) meaning: String,
}

impl Tile {
    pub(super) fn new(value: impl Into<String>, meaning: impl Into<String>) -> Tile {
        Tile { value: value.into(), meaning: meaning.into() }
    }
}

/// A page in the making.
pub(super) struct Page {
    html: String,
}

impl Page {
    /// `finding` is the one sentence that a hurried reader takes along.
    pub(super) fn new(title: &str, finding: &str, source: &Source, tiles: &[Tile]) -> Page {
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{0}</title>\
             <style>{STYLE}{1}</style></head><body><main>\n\
             <p class=\"eyebrow\">Sluice simulation</p><h1>{0}</h1><p>{2}</p>\
             <p class=\"soft\">{3} on {4}</p><div class=\"tiles\">",
            escape(title),
            plot::STYLE,
            escape(finding),
            escape(&source.jobs),
            escape(&source.nodes),
        );
        for Tile { value, meaning } in tiles {
            let _ = write!(
                html,
                "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                escape(value),
                escape(meaning)
            );
        }
        html.push_str("</div>\n");
        Page { html }
    }

    pub(super) fn figure(&mut self, figure: &Figure) {
        let _ = writeln!(
            self.html,
            "<figure class=\"card\"><h2>{}</h2><figcaption>{}</figcaption>{}</figure>",
            escape(&figure.title),
            escape(&figure.caption),
            figure.drawing.svg()
        );
    }

    /// `best` is the row that stands out.
    pub(super) fn table(
        &mut self,
        title: &str,
        note: &str,
        columns: &[String],
        rows: &[Vec<Cell>],
        best: Option<usize>,
    ) {
        let _ = write!(
            self.html,
            "<section class=\"card\"><h2>{}</h2><p class=\"note\">{}</p>",
            escape(title),
            escape(note)
        );
        self.bare_table(columns, rows, best);
        self.html.push_str("</section>\n");
    }

    /// A table that is folded away until the reader opens it.
    pub(super) fn details(&mut self, title: &str, columns: &[String], rows: &[Vec<Cell>]) {
        let _ = write!(self.html, "<details class=\"card\"><summary>{}</summary>", escape(title));
        self.bare_table(columns, rows, None);
        self.html.push_str("</details>\n");
    }

    fn bare_table(&mut self, columns: &[String], rows: &[Vec<Cell>], best: Option<usize>) {
        self.html.push_str("<div class=\"scroll\"><table><thead><tr>");
        for column in columns {
            let _ = write!(self.html, "<th>{}</th>", escape(column));
        }
        self.html.push_str("</tr></thead><tbody>");
        for (index, row) in rows.iter().enumerate() {
            self.html.push_str(if best == Some(index) { "<tr class=\"best\">" } else { "<tr>" });
            for cell in row {
                cell.write(&mut self.html);
            }
            self.html.push_str("</tr>");
        }
        self.html.push_str("</tbody></table></div>");
    }

    /// Paragraphs that say how to read the report, and the command that repeats it.
    pub(super) fn finish(mut self, explanations: &[&str], source: &Source) -> String {
        self.html.push_str("<section class=\"card\"><h2>How to read this</h2>");
        for explanation in explanations {
            let _ = write!(self.html, "<p class=\"soft\">{}</p>", escape(explanation));
        }
        let command = escape(&source.command);
        let _ = write!(
            self.html,
            "<p class=\"soft\">The same lists, seeds and version give the same report:</p><pre>{command}</pre></section>\n\
             </main></body></html>\n"
        );
        self.html
    }
}

/// What stands in a table.
pub(super) enum Cell {
    Text(String),
    /// A name with the colour that it has in the charts.
    Key(String, usize),
    /// A figure and its deviation.
    Spread(String, String),
}

impl Cell {
    fn write(&self, html: &mut String) {
        let _ = match self {
            Cell::Text(text) => write!(html, "<td>{}</td>", escape(text)),
            Cell::Key(text, colour) => write!(
                html,
                "<td><span class=\"key\"><svg viewBox=\"0 0 10 10\"><rect class=\"f{}\" width=\"10\" height=\"10\" \
                 rx=\"3\"/></svg></span>{}</td>",
                colour % plot::COLOURS,
                escape(text)
            ),
            Cell::Spread(value, deviation) => {
                write!(html, "<td>{} <small>± {}</small></td>", escape(value), escape(deviation))
            }
        };
    }
}
