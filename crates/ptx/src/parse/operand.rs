//! Operands (PTX ISA, "Instruction Operands").

use super::body::{BodyParser, module_symbol};
use super::constant::Constant;
use super::scope::Local;
use crate::SpecialRegister;
use crate::ast::{Address, AddressBase, Operand, RegisterId, Symbol, VariableId};
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;

impl<'a> BodyParser<'_, 'a> {
    /// One operand, up to the `,` or what closes the list.
    pub(super) fn operand(&mut self, depth: u32) -> Result<Operand, ParseError> {
        let depth = self.parser.deeper(depth)?;
        match self.parser.next.token {
            Token::Punct(b'{') => {
                self.parser.advance()?;
                Ok(Operand::Vector(self.list_until(b'}', depth)?))
            }
            Token::Punct(b'[') => {
                self.parser.advance()?;
                self.bracketed(depth)
            }
            Token::Punct(b'!') => {
                self.parser.advance()?;
                Ok(Operand::NegatedRegister(self.register()?))
            }
            Token::Word(word) if word != "WARP_SZ" => self.named(word),
            _ => Ok(match self.parser.constant()? {
                Constant::Integer(value) => Operand::Integer(value),
                Constant::F32(bits) => Operand::F32(bits),
                Constant::F64(bits) => Operand::F64(bits),
            }),
        }
    }

    /// A word that must be a scalar register.
    pub(super) fn register(&mut self) -> Result<RegisterId, ParseError> {
        let start = self.parser.next.start;
        let name = self.parser.word("a register")?;
        match self.local(name) {
            Some(Local::Register(register)) => Ok(register),
            _ => Err(self.parser.error_at(ParseErrorKind::Undeclared(name.to_string()), start)),
        }
    }

    fn list_until(&mut self, close: u8, depth: u32) -> Result<Vec<Operand>, ParseError> {
        let mut operands = Vec::new();
        while !self.parser.is(close) {
            if !operands.is_empty() {
                self.parser.expect(b',')?;
            }
            operands.push(self.operand(depth)?);
        }
        self.parser.expect(close)?;
        Ok(operands)
    }

    /// What begins with a word: a register, a pair of them, a part of one, a special register, a
    /// symbol.
    fn named(&mut self, word: &'a str) -> Result<Operand, ParseError> {
        let start = self.parser.next.start;
        self.parser.advance()?;
        if word == "_" {
            return self.pair_or(Operand::Sink);
        }
        match self.local(word) {
            Some(Local::Register(register)) => match self.parser.accept_dotted()? {
                Some(part) => Ok(Operand::Part(register, part.into())),
                None => self.register_or_more(register),
            },
            Some(Local::Vector(components)) => match self.parser.accept_dotted()? {
                Some(part) => component(part)
                    .and_then(|index| components.get(index))
                    .map(|&register| Operand::Register(register))
                    .ok_or_else(|| {
                        self.parser.error_at(ParseErrorKind::Undeclared(format!("{word}.{part}")), start)
                    }),
                None => Ok(Operand::Vector(components.into_iter().map(Operand::Register).collect())),
            },
            Some(Local::Label(label)) => Ok(Operand::Label(label)),
            Some(Local::BranchTargets(table)) => Ok(Operand::BranchTargets(table)),
            Some(Local::Param(index)) => self.symbol(Symbol::Param(index)),
            Some(Local::Return(index)) => self.symbol(Symbol::Return(index)),
            Some(Local::Variable(variable)) => self.symbol(Symbol::Variable(variable)),
            Some(Local::Prototype(_) | Local::CallTargets(_)) => {
                Err(self.parser.error_at(ParseErrorKind::Expected("an operand"), start))
            }
            None if word.starts_with('%') => self.special(word, start),
            None => match module_symbol(word) {
                Operand::Symbol { symbol, .. } => self.symbol(symbol),
                other => Ok(other),
            },
        }
    }

    /// A register, a pair, or a register plus a constant.
    fn register_or_more(&mut self, register: RegisterId) -> Result<Operand, ParseError> {
        if self.parser.is(b'+') || self.parser.is(b'-') {
            let offset = self.parser.offset()?;
            return Ok(Operand::Sum { register, offset });
        }
        self.pair_or(Operand::Register(register))
    }

    /// `first|second`, or the first alone.
    fn pair_or(&mut self, first: Operand) -> Result<Operand, ParseError> {
        if !self.parser.accept(b'|')? {
            return Ok(first);
        }
        let second = match self.parser.next.token {
            Token::Word("_") => {
                self.parser.advance()?;
                Operand::Sink
            }
            _ => Operand::Register(self.register()?),
        };
        Ok(Operand::Pair(Box::new([first, second])))
    }

    fn symbol(&mut self, symbol: Symbol) -> Result<Operand, ParseError> {
        if self.parser.is(b'[') {
            return self.indexed(symbol);
        }
        let offset = self.parser.offset()?;
        Ok(Operand::Symbol { symbol, offset })
    }

    /// `array[3]`: the memory at an element, by its index (PTX ISA, "Arrays as Operands"). The size
    /// of an element is known for variables of the body; of those of the module only the first can
    /// be meant.
    fn indexed(&mut self, symbol: Symbol) -> Result<Operand, ParseError> {
        self.parser.expect(b'[')?;
        let start = self.parser.next.start;
        let index = self.parser.integer()?;
        self.parser.expect(b']')?;
        let element_bytes = match &symbol {
            Symbol::Variable(VariableId(variable)) => {
                let variable = &self.body.variables[*variable as usize];
                i64::from(variable.ty.bytes() * variable.vector)
            }
            _ if index == 0 => 0,
            _ => {
                return Err(self
                    .parser
                    .error_at(ParseErrorKind::Expected("the index 0 for this variable"), start));
            }
        };
        Ok(Operand::Address(Address {
            base: AddressBase::Symbol(symbol),
            offset: index.wrapping_mul(element_bytes),
        }))
    }

    /// `%tid.x`, `%laneid`; `%tid` alone is the vector of its components.
    fn special(&mut self, word: &str, start: usize) -> Result<Operand, ParseError> {
        if let Some(special) = SpecialRegister::from_text(word) {
            return Ok(Operand::Special(special));
        }
        let undeclared = ParseErrorKind::Undeclared(word.to_string());
        let part = |part: &str| SpecialRegister::from_text(&format!("{word}.{part}")).map(Operand::Special);
        let operand = match self.parser.accept_dotted()? {
            Some(name) => part(name),
            None => ["x", "y", "z", "w"].into_iter().map(part).collect::<Option<_>>().map(Operand::Vector),
        };
        operand.ok_or_else(|| self.parser.error_at(undeclared, start))
    }

    /// What follows `[`: one address, or a list of operands.
    fn bracketed(&mut self, depth: u32) -> Result<Operand, ParseError> {
        let first = self.operand(depth)?;
        if self.parser.accept(b']')? {
            return as_address(first).ok_or_else(|| self.parser.expected("an address in the brackets"));
        }
        let as_item = |operand| match operand {
            sum @ Operand::Sum { .. } => as_address(sum),
            other => Some(other),
        };
        let mut operands: Vec<Operand> = as_item(first).into_iter().collect();
        while self.parser.accept(b',')? {
            operands.extend(as_item(self.operand(depth)?));
        }
        self.parser.expect(b']')?;
        Ok(Operand::Bracketed(operands))
    }
}

/// What `mov` makes of an element: its address, where other instructions mean its memory.
pub(super) fn as_value(operand: Operand) -> Operand {
    match operand {
        Operand::Address(Address { base: AddressBase::Symbol(symbol), offset }) => {
            Operand::Symbol { symbol, offset }
        }
        other => other,
    }
}

fn as_address(operand: Operand) -> Option<Operand> {
    let (base, offset) = match operand {
        Operand::Register(register) => (AddressBase::Register(register), 0),
        Operand::Sum { register, offset } => (AddressBase::Register(register), offset),
        Operand::Symbol { symbol, offset } => (AddressBase::Symbol(symbol), offset),
        Operand::Integer(address) => (AddressBase::Absolute, address),
        // A vector register as texture handle would be one too, but no PTX has that.
        Operand::Address(address) => return Some(Operand::Address(address)),
        _ => return None,
    };
    Some(Operand::Address(Address { base, offset }))
}

/// `x` and `r` are the same component, and so on.
fn component(part: &str) -> Option<usize> {
    ["x", "y", "z", "w"]
        .iter()
        .position(|&name| name == part)
        .or_else(|| ["r", "g", "b", "a"].iter().position(|&name| name == part))
}
