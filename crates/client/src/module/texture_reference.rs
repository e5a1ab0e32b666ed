//! Texture and surface references (deprecated since CUDA 11): variables of modules, and texture
//! references that programs make. What is bound to them, and how they read, is the driver's to know
//! on the node: every question goes there, every change is answered, and a launch that was sent
//! before a change does not see it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::{Id, PitchedTexels, SurfRefId, TexRefId, commands};

use crate::abi::ids::{self, Kind, Table};
use crate::abi::out;
use crate::module::text;
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};
use crate::{arrays, context};

/// To what a reference belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is a variable of the module with this handle.
    Module(u64),
    /// It was made in this context.
    Context(CUcontext),
}

/// References of one kind, and those of modules by name: each always has the same handle.
struct References {
    live: Table<Owner>,
    names: Mutex<BTreeMap<(u64, CString), u64>>,
}

static TEXTURES: References = References::new();
static SURFACES: References = References::new();

impl References {
    const fn new() -> References {
        References { live: Table::new(), names: Mutex::new(BTreeMap::new()) }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<(u64, CString), u64>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of a module's reference; the first time, `ask` gets the one to use.
    fn of_module(
        &self,
        (kind, module, name): (Kind, u64, &CStr),
        ask: impl FnOnce(u64) -> Result<(), CUresult>,
    ) -> Result<usize, CUresult> {
        let mut names = self.names();
        let key = (module, name.to_owned());
        if let Some(&known) = names.get(&key) {
            return Ok(known as usize);
        }
        let number = ids::mint_on(ids::device(module).unwrap_or_default(), kind);
        ask(number)?;
        self.live.insert(number, Owner::Module(module));
        names.insert(key, number);
        Ok(number as usize)
    }

    fn module_unloaded(&self, module: u64) {
        self.names().retain(|(of, _), _| *of != module);
        self.live.remove_where(|owner| *owner == Owner::Module(module));
    }
}

pub(crate) fn texture_exists(number: u64) -> bool {
    TEXTURES.live.contains(number)
}

pub(crate) fn surface_exists(number: u64) -> bool {
    SURFACES.live.contains(number)
}

/// Forgets the references of a module that is unloaded.
pub(crate) fn module_unloaded(module: u64) {
    TEXTURES.module_unloaded(module);
    SURFACES.module_unloaded(module);
}

/// A handle for a texture reference that the program makes in the calling thread's context.
pub(crate) fn mint() -> Result<u64, CUresult> {
    let owner = Owner::Context(context::current()?.owner);
    let number = context::mint(Kind::TexRef);
    TEXTURES.live.insert(number, owner);
    Ok(number)
}

pub(crate) fn forget(number: u64) {
    TEXTURES.live.remove(number);
}

/// Has the node destroy what the program has made in a context, which ends.
pub(crate) fn destroy_made_in(session: &Session, context: CUcontext) -> Result<(), CUresult> {
    let made = TEXTURES.live.find(|owner| *owner == Owner::Context(context));
    let command = |number| commands::cuTexRefDestroy { hTexRef: TexRefId(number) };
    made.into_iter().try_for_each(|number| session.call(&command(number), |()| ()))
}

/// Forgets what was made in a context that has ended.
pub(crate) fn context_ended(context: CUcontext) {
    TEXTURES.live.remove_where(|owner| *owner == Owner::Context(context));
}

/// An array that the node says is bound.
fn array(number: u64) -> Result<CUarray, CUresult> {
    if arrays::exists(number) { Ok(CUarray(number as usize)) } else { Err(CUresult::INVALID_VALUE) }
}

// The entry points. CUDA Driver API, sections "Module Management", "Texture Reference Management
// [DEPRECATED]" and "Surface Reference Management [DEPRECATED]".

pub(crate) unsafe fn cuModuleGetTexRef(
    pTexRef: *mut CUtexref,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pTexRef)?;
    // SAFETY: the program passes a string.
    let name = unsafe { text(name)? };
    let hmod = session.find(hmod)?;
    let handle = TEXTURES.of_module((Kind::TexRef, hmod.number(), name), |number| {
        session.call(&commands::cuModuleGetTexRef { pTexRef: TexRefId(number), hmod, name }, |()| ())
    })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pTexRef, CUtexref(handle)) }
}

pub(crate) unsafe fn cuModuleGetSurfRef(
    pSurfRef: *mut CUsurfref,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pSurfRef)?;
    // SAFETY: the program passes a string.
    let name = unsafe { text(name)? };
    let hmod = session.find(hmod)?;
    let handle = SURFACES.of_module((Kind::SurfRef, hmod.number(), name), |number| {
        session.call(&commands::cuModuleGetSurfRef { pSurfRef: SurfRefId(number), hmod, name }, |()| ())
    })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pSurfRef, CUsurfref(handle)) }
}

pub(crate) unsafe fn cuTexRefSetAddress2D_v3(
    hTexRef: CUtexref,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
    dptr: CUdeviceptr,
    Pitch: usize,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(desc.cast_mut())?;
    // SAFETY: not null, and the program passes a description.
    let desc = unsafe { desc.read_unaligned() };
    let texels = rows(session, &desc, dptr, Pitch as u64)?;
    session.call(&commands::cuTexRefSetAddress2D_v3 { hTexRef: session.find(hTexRef)?, texels }, |()| ())
}

fn rows(
    session: &Session,
    desc: &CUDA_ARRAY_DESCRIPTOR,
    address: CUdeviceptr,
    pitch: u64,
) -> Result<PitchedTexels, CUresult> {
    let channel = desc.Format.channel_bytes().ok_or(CUresult::INVALID_VALUE)?;
    let (width, height, channels) = (desc.Width as u64, desc.Height as u64, desc.NumChannels);
    let row = sluice_wire::product(&[width, channel, channels.into()]);
    if row == 0 || height == 0 || row > pitch {
        return Err(CUresult::INVALID_VALUE);
    }
    let start = session.range(address, sluice_wire::rows(height, row, pitch))?;
    Ok(PitchedTexels { start, format: desc.Format, channels, width, height, pitch })
}

/// It takes the same arguments.
pub(crate) unsafe fn cuTexRefSetAddress2D_v2(
    hTexRef: CUtexref,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
    dptr: CUdeviceptr,
    Pitch: usize,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch) }
}

pub(crate) unsafe fn cuTexRefGetArray(phArray: *mut CUarray, hTexRef: CUtexref) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phArray)?;
    let command = commands::cuTexRefGetArray { hTexRef: session.find(hTexRef)? };
    let number = session.call(&command, |answer| answer.array.number())?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phArray, array(number)?) }
}

pub(crate) unsafe fn cuTexRefGetMipmappedArray(
    phMipmappedArray: *mut CUmipmappedArray,
    hTexRef: CUtexref,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phMipmappedArray)?;
    let command = commands::cuTexRefGetMipmappedArray { hTexRef: session.find(hTexRef)? };
    let number = session.call(&command, |answer| answer.array.number())?;
    if !arrays::mipmapped_exists(number) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phMipmappedArray, CUmipmappedArray(number as usize)) }
}

pub(crate) unsafe fn cuTexRefGetBorderColor(
    pBorderColor: *mut f32,
    hTexRef: CUtexref,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(pBorderColor)?;
    let command = commands::cuTexRefGetBorderColor { hTexRef: session.find(hTexRef)? };
    let color = session.call(&command, |it| [it.red, it.green, it.blue, it.alpha])?;
    // SAFETY: not null, and the program passes a place for four numbers.
    unsafe { out::write(pBorderColor.cast::<[f32; 4]>(), color) }
}

pub(crate) unsafe fn cuSurfRefGetArray(phArray: *mut CUarray, hSurfRef: CUsurfref) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(phArray)?;
    let command = commands::cuSurfRefGetArray { hSurfRef: session.find(hSurfRef)? };
    let number = session.call(&command, |answer| answer.array.number())?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(phArray, array(number)?) }
}
