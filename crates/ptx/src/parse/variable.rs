//! Variables and their initialisers (PTX ISA, "Variables").

use super::Parser;
use super::constant::Constant;
use crate::ast::{Initializer, Linkage, Relocation, Variable};
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;
use crate::{Space, Type};

/// The next multiple of an alignment; None beyond 64 bits.
pub(super) fn padded(offset: u64, align: u32) -> Option<u64> {
    offset.checked_next_multiple_of(u64::from(align))
}

impl<'a> Parser<'a> {
    /// One declaration, which may declare several variables: `.global .align 4 .b8 a[4] = {1}, b;`
    pub(super) fn variables(&mut self, linkage: Linkage, line: u32) -> Result<Vec<Variable>, ParseError> {
        let declared = self.variables_with_names(linkage, line)?;
        Ok(declared.into_iter().map(|(_, variable)| variable).collect())
    }

    /// Reads one declaration as [`Self::variables`] does, with the names as they stand in the text.
    pub(super) fn variables_with_names(
        &mut self,
        linkage: Linkage,
        line: u32,
    ) -> Result<Vec<(&'a str, Variable)>, ParseError> {
        let common = self.declaration(linkage, line)?;
        let mut variables = Vec::new();
        loop {
            variables.push(self.declarator(&common)?);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')?;
        Ok(variables)
    }

    /// What the variables of a declaration share; the name is still empty.
    fn declaration(&mut self, linkage: Linkage, line: u32) -> Result<Variable, ParseError> {
        let start = self.next.start;
        let space = match self.accept_dotted()?.and_then(Space::from_text) {
            Some(
                space @ (Space::Global
                | Space::Const
                | Space::Shared
                | Space::SharedCta
                | Space::SharedCluster
                | Space::Local
                | Space::Param
                | Space::Tex),
            ) => space,
            _ => return Err(self.error_at(ParseErrorKind::UnknownDirective, start)),
        };
        let mut ty = None;
        let mut align = None;
        let mut vector = 1;
        let mut is_managed = false;
        while let Token::Dotted(word) = self.next.token {
            let start = self.next.start;
            self.advance()?;
            match word {
                "align" => align = Some(self.alignment()?),
                "v2" => vector = 2,
                "v4" => vector = 4,
                "v8" => vector = 8,
                "attribute" => is_managed |= self.attributes()?,
                _ => match Type::from_text(word) {
                    Some(found) => ty = Some(found),
                    // `.const[3] ...`: banks went away with PTX 2.2; nothing else may stand here.
                    None => return Err(self.error_at(ParseErrorKind::Expected("a variable type"), start)),
                },
            }
        }
        let Some(ty) = ty else { return Err(self.expected("a variable type")) };
        Ok(Variable {
            name: "".into(),
            linkage,
            space,
            ty,
            vector,
            align: align.unwrap_or(ty.bytes() * vector),
            size: 0,
            is_unsized: false,
            is_managed,
            initializer: None,
            line,
        })
    }

    /// `name[dimensions] = initialiser`.
    fn declarator(&mut self, common: &Variable) -> Result<(&'a str, Variable), ParseError> {
        let mut variable = common.clone();
        let name = self.word("a variable name")?;
        variable.name = name.into();
        let mut dimensions = self.dimensions()?;
        variable.is_unsized = dimensions.first() == Some(&0);
        if self.is(b'=') {
            if self.skims() || is_opaque(variable.ty) {
                self.lexer.skip_initializer()?;
                self.next = self.lexer.next()?;
            } else {
                self.advance()?;
                variable.initializer = Some(self.initializer(&variable, &mut dimensions)?);
            }
        }
        let element = u64::from(variable.ty.bytes() * variable.vector);
        variable.size = self.array_size(element, &dimensions)?;
        Ok((name, variable))
    }

    /// `(.managed)`: whether that is among the attributes.
    fn attributes(&mut self) -> Result<bool, ParseError> {
        let mut is_managed = false;
        let mut ahead = Parser { lexer: self.lexer.clone(), ..*self };
        while !ahead.is(b')') && ahead.next.token != Token::End {
            is_managed |= ahead.next.token == Token::Dotted("managed");
            ahead.advance()?;
        }
        self.skip_parentheses()?;
        Ok(is_managed)
    }

    pub(super) fn alignment(&mut self) -> Result<u32, ParseError> {
        let start = self.next.start;
        let align = self.integer_u32("an alignment")?;
        if !align.is_power_of_two() {
            return Err(self.error_at(ParseErrorKind::OutOfRange("an alignment"), start));
        }
        Ok(align)
    }

    /// `[4][8]`; `[]`, which only the first may be, is 0.
    pub(super) fn dimensions(&mut self) -> Result<Vec<u64>, ParseError> {
        let mut dimensions = Vec::new();
        while self.accept(b'[')? {
            if dimensions.is_empty() && self.accept(b']')? {
                dimensions.push(0);
                continue;
            }
            let start = self.next.start;
            let value = self.integer()?;
            let value = u64::try_from(value);
            dimensions
                .push(value.map_err(|_| self.error_at(ParseErrorKind::OutOfRange("a dimension"), start))?);
            self.expect(b']')?;
        }
        Ok(dimensions)
    }

    pub(super) fn array_size(&self, element: u64, dimensions: &[u64]) -> Result<u64, ParseError> {
        dimensions
            .iter()
            .try_fold(element, |size, &count| size.checked_mul(count))
            .filter(|&size| size <= i64::MAX as u64)
            .ok_or_else(|| self.error(ParseErrorKind::OutOfRange("the size of an array")))
    }

    /// What follows `=`. Gives an unsized first dimension its size.
    fn initializer(
        &mut self,
        variable: &Variable,
        dimensions: &mut [u64],
    ) -> Result<Initializer, ParseError> {
        let mut shape = dimensions.to_vec();
        if variable.vector > 1 {
            shape.push(u64::from(variable.vector));
        }
        let mut filler = Filler { ty: variable.ty, contents: Initializer::default(), end: 0 };
        if shape.is_empty() && !self.is(b'{') {
            self.element(&mut filler, 0)?;
        } else if shape.is_empty() {
            self.advance()?;
            self.element(&mut filler, 0)?;
            self.expect(b'}')?;
        } else {
            self.level(&mut filler, &shape, 0)?;
        }
        if variable.is_unsized
            && let Some((first, rest)) = dimensions.split_first_mut()
        {
            let row = rest.iter().try_fold(u64::from(variable.vector), |row, &count| row.checked_mul(count));
            *first = filler.end.div_ceil(row.unwrap_or(0).max(1));
        }
        Ok(filler.contents)
    }

    /// `{...}` over the array of this shape that begins at scalar `first`. A missing inner brace
    /// continues the scalars in order, as in C.
    fn level(&mut self, filler: &mut Filler, shape: &[u64], first: u64) -> Result<(), ParseError> {
        // The shape of what one element is, and its scalars. An empty array in it has none, and
        // takes no element.
        let (&count, inner) = shape.split_first().unwrap_or((&1, &[]));
        let overflow = ParseErrorKind::OutOfRange("the size of an array");
        let stride = inner.iter().try_fold(1u64, |stride, &count| stride.checked_mul(count));
        let stride = stride.ok_or_else(|| self.error(overflow.clone()))?;
        let is_growing = count == 0 && first == 0;
        let end = match is_growing {
            true => u64::MAX,
            false => stride
                .checked_mul(count)
                .and_then(|size| size.checked_add(first))
                .ok_or_else(|| self.error(overflow))?,
        };
        self.expect(b'{')?;
        let mut at = first;
        while !self.is(b'}') {
            if at > first {
                self.expect(b',')?;
                if self.is(b'}') {
                    break;
                }
            }
            if at >= end || stride == 0 {
                return Err(self.error(ParseErrorKind::InitializerTooLong));
            }
            if !self.is(b'{') {
                self.element(filler, at)?;
                at += 1;
            } else if inner.is_empty() {
                self.advance()?;
                self.element(filler, at)?;
                self.expect(b'}')?;
                at += 1;
            } else {
                // An inner brace begins a new row.
                let row = (at - first).next_multiple_of(stride) + first;
                if row >= end {
                    return Err(self.error(ParseErrorKind::InitializerTooLong));
                }
                self.level(filler, inner, row)?;
                at = row.saturating_add(stride);
                filler.end = filler.end.max(at);
            }
        }
        self.expect(b'}')
    }

    /// One scalar: a number, `symbol+8`, `generic(symbol)+8`, `0xff00(symbol)`.
    fn element(&mut self, filler: &mut Filler, at: u64) -> Result<(), ParseError> {
        let size = filler.ty.bytes();
        let start = self.next.start;
        let offset = at
            .checked_mul(u64::from(size))
            .ok_or_else(|| self.error(ParseErrorKind::OutOfRange("the size of an array")))?;
        let mut bits = 0;
        if matches!(self.next.token, Token::Word(word) if word != "WARP_SZ") {
            let relocation = self.address_of(offset, size, u64::MAX)?;
            filler.contents.relocations.push(relocation);
        } else {
            let value = self.constant()?;
            if let (Constant::Integer(mask), true) = (value, self.is(b'(')) {
                self.advance()?;
                let relocation = self.address_of(offset, size, mask as u64)?;
                self.expect(b')')?;
                filler.contents.relocations.push(relocation);
            } else {
                bits = scalar_bits(filler.ty, value)
                    .ok_or_else(|| self.error_at(ParseErrorKind::InitializerType, start))?;
            }
        }
        let gap = offset.saturating_sub(filler.contents.bytes.len() as u64);
        self.padding_left = self
            .padding_left
            .checked_sub(gap)
            .ok_or_else(|| self.error_at(ParseErrorKind::OutOfRange("an initialiser"), start))?;
        filler.put(offset as usize, &bits.to_le_bytes()[..size as usize]);
        filler.end = filler.end.max(at + 1);
        Ok(())
    }

    fn address_of(&mut self, offset: u64, size: u32, mask: u64) -> Result<Relocation, ParseError> {
        let word = self.word("a symbol")?;
        let is_generic = word == "generic" && self.is(b'(');
        let mut symbol = word;
        let mut addend = 0;
        if is_generic {
            self.advance()?;
            symbol = self.word("a symbol")?;
            addend = self.offset()?;
            self.expect(b')')?;
        }
        addend = self.offset()?.wrapping_add(addend);
        Ok(Relocation { offset, size, symbol: symbol.into(), addend, is_generic, mask })
    }
}

/// An initialiser as it grows.
struct Filler {
    ty: Type,
    contents: Initializer,
    /// Scalars up to the last one written, whole rows where rows have braces.
    end: u64,
}

impl Filler {
    fn put(&mut self, offset: usize, scalar: &[u8]) {
        let bytes = &mut self.contents.bytes;
        let end = offset + scalar.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(scalar);
    }
}

/// The little-endian bits of a constant in a variable of this type.
fn scalar_bits(ty: Type, value: Constant) -> Option<u128> {
    Some(match (ty, value) {
        (Type::F32, Constant::Integer(value)) => (value as f32).to_bits().into(),
        (Type::F64, Constant::Integer(value)) => (value as f64).to_bits().into(),
        (Type::F32 | Type::B32, Constant::F32(bits)) => bits.into(),
        (Type::F32, Constant::F64(bits)) => (f64::from_bits(bits) as f32).to_bits().into(),
        (Type::F64, Constant::F32(bits)) => f64::from(f32::from_bits(bits)).to_bits().into(),
        (Type::F64 | Type::B64, Constant::F64(bits)) => bits.into(),
        (_, Constant::Integer(value)) => i128::from(value) as u128,
        _ => return None,
    })
}

/// References to textures, samplers and surfaces: their initialisers name properties, not bytes.
fn is_opaque(ty: Type) -> bool {
    matches!(ty, Type::Texref | Type::Samplerref | Type::Surfref)
}
