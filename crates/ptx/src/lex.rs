//! From bytes to tokens (PTX ISA, "Source Format", "Identifiers", "Constants").

use crate::error::{ParseError, ParseErrorKind};

/// A token; text is borrowed from the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `foo`, `%r1`, `_`.
    Word(&'a str),
    /// `.global`, `.shared::cta`, `.2d`, without the leading dot.
    Dotted(&'a str),
    /// Begins with a digit: `12`, `0x1FU`, `0f3F800000`, `1.5e-3`.
    Number(&'a str),
    /// The text between the quotes, escapes untouched.
    String(&'a [u8]),
    /// Any one character of punctuation.
    Punct(u8),
    End,
}

/// A token and where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spanned<'a> {
    pub(crate) token: Token<'a>,
    /// Byte offset in the text.
    pub(crate) start: usize,
    pub(crate) line: u32,
}

/// A cursor over a text.
#[derive(Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    position: usize,
    line: u32,
}

/// Classes of bytes, so that each loop below is one table look-up per byte.
const WORD: u8 = 1;
const START: u8 = 2;
const DIGIT: u8 = 4;
const SPACE: u8 = 8;
/// Bytes at which skipping a body has to look closer.
const SKIP_STOP: u8 = 16;

static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' => WORD | START,
            b'0'..=b'9' => WORD | DIGIT,
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => SPACE,
            b'\n' | b'{' | b'}' | b'"' | b'/' | b'#' | b'@' | 0 => SKIP_STOP,
            _ => 0,
        };
        byte += 1;
    }
    table
};

fn is(byte: u8, class: u8) -> bool {
    CLASS[byte as usize] & class != 0
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Lexer<'a> {
        Lexer { text, position: 0, line: 1 }
    }

    /// A lexer that begins in the middle, at a place and line that an earlier one has seen.
    pub(crate) fn at(text: &'a [u8], position: usize, line: u32) -> Lexer<'a> {
        Lexer { text, position, line }
    }

    pub(crate) fn next(&mut self) -> Result<Spanned<'a>, ParseError> {
        self.skip_blank()?;
        let start = self.position;
        let line = self.line;
        let token = match self.peek(0) {
            // A NUL ends the text, as cuModuleLoadData says.
            None | Some(0) => Token::End,
            Some(b'.') if is(self.peek(1).unwrap_or(0), WORD) => {
                self.position += 1;
                Token::Dotted(self.qualified_word())
            }
            Some(b'%') if is(self.peek(1).unwrap_or(0), WORD) => {
                self.position += 1;
                self.take(WORD);
                Token::Word(self.slice(start))
            }
            Some(byte) if is(byte, START) => Token::Word(self.take(WORD)),
            Some(byte) if is(byte, DIGIT) => Token::Number(self.number()),
            Some(b'"') => Token::String(self.string()?),
            Some(byte) if byte.is_ascii_punctuation() => {
                self.position += 1;
                Token::Punct(byte)
            }
            Some(_) => return Err(self.error(ParseErrorKind::InvalidByte, start)),
        };
        Ok(Spanned { token, start, line })
    }

    /// Skips to the end of the `{...}` whose first brace has just been read, and past it.
    pub(crate) fn skip_braces(&mut self) -> Result<(), ParseError> {
        let mut depth = 1u32;
        loop {
            match self.skip_to_stop()? {
                b'{' => depth = depth.saturating_add(1),
                b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Skips an initialiser, up to the `,` or `;` that ends it, which is left to be read.
    pub(crate) fn skip_initializer(&mut self) -> Result<(), ParseError> {
        loop {
            let before = self.clone();
            match self.next()?.token {
                Token::Punct(b'{') => self.skip_braces()?,
                Token::Punct(b',' | b';') | Token::End => {
                    *self = before;
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Makes an error at a byte offset, with its line, column and text.
    pub(crate) fn error(&self, kind: ParseErrorKind, start: usize) -> ParseError {
        let start = start.min(self.text.len());
        let before = &self.text[..start];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        let rest = &self.text[start..];
        let shown = &rest[..rest.len().min(40)];
        let end = shown.iter().position(|&byte| byte == b'\n' || byte == 0).unwrap_or(shown.len());
        ParseError {
            kind,
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(1 + start - line_start).unwrap_or(u32::MAX),
            found: String::from_utf8_lossy(&shown[..end]).trim_end().to_string(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.position + ahead).copied()
    }

    /// The text from an offset to the cursor. Only called where all of it is ASCII.
    fn slice(&self, start: usize) -> &'a str {
        std::str::from_utf8(&self.text[start..self.position]).unwrap_or("")
    }

    fn take(&mut self, class: u8) -> &'a str {
        let start = self.position;
        while self.peek(0).is_some_and(|byte| is(byte, class)) {
            self.position += 1;
        }
        self.slice(start)
    }

    /// `shared::cta` is one word after a dot.
    fn qualified_word(&mut self) -> &'a str {
        let start = self.position;
        self.take(WORD);
        while self.peek(0) == Some(b':') && self.peek(1) == Some(b':') && is(self.peek(2).unwrap_or(0), WORD)
        {
            self.position += 2;
            self.take(WORD);
        }
        self.slice(start)
    }

    /// Everything that can belong to a number; whether it is one is decided where its value is
    /// taken.
    fn number(&mut self) -> &'a str {
        let start = self.position;
        let is_decimal = !matches!(
            (self.peek(0), self.peek(1)),
            (Some(b'0'), Some(b'x' | b'X' | b'b' | b'B' | b'f' | b'F' | b'd' | b'D'))
        );
        self.take(WORD);
        if is_decimal {
            if self.peek(0) == Some(b'.') && !is(self.peek(1).unwrap_or(0), START) {
                self.position += 1;
                self.take(WORD);
            }
            let has_exponent = matches!(self.text[self.position - 1], b'e' | b'E');
            if has_exponent && matches!(self.peek(0), Some(b'+' | b'-')) {
                self.position += 1;
                self.take(WORD);
            }
        }
        self.slice(start)
    }

    fn string(&mut self) -> Result<&'a [u8], ParseError> {
        let start = self.position;
        self.position += 1;
        loop {
            match self.peek(0) {
                None | Some(0 | b'\n') => return Err(self.error(ParseErrorKind::Unterminated, start)),
                Some(b'\\') => self.position += 2,
                Some(b'"') => break,
                Some(_) => self.position += 1,
            }
        }
        self.position += 1;
        Ok(&self.text[start + 1..self.position - 1])
    }

    /// Blanks, comments, preprocessor lines (`#line`) and the old `@@DWARF` lines.
    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match self.peek(0) {
                Some(b'\n') => {
                    self.line += 1;
                    self.position += 1;
                }
                Some(byte) if is(byte, SPACE) => self.position += 1,
                Some(b'/') if matches!(self.peek(1), Some(b'/' | b'*')) => self.skip_comment()?,
                Some(b'#') => self.skip_line(),
                Some(b'@') if self.peek(1) == Some(b'@') => self.skip_line(),
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), ParseError> {
        if self.peek(1) == Some(b'/') {
            self.skip_line();
            return Ok(());
        }
        let start = self.position;
        self.position += 2;
        loop {
            match self.peek(0) {
                None | Some(0) => return Err(self.error(ParseErrorKind::Unterminated, start)),
                Some(b'*') if self.peek(1) == Some(b'/') => break,
                Some(b'\n') => self.line += 1,
                Some(_) => {}
            }
            self.position += 1;
        }
        self.position += 2;
        Ok(())
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n' && byte != 0) {
            self.position += 1;
        }
    }

    /// Moves past the next byte of punctuation that matters to nesting and returns it.
    fn skip_to_stop(&mut self) -> Result<u8, ParseError> {
        loop {
            let rest = &self.text[self.position..];
            let Some(run) = rest.iter().position(|&byte| is(byte, SKIP_STOP)) else {
                self.position = self.text.len();
                return Err(self.error(ParseErrorKind::Expected("`}`"), self.position));
            };
            self.position += run;
            match rest[run] {
                0 => return Err(self.error(ParseErrorKind::Expected("`}`"), self.position)),
                b'\n' => {
                    self.line += 1;
                    self.position += 1;
                }
                b'"' => {
                    self.string()?;
                }
                b'/' if matches!(self.peek(1), Some(b'/' | b'*')) => self.skip_comment()?,
                b'#' => self.skip_line(),
                b'@' if self.peek(1) == Some(b'@') => self.skip_line(),
                b'/' | b'@' => self.position += 1,
                byte => {
                    self.position += 1;
                    return Ok(byte);
                }
            }
        }
    }
}
