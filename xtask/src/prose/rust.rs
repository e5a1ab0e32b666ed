//! Rust sources: comments and string literals. Tests are checked for width and doc comments only.

use ra_ap_rustc_lexer::{DocStyle, FrontmatterAllowed, LiteralKind, TokenKind};

use super::rules::{self, Fault, Finding};

pub(super) fn check(path: &str, source: &str, findings: &mut Vec<Finding>) {
    let tests_begin = if is_test_file(path) { 0 } else { unit_tests_begin(source) };
    let lines: Vec<&str> = source.lines().collect();
    let mut docs = Docs::default();
    let (mut start, mut line) = (0, 1);
    for token in ra_ap_rustc_lexer::tokenize(source, FrontmatterAllowed::No) {
        let text = &source[start..start + token.len as usize];
        match token.kind {
            TokenKind::LineComment { doc_style } => {
                rules::check_width(path, line, lines[line - 1], findings);
                docs.comment(path, line, doc_style, text, findings);
            }
            // Attributes and indentation stand between the lines of a doc comment.
            TokenKind::Whitespace if text.matches('\n').count() < 2 => {}
            _ => docs.end(path, findings),
        }
        if start < tests_begin && has_words(token.kind) {
            for (number, text) in (line..).zip(text.lines()) {
                rules::check_words(path, number, text, findings);
            }
        }
        start += text.len();
        line += text.matches('\n').count();
    }
    docs.end(path, findings);
}

fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.split('/').any(|folder| folder == "tests" || folder == "e2e")
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

/// Returns where a file's unit tests begin, which by custom are its end.
fn unit_tests_begin(source: &str) -> usize {
    source.find("\n#[cfg(test)]\nmod ").unwrap_or(source.len())
}

/// Says whether a token has text for people: a comment or a string.
fn has_words(kind: TokenKind) -> bool {
    match kind {
        TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => true,
        TokenKind::Literal { kind, .. } => {
            matches!(kind, LiteralKind::Str { .. } | LiteralKind::RawStr { .. })
        }
        _ => false,
    }
}

/// The doc comment that is being read.
#[derive(Default)]
struct Docs {
    style: Option<DocStyle>,
    first_line: usize,
    text: String,
}

impl Docs {
    fn comment(
        &mut self,
        path: &str,
        line: usize,
        style: Option<DocStyle>,
        text: &str,
        findings: &mut Vec<Finding>,
    ) {
        if style != self.style {
            self.end(path, findings);
        }
        if style.is_some() {
            if self.text.is_empty() {
                self.first_line = line;
            }
            self.style = style;
            self.text.push_str(text[3..].trim());
            self.text.push('\n');
        }
    }

    /// Judges the comment that has ended, if there was one.
    fn end(&mut self, path: &str, findings: &mut Vec<Finding>) {
        let docs = std::mem::take(self);
        if let Some(what) = rules::run_on(&docs.text) {
            let line = docs.first_line;
            findings.push(Finding { path: path.into(), line, fault: Fault::RunOn, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, source: &str) -> Vec<(usize, Fault)> {
        let mut findings = Vec::new();
        check(path, source, &mut findings);
        findings.iter().map(|finding| (finding.line, finding.fault)).collect()
    }

    #[test]
    fn comments_and_strings_are_read_and_code_is_not() {
        let source = "fn told() {\n    let cards = \"nobody\"; // told\n}\n";
        assert_eq!(found("a.rs", source), [(2, Fault::People), (2, Fault::HomeTerm)]);
    }

    #[test]
    fn tests_may_speak_of_people() {
        let source = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    // Nobody waits.\n}\n";
        assert_eq!(found("a.rs", source), []);
        assert_eq!(found("tests/a.rs", "// Nobody waits.\n"), []);
    }

    #[test]
    fn each_doc_comment_is_judged_by_itself() {
        let source = "/// The start,\nconst A: u8 = 1;\n/// and the end.\nconst B: u8 = 2;\n\
                      /// The sum:\n///\n/// - of both\n#[inline]\nfn f() {}\n";
        assert_eq!(found("a.rs", source), [(1, Fault::RunOn), (3, Fault::RunOn)]);
        assert_eq!(found("a.rs", "//! The end is here.\n\n/// It begins.\nfn f() {}\n"), []);
    }

    #[test]
    fn the_width_is_that_of_the_line_with_its_comment() {
        let code = format!("    let a = {}; // why\n", "1 + ".repeat(30));
        assert_eq!(found("a.rs", &code), [(1, Fault::Wide)]);
        assert_eq!(found("a.rs", &code.replace(" // why", "")), []);
    }
}
