//! Small expressions in cases: integers of 128 bits, floats of 64, and `NAME[INDEX]` for an element
//! of a buffer.
//!
//! Operators are C's, with C's precedence: `?:` `||` `&&` `|` `^` `&` `==` `!=` `<` `<=` `>` `>=`
//! `<<` `>>` `+` `-` `*` `/` `%` and the prefixes `-` `~` `!`. `sum(k, from, to, EXPR)` adds over
//! `from <= k < to`; `min`, `max`, `abs`, `popc`, `clz32`, `sqrt`, `float`, `int` are functions. An
//! operator with a float among its operands computes with floats; shifts by 128 and more give
//! nothing.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Int(i128),
    Float(f64),
}

/// What names mean.
pub trait Names {
    fn variable(&self, name: &str) -> Option<Value>;
    /// Element `index` of `name`.
    fn element(&self, name: &str, index: usize) -> Option<Value>;
}

/// Evaluates `text`.
pub fn evaluate(text: &str, names: &dyn Names) -> Result<Value, String> {
    let mut parser = Parser { text, at: 0, names, bound: HashMap::new() };
    let value = parser.ternary()?;
    parser.blanks();
    match &text[parser.at..] {
        "" => Ok(value),
        rest => Err(format!("{rest} does not continue the expression {text}")),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    names: &'t dyn Names,
    /// Variables of sums.
    bound: HashMap<String, i128>,
}

type Result<T, E = String> = std::result::Result<T, E>;

/// Binary operators by rising precedence; longer spellings first.
const OPERATORS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl Parser<'_> {
    fn ternary(&mut self) -> Result<Value> {
        let condition = self.binary(0)?;
        if !self.eat("?") {
            return Ok(condition);
        }
        let yes = self.ternary()?;
        self.expect(":")?;
        let no = self.ternary()?;
        Ok(if truth(condition) { yes } else { no })
    }

    fn binary(&mut self, level: usize) -> Result<Value> {
        let Some(operators) = OPERATORS.get(level) else { return self.prefix() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.operator(operators) {
            let right = self.binary(level + 1)?;
            left = apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn operator(&mut self, operators: &'static [&'static str]) -> Option<&'static str> {
        self.blanks();
        let rest = &self.text[self.at..];
        let operator = operators.iter().find(|operator| rest.starts_with(**operator))?;
        // `<` is no part of `<<`, nor `|` of `||`.
        let longer = OPERATORS.iter().flat_map(|operators| operators.iter());
        if longer.into_iter().any(|other| other.len() > operator.len() && rest.starts_with(*other)) {
            return None;
        }
        self.at += operator.len();
        Some(operator)
    }

    fn prefix(&mut self) -> Result<Value> {
        if self.eat("-") {
            return apply("-", Value::Int(0), self.prefix()?);
        }
        if self.eat("~") {
            return Ok(Value::Int(!int(self.prefix()?)?));
        }
        if self.eat("!") {
            return Ok(Value::Int((!truth(self.prefix()?)).into()));
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Value> {
        if self.eat("(") {
            let value = self.ternary()?;
            self.expect(")")?;
            return Ok(value);
        }
        self.blanks();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        let word = &rest[..end];
        self.at += end;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return literal(word);
        }
        if self.eat("[") {
            let index = int(self.ternary()?)?;
            self.expect("]")?;
            let element = usize::try_from(index).ok().and_then(|index| self.names.element(word, index));
            return element.ok_or_else(|| format!("there is no {word}[{index}]"));
        }
        if self.eat("(") {
            return self.function(word);
        }
        if let Some(&value) = self.bound.get(word) {
            return Ok(Value::Int(value));
        }
        self.names.variable(word).ok_or_else(|| format!("nothing is called {word:?} in {}", self.text))
    }

    fn function(&mut self, name: &str) -> Result<Value> {
        if name == "sum" {
            return self.sum();
        }
        let mut args = vec![self.ternary()?];
        while self.eat(",") {
            args.push(self.ternary()?);
        }
        self.expect(")")?;
        Ok(match (name, &args[..]) {
            ("min", [a, b]) => {
                if truth(apply("<", *b, *a)?) {
                    *b
                } else {
                    *a
                }
            }
            ("max", [a, b]) => {
                if truth(apply("<", *a, *b)?) {
                    *b
                } else {
                    *a
                }
            }
            ("abs", [Value::Int(a)]) => Value::Int(a.abs()),
            ("abs", [Value::Float(a)]) => Value::Float(a.abs()),
            ("popc", [a]) => Value::Int(int(*a)?.count_ones().into()),
            ("clz32", [a]) => Value::Int((int(*a)? as u32).leading_zeros().into()),
            ("sqrt", [a]) => Value::Float(float(*a).sqrt()),
            ("float", [a]) => Value::Float(float(*a)),
            ("int", [Value::Float(a)]) => Value::Int(*a as i128),
            _ => return Err(format!("there is no function {name} of {} operands", args.len())),
        })
    }

    /// Behind `sum(`.
    fn sum(&mut self) -> Result<Value> {
        self.blanks();
        let rest = &self.text[self.at..];
        let (name, _) = rest.split_once(',').ok_or("sum(NAME, FROM, TO, EXPR)")?;
        let name = name.trim().to_owned();
        self.at += rest.find(',').unwrap_or(0) + 1;
        let from = int(self.ternary()?)?;
        self.expect(",")?;
        let to = int(self.ternary()?)?;
        self.expect(",")?;
        let start = self.at;
        let mut sum = Value::Int(0);
        for k in from..to {
            self.at = start;
            self.bound.insert(name.clone(), k);
            sum = apply("+", sum, self.ternary()?)?;
        }
        self.bound.remove(&name);
        if from >= to {
            // Nothing was evaluated, so the way past the summand has not been found.
            self.at = start + unclosed(&self.text[start..]).ok_or("a sum without its )")?;
        }
        self.expect(")")?;
        Ok(sum)
    }

    fn blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(format!("{token} missing in {}", self.text)) }
    }
}

/// Where the parenthesis is that closes one opened before `text`.
fn unclosed(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth < 0).then_some(at)
    })
}

fn literal(word: &str) -> Result<Value> {
    let wrong = || format!("{word} is no number");
    if let Some(digits) = word.strip_prefix("0x") {
        return i128::from_str_radix(digits, 16).map(Value::Int).map_err(|_| wrong());
    }
    if let Ok(int) = word.parse() {
        return Ok(Value::Int(int));
    }
    word.parse().map(Value::Float).map_err(|_| wrong())
}

fn int(value: Value) -> Result<i128> {
    match value {
        Value::Int(int) => Ok(int),
        Value::Float(float) => Err(format!("{float} where an integer is needed")),
    }
}

fn float(value: Value) -> f64 {
    match value {
        Value::Int(int) => int as f64,
        Value::Float(float) => float,
    }
}

fn truth(value: Value) -> bool {
    value != Value::Int(0) && value != Value::Float(0.0)
}

fn apply(operator: &str, a: Value, b: Value) -> Result<Value> {
    let shift = |amount: i128| u32::try_from(amount).unwrap_or(u32::MAX);
    let (a, b) = match (a, b) {
        (Value::Int(a), Value::Int(b)) => (a, b),
        _ => return apply_floats(operator, float(a), float(b)),
    };
    Ok(Value::Int(match operator {
        "||" => (a != 0 || b != 0).into(),
        "&&" => (a != 0 && b != 0).into(),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "==" => (a == b).into(),
        "!=" => (a != b).into(),
        "<" => (a < b).into(),
        "<=" => (a <= b).into(),
        ">" => (a > b).into(),
        ">=" => (a >= b).into(),
        "<<" => a.checked_shl(shift(b)).unwrap_or(0),
        ">>" => a >> shift(b).min(127),
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" => a.checked_div(b).ok_or("division by zero")?,
        _ => a.checked_rem(b).ok_or("division by zero")?,
    }))
}

fn apply_floats(operator: &str, a: f64, b: f64) -> Result<Value> {
    let truth = match operator {
        "==" => a == b,
        "!=" => a != b,
        "<" => a < b,
        "<=" => a <= b,
        ">" => a > b,
        ">=" => a >= b,
        "+" => return Ok(Value::Float(a + b)),
        "-" => return Ok(Value::Float(a - b)),
        "*" => return Ok(Value::Float(a * b)),
        "/" => return Ok(Value::Float(a / b)),
        _ => return Err(format!("{operator} of floats")),
    };
    Ok(Value::Int(truth.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Squares;

    impl Names for Squares {
        fn variable(&self, name: &str) -> Option<Value> {
            (name == "i").then_some(Value::Int(5))
        }

        fn element(&self, name: &str, index: usize) -> Option<Value> {
            (name == "x").then_some(Value::Int((index * index) as i128))
        }
    }

    fn check(text: &str, expect: i128) {
        assert_eq!(evaluate(text, &Squares), Ok(Value::Int(expect)), "{text}");
    }

    #[test]
    fn expressions_follow_the_rules_of_c() {
        check("1 + 2 * 3", 7);
        check("1 << 2 + 1", 8);
        check("7 & 3 == 3", 1);
        check("i < 5 ? 1 : i == 5 ? 2 : 3", 2);
        check("-x[i - 1] % 7", -2);
        check("sum(k, 0, i, x[k])", 30);
        check("sum(k, 3, 3, max(k, 1)) + 4", 4);
        check("~0 >> 4", -1);
        check("1 || 0 && 0", 1);
        check("max(min(3, i), 1)", 3);
        assert_eq!(evaluate("3 * 0.5", &Squares), Ok(Value::Float(1.5)));
        assert!(evaluate("1 +", &Squares).is_err());
        assert!(evaluate("y", &Squares).is_err());
    }
}
