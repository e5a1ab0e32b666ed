//! A module's contents at a glance, so that it can be loaded without parsing its bodies.
//!
//! One pass over the text finds every declaration, its bytes, and its signature; the bytes of
//! bodies and initialisers are skipped by counting braces (with strings and comments respected).
//! When an entry is first used, [`ModuleIndex::closure`] parses it together with all it refers to.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Space;
use crate::ast::{Address, AddressBase};
use crate::ast::{
    Alias, Body, Callee, Function, Linkage, Module, Name, Operand, Statement, Symbol, Variable,
};
use crate::error::{ParseError, ParseErrorKind, STATIC_SHARED_MAX};
use crate::lex::Lexer;
use crate::parse::module::Item;
use crate::parse::{Depth, Parser};

/// Bytes of text for which another thread is worth its start.
const CHECKED_ALONE: usize = 128 << 10;

/// Functions that a variable may have the addresses of for all of them to be parsed with it.
const TABLE_FOLLOWED_MAX: usize = 256;

/// A module's text with the places of its declarations.
pub struct ModuleIndex {
    pub(crate) text: Arc<[u8]>,
    version: (u32, u32),
    target: Vec<Name>,
    address_size: u32,
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) aliases: Vec<Alias>,
    /// In the order of the text.
    pub(crate) declarations: Vec<Declaration>,
    /// The declaration that a name means: its definition, where the text has one.
    by_name: HashMap<Name, usize>,
}

/// Where a declaration stands and what it declares.
pub(crate) struct Declaration {
    pub(crate) bytes: Range<usize>,
    line: u32,
    pub(crate) kind: Kind,
}

/// Indices into the tables of [`ModuleIndex`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Function(usize),
    /// One declaration may declare several.
    Variables(Range<usize>),
    Alias(usize),
}

/// Why a part of a module could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    #[error("the module has no function `{0}`")]
    NoSuchFunction(String),
    #[error(transparent)]
    Parse(#[from] ParseError),
}

impl ModuleIndex {
    /// Reads the text once. A NUL byte ends it.
    pub fn new(text: impl Into<Arc<[u8]>>) -> Result<ModuleIndex, ParseError> {
        let text = text.into();
        let mut index = ModuleIndex {
            text: text.clone(),
            version: (0, 0),
            target: Vec::new(),
            address_size: 64,
            functions: Vec::new(),
            variables: Vec::new(),
            aliases: Vec::new(),
            declarations: Vec::new(),
            by_name: HashMap::new(),
        };
        let mut parser = Parser::new(Lexer::new(&text), Depth::Signatures)?;
        let mut start = parser.position();
        while let Some(item) = parser.item()? {
            let end = parser.position();
            index.add(item, start.0..end.0, start.1);
            start = end;
        }
        Ok(index)
    }

    /// The text that was read.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// `.version`: major, minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// `.target` and its options.
    pub fn target(&self) -> &[Name] {
        &self.target
    }

    /// In bits.
    pub fn address_size(&self) -> u32 {
        self.address_size
    }

    /// Signatures of all entries and functions in the order of the text, declarations included. A
    /// body that the text has is here as an empty one.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All variables (no initialisers), in the order of the text. The size of an unsized array with
    /// an initialiser is not known yet and 0 here; [`ModuleIndex::parse_variable`] finds it.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Signature of the entry or function of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        match &self.declaration(name)?.kind {
            Kind::Function(index) => self.functions.get(*index),
            _ => None,
        }
    }

    /// The variable of this name, without its initialiser.
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        match &self.declaration(name)?.kind {
            Kind::Variables(range) => {
                self.variables[range.clone()].iter().find(|variable| &*variable.name == name)
            }
            _ => None,
        }
    }

    /// The variable of this name with its initialiser.
    pub fn parse_variable(&self, name: &str) -> Option<Result<Variable, ParseError>> {
        let declaration = self.declaration(name)?;
        match declaration.kind {
            Kind::Variables(_) => {}
            _ => return None,
        }
        match self.parse_declaration(declaration) {
            Ok(Some(Item::Variables(variables))) => {
                variables.into_iter().find(|variable| &*variable.name == name).map(Ok)
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The function of this name with its body.
    pub fn parse_function(&self, name: &str) -> Option<Result<Function, ParseError>> {
        let declaration = self.declaration(name)?;
        match self.parse_declaration(declaration) {
            Ok(Some(Item::Function(function))) => Some(Ok(*function)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Parses a function and everything it refers to, directly or not, as a module of its own. What
    /// only a table of more than [`TABLE_FOLLOWED_MAX`] functions refers to is left out, and
    /// counted: libraries have a kernel from which all of their functions can be reached.
    pub fn closure(&self, name: &str) -> Result<Module, ClosureError> {
        let root = self
            .by_name
            .get(name)
            .filter(|&&index| matches!(self.declarations[index].kind, Kind::Function(_)));
        let &root = root.ok_or_else(|| ClosureError::NoSuchFunction(name.to_string()))?;

        let mut wanted = vec![root];
        let mut seen = BTreeSet::from([root]);
        let mut items = Vec::new();
        let mut left_out = 0;
        while let Some(index) = wanted.pop() {
            let Some(item) = self.parse_declaration(&self.declarations[index])? else { continue };
            let functions = self.functions_in(&item);
            let is_followed = functions <= TABLE_FOLLOWED_MAX;
            if !is_followed {
                left_out += functions;
            }
            for_each_reference(&item, &mut |name| {
                if let Some(&index) = self.by_name.get(name)
                    && (is_followed || !self.is_function(index))
                    && seen.insert(index)
                {
                    wanted.push(index);
                }
            });
            items.push((index, item));
        }
        items.sort_by_key(|&(index, _)| index);

        let mut module = Module {
            version: self.version,
            target: self.target.clone(),
            address_size: self.address_size,
            left_out,
            ..Module::default()
        };
        for (_, item) in items {
            item.add_to(&mut module);
        }
        Ok(module)
    }

    /// Parses everything with up to `threads` threads and forgets it: the first mistake of the text
    /// is reported.
    pub fn check(&self, threads: usize) -> Result<(), ParseError> {
        let next = AtomicUsize::new(0);
        // Declarations are taken in order, so those before one with a mistake are all looked at.
        let work = || loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let declaration = self.declarations.get(index)?;
            let parsed = self.parse_declaration(declaration);
            if let Err(error) = parsed.and_then(|item| item.map_or(Ok(()), |item| check_shared(&item))) {
                next.store(self.declarations.len(), Ordering::Relaxed);
                return Some((index, error));
            }
        };
        let helpers = threads.min(self.text.len() / CHECKED_ALONE).saturating_sub(1);
        let first = std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers)
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let own = work();
            let others = helpers.into_iter().filter_map(|helper| helper.join().ok().flatten());
            own.into_iter().chain(others).min_by_key(|(index, _)| *index)
        });
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn is_function(&self, declaration: usize) -> bool {
        matches!(self.declarations[declaration].kind, Kind::Function(_) | Kind::Alias(_))
    }

    /// How many functions a variable has addresses of; none for anything else.
    fn functions_in(&self, item: &Item) -> usize {
        let mut functions: BTreeSet<usize> = BTreeSet::new();
        if let Item::Variables(_) = item {
            for_each_reference(item, &mut |name| {
                functions.extend(self.by_name.get(name).filter(|&&index| self.is_function(index)));
            });
        }
        functions.len()
    }

    fn add(&mut self, item: Item, bytes: Range<usize>, line: u32) {
        let declaration = self.declarations.len();
        let kind = match item {
            Item::Version(version) => return self.version = version,
            Item::Target(target) => return self.target = target,
            Item::AddressSize(bits) => return self.address_size = bits,
            Item::Function(function) => {
                self.name(&function.name, declaration, function.body.is_some());
                self.functions.push(*function);
                Kind::Function(self.functions.len() - 1)
            }
            Item::Variables(variables) => {
                let first = self.variables.len();
                for variable in &variables {
                    self.name(&variable.name, declaration, variable.linkage != Linkage::Extern);
                }
                self.variables.extend(variables);
                Kind::Variables(first..self.variables.len())
            }
            Item::Alias(alias) => {
                // The function it names may be declared, but only the alias says what it is.
                self.name(&alias.name, declaration, true);
                self.aliases.push(alias);
                Kind::Alias(self.aliases.len() - 1)
            }
        };
        self.declarations.push(Declaration { bytes, line, kind });
    }

    /// Lets a name mean a declaration. One that only declares gives way to one that defines.
    fn name(&mut self, name: &Name, declaration: usize, is_here: bool) {
        if is_here {
            self.by_name.insert(name.clone(), declaration);
        } else {
            self.by_name.entry(name.clone()).or_insert(declaration);
        }
    }

    fn declaration(&self, name: &str) -> Option<&Declaration> {
        Some(&self.declarations[*self.by_name.get(name)?])
    }

    fn parse_declaration(&self, declaration: &Declaration) -> Result<Option<Item>, ParseError> {
        let lexer = Lexer::at(&self.text, declaration.bytes.start, declaration.line);
        Parser::new(lexer, Depth::Everything)?.item()
    }
}

/// Whether the shared memory fits that an entry declares in its body.
fn check_shared(item: &Item) -> Result<(), ParseError> {
    let Item::Function(function) = item else { return Ok(()) };
    let variables = function.body.iter().flat_map(|body| &body.variables);
    let shared = variables.filter(|variable| variable.space == Space::Shared);
    let bytes = shared.fold(0u64, |sum, variable| sum.saturating_add(variable.size));
    if !function.is_entry || bytes <= STATIC_SHARED_MAX {
        return Ok(());
    }
    let kind = ParseErrorKind::SharedData(bytes);
    Err(ParseError { kind, line: function.line, column: 1, found: function.name.to_string() })
}

/// Calls with every module-level name that an item mentions.
fn for_each_reference(item: &Item, found: &mut impl FnMut(&str)) {
    match item {
        Item::Function(function) => {
            if let Some(body) = &function.body {
                body_references(body, found);
            }
        }
        Item::Variables(variables) => {
            variables.iter().for_each(|variable| variable_references(variable, found))
        }
        Item::Alias(alias) => found(&alias.aliasee),
        Item::Version(_) | Item::Target(_) | Item::AddressSize(_) => {}
    }
}

fn variable_references(variable: &Variable, found: &mut impl FnMut(&str)) {
    for relocation in variable.initializer.iter().flat_map(|initializer| &initializer.relocations) {
        found(&relocation.symbol);
    }
}

fn body_references(body: &Body, found: &mut impl FnMut(&str)) {
    body.variables.iter().for_each(|variable| variable_references(variable, found));
    body.call_targets.iter().flatten().for_each(|name| found(name));
    for statement in &body.statements {
        match statement {
            Statement::Label(_) => {}
            Statement::Instruction(instruction) => operand_references(&instruction.operands, found),
            Statement::Call(call) => {
                if let Callee::Function(name) = &call.callee {
                    found(name);
                }
                operand_references(&call.arguments, found);
            }
        }
    }
}

fn operand_references(operands: &[Operand], found: &mut impl FnMut(&str)) {
    for operand in operands {
        match operand {
            Operand::Symbol { symbol: Symbol::Module(name), .. }
            | Operand::Address(Address { base: AddressBase::Symbol(Symbol::Module(name)), .. }) => {
                found(name)
            }
            Operand::Vector(operands) | Operand::Bracketed(operands) => operand_references(operands, found),
            _ => {}
        }
    }
}
