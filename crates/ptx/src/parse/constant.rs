//! Numbers and constant expressions (PTX ISA, "Constants", "Constant Expressions").

use super::Parser;
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;

/// The value of a number or constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    /// A 64-bit pattern.
    Integer(i64),
    /// Bits of a single.
    F32(u32),
    /// Bits of a double.
    F64(u64),
}

impl<'a> Parser<'a> {
    /// An integer expression or a floating-point number.
    pub(super) fn constant(&mut self) -> Result<Constant, ParseError> {
        self.binary(0, 0)
    }

    /// An integer expression.
    pub(super) fn integer(&mut self) -> Result<i64, ParseError> {
        self.integer_above(0, 0)
    }

    /// An integer expression that fits 32 bits without a sign.
    pub(super) fn integer_u32(&mut self, what: &'static str) -> Result<u32, ParseError> {
        let start = self.next.start;
        let value = self.integer()?;
        u32::try_from(value).map_err(|_| self.error_at(ParseErrorKind::OutOfRange(what), start))
    }

    /// The count in `%r<10>`, where `>` is no operator.
    pub(super) fn range_count(&mut self) -> Result<u32, ParseError> {
        let start = self.next.start;
        let count = self.integer_above(SHIFT + 1, 0)?;
        u32::try_from(count)
            .map_err(|_| self.error_at(ParseErrorKind::OutOfRange("a count of registers"), start))
    }

    /// `+ constant` or `- constant` after a name or register, as its value; 0 where there is none.
    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        let mut total = 0i64;
        loop {
            // Each term binds like a product: the signs between them are ours.
            if self.accept(b'+')? {
                total = total.wrapping_add(self.integer_above(PRODUCT, 0)?);
            } else if self.accept(b'-')? {
                total = total.wrapping_sub(self.integer_above(PRODUCT, 0)?);
            } else {
                return Ok(total);
            }
        }
    }

    fn integer_above(&mut self, precedence: u8, depth: u32) -> Result<i64, ParseError> {
        let start = self.next.start;
        match self.binary(precedence, depth)? {
            Constant::Integer(value) => Ok(value),
            _ => Err(self.error_at(ParseErrorKind::Expected("an integer"), start)),
        }
    }

    /// Precedence climbing: operators at `precedence` and above.
    fn binary(&mut self, precedence: u8, depth: u32) -> Result<Constant, ParseError> {
        let mut left = self.unary(depth)?;
        loop {
            let Some((operator, binding)) = self.binary_operator() else { return Ok(left) };
            let Constant::Integer(a) = left else { return Ok(left) };
            if binding < precedence {
                return Ok(left);
            }
            let start = self.next.start;
            self.advance()?;
            if matches!(operator, b'<' | b'>') {
                self.expect(operator)?;
            }
            let b = self.integer_above(binding + 1, self.deeper(depth)?)?;
            let value =
                fold(operator, a, b).ok_or_else(|| self.error_at(ParseErrorKind::DivisionByZero, start))?;
            left = Constant::Integer(value);
        }
    }

    fn binary_operator(&self) -> Option<(u8, u8)> {
        let Token::Punct(operator) = self.next.token else { return None };
        let binding = match operator {
            b'|' => 1,
            b'^' => 2,
            b'&' => 3,
            b'<' | b'>' => SHIFT,
            b'+' | b'-' => 5,
            b'*' | b'/' | b'%' => PRODUCT,
            _ => return None,
        };
        Some((operator, binding))
    }

    fn unary(&mut self, depth: u32) -> Result<Constant, ParseError> {
        let depth = self.deeper(depth)?;
        match self.next.token {
            Token::Number(text) => {
                let value = number(text).ok_or_else(|| self.error(ParseErrorKind::InvalidNumber))?;
                self.advance()?;
                Ok(value)
            }
            Token::Word("WARP_SZ") => {
                self.advance()?;
                Ok(Constant::Integer(32))
            }
            Token::Punct(b'+') => {
                self.advance()?;
                self.unary(depth)
            }
            Token::Punct(b'-') => {
                self.advance()?;
                Ok(match self.unary(depth)? {
                    Constant::Integer(value) => Constant::Integer(value.wrapping_neg()),
                    Constant::F32(bits) => Constant::F32(bits ^ 1 << 31),
                    Constant::F64(bits) => Constant::F64(bits ^ 1 << 63),
                })
            }
            Token::Punct(operator @ (b'~' | b'!')) => {
                self.advance()?;
                let value = self.integer_above(PRODUCT + 1, depth)?;
                Ok(Constant::Integer(if operator == b'~' { !value } else { (value == 0).into() }))
            }
            Token::Punct(b'(') => {
                self.advance()?;
                // `(.s64) 1` and `(.u64) 1`: the pattern is 64 bits wide anyway.
                if self.accept_dotted()?.is_some() {
                    self.expect(b')')?;
                    return self.unary(depth);
                }
                let value = self.binary(0, depth)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => Err(self.expected("a constant")),
        }
    }
}

/// Precedence of shifts, and of the operators that bind most.
const SHIFT: u8 = 4;
const PRODUCT: u8 = 6;

/// None for a division by zero.
fn fold(operator: u8, a: i64, b: i64) -> Option<i64> {
    Some(match operator {
        b'|' => a | b,
        b'^' => a ^ b,
        b'&' => a & b,
        b'<' => u32::try_from(b).ok().and_then(|count| a.checked_shl(count)).unwrap_or(0),
        b'>' => a >> u32::try_from(b).unwrap_or(63).min(63),
        b'+' => a.wrapping_add(b),
        b'-' => a.wrapping_sub(b),
        b'*' => a.wrapping_mul(b),
        b'/' if b != 0 => a.wrapping_div(b),
        b'%' if b != 0 => a.wrapping_rem(b),
        _ => return None,
    })
}

/// The value of a literal: decimal, `0x`, `0b`, octal, each with an optional `U`; `0f` and `0d`
/// with the bits of a float; a decimal with a point or an exponent.
pub(super) fn number(text: &str) -> Option<Constant> {
    let bytes = text.as_bytes();
    match bytes {
        [b'0', b'f' | b'F', digits @ ..] if digits.len() == 8 => {
            return u32::from_str_radix(&text[2..], 16).ok().map(Constant::F32);
        }
        [b'0', b'd' | b'D', digits @ ..] if digits.len() == 16 => {
            return u64::from_str_radix(&text[2..], 16).ok().map(Constant::F64);
        }
        _ => {}
    }
    let digits = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let integer = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => u64::from_str_radix(&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => u64::from_str_radix(&digits[2..], 2),
        [b'0', rest @ ..] if !rest.is_empty() && rest.iter().all(u8::is_ascii_digit) => {
            u64::from_str_radix(digits, 8)
        }
        _ if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse(),
        _ => return text.parse::<f64>().ok().map(|value| Constant::F64(value.to_bits())),
    };
    integer.ok().map(|value| Constant::Integer(value as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_value() {
        let integers: [(&str, i64); 8] = [
            ("0", 0),
            ("42", 42),
            ("0x1F", 31),
            ("0XffU", 255),
            ("017", 15),
            ("0b101U", 5),
            ("18446744073709551615", -1),
            ("0x8000000000000000", i64::MIN),
        ];
        for (text, value) in integers {
            assert_eq!(number(text), Some(Constant::Integer(value)), "{text}");
        }
        assert_eq!(number("0f3F800000"), Some(Constant::F32(1f32.to_bits())));
        assert_eq!(number("0dBFF0000000000000"), Some(Constant::F64((-1f64).to_bits())));
        assert_eq!(number("1.5e-3"), Some(Constant::F64(1.5e-3f64.to_bits())));
        for text in ["0x", "09", "0f12", "1x", "18446744073709551616", "0b2", "12infinity"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
