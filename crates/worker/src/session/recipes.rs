//! The commands that make a session's objects anew, in another worker.
//!
//! Ids are the client's, so a command that made an object makes it again under the same id. What is
//! kept follows from the live objects: the recipes of an object go with it, and of a setting the
//! last one is kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_wire::migration::Recipe;
use sluice_wire::{
    Command, Decode, Encode, EventId, FunctionId, Header, ModuleId, Op, StreamId, WireError, commands, decode,
};

/// Those of one session.
#[derive(Debug, Default)]
pub(crate) struct Recipes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they are to be executed.
    kept: BTreeMap<u64, Kept>,
    next: u64,
    /// The numbers of an object's recipes.
    of_objects: HashMap<Object, Vec<u64>>,
    /// The number of the recipe of each setting.
    settings: HashMap<(u16, Vec<u8>), u64>,
    modules: HashMap<FunctionId, ModuleId>,
    /// Events by number: programs have many, and they are alike.
    events: HashMap<u64, Event>,
}

#[derive(Debug)]
struct Kept {
    /// What it sets, if it sets something.
    setting: Option<(u16, Vec<u8>)>,
    recipe: Recipe,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    device: u8,
    flags: u32,
}

/// `CU_STREAM_PER_THREAD`: each client thread has its own.
const PER_THREAD: StreamId = StreamId(2);

/// Whose recipe it is, and with what it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Object {
    Session,
    Stream(StreamId),
    Module(ModuleId),
}

/// Whether a command makes, changes or ends what recipes are kept of.
fn concerns(op: Op) -> bool {
    CONCERNS[op.0 as usize]
}

static CONCERNS: [bool; 1 << 16] = {
    use commands::*;
    let mut concerns = [false; 1 << 16];
    let ops = [
        cuCtxSetLimit::OP,
        cuModuleLoadDataEx::OP,
        ModuleLoadAhead::OP,
        cuModuleUnload::OP,
        cuModuleGetFunction::OP,
        FunctionNamed::OP,
        cuModuleGetGlobal_v2::OP,
        cuFuncSetAttribute::OP,
        cuStreamCreateWithPriority::OP,
        cuStreamDestroy_v2::OP,
        cuStreamSetAttribute::OP,
        cuStreamCopyAttributes::OP,
        cuEventCreate::OP,
        cuEventDestroy_v2::OP,
    ];
    let mut i = 0;
    while i < ops.len() {
        concerns[ops[i].0 as usize] = true;
        i += 1;
    }
    concerns
};

impl Recipes {
    /// Notes a command that has been executed. `is_loaded` says whether there is a module.
    pub(crate) fn note(&self, header: Header, payload: &[u8], is_loaded: impl Fn(ModuleId) -> bool) {
        let op = Op(header.op);
        if concerns(op) {
            // What has been executed can be decoded.
            let _ = self.note_concerning(header, payload, is_loaded);
        }
    }

    fn note_concerning(
        &self,
        Header { device, lane, op, .. }: Header,
        payload: &[u8],
        is_loaded: impl Fn(ModuleId) -> bool,
    ) -> Result<(), WireError> {
        use commands::*;
        let mut state = self.lock();
        let recipe = || Recipe { device, lane, op, payload: payload.to_vec() };
        match Op(op) {
            cuCtxSetLimit::OP => state.set(Object::Session, recipe(), 4),
            cuModuleLoadDataEx::OP | ModuleLoadAhead::OP => {
                // Both begin with the module, and neither has to have loaded it.
                let module = ModuleId(first_number(payload)?);
                if is_loaded(module) && !state.has(Object::Module(module)) {
                    state.keep(Object::Module(module), None, recipe());
                }
            }
            cuModuleGetFunction::OP | FunctionNamed::OP => {
                let FunctionNamed { hfunc, hmod, .. } = decode(payload)?;
                state.modules.insert(hfunc, hmod);
                state.keep(Object::Module(hmod), None, recipe());
            }
            cuModuleGetGlobal_v2::OP => {
                let module = ModuleId(first_number(payload)?);
                state.set(Object::Module(module), recipe(), payload.len());
            }
            cuFuncSetAttribute::OP => {
                let function = FunctionId(first_number(payload)?);
                if let Some(&module) = state.modules.get(&function) {
                    state.set(Object::Module(module), recipe(), 12);
                }
            }
            cuModuleUnload::OP => {
                let module = ModuleId(first_number(payload)?);
                state.modules.retain(|_, of| *of != module);
                state.forget(Object::Module(module));
            }
            cuStreamCreateWithPriority::OP => {
                state.keep(Object::Stream(StreamId(first_number(payload)?)), None, recipe());
            }
            cuStreamSetAttribute::OP => {
                state.set(Object::Stream(StreamId(first_number(payload)?)), recipe(), 12);
            }
            cuStreamCopyAttributes::OP => {
                let cuStreamCopyAttributes { dst, src } = decode(payload)?;
                state.copy_settings(src, dst);
            }
            cuStreamDestroy_v2::OP => state.forget(Object::Stream(StreamId(first_number(payload)?))),
            cuEventCreate::OP => {
                let cuEventCreate { phEvent, Flags: flags } = decode(payload)?;
                state.events.insert(phEvent.0, Event { device, flags });
            }
            cuEventDestroy_v2::OP => _ = state.events.remove(&first_number(payload)?),
            _ => {}
        }
        Ok(())
    }

    /// All of them, in the order in which they make the objects anew.
    pub(crate) fn all(&self) -> Vec<Recipe> {
        let state = self.lock();
        let event = |(&number, &Event { device, flags }): (&u64, &Event)| {
            let mut payload = Vec::new();
            commands::cuEventCreate { phEvent: EventId(number), Flags: flags }.encode(&mut payload);
            Recipe { device, lane: 0, op: commands::cuEventCreate::OP.0, payload }
        };
        let kept = state.kept.values().map(|kept| kept.recipe.clone());
        kept.chain(state.events.iter().map(event)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has(&self, object: Object) -> bool {
        self.of_objects.contains_key(&object)
    }

    fn keep(&mut self, of: Object, setting: Option<(u16, Vec<u8>)>, recipe: Recipe) {
        self.kept.insert(self.next, Kept { setting, recipe });
        self.of_objects.entry(of).or_default().push(self.next);
        self.next += 1;
    }

    /// Keeps a setting instead of an earlier one with the same first bytes.
    fn set(&mut self, of: Object, recipe: Recipe, key_bytes: usize) {
        let mut key = recipe.payload.get(..key_bytes).unwrap_or(&recipe.payload).to_vec();
        if of == Object::Stream(PER_THREAD) {
            key.extend(recipe.lane.to_le_bytes());
        }
        let setting = (recipe.op, key);
        if let Some(earlier) = self.settings.insert(setting.clone(), self.next) {
            self.kept.remove(&earlier);
            self.of_objects.entry(of).or_default().retain(|number| *number != earlier);
        }
        self.keep(of, Some(setting), recipe);
    }

    fn copy_settings(&mut self, from: StreamId, to: StreamId) {
        let numbers = self.of_objects.get(&Object::Stream(from)).into_iter().flatten();
        let settings =
            numbers.filter_map(|number| self.kept.get(number)).filter(|kept| kept.setting.is_some());
        let copies: Vec<Recipe> = settings.map(|kept| kept.recipe.clone()).collect();
        self.forget_settings(Object::Stream(to));
        for mut recipe in copies {
            // The stream is the first field.
            if let Some(stream) = recipe.payload.first_chunk_mut() {
                *stream = to.0.to_le_bytes();
            }
            self.set(Object::Stream(to), recipe, 12);
        }
    }

    fn forget_settings(&mut self, object: Object) {
        let Some(numbers) = self.of_objects.get_mut(&object) else { return };
        let kept = &mut self.kept;
        let settings = &mut self.settings;
        numbers.retain(|number| {
            let setting = kept.get(number).and_then(|kept| kept.setting.clone());
            if let Some(setting) = &setting {
                kept.remove(number);
                settings.remove(setting);
            }
            setting.is_none()
        });
    }

    fn forget(&mut self, object: Object) {
        for number in self.of_objects.remove(&object).unwrap_or_default() {
            if let Some(Kept { setting: Some(setting), .. }) = self.kept.remove(&number) {
                self.settings.remove(&setting);
            }
        }
    }
}

fn first_number(payload: &[u8]) -> Result<u64, WireError> {
    u64::decode(&mut sluice_wire::Reader::new(payload))
}

#[cfg(test)]
mod tests;
