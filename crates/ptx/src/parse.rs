//! The parser: recursive descent, one token ahead, over the whole text or over one declaration of
//! it.
//!
//! What a body's scopes mean is settled while parsing: see [`scope`].

mod body;
mod constant;
mod function;
pub(crate) mod module;
mod operand;
mod scope;
mod variable;

use crate::ast::Module;
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::{Lexer, Spanned, Token};

/// Braces, brackets and parentheses within one another. Real programs reach 4.
const DEPTH_MAX: u32 = 64;

/// Zero bytes that the initialisers of one text may imply between the elements they spell out, in
/// bytes. It keeps `x[2][1000000000] = {{1}, {2}}` from being a request for a gigabyte.
const PADDING_BYTES_MAX: u64 = 64 << 20;

/// Parses a whole module.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Module, ParseError> {
    let mut parser = Parser::new(Lexer::new(text.as_ref()), Depth::Everything)?;
    let mut module = Module::default();
    while let Some(item) = parser.item()? {
        item.add_to(&mut module);
    }
    module::drop_declarations(&mut module);
    Ok(module)
}

/// How much of a declaration is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Everything,
    /// Bodies and initialisers are skipped.
    Signatures,
}

/// A lexer and the token that comes next.
pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    next: Spanned<'a>,
    depth: Depth,
    padding_left: u64,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(mut lexer: Lexer<'a>, depth: Depth) -> Result<Parser<'a>, ParseError> {
        let next = lexer.next()?;
        Ok(Parser { lexer, next, depth, padding_left: PADDING_BYTES_MAX })
    }

    /// Offset and line of the next token.
    pub(crate) fn position(&self) -> (usize, u32) {
        (self.next.start, self.next.line)
    }

    fn advance(&mut self) -> Result<Spanned<'a>, ParseError> {
        let following = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.next, following))
    }

    fn is(&self, punct: u8) -> bool {
        self.next.token == Token::Punct(punct)
    }

    /// Takes the punctuation if it is next.
    fn accept(&mut self, punct: u8) -> Result<bool, ParseError> {
        let found = self.is(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, punct: u8) -> Result<(), ParseError> {
        if self.accept(punct)? {
            return Ok(());
        }
        Err(self.expected(match punct {
            b',' => "`,`",
            b';' => "`;`",
            b':' => "`:`",
            b'{' => "`{`",
            b'}' => "`}`",
            b'(' => "`(`",
            b')' => "`)`",
            b'[' => "`[`",
            b']' => "`]`",
            b'<' => "`<`",
            b'>' => "`>`",
            _ => "other punctuation",
        }))
    }

    fn word(&mut self, what: &'static str) -> Result<&'a str, ParseError> {
        match self.next.token {
            Token::Word(word) => {
                self.advance()?;
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Takes a word after a dot, if that is next.
    fn accept_dotted(&mut self) -> Result<Option<&'a str>, ParseError> {
        match self.next.token {
            Token::Dotted(word) => {
                self.advance()?;
                Ok(Some(word))
            }
            _ => Ok(None),
        }
    }

    fn expected(&self, what: &'static str) -> ParseError {
        self.error(ParseErrorKind::Expected(what))
    }

    /// An error at the next token.
    fn error(&self, kind: ParseErrorKind) -> ParseError {
        self.error_at(kind, self.next.start)
    }

    fn error_at(&self, kind: ParseErrorKind, start: usize) -> ParseError {
        self.lexer.error(kind, start)
    }

    /// `depth + 1`, while that is allowed.
    fn deeper(&self, depth: u32) -> Result<u32, ParseError> {
        if depth >= DEPTH_MAX {
            return Err(self.error(ParseErrorKind::TooDeep(DEPTH_MAX)));
        }
        Ok(depth + 1)
    }
}
