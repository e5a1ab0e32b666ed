//! The linker: several texts become one (PTX ISA, "Linking Directives").
//!
//! PTX needs no relocation: names tie it together. What a linker has to do is to say which
//! definition a name means, and to keep apart what texts call by the same name without sharing it:
//!
//! - `.visible` and entries are strong: one of them takes precedence over any `.weak` or `.common`,
//!   two are a mistake.
//! - Of several `.weak` the first is taken, of several `.common` the largest.
//! - `.extern` says that the name is another's. A name that no text defines stays as it is: the
//!   runtime knows some, and the others are missed where they are used. Shared arrays without a
//!   size (`.extern .shared x[]`) are defined by launches.
//! - A name without directive is known in its own text only; where another text uses it too, it
//!   gets another one.
//!
//! What is said about a function before its body comes first, then variables, then bodies:
//! assemblers want to know names before they are used.

mod names;
mod rename;

use std::ops::Range;

use crate::ParseError;
use crate::ast::Linkage;
use crate::index::{Kind, ModuleIndex};
use crate::lex::{Lexer, Token};

use names::{DeclarationId, Names};

/// A text to be linked.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What messages call it.
    pub name: &'a str,
    pub text: &'a [u8],
}

/// Why texts cannot be linked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    #[error("nothing to link")]
    NoInput,
    #[error("{input}: {error}")]
    Parse { input: String, error: ParseError },
    #[error(
        "`{name}` is defined in {first} and in {second}: make one of them .weak, or leave out .visible where it is \
         meant for its own file"
    )]
    Duplicate { name: String, first: String, second: String },
    #[error("`{name}` is a function in {function} and a variable in {variable}")]
    Kinds { name: String, function: String, variable: String },
    #[error("{first} has {first_bits}-bit addresses and {second} {second_bits}-bit ones")]
    AddressSizes { first: String, first_bits: u32, second: String, second_bits: u32 },
    #[error("{input}: `{name}` shares its declaration with variables of another fate: declare it by itself")]
    Together { input: String, name: String },
}

/// One text from several, with a newline at its end and no NUL.
pub fn link(inputs: &[Input<'_>]) -> Result<Vec<u8>, LinkError> {
    let index = |input: &Input<'_>| {
        ModuleIndex::new(input.text).map_err(|error| LinkError::Parse { input: input.name.to_owned(), error })
    };
    let units: Vec<ModuleIndex> = inputs.iter().map(index).collect::<Result<_, _>>()?;
    let mut out = header(inputs, &units)?;
    let names = Names::resolve(inputs, &units)?;
    for phase in [Phase::Announcements, Phase::Variables, Phase::Bodies] {
        for (number, unit) in units.iter().enumerate() {
            let renamed = names.renamed(number);
            for (at, declaration) in unit.declarations.iter().enumerate() {
                let place = DeclarationId { unit: number, declaration: at };
                if Phase::of(unit, &declaration.kind) != phase || !names.keeps(inputs, unit, place)? {
                    continue;
                }
                let text = directive(unit, declaration.bytes.clone());
                match names.announced_as(unit, place) {
                    Some(linkage) => {
                        out.extend_from_slice(linkage.as_bytes());
                        rename::copy(from_func(text), renamed, &mut out);
                    }
                    None => rename::copy(text, renamed, &mut out),
                }
                out.push(b'\n');
            }
        }
    }
    Ok(out)
}

/// In what order things are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Functions without body.
    Announcements,
    Variables,
    /// Functions with body, and aliases.
    Bodies,
}

impl Phase {
    fn of(unit: &ModuleIndex, kind: &Kind) -> Phase {
        match kind {
            Kind::Function(index) if unit.functions[*index].body.is_none() => Phase::Announcements,
            Kind::Variables(_) => Phase::Variables,
            Kind::Function(_) | Kind::Alias(_) => Phase::Bodies,
        }
    }
}

/// The directives that stand once: the newest version, and the highest target.
fn header(inputs: &[Input<'_>], units: &[ModuleIndex]) -> Result<Vec<u8>, LinkError> {
    let first = units.first().ok_or(LinkError::NoInput)?;
    let (first_bits, first_name) = (first.address_size(), inputs[0].name);
    let other = units.iter().zip(inputs).find(|(unit, _)| unit.address_size() != first_bits);
    if let Some((unit, input)) = other {
        return Err(LinkError::AddressSizes {
            first: first_name.to_owned(),
            first_bits,
            second: input.name.to_owned(),
            second_bits: unit.address_size(),
        });
    }
    let (major, minor) = units.iter().map(ModuleIndex::version).max().unwrap_or_default();
    let by_target = |unit: &&ModuleIndex| unit.target().first().map(|target| architecture(target));
    let target = units.iter().max_by_key(by_target).map_or(&[][..], ModuleIndex::target);
    // Texts that name no target are one that names none.
    let target = match target {
        [] => String::new(),
        names => format!(".target {}\n", names.join(", ")),
    };
    Ok(format!(".version {major}.{minor}\n{target}.address_size {first_bits}\n\n").into_bytes())
}

/// `sm_90a` as 90 and what follows.
fn architecture(target: &str) -> (u32, String) {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    let variant = target.trim_start_matches(|c: char| !c.is_ascii_digit());
    (digits.parse().unwrap_or(0), variant.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned())
}

/// A declaration's text, without the comments that follow it.
fn directive(unit: &ModuleIndex, bytes: Range<usize>) -> &[u8] {
    unit.text.get(bytes).unwrap_or_default().trim_ascii_end()
}

/// A function's declaration from `.func` on.
fn from_func(text: &[u8]) -> &[u8] {
    let mut lexer = Lexer::new(text);
    while let Ok(token) = lexer.next() {
        match token.token {
            Token::Dotted("func") => return &text[token.start..],
            Token::End => break,
            _ => {}
        }
    }
    text
}

/// The linking directive as it is written before `.func`.
fn directive_of(linkage: Linkage) -> &'static str {
    match linkage {
        Linkage::Internal => "",
        Linkage::Visible => ".visible ",
        Linkage::Extern => ".extern ",
        Linkage::Weak => ".weak ",
        Linkage::Common => ".common ",
    }
}
