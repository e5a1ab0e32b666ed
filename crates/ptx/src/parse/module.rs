//! Directives at module level (PTX ISA, "PTX Module Directives", "Linking Directives", "Debugging
//! Directives").

use std::collections::HashSet;

use super::{Depth, Parser};
use crate::ast::{Alias, Function, Linkage, Module, Name, Variable};
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;

/// One directive of a module.
pub(crate) enum Item {
    Version((u32, u32)),
    Target(Vec<Name>),
    AddressSize(u32),
    Variables(Vec<Variable>),
    Function(Box<Function>),
    Alias(Alias),
}

impl Item {
    pub(crate) fn add_to(self, module: &mut Module) {
        match self {
            Item::Version(version) => module.version = version,
            Item::Target(target) => module.target = target,
            Item::AddressSize(bits) => module.address_size = bits,
            Item::Variables(variables) => module.variables.extend(variables),
            Item::Function(function) => module.functions.push(*function),
            Item::Alias(alias) => module.aliases.push(alias),
        }
    }
}

/// Takes away declarations of what the module defines as well.
pub(crate) fn drop_declarations(module: &mut Module) {
    let is_definition = |function: &Function| function.body.is_some();
    let defined: HashSet<Name> =
        module.functions.iter().filter(|f| is_definition(f)).map(|function| function.name.clone()).collect();
    module.functions.retain(|function| is_definition(function) || !defined.contains(&function.name));
    let is_definition = |variable: &Variable| variable.linkage != Linkage::Extern;
    let defined: HashSet<Name> =
        module.variables.iter().filter(|v| is_definition(v)).map(|variable| variable.name.clone()).collect();
    module.variables.retain(|variable| is_definition(variable) || !defined.contains(&variable.name));
}

impl<'a> Parser<'a> {
    /// The next directive that says something; None at the end of the text.
    pub(crate) fn item(&mut self) -> Result<Option<Item>, ParseError> {
        loop {
            let line = self.next.line;
            let directive = match self.next.token {
                Token::End => return Ok(None),
                Token::Dotted(directive) => directive,
                Token::Punct(b';') => {
                    self.advance()?;
                    continue;
                }
                _ => return Err(self.expected("a directive")),
            };
            return Ok(Some(match directive {
                "version" => Item::Version(self.version()?),
                "target" => Item::Target(self.target()?),
                "address_size" => {
                    self.advance()?;
                    Item::AddressSize(self.integer_u32("an address size")?)
                }
                "alias" => Item::Alias(self.alias()?),
                _ if self.skip_ignored(directive)? => continue,
                _ => {
                    let linkage = self.linkage()?;
                    match self.next.token {
                        Token::Dotted("entry" | "func") => {
                            Item::Function(Box::new(self.function(linkage, line)?))
                        }
                        _ => Item::Variables(self.variables(linkage, line)?),
                    }
                }
            }));
        }
    }

    /// Takes directives that mean nothing here: those of debuggers, and hints. False, nothing
    /// taken, for any other.
    pub(super) fn skip_ignored(&mut self, directive: &str) -> Result<bool, ParseError> {
        match directive {
            "loc" => {
                self.advance()?;
                self.skip_loc()?;
            }
            "file" => {
                self.advance()?;
                self.integer()?;
                if !matches!(self.next.token, Token::String(_)) {
                    return Err(self.expected("a file name"));
                }
                self.advance()?;
                while self.accept(b',')? {
                    self.integer()?;
                }
            }
            "section" => {
                self.advance()?;
                while !self.is(b'{') {
                    match self.advance()?.token {
                        Token::Dotted(_) | Token::Word(_) | Token::String(_) | Token::Punct(b',') => {}
                        _ => return Err(self.expected("`{`")),
                    }
                }
                self.skip_body()?;
            }
            "pragma" => {
                while !self.is(b';') && self.next.token != Token::End {
                    self.advance()?;
                }
                self.expect(b';')?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `file line column`, then perhaps
    /// `, function_name label + offset, inlined_at file line column`. No `;` ends it.
    fn skip_loc(&mut self) -> Result<(), ParseError> {
        for _ in 0..3 {
            self.number_only()?;
        }
        while self.accept(b',')? {
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    self.word("a label")?;
                    self.offset()?;
                }
                _ => {
                    for _ in 0..3 {
                        self.number_only()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn number_only(&mut self) -> Result<(), ParseError> {
        match self.next.token {
            Token::Number(_) => self.advance().map(drop),
            _ => Err(self.expected("a number")),
        }
    }

    /// Skips from a `{` to past its `}`, without looking at tokens.
    pub(super) fn skip_body(&mut self) -> Result<(), ParseError> {
        debug_assert!(self.is(b'{'));
        self.lexer.skip_braces()?;
        self.next = self.lexer.next()?;
        Ok(())
    }

    pub(super) fn skims(&self) -> bool {
        self.depth == Depth::Signatures
    }

    /// Linking directives, in any number.
    pub(super) fn linkage(&mut self) -> Result<Linkage, ParseError> {
        let mut linkage = Linkage::Internal;
        loop {
            linkage = match self.next.token {
                Token::Dotted("visible") => Linkage::Visible,
                Token::Dotted("extern") => Linkage::Extern,
                Token::Dotted("weak") => Linkage::Weak,
                Token::Dotted("common") => Linkage::Common,
                _ => return Ok(linkage),
            };
            self.advance()?;
        }
    }

    /// `.version 8.7`. No other number of PTX is two integers with a dot between.
    fn version(&mut self) -> Result<(u32, u32), ParseError> {
        self.advance()?;
        let Token::Number(text) = self.next.token else { return Err(self.expected("a version")) };
        let parts =
            text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let version = parts.ok_or_else(|| self.error(ParseErrorKind::InvalidNumber))?;
        self.advance()?;
        Ok(version)
    }

    fn target(&mut self) -> Result<Vec<Name>, ParseError> {
        self.advance()?;
        let mut target = vec![self.word("a target")?.into()];
        while self.accept(b',')? {
            target.push(self.word("a target option")?.into());
        }
        Ok(target)
    }

    fn alias(&mut self) -> Result<Alias, ParseError> {
        self.advance()?;
        let name = self.word("a name")?.into();
        self.expect(b',')?;
        let aliasee = self.word("a name")?.into();
        self.expect(b';')?;
        Ok(Alias { name, aliasee })
    }
}
