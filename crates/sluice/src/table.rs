//! Tables for people: columns as wide as their widest cell, numbers to the right.

use std::fmt::Write;

use sluice_api::text::escaped;

/// Which side of its column a cell leans to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Renders `rows` under `columns`, two spaces apart, with no trailing blanks. Names are others'
/// texts, and escaped.
pub(crate) fn render(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell).into_owned()).collect()).collect();
    let mut widths: Vec<usize> = columns.iter().map(|(title, _)| title.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let titles: Vec<String> = columns.iter().map(|(title, _)| title.to_string()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(&rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(columns) {
            let _ = match align {
                Align::Left => write!(line, "{cell:<width$}  "),
                Align::Right => write!(line, "{cell:>width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_cells() {
        let rows = [vec!["one".into(), "8 GiB".into()], vec!["another".into(), "512 MiB".into()]];
        let text = render(&[("GPU", Align::Left), ("MEMORY", Align::Right)], &rows);
        assert_eq!(text, "GPU       MEMORY\none        8 GiB\nanother  512 MiB\n");
        let text = render(&[("NAME", Align::Left)], &[vec!["a\u{202e}b\nc".into()]]);
        assert_eq!(text, "NAME\na\\u{202e}b\\nc\n");
    }
}
