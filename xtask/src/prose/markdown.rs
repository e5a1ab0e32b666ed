//! Markdown files: text outside of code blocks; tables may be wide.

use super::rules::{self, Finding};

pub(super) fn check(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut fence = None;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let mark = trimmed.get(..3).filter(|mark| ["```", "~~~"].contains(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => check_line(path, number, line, findings),
        }
    }
}

fn check_line(path: &str, number: usize, line: &str, findings: &mut Vec<Finding>) {
    rules::check_words(path, number, line, findings);
    // A row of a table, a heading and a line that is one link cannot be wrapped.
    let trimmed = line.trim_start();
    let one_piece = !trimmed.trim_start_matches(['-', ' ']).contains(' ');
    if !trimmed.starts_with(['|', '#', '[', '!', '<']) && !one_piece {
        rules::check_width(path, number, line, findings);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Fault;
    use super::*;

    #[test]
    fn code_is_left_out_and_tables_may_be_wide() {
        let wide = "word ".repeat(30);
        let text = format!("{wide}\n```\n{wide}\nnobody\n```\n| {wide} |\n| nobody |\n");
        let mut findings = Vec::new();
        check("f.md", &text, &mut findings);
        let found: Vec<_> = findings.iter().map(|finding| (finding.line, finding.fault)).collect();
        assert_eq!(found, [(1, Fault::Wide), (7, Fault::People)]);
    }
}
