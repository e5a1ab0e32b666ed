//! PDF on A4, with its fonts embedded.

mod layout;

use krilla::Document;
use krilla::color::rgb;
use krilla::geom::{PathBuilder, Point, Rect};
use krilla::metadata::Metadata;
use krilla::page::PageSettings;
use krilla::paint::Fill;
use krilla::surface::Surface;
use krilla::text::{Font, TextDirection};
use sluice_api::invoice::Invoice;

use super::Sheet;
use super::report::Report;
use layout::Layout;

/// The size of A4, in points.
const WIDTH: f32 = 595.28;
const HEIGHT: f32 = 841.89;

/// A bundled font. The document is therefore the same on every machine; DejaVu has the letters of
/// Latin, Greek and Cyrillic scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Regular,
    Bold,
}

impl Weight {
    fn data(self) -> &'static [u8] {
        match self {
            Weight::Regular => dejavu::sans_condensed::regular(),
            Weight::Bold => dejavu::sans_condensed::bold(),
        }
    }
}

/// The colours of a document, as red, green and blue.
const INK: [u8; 3] = [26, 31, 41];
const MUTED: [u8; 3] = [86, 96, 112];
const SHADE: [u8; 3] = [238, 241, 245];
const LINE: [u8; 3] = [217, 222, 230];

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Style {
    weight: Weight,
    size: f32,
    colour: [u8; 3],
}

/// Something on a page. The place of a text is the beginning of its base line, that of a box its
/// upper left corner.
enum Item {
    Text { x: f32, y: f32, style: Style, text: String },
    Box { x: f32, y: f32, width: f32, height: f32, colour: [u8; 3] },
}

/// The error says what the library could not do.
pub(crate) fn pdf(invoice: &Invoice) -> Result<Vec<u8>, String> {
    let sheet = Sheet::of(invoice);
    let pages = Layout::new()?.lay_out(&sheet);
    document(&pages, sheet.title(), sheet.seller.first().cloned())
}

/// The error says what the library could not do.
pub(crate) fn report_pdf(report: &Report) -> Result<Vec<u8>, String> {
    let pages = Layout::new()?.lay_out_report(report);
    let issuer = Some(report.issuer.clone()).filter(|issuer| !issuer.is_empty());
    document(&pages, report.title.to_owned(), issuer)
}

fn document(pages: &[Vec<Item>], title: String, author: Option<String>) -> Result<Vec<u8>, String> {
    let mut document = Document::new();
    document.set_metadata(
        Metadata::new().title(title).language("en".into()).authors(author.into_iter().collect()),
    );
    let font =
        |weight: Weight| Font::new(weight.data().into(), 0).ok_or("a bundled font cannot be read".to_owned());
    let fonts = Fonts { regular: font(Weight::Regular)?, bold: font(Weight::Bold)? };
    for items in pages {
        let settings = PageSettings::from_wh(WIDTH, HEIGHT).ok_or("no page of this size")?;
        let mut page = document.start_page_with(settings);
        let mut surface = page.surface();
        items.iter().for_each(|item| fonts.draw(item, &mut surface));
        surface.finish();
        page.finish();
    }
    document.finish().map_err(|error| format!("{error:?}"))
}

struct Fonts {
    regular: Font,
    bold: Font,
}

impl Fonts {
    fn draw(&self, item: &Item, surface: &mut Surface<'_>) {
        let paint = |[red, green, blue]: [u8; 3]| Fill {
            paint: rgb::Color::new(red, green, blue).into(),
            ..Fill::default()
        };
        match item {
            Item::Text { x, y, style, text } => {
                surface.set_fill(Some(paint(style.colour)));
                let font = match style.weight {
                    Weight::Regular => self.regular.clone(),
                    Weight::Bold => self.bold.clone(),
                };
                surface.draw_text(Point::from_xy(*x, *y), font, style.size, text, false, TextDirection::Auto);
            }
            Item::Box { x, y, width, height, colour } => {
                surface.set_fill(Some(paint(*colour)));
                let mut path = PathBuilder::new();
                if let Some(rect) = Rect::from_xywh(*x, *y, *width, *height) {
                    path.push_rect(rect);
                }
                if let Some(path) = path.finish() {
                    surface.draw_path(&path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::invoice;
    use super::layout::MARGIN;
    use super::*;

    #[test]
    fn a_long_invoice_has_several_pages_and_nothing_is_beyond_their_edges() {
        let pages = Layout::new().unwrap().lay_out(&Sheet::of(&invoice()));
        assert!(pages.len() >= 2, "{}", pages.len());
        let measure = Layout::new().unwrap();
        for item in pages.iter().flatten() {
            let (x, y, width) = match item {
                Item::Text { x, y, style, text } => (*x, *y, measure.width(text, *style)),
                Item::Box { x, y, width, height, .. } => (*x, *y + height, *width),
            };
            assert!(
                x >= MARGIN - 0.1 && x + width <= WIDTH - MARGIN + 0.1 && y <= HEIGHT - 30.0,
                "{x} {y} {width}"
            );
        }
        // Each page says which it is, and repeats the titles of the table that continues there.
        let texts = |page: &Vec<Item>| -> Vec<String> {
            let text = |item: &Item| match item {
                Item::Text { text, .. } => Some(text.clone()),
                Item::Box { .. } => None,
            };
            page.iter().filter_map(text).collect()
        };
        for (at, page) in pages.iter().enumerate() {
            let texts = texts(page);
            assert!(texts.contains(&format!("Page {} of {}", at + 1, pages.len())), "{texts:?}");
            assert!(texts.contains(&"Program".to_owned()), "{texts:?}");
        }
    }

    #[test]
    fn a_report_is_a_pdf_of_several_pages() {
        let report = super::super::report::tests::report();
        let pages = Layout::new().unwrap().lay_out_report(&report);
        assert!(pages.len() >= 2, "{}", pages.len());
        let bytes = report_pdf(&report).unwrap();
        assert!(bytes.starts_with(b"%PDF-"));
        // To look at it: REPORT_PDF=/tmp/report.pdf cargo test -p sluice-server a_report_is_a_pdf
        if let Some(path) = std::env::var_os("REPORT_PDF") {
            std::fs::write(path, bytes).unwrap();
        }
    }

    #[test]
    fn a_document_is_a_small_pdf() {
        let bytes = pdf(&invoice()).unwrap();
        assert!(bytes.starts_with(b"%PDF-") && bytes.len() < 200_000, "{}", bytes.len());
        // To look at it: INVOICE_PDF=/tmp/invoice.pdf cargo test -p sluice-server
        // a_document_is_a_small_pdf
        if let Some(path) = std::env::var_os("INVOICE_PDF") {
            std::fs::write(path, bytes).unwrap();
        }
    }
}
