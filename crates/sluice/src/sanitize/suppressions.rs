//! Findings that a project knows and lives with.
//!
//! ```text
//! # Warps agree on the value that they write.
//! race                 label_components*
//! uninitialized-read   *                  @ */third_party/*
//! ```

use std::path::Path;

use sluice_sanitize::Finding;
use wildmatch::WildMatch;

use crate::child::NotStarted;
use crate::run::failed;
use crate::sanitize::text;

#[derive(Debug, Default)]
pub(crate) struct Suppressions(Vec<Line>);

/// A line of the file, of which all parts must match.
#[derive(Debug)]
struct Line {
    kind: WildMatch,
    /// The kernel's name, in the module or in the source.
    kernel: WildMatch,
    /// File and line of the source.
    source: Option<WildMatch>,
}

impl Suppressions {
    pub(crate) fn read(path: &Path) -> Result<Suppressions, NotStarted> {
        let file = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| failed(format!("--suppressions {file}: {error}")))?;
        Suppressions::parse(&text).map_err(|error| failed(format!("--suppressions {file}: {error}")))
    }

    fn parse(text: &str) -> Result<Suppressions, String> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (what, source) = match line.split_once(" @ ") {
                Some((what, source)) => (what, Some(WildMatch::new(source.trim()))),
                None => (line, None),
            };
            let (kind, kernel) = what
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("line {number}: expected KIND KERNEL [@ SOURCE:LINE]: {line:?}"))?;
            lines.push(Line { kind: WildMatch::new(kind), kernel: WildMatch::new(kernel.trim()), source });
        }
        Ok(Suppressions(lines))
    }

    /// Whether a finding is to be left out.
    pub(crate) fn cover(&self, finding: &Finding) -> bool {
        self.0.iter().any(|line| line.covers(finding))
    }
}

impl Line {
    fn covers(&self, finding: &Finding) -> bool {
        let kernel = finding.kernel.as_deref().unwrap_or_default();
        let is_source = |source: &WildMatch| {
            finding.source.as_ref().is_some_and(|at| source.matches(&format!("{}:{}", at.file, at.line)))
        };
        self.kind.matches(finding.kind.name())
            && (self.kernel.matches(kernel) || self.kernel.matches(&text::demangled(kernel)))
            && self.source.as_ref().is_none_or(is_source)
    }
}

#[cfg(test)]
mod tests {
    use sluice_sanitize::Source;

    use super::*;

    fn finding(kernel: &str) -> Finding {
        let source = Some(Source { file: "/src/a.cu".to_owned(), line: 12 });
        Finding { source, ..text::example(kernel) }
    }

    #[test]
    fn a_line_names_kind_kernel_and_perhaps_the_source() {
        let covers = |line: &str| Suppressions::parse(line).unwrap().cover(&finding("_Z5scalePfi"));
        for line in [
            "out-of-bounds _Z5scale*",
            "* scale(float*, int)",
            "out-of-bounds   scale*  @ */a.cu:12",
            "out-of-bounds * @ *.cu:*",
            "# a comment\n\n* *",
        ] {
            assert!(covers(line), "{line}");
        }
        for line in ["race *", "out-of-bounds other*", "out-of-bounds * @ *.cu:13", "# * *", ""] {
            assert!(!covers(line), "{line}");
        }
    }

    #[test]
    fn a_line_that_says_too_little_is_named() {
        let error = Suppressions::parse("# fine\nrace\n").unwrap_err();
        assert!(error.starts_with("line 2:") && error.contains("KIND KERNEL"), "{error}");
    }
}
