//! What can be wrong with a text, and where.

use std::fmt;

/// A text that is not PTX as we know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    pub kind: ParseErrorKind,
    /// From 1.
    pub line: u32,
    /// In bytes, from 1.
    pub column: u32,
    /// The text at that place, cut to one short line; empty at the end of the text.
    pub found: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParseError { kind, line, column, found } = self;
        write!(f, "PTX line {line}, column {column}: {kind}")?;
        if found.is_empty() { write!(f, ", at the end of the text") } else { write!(f, ", at `{found}`") }
    }
}

impl std::error::Error for ParseError {}

/// Static shared memory that a block may have, in bytes (CUDA C++ Programming Guide, "Shared
/// Memory").
pub const STATIC_SHARED_MAX: u64 = 48 << 10;

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("a byte that no PTX token begins with")]
    InvalidByte,
    #[error("a comment or string without an end")]
    Unterminated,
    #[error("not a number that PTX can write")]
    InvalidNumber,
    #[error("a number out of range for {0}")]
    OutOfRange(&'static str),
    #[error("division by zero in a constant expression")]
    DivisionByZero,
    #[error("an unknown directive")]
    UnknownDirective,
    #[error("`{0}` is not declared here")]
    Undeclared(String),
    #[error("`{0}` is declared twice in one scope")]
    Redeclared(String),
    #[error("an initialiser with more elements than its variable")]
    InitializerTooLong,
    #[error("an initialiser that its variable's type cannot hold")]
    InitializerType,
    #[error("nesting deeper than {0}")]
    TooDeep(u32),
    /// An entry declares this number of bytes of it, beside what a launch adds.
    #[error("uses too much shared data ({0:#x} bytes, {STATIC_SHARED_MAX:#x} max)")]
    SharedData(u64),
}
