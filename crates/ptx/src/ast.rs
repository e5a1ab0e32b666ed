//! The syntax tree of a PTX module (PTX ISA, "Syntax" and "Directives").
//!
//! The parser resolves what PTX's nested scopes make ambiguous, so that a reader of the tree never
//! looks a name up: registers, function-local variables, labels and parameters are indices into
//! tables of their [`Function`], the braces of a body are gone, and only what lives at module level
//! (other functions, module variables) is a name.
//!
//! Vector registers (`.reg .v4 .f32 %v`) are taken apart: each component is a register, `%v` reads
//! as [`Operand::Vector`] of its components and `%v.x` as one of them.

use crate::{Modifier, Opcode, Space, SpecialRegister, Type};

/// A name at module level. Names within functions become indices.
pub type Name = Box<str>;

/// A parsed module, or the part of one that an entry needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// `.version`: major, minor.
    pub version: (u32, u32),
    /// `.target`, for example `sm_90a`, then its options (`texmode_unified`, `debug`, ...).
    pub target: Vec<Name>,
    /// `.address_size`: 32 or 64 bits.
    pub address_size: u32,
    /// Variables at module level, in the order of the text.
    pub variables: Vec<Variable>,
    /// Entries and functions, in the order of the text; declarations without a body only where no
    /// definition follows.
    pub functions: Vec<Function>,
    /// `.alias` directives.
    pub aliases: Vec<Alias>,
    /// Functions that are not here because only a large table has their addresses
    /// ([`crate::ModuleIndex::closure`]).
    pub left_out: usize,
}

impl Module {
    /// The function or entry of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| &*function.name == name)
    }

    /// The module variable of this name.
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|variable| &*variable.name == name)
    }
}

/// `.alias name, aliasee;`: a second name for a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Alias {
    pub name: Name,
    pub aliasee: Name,
}

/// How a module-level name is seen by other modules (PTX ISA, "Linking Directives").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// No directive: known in its own module only.
    #[default]
    Internal,
    Visible,
    Extern,
    Weak,
    Common,
}

/// An entry or a device function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    pub name: Name,
    pub linkage: Linkage,
    /// `.entry` rather than `.func`.
    pub is_entry: bool,
    /// Input parameters. Those of an entry have their offsets in the parameter block of a launch.
    pub params: Vec<Param>,
    /// Return parameters of a `.func`.
    pub returns: Vec<Param>,
    pub directives: Directives,
    /// None for a declaration.
    pub body: Option<Body>,
    /// Line of the `.entry` or `.func` in the text, from 1.
    pub line: u32,
}

/// Performance-tuning directives (PTX ISA, "Performance-Tuning Directives"). Unset ones are None or
/// false.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `.maxntid`: at most this number of threads per block; missing dimensions are 1.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: exactly this number of threads per block.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`.
    pub required_cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`.
    pub max_cluster_rank: Option<u32>,
    /// `.explicitcluster`.
    pub explicit_cluster: bool,
    /// `.noreturn`.
    pub no_return: bool,
}

/// A parameter of an entry or function.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub name: Name,
    pub ty: Type,
    /// Set when the parameter is declared in register space (`.reg`, device functions only).
    pub register: Option<RegisterId>,
    /// Offset in bytes from the start of the parameter block. Meaningful for entries; for functions
    /// each parameter is a variable of its own and this is 0.
    pub offset: u64,
    /// Size in bytes, arrays included.
    pub size: u64,
    /// Alignment in bytes, a power of two.
    pub align: u32,
    /// Declared with brackets: passed by value as bytes, `.param .align 8 .b8 p[16]`.
    pub is_array: bool,
}

/// A body with its tables. Ids in statements index them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The registers that the body mentions (a declared but unused register of a `%r<100>` range is
    /// not here).
    pub registers: Vec<Register>,
    /// Variables declared in the body, of whatever scope: `.shared`, `.local`, `.param` (for
    /// calls), `.const`, `.global`.
    pub variables: Vec<Variable>,
    /// Labels. Their positions are the [`Statement::Label`]s.
    pub labels: Vec<Label>,
    /// `.branchtargets` lists, for `brx.idx`.
    pub branch_targets: Vec<Vec<LabelId>>,
    /// `.calltargets` lists.
    pub call_targets: Vec<Vec<Name>>,
    /// `.callprototype`s.
    pub prototypes: Vec<Prototype>,
    pub statements: Vec<Statement>,
}

/// Index into [`Body::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegisterId(pub u32);

/// Index into [`Body::variables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// Index into [`Body::labels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

/// A virtual register.
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    /// As written, `%r12`; two registers of different scopes may share it.
    pub name: Name,
    pub ty: Type,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub name: Name,
}

/// A signature for an indirect call. Parameter names mean nothing and are usually `_`.
#[derive(Clone, Debug, PartialEq)]
pub struct Prototype {
    pub params: Vec<Param>,
    pub returns: Vec<Param>,
    pub no_return: bool,
}

/// A variable in any space but registers.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    pub name: Name,
    pub linkage: Linkage,
    pub space: Space,
    /// The element's type; for `.v2` and `.v4` variables that of a component.
    pub ty: Type,
    /// 1, 2 or 4 (8 for 32-bit types).
    pub vector: u32,
    /// In bytes, a power of two; the natural alignment where none is declared.
    pub align: u32,
    /// In bytes; 0 for `.extern .shared .b8 x[]`, whose size the launch decides.
    pub size: u64,
    /// Declared with `[]`: the size comes from the initialiser, the launch, or another module.
    pub is_unsized: bool,
    /// `.attribute(.managed)`.
    pub is_managed: bool,
    pub initializer: Option<Initializer>,
    pub line: u32,
}

/// A variable's contents as its bytes, plus the addresses to be stored into them at load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initializer {
    /// Little endian, from the variable's start; what follows up to its size is zero.
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

/// An address in an initialiser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where in the variable, in bytes.
    pub offset: u64,
    /// Number of bytes stored: 8 for a whole address, 1 for a `mask()` byte.
    pub size: u32,
    /// The variable or function whose address is stored.
    pub symbol: Name,
    pub addend: i64,
    /// `generic(symbol)`: its generic address rather than the one within its space.
    pub is_generic: bool,
    /// `0xff00(symbol)`: the bits of the address stored, shifted down to bit 0; all ones without
    /// it.
    pub mask: u64,
}

/// One step of a body.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    Label(LabelId),
    Instruction(Instruction),
    Call(Call),
}

/// `@guard opcode.modifiers operands;` for every opcode but `call`.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub guard: Option<Guard>,
    pub opcode: Opcode,
    /// What follows the opcode, in the order of the text: `ld.global.v4.u32` has `Space(Global)`,
    /// `V4`, `Type(U32)`.
    pub modifiers: Vec<Modifier>,
    pub operands: Vec<Operand>,
    pub line: u32,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    pub register: RegisterId,
    pub is_negated: bool,
}

/// `call (returns), callee, (arguments), prototype;`
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub guard: Option<Guard>,
    /// `call.uni`.
    pub is_uniform: bool,
    pub returns: Vec<Operand>,
    pub callee: Callee,
    /// Param-space variables (as [`Operand::Symbol`]), registers or constants.
    pub arguments: Vec<Operand>,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Callee {
    /// A function of the module.
    Function(Name),
    /// A call through a register, with what is said about what it can reach.
    Indirect { register: RegisterId, targets: IndirectTargets },
}

/// The last operand of an indirect call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndirectTargets {
    /// Index into [`Body::prototypes`].
    Prototype(u32),
    /// Index into [`Body::call_targets`].
    Targets(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    Register(RegisterId),
    /// `!p`.
    NegatedRegister(RegisterId),
    /// `%rd1+8` as a value.
    Sum {
        register: RegisterId,
        offset: i64,
    },
    Special(SpecialRegister),
    /// An integer constant as its 64-bit pattern (unsigned ones above `i64::MAX` wrap): the
    /// instruction's type truncates it.
    Integer(i64),
    /// `0f3F800000`: the bits of a single.
    F32(u32),
    /// `0d3FF0000000000000` or a decimal: the bits of a double.
    F64(u64),
    /// The address of a variable, parameter or function, as a value: `mov.u64 %rd1, table+8`.
    Symbol {
        symbol: Symbol,
        offset: i64,
    },
    /// `[base+offset]`.
    Address(Address),
    /// `{a, b, _, d}`.
    Vector(Vec<Operand>),
    /// `a|b`: two destinations, of `setp`, `shfl.sync`, `match.all`.
    Pair(Box<[Operand; 2]>),
    /// `[handle, {coordinates}]`: operands in brackets, of `tex`, `suld`, `cp.async.bulk.tensor`.
    Bracketed(Vec<Operand>),
    /// `%r1.b0`, `%r1.h1`, `%r1.b3210`: part of a register, of the video instructions.
    Part(RegisterId, Name),
    Label(LabelId),
    /// Index into [`Body::branch_targets`].
    BranchTargets(u32),
    /// `_`: a result that is not used.
    Sink,
}

/// `[base+offset]`; without a base an absolute address.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub base: AddressBase,
    pub offset: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AddressBase {
    Register(RegisterId),
    Symbol(Symbol),
    Absolute,
}

/// What a name in a body stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Symbol {
    /// Index into [`Function::params`].
    Param(u32),
    /// Index into [`Function::returns`].
    Return(u32),
    /// A variable of the body.
    Variable(VariableId),
    /// A variable or function of the module, or of another one.
    Module(Name),
}

impl Instruction {
    /// Whether this modifier stands anywhere in the list.
    pub fn has(&self, modifier: Modifier) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// The types in the modifiers, in order: `cvt.rn.f32.s64` has F32 (destination), then S64.
    pub fn types(&self) -> impl Iterator<Item = Type> + '_ {
        self.modifiers.iter().filter_map(|modifier| match modifier {
            Modifier::Type(ty) => Some(*ty),
            _ => None,
        })
    }

    /// The last type, which is the operand type where there is one only.
    pub fn ty(&self) -> Option<Type> {
        self.types().last()
    }

    /// The first state space in the modifiers; None means generic addressing in `ld`, `st`, `atom`,
    /// `red`.
    pub fn space(&self) -> Option<Space> {
        self.modifiers.iter().find_map(|modifier| match modifier {
            Modifier::Space(space) => Some(*space),
            _ => None,
        })
    }

    /// 1, 2, 4 or 8.
    pub fn vector_width(&self) -> u32 {
        self.modifiers
            .iter()
            .find_map(|modifier| match modifier {
                Modifier::V2 => Some(2),
                Modifier::V4 => Some(4),
                Modifier::V8 => Some(8),
                _ => None,
            })
            .unwrap_or(1)
    }

    /// Opcode and modifiers as written, for messages.
    pub fn mnemonic(&self) -> String {
        let mut text = self.opcode.to_string();
        for modifier in &self.modifiers {
            text.push('.');
            text.push_str(&modifier.to_string());
        }
        text
    }
}
