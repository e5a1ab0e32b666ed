//! What counts as a fault, whatever kind of file it is in.

use std::fmt;

/// The widest line of a comment or of a document's text, in characters.
pub(super) const WIDTH_MAX: usize = 100;

/// A kind of fault; each has a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A line of a comment, or of a document outside of tables and code, wider than [`WIDTH_MAX`].
    Wide,
    /// A doc comment that is no sentence of its own: it continues the item before it.
    RunOn,
    /// A term that only this project used; the finding names the standard one.
    HomeTerm,
    /// "Nobody", "somebody", "whoever" and the like, where a part of the program is meant.
    People,
}

impl Fault {
    pub(super) const ALL: [Fault; 4] = [Fault::Wide, Fault::RunOn, Fault::HomeTerm, Fault::People];

    /// Returns the name in the budget file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::Wide => "wide",
            Fault::RunOn => "run-on",
            Fault::HomeTerm => "home-term",
            Fault::People => "person",
        }
    }
}

/// One fault in one line of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) path: String,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) fault: Fault,
    pub(super) what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, fault, what } = self;
        write!(f, "{path}:{line}: {}: {what}", fault.name())
    }
}

/// Terms of this project's own, each with the standard one.
///
/// A term is a sequence of whole words; words that also have an ordinary meaning ("turn", "cut",
/// "mirror") are listed only in phrases that leave no doubt.
const HOME_TERMS: &[(&str, &str)] = &[
    ("a driver of ours", "in-process driver"),
    ("drivers of ours", "in-process drivers"),
    ("at rest", "quiesced, idle"),
    ("ballast", "pre-committed reserve"),
    ("blind", "read-only"),
    ("books", "state, ledger, accounts"),
    ("card", "GPU, device"),
    ("cards", "GPUs, devices"),
    ("deaf", "not polled"),
    ("for whose sake", "name the thing"),
    ("from where it lies", "zero-copy send"),
    ("from where they lie", "zero-copy send"),
    ("go on", "continue, resume"),
    ("goes on", "continues, resumes"),
    ("going on", "continuing"),
    ("has notice", "got its preemption notice"),
    ("heard", "received"),
    ("hears", "receives"),
    ("in fewer bytes", "delta encoded"),
    ("makes room", "is preempted, frees memory"),
    ("of strangers", "of other users, unauthenticated"),
    ("of its own accord", "by itself"),
    ("on its way", "in flight"),
    ("on their way", "in flight"),
    ("parted", "disconnected"),
    ("past the caches", "with non-temporal stores"),
    ("patience", "timeout"),
    ("sign of life", "keep-alive"),
    ("signs of life", "keep-alives"),
    ("so long", "for this time, as long"),
    ("so many", "this number, the count"),
    ("so much", "this amount, the size"),
    ("so often", "this number of times"),
    ("strangers", "unauthenticated connections"),
    ("taken for lost", "counts as disconnected"),
    ("told", "sent, reported, notified"),
    ("withheld", "delayed by flow control"),
    ("withhold", "delay, apply backpressure"),
    ("withholds", "delays, applies backpressure"),
];

const PEOPLE: &[&str] = &[
    "anybody",
    "anybody's",
    "everybody",
    "everybody's",
    "nobody",
    "nobody's",
    "somebody",
    "somebody's",
    "whoever",
    "whose sake",
];

/// Reports terms and people in a line of text.
pub(super) fn check_words(path: &str, line: usize, text: &str, findings: &mut Vec<Finding>) {
    let words = words(text);
    let mut report = |fault, what: String| {
        findings.push(Finding { path: path.into(), line, fault, what });
    };
    for (term, standard) in HOME_TERMS {
        for _ in 0..occurrences(&words, term) {
            report(Fault::HomeTerm, format!("\"{term}\": {standard}"));
        }
    }
    for person in PEOPLE {
        for _ in 0..occurrences(&words, person) {
            report(Fault::People, format!("\"{person}\""));
        }
    }
}

/// Returns the words of `text` in lower case.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'');
    parts.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn occurrences(words: &[String], term: &str) -> usize {
    let term: Vec<&str> = term.split(' ').collect();
    words.windows(term.len()).filter(|window| *window == term).count()
}

/// Reports a line that is too wide.
pub(super) fn check_width(path: &str, line: usize, text: &str, findings: &mut Vec<Finding>) {
    let width = text.chars().count();
    if width > WIDTH_MAX {
        let what = format!("{width} columns, at most {WIDTH_MAX}");
        findings.push(Finding { path: path.into(), line, fault: Fault::Wide, what });
    }
}

/// Returns why a doc comment is no text of its own, or `None` for one that is.
///
/// Names (`tinygrad`, `cuInit`) may begin a sentence in lower case when they stand in backquotes.
pub(super) fn run_on(text: &str) -> Option<String> {
    const CONTINUATIONS: [&str; 7] = ["And", "As well", "But", "Likewise", "Nor", "Or", "The same"];
    let text = text.trim();
    let first = text.split_whitespace().next()?;
    if first.chars().next().is_some_and(char::is_lowercase) {
        return Some(format!("begins in the middle of a sentence: \"{first} ...\""));
    }
    let continues =
        |opening: &str| text.strip_prefix(opening).is_some_and(|rest| rest.starts_with([' ', ',', ':']));
    if let Some(opening) = CONTINUATIONS.into_iter().find(|opening| continues(opening)) {
        return Some(format!("continues another text: \"{opening} ...\""));
    }
    let last = text.lines().last()?.split_whitespace().last()?;
    text.ends_with([',', ';', ':']).then(|| format!("does not end: \"... {last}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_found(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_words("f", 1, text, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn terms_are_found_as_whole_words_in_any_case() {
        assert_eq!(words_found("Told twice: told."), ["\"told\": sent, reported, notified"; 2]);
        assert_eq!(words_found("the cards"), ["\"cards\": GPUs, devices"]);
        assert!(words_found("discards, untold, card_of, wildcard").is_empty());
        assert_eq!(words_found("It goes\n on, nobody waits").len(), 2);
    }

    #[test]
    fn a_doc_comment_is_a_text_of_its_own() {
        for good in ["Returns the id.", "`cuInit` starts it.", "Devices", "Orders, by time", ""] {
            assert_eq!(run_on(good), None, "{good}");
        }
        for bad in ["and the length.", "Or the length.", "The start,", "One of:", "The same, later"] {
            assert!(run_on(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn only_wider_lines_are_too_wide() {
        let mut findings = Vec::new();
        check_width("f", 1, &"ä".repeat(WIDTH_MAX), &mut findings);
        assert!(findings.is_empty());
        check_width("f", 2, &"a".repeat(WIDTH_MAX + 1), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
