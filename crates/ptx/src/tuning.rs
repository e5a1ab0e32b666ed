//! What a program demands of its compiler for all kernels of a text (CUDA Driver API,
//! `CU_JIT_MAX_REGISTERS` and its like), written into the text as performance-tuning directives,
//! which a later compiler obeys.

use std::borrow::Cow;
use std::ops::Range;

use crate::ParseError;
use crate::ast::Directives;
use crate::index::{Kind, ModuleIndex};
use crate::lex::{Lexer, Token};

/// Fewer registers than this are not to be had, and more neither: assemblers take the nearest
/// number instead.
const REGISTERS: Range<u32> = 24..256;

/// Demands for all kernels of a text; none of 0 is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `.maxnreg`: registers of a thread.
    pub registers_max: Option<u32>,
    /// `.maxntid`: threads of a block.
    pub threads_max: Option<u32>,
    /// `.minnctapersm`: blocks on a multiprocessor.
    pub blocks_min: Option<u32>,
    /// They replace what a kernel says itself. Otherwise that counts.
    pub overrides: bool,
}

impl Tuning {
    /// These demands, and those of `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Tuning) -> Tuning {
        let (this, other) = (self.without_zeros(), other.without_zeros());
        Tuning {
            registers_max: this.registers_max.or(other.registers_max),
            threads_max: this.threads_max.or(other.threads_max),
            blocks_min: this.blocks_min.or(other.blocks_min),
            overrides: this.overrides || other.overrides,
        }
    }

    /// Zero demands nothing.
    fn without_zeros(self) -> Tuning {
        let some = |number: Option<u32>| number.filter(|&number| number > 0);
        Tuning {
            registers_max: some(self.registers_max),
            threads_max: some(self.threads_max),
            blocks_min: some(self.blocks_min),
            overrides: self.overrides,
        }
    }

    /// The text with these demands. Lines keep their numbers.
    pub fn apply<'a>(&self, text: &'a [u8]) -> Result<Cow<'a, [u8]>, ParseError> {
        let this = self.without_zeros();
        if (Tuning { overrides: false, ..this }) == Tuning::default() {
            return Ok(Cow::Borrowed(text));
        }
        let index = ModuleIndex::new(text)?;
        let mut out = Vec::with_capacity(text.len());
        let mut copied = 0;
        for declaration in &index.declarations {
            let Kind::Function(number) = declaration.kind else { continue };
            let Some(function) = index.functions.get(number) else { continue };
            if !function.is_entry || function.body.is_none() {
                continue;
            }
            let added = this.directives(&function.directives);
            if added.is_empty() {
                continue;
            }
            let (replaced, body) = find(text, declaration.bytes.clone(), &added)?;
            for span in replaced.into_iter().filter(|_| self.overrides) {
                out.extend_from_slice(&text[copied..span.start]);
                // What lies between may be a comment's line end.
                out.extend(text[span.clone()].iter().map(|&byte| if byte == b'\n' { byte } else { b' ' }));
                copied = span.end;
            }
            out.extend_from_slice(&text[copied..body]);
            copied = body;
            for (name, value) in added {
                out.extend_from_slice(format!(".{name} {value} ").as_bytes());
            }
        }
        out.extend_from_slice(&text[copied..]);
        Ok(Cow::Owned(out))
    }

    /// The directives that a kernel with such directives of its own gets. `ptxas` lets
    /// `.minnctapersm` count as a limit of registers as well.
    fn directives(&self, own: &Directives) -> Vec<(&'static str, u32)> {
        let has_threads = own.max_threads.is_some() || own.required_threads.is_some();
        let has_registers = own.max_registers.is_some() || own.min_blocks_per_sm.is_some();
        let wanted = |value: Option<u32>, has_own: bool| {
            value.filter(|&value| value > 0 && (self.overrides || !has_own))
        };
        let registers = wanted(self.registers_max, has_registers)
            .map(|most| ("maxnreg", most.clamp(REGISTERS.start, REGISTERS.end - 1)));
        let threads = wanted(self.threads_max, has_threads).map(|most| ("maxntid", most));
        // "This option is ignored when used together with CU_JIT_MAX_REGISTERS", and it needs to
        // know the threads.
        let blocks = wanted(self.blocks_min, own.min_blocks_per_sm.is_some())
            .filter(|_| self.registers_max.is_none() && (has_threads || threads.is_some()))
            .map(|least| ("minnctapersm", least));
        [threads, blocks, registers].into_iter().flatten().collect()
    }
}

/// Of a kernel's declaration: where the directives are that those `added` replace, and where its
/// body begins.
fn find(
    text: &[u8],
    bytes: Range<usize>,
    added: &[(&'static str, u32)],
) -> Result<(Vec<Range<usize>>, usize), ParseError> {
    let declaration = text.get(..bytes.end).unwrap_or(text);
    let mut lexer = Lexer::at(declaration, bytes.start, 1);
    let mut found = Vec::new();
    let mut open: Option<usize> = None;
    loop {
        let token = lexer.next()?;
        let is_end = matches!(token.token, Token::Punct(b'{') | Token::End);
        if is_end || matches!(token.token, Token::Dotted(_)) {
            found.extend(open.take().map(|start| start..token.start));
        }
        if is_end {
            return Ok((found, token.start));
        }
        if let Token::Dotted(word) = token.token {
            let is_replaced =
                added.iter().any(|&(name, _)| name == word || (name == "maxntid" && word == "reqntid"));
            open = is_replaced.then_some(token.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[track_caller]
    fn check(tuning: Tuning, kernel: &str, expected: &str) {
        let text = format!("{HEADER}{kernel}");
        let tuned = tuning.apply(text.as_bytes()).expect("PTX");
        assert_eq!(String::from_utf8_lossy(&tuned).strip_prefix(HEADER), Some(expected));
        crate::parse(&tuned).expect("the result is PTX");
    }

    const REGISTERS_38: Tuning =
        Tuning { registers_max: Some(38), threads_max: None, blocks_min: None, overrides: false };

    #[test]
    fn kernels_get_a_limit_of_registers_and_functions_do_not() {
        check(
            REGISTERS_38,
            ".func f() { ret; }\n.entry k(.param .u64 a) // {\n{ call f; ret; }\n.entry l() { ret; }\n",
            ".func f() { ret; }\n.entry k(.param .u64 a) // {\n.maxnreg 38 { call f; ret; }\n.entry l() .maxnreg 38 { ret; }\n",
        );
    }

    #[test]
    fn what_a_kernel_says_counts_unless_it_is_overridden() {
        let kernel = ".entry k() .maxntid 256, 1,\n 1 .maxnreg 64 { ret; }";
        check(REGISTERS_38, kernel, kernel);
        let overriding = Tuning { overrides: true, ..REGISTERS_38 };
        check(overriding, kernel, ".entry k() .maxntid 256, 1,\n 1             .maxnreg 38 { ret; }");
        let threads = Tuning { registers_max: None, threads_max: Some(128), ..overriding };
        check(threads, kernel, ".entry k()                 \n   .maxnreg 64 .maxntid 128 { ret; }");
    }

    #[test]
    fn a_minimum_of_blocks_is_a_limit_of_registers() {
        let kernel = ".entry k() .maxntid 256 .minnctapersm 3 { ret; }";
        check(REGISTERS_38, kernel, kernel);
        check(
            REGISTERS_38,
            ".entry k() .maxntid 256 { ret; }",
            ".entry k() .maxntid 256 .maxnreg 38 { ret; }",
        );
    }

    #[test]
    fn blocks_need_threads() {
        let blocks = Tuning { blocks_min: Some(2), ..Tuning::default() };
        check(blocks, ".entry k() { ret; }", ".entry k() { ret; }");
        let both = Tuning { threads_max: Some(64), ..blocks };
        check(both, ".entry k() { ret; }", ".entry k() .maxntid 64 .minnctapersm 2 { ret; }");
    }

    #[test]
    fn numbers_that_no_thread_can_have_are_brought_into_range() {
        let registers = |registers_max| Tuning { registers_max: Some(registers_max), ..Tuning::default() };
        check(registers(8), ".entry k() { ret; }", ".entry k() .maxnreg 24 { ret; }");
        check(registers(300), ".entry k() { ret; }", ".entry k() .maxnreg 255 { ret; }");
        check(registers(0), ".entry k() { ret; }", ".entry k() { ret; }");
    }
}
