//! The tracefile of `lcov` (geninfo(1), "FILES").

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Coverage of source files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracefile {
    /// By the name of the test, which is empty in files of Sluice, and the name of the source file.
    files: BTreeMap<(String, String), SourceFile>,
}

/// Coverage of one source file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// By name.
    pub functions: BTreeMap<String, SourceFunction>,
    /// Counts by the number of the line.
    pub lines: BTreeMap<u32, u64>,
    /// Records of other kinds, such as those of branches, which other tools have written.
    others: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceFunction {
    /// Its first line.
    pub line: u32,
    /// Its last line, where another tool has written it.
    end: Option<u32>,
    pub count: u64,
}

/// A line that does not belong in a tracefile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} does not belong in an lcov tracefile: {text:?}")]
pub struct SyntaxError {
    line: usize,
    text: String,
}

impl Tracefile {
    /// The coverage of a source file, which is entered if it is not there.
    pub(crate) fn file(&mut self, name: &str) -> &mut SourceFile {
        self.files.entry((String::new(), name.to_owned())).or_default()
    }

    /// Source files, in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = (&str, &SourceFile)> {
        self.files.iter().map(|((_, name), file)| (name.as_str(), file))
    }

    /// Adds the counts of another tracefile. Lines and functions that only one of them has stay.
    pub fn add(&mut self, other: &Tracefile) {
        for (key, other) in &other.files {
            let file = self.files.entry(key.clone()).or_default();
            for (&line, &count) in &other.lines {
                let sum = file.lines.entry(line).or_default();
                *sum = sum.saturating_add(count);
            }
            for (name, other) in &other.functions {
                let function =
                    file.functions.entry(name.clone()).or_insert(SourceFunction { count: 0, ..*other });
                function.count = function.count.saturating_add(other.count);
            }
            file.others.extend(other.others.iter().cloned());
        }
    }
}

impl SourceFile {
    /// Lines that have been executed.
    pub fn lines_hit(&self) -> usize {
        self.lines.values().filter(|&&count| count > 0).count()
    }

    fn functions_hit(&self) -> usize {
        self.functions.values().filter(|function| function.count > 0).count()
    }

    /// Takes a record of a file; `None` where its value is not what the record's kind has.
    fn take(&mut self, kind: &str, value: &str) -> Option<()> {
        match kind {
            "FN" => {
                let (line, rest) = value.split_once(',')?;
                let with_end = rest.split_once(',').and_then(|(end, name)| Some((end.parse().ok()?, name)));
                let (end, name) = with_end.map_or((None, rest), |(end, name)| (Some(end), name));
                let function = self.functions.entry(name.to_owned()).or_default();
                (function.line, function.end) = (line.parse().ok()?, end);
            }
            "FNDA" => {
                let (count, name) = value.split_once(',')?;
                let function = self.functions.entry(name.to_owned()).or_default();
                function.count = function.count.saturating_add(count.parse().ok()?);
            }
            "DA" => {
                // A checksum of the line may follow.
                let mut parts = value.split(',');
                let (line, count): (u32, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                let sum = self.lines.entry(line).or_default();
                *sum = sum.saturating_add(count);
            }
            // Made anew from the others.
            "FNF" | "FNH" | "LF" | "LH" => _ = value.parse::<u64>().ok()?,
            _ => self.others.push(format!("{kind}:{value}")),
        }
        Some(())
    }
}

impl FromStr for Tracefile {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Tracefile, SyntaxError> {
        let mut tracefile = Tracefile::default();
        let mut test = String::new();
        let mut file: Option<(String, SourceFile)> = None;
        let mut last = 0;
        for (number, line) in (1..).zip(text.lines()) {
            last = number;
            let wrong = || SyntaxError { line: number, text: line.chars().take(60).collect() };
            match (line.split_once(':'), &mut file) {
                (Some(("TN", name)), None) => name.clone_into(&mut test),
                (Some(("SF", name)), None) => file = Some((name.to_owned(), SourceFile::default())),
                (Some((kind, value)), Some((_, file))) if !matches!(kind, "TN" | "SF") => {
                    file.take(kind, value).ok_or_else(wrong)?;
                }
                (None, Some(_)) if line == "end_of_record" => {
                    let (name, read) = file.take().ok_or_else(wrong)?;
                    let files = BTreeMap::from([((test.clone(), name), read)]);
                    tracefile.add(&Tracefile { files });
                }
                (None, None) if line.is_empty() || line.starts_with('#') => {}
                _ => return Err(wrong()),
            }
        }
        match file {
            None => Ok(tracefile),
            Some(_) => Err(SyntaxError { line: last + 1, text: "the end of the file".to_owned() }),
        }
    }
}

impl fmt::Display for Tracefile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((test, name), file) in &self.files {
            writeln!(f, "TN:{test}\nSF:{name}")?;
            for (name, SourceFunction { line, end, .. }) in &file.functions {
                match end {
                    Some(end) => writeln!(f, "FN:{line},{end},{name}")?,
                    None => writeln!(f, "FN:{line},{name}")?,
                }
            }
            for (name, function) in &file.functions {
                writeln!(f, "FNDA:{},{name}", function.count)?;
            }
            writeln!(f, "FNF:{}\nFNH:{}", file.functions.len(), file.functions_hit())?;
            for other in &file.others {
                writeln!(f, "{other}")?;
            }
            for (line, count) in &file.lines {
                writeln!(f, "DA:{line},{count}")?;
            }
            writeln!(f, "LF:{}\nLH:{}\nend_of_record", file.lines.len(), file.lines_hit())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "TN:unit
SF:/src/a.cu
FN:3,9,_Z1kPf
FN:12,unused
FNDA:4,_Z1kPf
FNDA:0,unused
FNF:2
FNH:1
BRDA:4,0,0,1
DA:3,4
DA:5,0
DA:12,0
LF:3
LH:1
end_of_record
";

    #[test]
    fn a_tracefile_is_written_as_it_was_read() {
        assert_eq!(TEXT.parse::<Tracefile>().unwrap().to_string(), TEXT);
        assert_eq!("".parse::<Tracefile>().unwrap(), Tracefile::default());
    }

    #[test]
    fn counts_are_added_and_lines_of_either_stay() {
        let mut sum: Tracefile = TEXT.parse().unwrap();
        let more = "TN:unit\nSF:/src/a.cu\nFN:3,_Z1kPf\nFNDA:2,_Z1kPf\nDA:5,2,checksum\nDA:6,1\nend_of_record\n\
                    SF:/src/b.cu\nDA:1,1\nend_of_record\n";
        sum.add(&more.parse().unwrap());
        let files: Vec<_> = sum.files().collect();
        let [("/src/a.cu", a), ("/src/b.cu", _)] = files[..] else { panic!("{files:?}") };
        assert_eq!(a.lines, BTreeMap::from([(3, 4), (5, 2), (6, 1), (12, 0)]));
        assert_eq!((a.functions["_Z1kPf"].count, a.functions["_Z1kPf"].end), (6, Some(9)));
        assert_eq!((a.lines_hit(), a.functions_hit()), (3, 1));
    }

    #[test]
    fn a_text_of_another_format_is_refused_with_the_line() {
        for (text, line) in [
            ("#include <stdio.h>\nint main() {\n", 2),
            ("SF:a\nDA:x,1\nend_of_record\n", 2),
            ("SF:a\nDA:1\nend_of_record\n", 2),
            ("SF:a\nSF:b\n", 2),
            ("DA:1,1\n", 1),
            ("SF:a\nDA:1,1\n", 3),
            ("end_of_record\n", 1),
        ] {
            assert_eq!(text.parse::<Tracefile>().unwrap_err().line, line, "{text}");
        }
    }
}
