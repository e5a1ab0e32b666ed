//! CSV files with a header line, read cell by cell so that every complaint names file, line and
//! field.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use csv::StringRecord;

/// What is wrong with an input file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("{file}: {problem}")]
    File { file: String, problem: String },
    #[error("{file}:{line}: {problem}")]
    Line { file: String, line: u64, problem: String },
    #[error("{file}:{line}: {field}: {problem}")]
    Field { file: String, line: u64, field: String, problem: String },
}

/// More lines than any trace that fits a machine's memory comfortably.
const ROWS_MAX: usize = 10_000_000;
const BYTES_MAX: u64 = 4 << 30;

/// A CSV file in memory.
pub(super) struct Table {
    file: String,
    columns: Vec<String>,
    records: Vec<StringRecord>,
}

impl Table {
    pub(super) fn open(path: &Path) -> Result<Table, InputError> {
        let file = path.display().to_string();
        match File::open(path) {
            Ok(content) => Table::read(&file, content),
            Err(error) => Err(InputError::File { file, problem: error.to_string() }),
        }
    }

    /// `file` is what complaints call it.
    pub(super) fn read(file: &str, content: impl Read) -> Result<Table, InputError> {
        let wrong = |problem: String| InputError::File { file: file.into(), problem };
        let mut bytes = Vec::new();
        content.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(wrong(format!("is larger than {} GiB", BYTES_MAX >> 30)));
        }
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(&bytes[..]);
        let header = reader.headers().map_err(|error| unreadable(file, &error))?;
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        for (index, column) in columns.iter().enumerate() {
            if columns[..index].contains(column) {
                let problem = format!("the column {column:?} appears twice");
                return Err(InputError::Line { file: file.into(), line: 1, problem });
            }
        }
        let mut records = Vec::new();
        for record in reader.records() {
            if records.len() == ROWS_MAX {
                return Err(wrong(format!("has more than {ROWS_MAX} lines")));
            }
            let mut record = record.map_err(|error| unreadable(file, &error))?;
            skip_blank_lines(&mut record, &bytes);
            records.push(record);
        }
        Ok(Table { file: file.into(), columns, records })
    }

    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|name| name == column)
    }

    /// Refuses columns that are not `known` (a misspelt one would be ignored silently) and the lack
    /// of a `required` one.
    pub(super) fn expect_columns(&self, required: &[&str], known: &[&str]) -> Result<(), InputError> {
        let complain = |problem| Err(InputError::Line { file: self.file.clone(), line: 1, problem });
        for column in &self.columns {
            if !required.contains(&column.as_str()) && !known.contains(&column.as_str()) {
                let all = [required, known].concat().join(", ");
                return complain(format!("unknown column {column:?}; the columns are {all}"));
            }
        }
        match required.iter().find(|column| !self.has(column)) {
            Some(column) => complain(format!("the column {column:?} is missing")),
            None => Ok(()),
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.records.iter().map(|record| Row { table: self, record })
    }

    /// The file as a whole is wrong.
    pub(super) fn wrong(&self, problem: impl Display) -> InputError {
        InputError::File { file: self.file.clone(), problem: problem.to_string() }
    }
}

/// The reader places a record at the blank lines before it.
fn skip_blank_lines(record: &mut StringRecord, bytes: &[u8]) {
    let Some(position) = record.position() else { return };
    let start = bytes.get(position.byte() as usize..).unwrap_or_default();
    let blank = start.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let lines = blank.filter(|byte| **byte == b'\n').count() as u64;
    let mut position = position.clone();
    position.set_line(position.line() + lines);
    record.set_position(Some(position));
}

fn unreadable(file: &str, error: &csv::Error) -> InputError {
    let file = file.to_string();
    let line = error.position().map(csv::Position::line);
    let problem = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields, but the header names {expected_len} columns")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8 text".into(),
        _ => error.to_string(),
    };
    match line {
        Some(line) => InputError::Line { file, line, problem },
        None => InputError::File { file, problem },
    }
}

/// One line of a table.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    table: &'a Table,
    record: &'a StringRecord,
}

impl<'a> Row<'a> {
    pub(super) fn has(&self, column: &str) -> bool {
        self.table.has(column)
    }

    /// Counted from 1; the header is line 1.
    pub(super) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// The cell's text; empty where the column is absent.
    pub(super) fn text(&self, column: &str) -> &'a str {
        let index = self.table.columns.iter().position(|name| name == column);
        index.and_then(|index| self.record.get(index)).unwrap_or("")
    }

    pub(super) fn name(&self, column: &str) -> Result<&'a str, InputError> {
        match self.text(column) {
            "" => Err(self.wrong(column, "is empty")),
            name if name.len() > NAME_BYTES_MAX => {
                Err(self.wrong(column, format!("is longer than {NAME_BYTES_MAX} bytes")))
            }
            name => Ok(name),
        }
    }

    pub(super) fn whole(&self, column: &str, range: RangeInclusive<u64>) -> Result<u64, InputError> {
        let text = self.text(column);
        match text.parse::<u64>() {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => Err(self.wrong(column, not_in(text, "a whole number", &range))),
        }
    }

    pub(super) fn signed(&self, column: &str, range: RangeInclusive<i64>) -> Result<i64, InputError> {
        let text = self.text(column);
        match text.parse::<i64>() {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => Err(self.wrong(column, not_in(text, "a whole number", &range))),
        }
    }

    /// A decimal number; the range keeps NaN and infinities out.
    pub(super) fn decimal(&self, column: &str, range: RangeInclusive<f64>) -> Result<f64, InputError> {
        let text = self.text(column);
        match text.parse::<f64>() {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => Err(self.wrong(column, not_in(text, "a number", &range))),
        }
    }

    pub(super) fn yes_or_no(&self, column: &str) -> Result<bool, InputError> {
        match self.text(column) {
            "yes" | "true" | "1" => Ok(true),
            "no" | "false" | "0" => Ok(false),
            text => Err(self.wrong(column, format!("{text:?} is neither yes nor no"))),
        }
    }

    /// `absent` where the column is missing or the cell empty, else what `read` makes of it.
    pub(super) fn or<T>(
        &self,
        column: &str,
        absent: T,
        read: impl FnOnce(&Self) -> Result<T, InputError>,
    ) -> Result<T, InputError> {
        if self.text(column).is_empty() { Ok(absent) } else { read(self) }
    }

    /// The cell of `column` is wrong.
    pub(super) fn wrong(&self, column: &str, problem: impl Display) -> InputError {
        InputError::Field {
            file: self.table.file.clone(),
            line: self.line(),
            field: column.into(),
            problem: problem.to_string(),
        }
    }
}

/// Longer names are slips, and would fill reports.
const NAME_BYTES_MAX: usize = 256;

fn not_in<T: Display>(text: &str, kind: &str, range: &RangeInclusive<T>) -> String {
    if text.is_empty() {
        return format!("is empty; expected {kind} from {} to {}", range.start(), range.end());
    }
    // A cell may be a whole misquoted file.
    let shown: String = text.chars().take(40).collect();
    format!("{shown:?} is not {kind} from {} to {}", range.start(), range.end())
}
