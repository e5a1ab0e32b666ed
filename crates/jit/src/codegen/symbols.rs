//! What the code of a kernel refers to: functions of the runtime, and tiles.

use std::collections::HashMap;

use cranelift_codegen::FinalizedMachReloc;
use cranelift_codegen::FinalizedRelocTarget;
use cranelift_codegen::ir::{
    ExtFuncData, ExternalName, FuncRef, Function, GlobalValue, GlobalValueData, SigRef, UserExternalName,
};

use crate::math::Tile;
use crate::object::Symbol;

/// The two kinds of names in Cranelift's functions; the index of each is a place in a list here.
const FUNCTIONS: u32 = 0;
const TILES: u32 = 1;

/// Functions and tiles in the order in which they were first used.
#[derive(Default)]
pub(super) struct Symbols {
    functions: Vec<*const ()>,
    imported: HashMap<(*const (), SigRef), FuncRef>,
    tiles: Vec<Tile>,
}

impl Symbols {
    /// A runtime function, as code that is called with this signature.
    pub(super) fn function(&mut self, func: &mut Function, address: *const (), signature: SigRef) -> FuncRef {
        *self.imported.entry((address, signature)).or_insert_with(|| {
            let index = self.functions.len() as u32;
            self.functions.push(address);
            let name = func.declare_imported_user_function(UserExternalName { namespace: FUNCTIONS, index });
            let name = ExternalName::user(name);
            func.import_function(ExtFuncData { name, signature, colocated: false, patchable: false })
        })
    }

    /// The place of a tile, which the object keeps.
    pub(super) fn tile(&mut self, func: &mut Function, tile: Tile) -> GlobalValue {
        let index = self.tiles.len() as u32;
        self.tiles.push(tile);
        let name = func.declare_imported_user_function(UserExternalName { namespace: TILES, index });
        let name = ExternalName::user(name);
        func.create_global_value(GlobalValueData::Symbol {
            name,
            offset: 0.into(),
            colocated: false,
            tls: false,
        })
    }

    /// What a relocation of the compiled function refers to; `None` for what was not made here.
    pub(super) fn of(&self, relocation: &FinalizedMachReloc, func: &Function) -> Option<Symbol> {
        let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = relocation.target else {
            return None;
        };
        let name = func.params.user_named_funcs().get(name)?;
        match name.namespace {
            _ if relocation.addend != 0 => None,
            FUNCTIONS => self.functions.get(name.index as usize).copied().map(Symbol::function),
            _ => Some(Symbol::Tile(name.index)),
        }
    }

    pub(super) fn take_tiles(&mut self) -> Box<[Tile]> {
        std::mem::take(&mut self.tiles).into()
    }
}
