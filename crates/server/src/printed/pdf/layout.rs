//! Where everything of a document stands: pages filled from the top, with tables that continue on
//! the next page.

use rustybuzz::{Face, UnicodeBuffer};

use super::super::Sheet;
use super::super::report::Report;
use super::{HEIGHT, INK, Item, LINE, MUTED, SHADE, Style, WIDTH, Weight};

pub(super) const MARGIN: f32 = 52.0;
/// The width between the margins.
const INNER: f32 = WIDTH - 2.0 * MARGIN;
/// Nothing but the foot stands below this.
const BOTTOM: f32 = HEIGHT - 70.0;
const SIZE: f32 = 9.5;
const LEADING: f32 = 13.0;
/// The room on either side of the text in a cell of a table.
const CELL: f32 = 5.0;
/// Where the right one of two columns begins, and the width of each.
const SECOND: f32 = MARGIN + 270.0;
const HALF: f32 = WIDTH - MARGIN - SECOND;
/// The width of the names of a report's facts.
const FACT: f32 = 110.0;

const BODY: Style = Style { weight: Weight::Regular, size: SIZE, colour: INK };
const STRONG: Style = Style { weight: Weight::Bold, ..BODY };
const QUIET: Style = Style { colour: MUTED, ..BODY };
const SMALL: Style = Style { size: 8.0, ..QUIET };
/// Cells of a report, whose tables have many columns.
const CELLS: Style = Style { size: 7.5, ..BODY };
const HEADING: Style = Style { size: 11.0, ..STRONG };
const SELLER: Style = Style { size: 13.0, ..STRONG };
const TITLE: Style = Style { size: 22.0, ..STRONG };

/// A column of a table: its width in points, and whether its cells are aligned to the right.
type Column = (f32, bool);

/// Each of the two adds up to the width between the margins.
const LINE_COLUMNS: [Column; 5] =
    [(INNER - 264.0, false), (64.0, true), (60.0, false), (64.0, true), (76.0, true)];
const DETAIL_COLUMNS: [Column; 4] = [(66.0, false), (160.0, false), (INNER - 302.0, false), (76.0, true)];

/// Characters of a cell of a report. A row has to fit on a page.
const CELL_LENGTH_MAX: usize = 240;

fn clipped(text: &str) -> String {
    match text.char_indices().nth(CELL_LENGTH_MAX) {
        Some((at, _)) => format!("{}\u{2026}", &text[..at]),
        None => text.to_owned(),
    }
}

/// Fills pages from the top.
pub(super) struct Layout {
    regular: Face<'static>,
    bold: Face<'static>,
    pages: Vec<Vec<Item>>,
    /// The base line of the next text.
    y: f32,
}

impl Layout {
    pub(super) fn new() -> Result<Layout, String> {
        let face = |weight: Weight| {
            Face::from_slice(weight.data(), 0).ok_or_else(|| "a bundled font cannot be read".to_owned())
        };
        let (regular, bold) = (face(Weight::Regular)?, face(Weight::Bold)?);
        Ok(Layout { regular, bold, pages: vec![Vec::new()], y: MARGIN })
    }

    pub(super) fn lay_out(mut self, sheet: &Sheet) -> Vec<Vec<Item>> {
        self.head(sheet.kind, &sheet.number, &sheet.seller, sheet.banner.as_deref());
        self.about(sheet);
        self.table(&LINE_COLUMNS, &sheet.line_titles, &sheet.lines, BODY);
        self.totals(&sheet.totals);
        if let Some(payment) = &sheet.payment {
            self.heading("Payment");
            self.paragraph(payment, BODY);
        }
        if !sheet.details.is_empty() {
            self.heading("Usage by day, user and program");
            self.table(&DETAIL_COLUMNS, &sheet.detail_titles, &sheet.details, BODY);
        }
        self.y += 22.0;
        for note in &sheet.notes {
            self.paragraph(note, SMALL);
        }
        self.feet(&sheet.title(), sheet.seller.first());
        self.pages
    }

    pub(super) fn lay_out_report(mut self, report: &Report) -> Vec<Vec<Item>> {
        let issuer = Some(&report.issuer).filter(|issuer| !issuer.is_empty());
        self.head(report.title, "", &issuer.cloned().into_iter().collect::<Vec<_>>(), None);
        for (name, value) in &report.facts {
            self.put(MARGIN, QUIET, name);
            for part in self.wrapped(value, BODY, INNER - FACT) {
                self.put(MARGIN + FACT, BODY, &part);
                self.y += LEADING;
            }
        }
        for section in &report.sections {
            self.heading(section.heading);
            if section.rows.is_empty() {
                self.y += LEADING;
                self.paragraph(section.empty, BODY);
                continue;
            }
            let weights: f32 = section.columns.iter().map(|column| column.weight).sum();
            let width = |weight: f32| INNER * weight / weights;
            let columns: Vec<Column> =
                section.columns.iter().map(|column| (width(column.weight), column.is_number)).collect();
            let titles: Vec<String> = section.columns.iter().map(|column| column.title.to_owned()).collect();
            let rows: Vec<Vec<String>> =
                section.rows.iter().map(|row| row.iter().map(|cell| clipped(cell)).collect()).collect();
            self.table(&columns, &titles, &rows, CELLS);
        }
        self.y += 22.0;
        for note in &report.notes {
            self.paragraph(note, SMALL);
        }
        self.feet(report.title, issuer);
        self.pages
    }

    /// The seller, and opposite of it what the document is.
    fn head(&mut self, title: &str, number: &str, seller: &[String], banner: Option<&str>) {
        self.y = MARGIN + 10.0;
        let top = self.y;
        self.right(WIDTH - MARGIN, Style { colour: INK, ..TITLE }, title);
        self.y += 20.0;
        self.right(WIDTH - MARGIN, Style { size: 11.0, ..QUIET }, number);
        let title_end = self.y;
        self.y = top;
        self.party(MARGIN, 250.0, SELLER, seller);
        self.y = self.y.max(title_end) + 6.0;
        let y = self.y;
        self.fill(MARGIN, y, INNER, 1.2, INK);
        self.y += 22.0;
        if let Some(banner) = banner {
            let y = self.y;
            self.fill(MARGIN, y - 12.0, INNER, 20.0, SHADE);
            self.y += 2.0;
            self.put(MARGIN + CELL, STRONG, banner);
            self.y = y + 28.0;
        }
    }

    /// The buyer, and beside it number, date, period and the rest.
    fn about(&mut self, sheet: &Sheet) {
        let top = self.y;
        self.put(MARGIN, SMALL, "BILL TO");
        self.y += LEADING + 1.0;
        self.party(MARGIN, 240.0, STRONG, &sheet.buyer);
        let buyer_end = self.y;
        self.y = top;
        for (name, value) in &sheet.facts {
            self.put(SECOND, QUIET, name);
            for part in self.wrapped(value, BODY, HALF - 90.0) {
                self.put(SECOND + 90.0, BODY, &part);
                self.y += LEADING;
            }
        }
        self.y = self.y.max(buyer_end) + 18.0;
    }

    /// A name in a style of its own, and the lines below it.
    fn party(&mut self, x: f32, width: f32, name: Style, lines: &[String]) {
        for (at, line) in lines.iter().enumerate() {
            let style = if at == 0 { name } else { BODY };
            for part in self.wrapped(line, style, width) {
                self.put(x, style, &part);
                self.y += LEADING;
            }
        }
    }

    /// A table whose titles stand on each of its pages.
    fn table(&mut self, columns: &[Column], titles: &[String], rows: &[impl AsRef<[String]>], style: Style) {
        let strong = Style { weight: Weight::Bold, ..style };
        let titles_height = self.row_height(columns, titles, strong);
        let first_height = rows.first().map_or(0.0, |row| self.row_height(columns, row.as_ref(), style));
        self.make_room(titles_height + first_height);
        self.titles(columns, titles, strong);
        for row in rows {
            let height = self.row_height(columns, row.as_ref(), style);
            if self.y + height > BOTTOM {
                self.next_page();
                self.titles(columns, titles, strong);
            }
            self.cells(columns, row.as_ref(), style);
            let y = self.y - 0.5;
            self.fill(MARGIN, y, INNER, 0.5, LINE);
        }
    }

    fn titles(&mut self, columns: &[Column], titles: &[String], style: Style) {
        let (y, height) = (self.y, self.row_height(columns, titles, style));
        self.fill(MARGIN, y, INNER, height, SHADE);
        self.cells(columns, titles, style);
    }

    /// A row between the present place and the one that it leaves behind, which are edges and no
    /// base lines.
    fn cells(&mut self, columns: &[Column], cells: &[String], style: Style) {
        let (top, mut x) = (self.y, MARGIN);
        for ((width, is_right), cell) in columns.iter().zip(cells) {
            self.y = top + LEADING;
            for part in self.wrapped(cell, style, width - 2.0 * CELL) {
                match is_right {
                    true => self.right(x + width - CELL, style, &part),
                    false => self.put(x + CELL, style, &part),
                }
                self.y += LEADING;
            }
            x += width;
        }
        self.y = top + self.row_height(columns, cells, style);
    }

    fn row_height(&self, columns: &[Column], cells: &[String], style: Style) -> f32 {
        let lines =
            |((width, _), cell): (&Column, &String)| self.wrapped(cell, style, width - 2.0 * CELL).len();
        columns.iter().zip(cells).map(lines).max().unwrap_or(1) as f32 * LEADING + 6.0
    }

    /// The sums, below the column of amounts. They stay together on one page.
    fn totals(&mut self, totals: &[(String, String)]) {
        self.make_room(totals.len() as f32 * 17.0 + 12.0);
        self.y += 18.0;
        for (at, (name, amount)) in totals.iter().enumerate() {
            let style = if at + 1 == totals.len() { HEADING } else { BODY };
            if at + 1 == totals.len() {
                let y = self.y - 10.0;
                self.fill(SECOND, y, HALF, 1.2, INK);
                self.y += 5.0;
            }
            self.put(SECOND + CELL, style, name);
            self.right(WIDTH - MARGIN - CELL, style, amount);
            self.y += 16.0;
        }
    }

    fn heading(&mut self, text: &str) {
        self.make_room(6.0 * LEADING);
        self.y += 20.0;
        self.put(MARGIN, HEADING, text);
        self.y += if text == "Payment" { LEADING + 3.0 } else { 8.0 };
    }

    fn paragraph(&mut self, text: &str, style: Style) {
        for part in self.wrapped(text, style, INNER) {
            self.make_room(LEADING);
            self.put(MARGIN, style, &part);
            self.y += LEADING;
        }
    }

    /// The seller and the number of the page, on each page.
    fn feet(&mut self, title: &str, seller: Option<&String>) {
        let count = self.pages.len();
        let about: Vec<&str> = seller.map(String::as_str).into_iter().chain([title]).collect();
        let about = about.join(" \u{b7} ");
        // One line at most: what is longer is the seller's own long name.
        let about = self.wrapped(&about, SMALL, INNER - 90.0).swap_remove(0);
        for page in 0..count {
            let number = format!("Page {} of {count}", page + 1);
            let y = HEIGHT - 40.0;
            let x = WIDTH - MARGIN - self.width(&number, SMALL);
            self.pages[page].extend([
                Item::Box { x: MARGIN, y: y - 13.0, width: INNER, height: 0.5, colour: LINE },
                Item::Text { x: MARGIN, y, style: SMALL, text: about.clone() },
                Item::Text { x, y, style: SMALL, text: number },
            ]);
        }
    }

    fn put(&mut self, x: f32, style: Style, text: &str) {
        let y = self.y;
        self.add(Item::Text { x, y, style, text: text.to_owned() });
    }

    /// Text that ends at a place.
    fn right(&mut self, x: f32, style: Style, text: &str) {
        let width = self.width(text, style);
        self.put(x - width, style, text);
    }

    fn fill(&mut self, x: f32, y: f32, width: f32, height: f32, colour: [u8; 3]) {
        self.add(Item::Box { x, y, width, height, colour });
    }

    fn add(&mut self, item: Item) {
        match self.pages.last_mut() {
            Some(page) => page.push(item),
            None => self.pages.push(vec![item]),
        }
    }

    fn make_room(&mut self, height: f32) {
        if self.y + height > BOTTOM {
            self.next_page();
        }
    }

    fn next_page(&mut self) {
        self.pages.push(Vec::new());
        self.y = MARGIN;
    }

    pub(super) fn width(&self, text: &str, style: Style) -> f32 {
        let mut buffer = UnicodeBuffer::new();
        buffer.push_str(text);
        let face = match style.weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        };
        let shaped = rustybuzz::shape(face, &[], buffer);
        let advance: i32 = shaped.glyph_positions().iter().map(|position| position.x_advance).sum();
        advance as f32 * style.size / face.units_per_em() as f32
    }

    /// Lines that are no wider than this, broken between words, or within a word that is wider.
    fn wrapped(&self, text: &str, style: Style, width: f32) -> Vec<String> {
        let fits = |line: &str| self.width(line, style) <= width;
        let mut lines = Vec::new();
        let mut line = String::new();
        for word in text.split_whitespace() {
            let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
            if fits(&longer) {
                line = longer;
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            for c in word.chars() {
                line.push(c);
                if !fits(&line) && line.chars().count() > 1 {
                    line.pop();
                    lines.push(std::mem::replace(&mut line, c.to_string()));
                }
            }
        }
        lines.push(line);
        lines
    }
}
