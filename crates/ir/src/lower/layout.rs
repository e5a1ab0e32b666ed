//! Where variables live: shared memory, local frames, parameters, module variables.

use std::collections::{HashMap, HashSet};

use sluice_ptx::ast::{
    AddressBase, Body, Callee, Function, Linkage, Module, Operand, Statement, Symbol, Variable,
};
use sluice_ptx::{Space as PtxSpace, Type as PtxType};

use super::cluster::reaches_other_blocks;
use super::{LowerErrorKind, Lowered, Lowering};
use crate::inst::Space;
use crate::kernel::{ParamLayout, ParamSlot, SharedLayout};
use crate::ssa;
use crate::types::GlobalId;

/// Where a symbol lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// Offset in the block's shared memory.
    Shared(u32),
    /// Offset in the kernel's frame.
    Local(u32),
    /// Offset in the frame of a subroutine, from the stack pointer.
    Stack(u32),
    /// Offset in the launch's parameter block.
    Param(u32),
    Global(GlobalId),
    /// A function's parameter in register space.
    Register(ssa::Variable),
    /// A function, by what stands for its address.
    Function(u64),
}

/// A module variable in global or constant space, to be placed in device memory when the module is
/// loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    /// [`Space::Global`] or [`Space::Const`].
    pub space: Space,
    pub bytes: u64,
    /// A power of two.
    pub align: u32,
    pub is_managed: bool,
    /// Declared here, defined in another module.
    pub is_extern: bool,
    /// What it refers to, if it is no memory.
    pub reference: Option<Reference>,
    /// The first bytes; zeros follow.
    pub init: Vec<u8>,
    pub relocations: Vec<GlobalRelocation>,
}

/// A variable that names an image instead of memory (PTX ISA, "Texture, Sampler and Surface
/// Types"). What stands for its address in a launch is the number of the image that is bound to it
/// then ([`crate::texture`]), or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// With the sampler, as long as the module has none of its own.
    Texture,
    Sampler,
    Surface,
}

impl Reference {
    pub(super) fn of(variable: &Variable) -> Option<Reference> {
        match (variable.space, variable.ty) {
            // `.tex .u32 name` is how PTX before 1.5 declares one.
            (PtxSpace::Tex, _) | (_, PtxType::Texref) => Some(Reference::Texture),
            (_, PtxType::Samplerref) => Some(Reference::Sampler),
            (_, PtxType::Surfref) => Some(Reference::Surface),
            _ => None,
        }
    }
}

/// An address to be stored into a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalRelocation {
    /// In bytes from the variable's start.
    pub offset: u64,
    /// Bytes to be stored, 1 to 8.
    pub bytes: u32,
    pub symbol: String,
    pub addend: i64,
    /// The bits of the address stored, shifted down to bit 0.
    pub mask: u64,
}

/// The module's variables in global and constant space, those that function bodies declare
/// included.
pub fn module_globals(module: &Module) -> Vec<Global> {
    let in_bodies =
        module.functions.iter().filter_map(|function| Some((function, function.body.as_ref()?))).flat_map(
            |(function, body)| {
                body.variables.iter().map(move |variable| (body_global_name(function, variable), variable))
            },
        );
    let at_top = module.variables.iter().map(|variable| (variable.name.to_string(), variable));
    at_top.chain(in_bodies).filter_map(|(name, variable)| global(name, variable)).collect()
}

fn global(name: String, variable: &Variable) -> Option<Global> {
    let space = match variable.space {
        PtxSpace::Global | PtxSpace::Tex => Space::Global,
        PtxSpace::Const => Space::Const,
        _ => return None,
    };
    let init = variable.initializer.clone().unwrap_or_default();
    let relocations = init
        .relocations
        .into_iter()
        .map(|relocation| GlobalRelocation {
            offset: relocation.offset,
            bytes: relocation.size,
            symbol: relocation.symbol.into(),
            addend: relocation.addend,
            mask: relocation.mask,
        })
        .collect();
    Some(Global {
        name,
        space,
        bytes: variable.size,
        align: variable.align,
        is_managed: variable.is_managed,
        is_extern: variable.linkage == Linkage::Extern,
        reference: Reference::of(variable),
        init: init.bytes,
        relocations,
    })
}

/// The name by which a kernel refers to a global variable declared in a body, where other functions
/// may use the same name.
fn body_global_name(function: &Function, variable: &Variable) -> String {
    format!("{}${}", function.name, variable.name)
}

/// The shared memory of a kernel.
pub(super) struct Layout<'m> {
    pub(super) shared: SharedLayout,
    /// Offsets of module-level shared variables.
    named: HashMap<&'m str, u32>,
    /// Offsets of shared variables declared in bodies, by function, then by variable.
    in_bodies: HashMap<&'m str, HashMap<u32, u32>>,
    /// Names whose addresses are taken, functions among them.
    pub(super) addressed: HashSet<&'m str>,
    /// Whether there may be generic addresses of other blocks' shared memory.
    pub(super) reaches_other_blocks: bool,
}

impl<'m> Layout<'m> {
    pub(super) fn new(module: &'m Module, entry: &'m Function) -> Lowered<Self> {
        let reach = Reach::new(module, entry);
        let mut layout = Layout {
            shared: SharedLayout { align: 16, ..SharedLayout::default() },
            named: HashMap::new(),
            in_bodies: HashMap::new(),
            addressed: HashSet::new(),
            reaches_other_blocks: reach.reaches_other_blocks,
        };
        let mut end = 0;
        let mut dynamic = Vec::new();
        for variable in module.variables.iter().filter(|variable| reach.names.contains(&*variable.name)) {
            if is_shared(variable) {
                if is_dynamic(variable) {
                    layout.shared.align = layout.shared.align.max(variable.align);
                    dynamic.push(&*variable.name);
                } else {
                    let offset = allocate(&mut end, variable, &mut layout.shared.align)?;
                    layout.named.insert(&variable.name, offset);
                }
            }
        }
        let mut dynamic_in_bodies = Vec::new();
        for function in &reach.functions {
            let Some(body) = &function.body else { continue };
            let shared = body.variables.iter().enumerate().filter(|(_, variable)| is_shared(variable));
            for (index, variable) in shared {
                if is_dynamic(variable) {
                    layout.shared.align = layout.shared.align.max(variable.align);
                    dynamic_in_bodies.push((&*function.name, index as u32));
                } else {
                    let offset = allocate(&mut end, variable, &mut layout.shared.align)?;
                    layout.in_bodies.entry(&function.name).or_default().insert(index as u32, offset);
                }
            }
        }
        layout.addressed = reach.addressed;
        layout.shared.static_bytes = end;
        if !dynamic.is_empty() || !dynamic_in_bodies.is_empty() {
            let start = end.next_multiple_of(layout.shared.align);
            layout.shared.dynamic_offset = Some(start);
            layout.named.extend(dynamic.into_iter().map(|name| (name, start)));
            for (function, index) in dynamic_in_bodies {
                layout.in_bodies.entry(function).or_default().insert(index, start);
            }
        }
        Ok(layout)
    }

    /// The place of a module-level shared variable.
    pub(super) fn shared_home(&self, name: &str) -> Option<Home> {
        self.named.get(name).map(|offset| Home::Shared(*offset))
    }

    pub(super) fn entry_params(&self, entry: &Function) -> Lowered<ParamLayout> {
        let mut layout = ParamLayout::default();
        for param in &entry.params {
            let too_large = || LowerErrorKind::TooMuchMemory("parameter");
            let offset = u32::try_from(param.offset).map_err(|_| too_large())?;
            let bytes = u32::try_from(param.size).map_err(|_| too_large())?;
            layout.bytes = offset.checked_add(bytes).ok_or_else(too_large)?;
            layout.params.push(ParamSlot { offset, bytes, align: param.align });
        }
        Ok(layout)
    }
}

fn is_shared(variable: &Variable) -> bool {
    matches!(variable.space, PtxSpace::Shared | PtxSpace::SharedCta | PtxSpace::SharedCluster)
}

fn is_dynamic(variable: &Variable) -> bool {
    variable.linkage == Linkage::Extern || variable.is_unsized
}

/// Space behind `end` for a variable; raises `align` to its alignment.
fn allocate(end: &mut u32, variable: &Variable, align: &mut u32) -> Lowered<u32> {
    let too_large = |_| LowerErrorKind::TooMuchMemory(variable.space.text());
    place(end, variable.size, variable.align, align).map_err(too_large)
}

/// Space behind `end`, in bytes; raises `align` to that of what is placed there.
pub(super) fn place(end: &mut u32, bytes: u64, own_align: u32, align: &mut u32) -> Lowered<u32> {
    let too_large = || LowerErrorKind::TooMuchMemory(PtxSpace::Param.text());
    let bytes = u32::try_from(bytes).map_err(|_| too_large())?;
    let start = end.checked_next_multiple_of(own_align.max(1)).ok_or_else(too_large)?;
    *end = start.checked_add(bytes).filter(|end| *end <= i32::MAX as u32).ok_or_else(too_large)?;
    *align = (*align).max(own_align);
    Ok(start)
}

impl<'m> Lowering<'m> {
    /// Where the variables of a body live in a new frame of it. Local ones and parameters of calls
    /// get space of their own.
    pub(super) fn body_variables(&mut self, function: &'m Function, body: &'m Body) -> Lowered<Vec<Home>> {
        let shared = self.layout.in_bodies.get(&*function.name);
        let mut homes = Vec::with_capacity(body.variables.len());
        for (index, variable) in body.variables.iter().enumerate() {
            homes.push(match variable.space {
                _ if is_shared(variable) => {
                    let offset = shared.and_then(|offsets| offsets.get(&(index as u32)));
                    Home::Shared(
                        *offset.ok_or_else(|| LowerErrorKind::Unresolved(variable.name.to_string()))?,
                    )
                }
                PtxSpace::Global | PtxSpace::Const => {
                    let name = body_global_name(function, variable);
                    let known = self.kernel.globals.iter().position(|global| *global == name);
                    Home::Global(GlobalId::new(known.unwrap_or_else(|| {
                        self.kernel.globals.push(name);
                        self.kernel.globals.len() - 1
                    })))
                }
                _ => {
                    let end = &mut self.frames[self.activation].bytes;
                    let offset = allocate(end, variable, &mut self.kernel.local_align)?;
                    if self.activation == 0 { Home::Local(offset) } else { Home::Stack(offset) }
                }
            });
        }
        Ok(homes)
    }
}

/// The functions that an entry can call and the module-level names that they mention.
struct Reach<'m> {
    functions: Vec<&'m Function>,
    names: HashSet<&'m str>,
    /// Names used as values, and those in initialisers.
    addressed: HashSet<&'m str>,
    reaches_other_blocks: bool,
}

impl<'m> Reach<'m> {
    fn new(module: &'m Module, entry: &'m Function) -> Self {
        let initializers = module.variables.iter().filter_map(|variable| variable.initializer.as_ref());
        let relocations = initializers.flat_map(|initializer| &initializer.relocations);
        let mut reach = Reach {
            functions: vec![entry],
            names: HashSet::from([&*entry.name]),
            addressed: relocations.map(|relocation| &*relocation.symbol).collect(),
            reaches_other_blocks: false,
        };
        let mut next = 0;
        while let Some(function) = reach.functions.get(next) {
            next += 1;
            let Some(body) = &function.body else { continue };
            for statement in &body.statements {
                match statement {
                    Statement::Label(_) => {}
                    Statement::Instruction(instruction) => {
                        reach.reaches_other_blocks |= reaches_other_blocks(instruction);
                        instruction.operands.iter().for_each(|operand| reach.visit(operand));
                    }
                    Statement::Call(call) => {
                        call.arguments.iter().for_each(|operand| reach.visit(operand));
                        reach.call(module, &call.callee);
                    }
                }
            }
        }
        reach
    }

    fn call(&mut self, module: &'m Module, callee: &'m Callee) {
        match callee {
            Callee::Function(name) => {
                if self.names.insert(name)
                    && let Some(callee) = resolve_function(module, name)
                {
                    self.functions.push(callee);
                }
            }
            // Any function may be meant.
            Callee::Indirect { .. } => {
                for function in module.functions.iter().filter(|function| !function.is_entry) {
                    if self.names.insert(&function.name) {
                        self.functions.push(function);
                    }
                }
            }
        }
    }

    fn visit(&mut self, operand: &'m Operand) {
        match operand {
            Operand::Symbol { symbol: Symbol::Module(name), .. } => {
                self.names.insert(name);
                self.addressed.insert(name);
            }
            Operand::Address(address) => {
                if let AddressBase::Symbol(Symbol::Module(name)) = &address.base {
                    self.names.insert(name);
                }
            }
            Operand::Vector(parts) | Operand::Bracketed(parts) => {
                parts.iter().for_each(|part| self.visit(part))
            }
            Operand::Pair(parts) => parts.iter().for_each(|part| self.visit(part)),
            _ => {}
        }
    }
}

/// The function of this name, through aliases.
pub(super) fn resolve_function<'m>(module: &'m Module, name: &str) -> Option<&'m Function> {
    let aliasee = module.aliases.iter().find(|alias| &*alias.name == name).map(|alias| &*alias.aliasee);
    module.function(aliasee.unwrap_or(name)).or_else(|| module.function(name))
}
