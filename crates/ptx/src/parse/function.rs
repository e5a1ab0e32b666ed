//! Entries, functions and prototypes: signatures and directives (PTX ISA, "Kernel and Function
//! Directives", "Performance-Tuning Directives").

use super::Parser;
use super::variable::padded;
use crate::Type;
use crate::ast::{Body, Directives, Function, Linkage, Param, Prototype, RegisterId};
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;

/// What the parameters of an entry may take in all, in bytes (PTX ISA, "Kernel Function
/// Parameters").
const PARAMETER_BYTES_MAX: u64 = 32_764;

/// A parameter and its name as it stands in the text.
pub(super) struct Declared<'a> {
    pub(super) name: &'a str,
    pub(super) param: Param,
    is_register: bool,
    /// Of a vector register, of which each component is a parameter; 1 for all others, and for all
    /// but the first of those.
    pub(super) components: usize,
}

impl<'a> Declared<'a> {
    /// A parameter for each component of a vector register.
    fn taken_apart(&self) -> impl Iterator<Item = Declared<'a>> + use<'a> {
        let (name, components, is_register) = (self.name, self.components, self.is_register);
        let param = self.param.clone();
        (0..components).map(move |index| Declared {
            name,
            param: param.clone(),
            is_register,
            components: if index == 0 { components } else { 1 },
        })
    }
}

impl<'a> Parser<'a> {
    /// From `.entry` or `.func` to past the body or the `;`.
    pub(super) fn function(&mut self, linkage: Linkage, line: u32) -> Result<Function, ParseError> {
        let is_entry = self.advance()?.token == Token::Dotted("entry");
        let mut directives = Directives::default();
        self.directives(&mut directives)?; // `.func .attribute(...) name`
        let mut returns = if !is_entry && self.is(b'(') { self.params(false)? } else { Vec::new() };
        let name = self.word("a name")?;
        let mut params = if self.is(b'(') { self.params(is_entry)? } else { Vec::new() };
        self.directives(&mut directives)?;

        let in_registers = returns.iter_mut().chain(&mut params).filter(|declared| declared.is_register);
        for (register, declared) in (0..).zip(in_registers) {
            declared.param.register = Some(RegisterId(register));
        }
        let body = if self.accept(b';')? {
            None
        } else if !self.is(b'{') {
            return Err(self.expected("a body or `;`"));
        } else if self.skims() {
            self.skip_body()?;
            Some(Body::default())
        } else {
            Some(self.body(&returns, &params)?)
        };
        Ok(Function {
            name: name.into(),
            linkage,
            is_entry,
            params: params.into_iter().map(|declared| declared.param).collect(),
            returns: returns.into_iter().map(|declared| declared.param).collect(),
            directives,
            body,
            line,
        })
    }

    /// `.callprototype (returns) _ (params) .noreturn;`, the first word taken already.
    pub(super) fn prototype(&mut self) -> Result<Prototype, ParseError> {
        let returns = if self.is(b'(') { self.params(false)? } else { Vec::new() };
        self.word("a name or `_`")?;
        let params = if self.is(b'(') { self.params(false)? } else { Vec::new() };
        let mut directives = Directives::default();
        self.directives(&mut directives)?;
        self.expect(b';')?;
        Ok(Prototype {
            params: params.into_iter().map(|declared| declared.param).collect(),
            returns: returns.into_iter().map(|declared| declared.param).collect(),
            no_return: directives.no_return,
        })
    }

    /// `(.param ..., ...)`. The parameters of an entry get their offsets: each at the next multiple
    /// of its alignment.
    fn params(&mut self, is_entry: bool) -> Result<Vec<Declared<'a>>, ParseError> {
        let mut params = Vec::new();
        let mut end = 0u64;
        self.expect(b'(')?;
        while !self.is(b')') {
            if !params.is_empty() {
                self.expect(b',')?;
            }
            let start = self.next.start;
            let mut declared = self.param()?;
            if declared.components > 1 {
                params.extend(declared.taken_apart());
                continue;
            }
            if is_entry {
                let param = &mut declared.param;
                let layout = padded(end, param.align).and_then(|at| Some((at, at.checked_add(param.size)?)));
                let layout = layout.filter(|&(_, end)| end <= PARAMETER_BYTES_MAX);
                (param.offset, end) = layout
                    .ok_or_else(|| self.error_at(ParseErrorKind::OutOfRange("a parameter block"), start))?;
            }
            params.push(declared);
        }
        self.expect(b')')?;
        Ok(params)
    }

    /// `.param .align 8 .b8 name[16]`, `.param .u64 .ptr .global .align 4 name`, `.reg .b32 name`.
    fn param(&mut self) -> Result<Declared<'a>, ParseError> {
        let is_register = match self.accept_dotted()? {
            Some("param") => false,
            Some("reg") => true,
            _ => return Err(self.expected("`.param` or `.reg`")),
        };
        let mut ty = None;
        let mut align = None;
        let mut vector = 1;
        let mut is_pointer = false;
        while let Token::Dotted(word) = self.next.token {
            let start = self.next.start;
            self.advance()?;
            match word {
                // After `.ptr` it is the alignment of what the parameter points to.
                "align" if is_pointer => drop(self.alignment()?),
                "align" => align = Some(self.alignment()?),
                "ptr" => is_pointer = true,
                "global" | "const" | "local" | "shared" | "generic" if is_pointer => {}
                "v2" => vector = 2,
                "v4" => vector = 4,
                "v8" => vector = 8,
                _ => match Type::from_text(word) {
                    Some(found) => ty = Some(found),
                    None => return Err(self.error_at(ParseErrorKind::Expected("a parameter type"), start)),
                },
            }
        }
        let Some(ty) = ty else { return Err(self.expected("a parameter type")) };
        let name = self.word("a parameter name")?;
        let components = if is_register { vector as usize } else { 1 };
        let element = ty.bytes() * if is_register { 1 } else { vector };
        let dimensions = self.dimensions()?;
        let is_array = !dimensions.is_empty();
        let size = self.array_size(u64::from(element), &dimensions)?;
        let align = align.unwrap_or(element);
        let param = Param { name: name.into(), ty, register: None, offset: 0, size, align, is_array };
        Ok(Declared { name, param, is_register, components })
    }

    /// What stands between a signature and its body. Directives that only tune are taken and
    /// forgotten.
    fn directives(&mut self, directives: &mut Directives) -> Result<(), ParseError> {
        while let Token::Dotted(word) = self.next.token {
            if self.skip_ignored(word)? {
                continue;
            }
            let start = self.next.start;
            self.advance()?;
            match word {
                "maxntid" => directives.max_threads = Some(self.triple()?),
                "reqntid" => directives.required_threads = Some(self.triple()?),
                "reqnctapercluster" => directives.required_cluster = Some(self.triple()?),
                "minnctapersm" => directives.min_blocks_per_sm = Some(self.integer_u32("`.minnctapersm`")?),
                "maxnreg" => directives.max_registers = Some(self.integer_u32("`.maxnreg`")?),
                "maxclusterrank" => {
                    directives.max_cluster_rank = Some(self.integer_u32("`.maxclusterrank`")?)
                }
                "explicitcluster" => directives.explicit_cluster = true,
                "noreturn" => directives.no_return = true,
                "attribute" => self.skip_parentheses()?,
                // Hints to an assembler, with a number or without.
                "maxnctapersm" | "blocksareclusters" | "abi_preserve" | "abi_preserve_control" => {
                    if let Token::Number(_) = self.next.token {
                        self.advance()?;
                    }
                }
                _ => return Err(self.error_at(ParseErrorKind::UnknownDirective, start)),
            }
        }
        Ok(())
    }

    /// One to three numbers; those not given are 1.
    fn triple(&mut self) -> Result<[u32; 3], ParseError> {
        let mut triple = [1; 3];
        for (index, value) in triple.iter_mut().enumerate() {
            if index > 0 && !self.accept(b',')? {
                break;
            }
            *value = self.integer_u32("a dimension")?;
        }
        Ok(triple)
    }

    /// `(...)`, in which parentheses may nest.
    pub(super) fn skip_parentheses(&mut self) -> Result<(), ParseError> {
        self.expect(b'(')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.next.token {
                Token::Punct(b'(') => depth = self.deeper(depth)?,
                Token::Punct(b')') => depth -= 1,
                Token::End => return Err(self.expected("`)`")),
                _ => {}
            }
            self.advance()?;
        }
        Ok(())
    }
}
