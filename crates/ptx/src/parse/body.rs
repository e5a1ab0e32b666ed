//! Bodies: declarations, labels, statements, and the second look at names that come before their
//! label.

use super::Parser;
use super::function::Declared;
use super::operand::as_value;
use super::scope::{InRange, Local, Range, ScopeId, Scopes};
use crate::ast::{
    Body, Call, Callee, Guard, IndirectTargets, Instruction, Label, LabelId, Name, Operand, Register,
    RegisterId, Statement, Symbol, VariableId,
};
use crate::error::{ParseError, ParseErrorKind};
use crate::lex::Token;
use crate::{Modifier, Opcode, Type};

/// A body as it is read.
pub(super) struct BodyParser<'p, 'a> {
    pub(super) parser: &'p mut Parser<'a>,
    pub(super) body: Body,
    scopes: Scopes<'a>,
    scope: ScopeId,
    /// Statements with names that meant nothing when they were read.
    forward: Vec<Forward>,
    /// The `.branchtargets` lists, with the scope and place of each label's name.
    branch_targets: Vec<(ScopeId, Vec<(&'a str, usize)>)>,
}

struct Forward {
    statement: usize,
    scope: ScopeId,
    /// Offset in the text.
    start: usize,
}

impl<'a> Parser<'a> {
    /// From the `{` of a body to past its `}`.
    pub(super) fn body(
        &mut self,
        returns: &[Declared<'a>],
        params: &[Declared<'a>],
    ) -> Result<Body, ParseError> {
        let mut scopes = Scopes::default();
        let scope = scopes.open(None);
        let (forward, branch_targets) = Default::default();
        let mut body =
            BodyParser { parser: self, body: Body::default(), scopes, scope, forward, branch_targets };
        body.declare_params(returns, Local::Return)?;
        body.declare_params(params, Local::Param)?;
        body.statements()?;
        body.resolve_forward()?;
        Ok(body.body)
    }
}

impl<'a> BodyParser<'_, 'a> {
    /// Parameters by their names. The components of a vector register are parameters of their own,
    /// one behind the other.
    fn declare_params(&mut self, params: &[Declared<'a>], of: fn(u32) -> Local) -> Result<(), ParseError> {
        let mut index = 0;
        while let Some(declared) = params.get(index) {
            let components = declared.components;
            let local = match declared.param.register {
                Some(_) => self.new_local(declared.name, declared.param.ty, components),
                None => of(id(index)),
            };
            index += components;
            // `_` is no name; unused parameters share it.
            if declared.name != "_" {
                self.declare(declared.name, local)?;
            }
        }
        Ok(())
    }

    /// A new register, or those that a vector register is taken apart into.
    fn new_local(&mut self, name: &str, ty: Type, vector: usize) -> Local {
        match vector {
            1 => Local::Register(self.new_register(name, ty)),
            _ => Local::Vector(
                ["x", "y", "z", "w"]
                    .iter()
                    .take(vector)
                    .map(|part| self.new_register(&format!("{name}.{part}"), ty))
                    .collect(),
            ),
        }
    }

    fn statements(&mut self) -> Result<(), ParseError> {
        self.parser.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.parser.next.token {
                Token::Punct(b'{') => {
                    self.parser.advance()?;
                    depth = self.parser.deeper(depth)?;
                    self.scope = self.scopes.open(Some(self.scope));
                }
                Token::Punct(b'}') => {
                    self.parser.advance()?;
                    depth -= 1;
                    self.scope = self.scopes.parent(self.scope).unwrap_or(self.scope);
                }
                Token::Punct(b';') => drop(self.parser.advance()?),
                Token::Dotted(directive) => self.directive(directive)?,
                Token::Punct(b'@') => {
                    let guard = self.guard()?;
                    let opcode = self.parser.word("an opcode")?;
                    self.instruction(Some(guard), opcode)?;
                }
                Token::Word(word) => {
                    self.parser.advance()?;
                    if self.parser.accept(b':')? {
                        self.label(word)?;
                    } else {
                        self.instruction(None, word)?;
                    }
                }
                _ => return Err(self.parser.expected("a statement or `}`")),
            }
        }
        Ok(())
    }

    fn directive(&mut self, directive: &str) -> Result<(), ParseError> {
        if directive == "reg" {
            self.parser.advance()?;
            return self.registers();
        }
        if self.parser.skip_ignored(directive)? {
            return Ok(());
        }
        let line = self.parser.next.line;
        let linkage = self.parser.linkage()?;
        for (name, variable) in self.parser.variables_with_names(linkage, line)? {
            let id = VariableId(id(self.body.variables.len()));
            self.body.variables.push(variable);
            self.declare(name, Local::Variable(id))?;
        }
        Ok(())
    }

    /// `.reg .b32 %r<10>, x;`, the first word taken already.
    fn registers(&mut self) -> Result<(), ParseError> {
        let mut ty = None;
        let mut vector = 1;
        while let Token::Dotted(word) = self.parser.next.token {
            match word {
                "v2" => vector = 2,
                "v4" => vector = 4,
                _ => match Type::from_text(word) {
                    Some(found) => ty = Some(found),
                    None => return Err(self.parser.expected("a register type")),
                },
            }
            self.parser.advance()?;
        }
        let Some(ty) = ty else { return Err(self.parser.expected("a register type")) };
        loop {
            let name = self.parser.word("a register name")?;
            if self.parser.accept(b'<')? {
                let count = self.parser.range_count()?;
                self.scopes.declare_range(self.scope, Range { prefix: name, count, ty, vector });
                self.parser.expect(b'>')?;
            } else {
                let local = self.new_local(name, ty, vector);
                self.declare(name, local)?;
            }
            if !self.parser.accept(b',')? {
                return self.parser.expect(b';');
            }
        }
    }

    /// What follows `name:`.
    fn label(&mut self, name: &'a str) -> Result<(), ParseError> {
        let local = match self.parser.next.token {
            Token::Dotted("callprototype") => {
                self.parser.advance()?;
                let prototype = self.parser.prototype()?;
                self.body.prototypes.push(prototype);
                Local::Prototype(id(self.body.prototypes.len() - 1))
            }
            Token::Dotted("calltargets") => {
                let targets = self.names()?.into_iter().map(|(name, _)| name.into()).collect();
                self.body.call_targets.push(targets);
                Local::CallTargets(id(self.body.call_targets.len() - 1))
            }
            Token::Dotted("branchtargets") => {
                // The labels come later, see `resolve_forward`.
                let names = self.names()?;
                let table = id(self.branch_targets.len());
                self.branch_targets.push((self.scope, names));
                Local::BranchTargets(table)
            }
            _ => {
                let label = LabelId(id(self.body.labels.len()));
                self.body.labels.push(Label { name: name.into() });
                self.body.statements.push(Statement::Label(label));
                Local::Label(label)
            }
        };
        self.declare(name, local)
    }

    /// `.directive a, b, c;`
    fn names(&mut self) -> Result<Vec<(&'a str, usize)>, ParseError> {
        self.parser.advance()?;
        let mut names = Vec::new();
        loop {
            let start = self.parser.next.start;
            names.push((self.parser.word("a name")?, start));
            if !self.parser.accept(b',')? {
                self.parser.expect(b';')?;
                return Ok(names);
            }
        }
    }

    /// `@p` or `@!p`.
    fn guard(&mut self) -> Result<Guard, ParseError> {
        self.parser.expect(b'@')?;
        let is_negated = self.parser.accept(b'!')?;
        let register = self.register()?;
        Ok(Guard { register, is_negated })
    }

    /// What follows the opcode, and the `;`.
    fn instruction(&mut self, guard: Option<Guard>, opcode: &'a str) -> Result<(), ParseError> {
        let (start, line) = self.parser.position();
        let opcode = Opcode::from_text(opcode);
        let mut modifiers = Vec::new();
        while let Some(word) = self.parser.accept_dotted()? {
            modifiers.push(Modifier::from_text(word));
        }
        if opcode == Opcode::Call {
            return self.call(guard, modifiers.contains(&Modifier::Uni));
        }
        let mut operands = Vec::new();
        while !self.parser.is(b';') {
            if !operands.is_empty() {
                self.parser.expect(b',')?;
            }
            let operand = self.operand(0)?;
            operands.push(if opcode == Opcode::Mov { as_value(operand) } else { operand });
        }
        self.parser.expect(b';')?;
        if operands.iter().any(|operand| module_name(operand).is_some()) {
            self.push_forward(start);
        }
        self.body.statements.push(Statement::Instruction(Instruction {
            guard,
            opcode,
            modifiers,
            operands,
            line,
        }));
        Ok(())
    }

    /// `(returns), callee, (arguments), prototype;`, of which only the callee must be there.
    fn call(&mut self, guard: Option<Guard>, is_uniform: bool) -> Result<(), ParseError> {
        let (start, line) = self.parser.position();
        let mut returns = Vec::new();
        if self.parser.is(b'(') {
            returns = self.call_operands()?;
            self.parser.expect(b',')?;
        }
        let name = self.parser.word("a function or register")?;
        let mut arguments = Vec::new();
        let mut targets = None;
        while self.parser.accept(b',')? {
            if self.parser.is(b'(') {
                arguments = self.call_operands()?;
            } else {
                targets = Some((self.parser.next.start, self.parser.word("a prototype or call targets")?));
            }
        }
        self.parser.expect(b';')?;
        let callee = match (self.local(name), targets) {
            (Some(Local::Register(register)), Some((start, targets))) => {
                Callee::Indirect { register, targets: self.indirect_targets(targets, start)? }
            }
            (Some(Local::Register(_)), None) => {
                return Err(self
                    .parser
                    .error_at(ParseErrorKind::Expected("a prototype for the call"), start));
            }
            _ => Callee::Function(name.into()),
        };
        let call = Call { guard, is_uniform, returns, callee, arguments, line };
        self.body.statements.push(Statement::Call(call));
        Ok(())
    }

    /// Operands in parentheses; a vector is as many as it has elements.
    fn call_operands(&mut self) -> Result<Vec<Operand>, ParseError> {
        let mut operands = Vec::new();
        self.parser.expect(b'(')?;
        while !self.parser.is(b')') {
            if !operands.is_empty() {
                self.parser.expect(b',')?;
            }
            match self.operand(0)? {
                Operand::Vector(components) => operands.extend(components),
                one => operands.push(one),
            }
        }
        self.parser.expect(b')')?;
        Ok(operands)
    }

    fn indirect_targets(&mut self, name: &'a str, start: usize) -> Result<IndirectTargets, ParseError> {
        match self.local(name) {
            Some(Local::Prototype(index)) => Ok(IndirectTargets::Prototype(index)),
            Some(Local::CallTargets(index)) => Ok(IndirectTargets::Targets(index)),
            _ => Err(self.parser.error_at(ParseErrorKind::Undeclared(name.to_string()), start)),
        }
    }

    fn declare(&mut self, name: &'a str, local: Local) -> Result<(), ParseError> {
        if self.scopes.declare(self.scope, name, local) {
            return Ok(());
        }
        Err(self.parser.error(ParseErrorKind::Redeclared(name.to_string())))
    }

    /// What a name means here. A register of a range comes into being when it is first named.
    pub(super) fn local(&mut self, name: &'a str) -> Option<Local> {
        let InRange { scope, ty, vector } = match self.scopes.look_up(self.scope, name)? {
            Ok(local) => return Some(local.clone()),
            Err(range) => range,
        };
        let register = self.new_local(name, ty, vector);
        self.scopes.declare(scope, name, register.clone());
        Some(register)
    }

    fn new_register(&mut self, name: &str, ty: Type) -> RegisterId {
        let register = RegisterId(id(self.body.registers.len()));
        self.body.registers.push(Register { name: name.into(), ty });
        register
    }

    /// Notes that the statement about to be pushed names something that is not known yet.
    fn push_forward(&mut self, start: usize) {
        self.forward.push(Forward { statement: self.body.statements.len(), scope: self.scope, start });
    }

    /// Gives names that came before their label the meaning they have in their scope. What still
    /// means nothing lives at module level, except where only a label can stand.
    fn resolve_forward(&mut self) -> Result<(), ParseError> {
        let undeclared = |parser: &Parser<'_>, name: &str, start| {
            Err(parser.error_at(ParseErrorKind::Undeclared(name.to_string()), start))
        };
        for Forward { statement, scope, start } in std::mem::take(&mut self.forward) {
            let Statement::Instruction(instruction) = &mut self.body.statements[statement] else { continue };
            for operand in &mut instruction.operands {
                let Some(name) = module_name(operand) else { continue };
                match self.scopes.look_up(scope, name) {
                    Some(Ok(Local::Label(label))) => *operand = Operand::Label(*label),
                    Some(Ok(Local::BranchTargets(table))) => *operand = Operand::BranchTargets(*table),
                    _ if instruction.opcode == Opcode::Bra => return undeclared(self.parser, name, start),
                    _ => {}
                }
            }
        }
        for (scope, names) in std::mem::take(&mut self.branch_targets) {
            let mut labels = Vec::with_capacity(names.len());
            for (name, start) in names {
                match self.scopes.look_up(scope, name) {
                    Some(Ok(Local::Label(label))) => labels.push(*label),
                    _ => return undeclared(self.parser, name, start),
                }
            }
            self.body.branch_targets.push(labels);
        }
        Ok(())
    }
}

pub(super) fn module_symbol(name: &str) -> Operand {
    Operand::Symbol { symbol: Symbol::Module(name.into()), offset: 0 }
}

fn module_name(operand: &Operand) -> Option<&Name> {
    match operand {
        Operand::Symbol { symbol: Symbol::Module(name), offset: 0 } => Some(name),
        _ => None,
    }
}

/// An index as an id. A text has fewer of anything than bytes, and texts beyond 4 GiB are not
/// parsed.
fn id(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
