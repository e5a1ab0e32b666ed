//! `cuLink*`: programs that compile PTX at run time join it here before they load it. The result of
//! joining PTX is PTX, as [`sluice_ptx::link`] says: whatever device runs it compiles it when it is
//! loaded.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sluice_cuda::*;
use sluice_image::Image;
use sluice_ptx::link::{Input, LinkError, link};
use sluice_ptx::{Tuning, device_runtime};

use crate::abi::ids::{Kind, Table};
use crate::abi::out;
use crate::module::image::Jit;
use crate::session::issue::wanted;
use crate::{context, session};

/// A link in progress. The result lives as long as its state does.
#[derive(Debug)]
struct PendingLink {
    inputs: Mutex<Vec<Named>>,
    output: Mutex<Option<Box<[u8]>>>,
    log: Mutex<Log>,
}

/// A text, and what messages call it.
#[derive(Debug)]
struct Named {
    name: String,
    text: Vec<u8>,
}

#[derive(Debug)]
struct Log(Jit);

// SAFETY: the log's buffers are the program's for as long as the link lives (`cuLinkCreate`), from
// any thread.
unsafe impl Send for Log {}

static LINKS: Table<PendingLink> = Table::new();

fn find(state: CUlinkState) -> Result<Arc<PendingLink>, CUresult> {
    session::get()?;
    LINKS.get(state.0 as u64).ok_or(CUresult::INVALID_HANDLE)
}

/// How a library of object files begins. Those that programs link hold machine code; what they need
/// of the device runtime is added when the link is completed.
const ARCHIVE: &[u8] = b"!<arch>\n";

/// Adds an image. What the options of one input say precedes what those of the link say.
fn add(state: CUlinkState, name: Option<String>, bytes: &[u8], tuning: Tuning) -> Result<(), CUresult> {
    let link = find(state)?;
    let fail = |code, message: &str| {
        let mut log = link.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.0.write(message.as_bytes(), false);
        Err(code)
    };
    if bytes.starts_with(ARCHIVE) {
        return Ok(());
    }
    let mut inputs = link.inputs.lock().unwrap_or_else(PoisonError::into_inner);
    let name = name.unwrap_or_else(|| format!("input {}", inputs.len() + 1));
    match Image::parse(bytes) {
        Ok(Image::Ptx(text)) => {
            // A mistake is reported where it was made, not when a kernel is first used.
            if let Err(error) = sluice_ptx::parse(text) {
                return fail(CUresult::INVALID_PTX, &format!("{name}: {error}"));
            }
            let tuning = tuning.or(link.log.lock().unwrap_or_else(PoisonError::into_inner).0.tuning());
            match tuning.apply(text) {
                Ok(text) => inputs.push(Named { name, text: text.into_owned() }),
                Err(error) => return fail(CUresult::INVALID_PTX, &format!("{name}: {error}")),
            }
            Ok(())
        }
        Ok(_) => {
            crate::say_once!("linking machine code is not supported: hand PTX to cuLinkAddData");
            fail(
                CUresult::NO_BINARY_FOR_GPU,
                &format!(
                    "{name} is machine code: only PTX and libraries whose code is not needed can be linked"
                ),
            )
        }
        Err(error) => fail(CUresult::INVALID_IMAGE, &format!("{name}: {error}")),
    }
}

/// One text from all; what a single one says of itself stays.
fn joined(inputs: &[Named], jit: &mut Jit) -> Result<Vec<u8>, CUresult> {
    if inputs.is_empty() {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut fail = |message: &str, code| {
        jit.write(message.as_bytes(), false);
        code
    };
    let texts: Vec<&[u8]> = inputs.iter().map(|input| &*input.text).collect();
    let runtime = device_runtime::missing(&texts)
        .map_err(|error| fail(&error.to_string(), CUresult::INVALID_PTX))?
        .map(|text| Input { name: "the device runtime", text });
    let named = inputs.iter().map(|Named { name, text }| Input { name, text });
    match named.chain(runtime).collect::<Vec<_>>()[..] {
        [only] => Ok(only.text.to_vec()),
        ref several => link(several).map_err(|error| {
            let code = match error {
                LinkError::Parse { .. } => CUresult::INVALID_PTX,
                _ => CUresult::INVALID_IMAGE,
            };
            fail(&error.to_string(), code)
        }),
    }
}

// The entry points. CUDA Driver API, section "Module Management".

pub(crate) unsafe fn cuLinkCreate_v2(
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
    stateOut: *mut CUlinkState,
) -> Result<(), CUresult> {
    session::get()?;
    let handle = context::mint(Kind::LinkState);
    // SAFETY: the program passes a place for the state.
    unsafe { out::write(stateOut, CUlinkState(handle as usize))? };
    // SAFETY: the program passes its options, whose buffers it keeps until the link is destroyed.
    let log = Log(unsafe { Jit::from_options(numOptions, options, optionValues) });
    LINKS.insert(
        handle,
        PendingLink { inputs: Mutex::default(), output: Mutex::default(), log: Mutex::new(log) },
    );
    Ok(())
}

pub(crate) unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    _: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    if data.is_null() || isize::try_from(size).is_err() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes null or a string.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    // SAFETY: the program passes its options.
    let tuning = unsafe { Jit::from_options(numOptions, options, optionValues) }.tuning();
    // SAFETY: the program passes `size` bytes.
    add(state, name, unsafe { std::slice::from_raw_parts(data.cast(), size) }, tuning)
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    state: CUlinkState,
    _: CUjitInputType,
    path: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    if path.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the program passes a string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    let bytes = std::fs::read(&path).map_err(|_| CUresult::FILE_NOT_FOUND)?;
    // SAFETY: the program passes its options.
    let tuning = unsafe { Jit::from_options(numOptions, options, optionValues) }.tuning();
    add(state, Some(path), &bytes, tuning)
}

// The same functions by their names of before CUDA 6.5.

pub(crate) unsafe fn cuLinkCreate(
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
    stateOut: *mut CUlinkState,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuLinkCreate_v2(numOptions, options, optionValues, stateOut) }
}

pub(crate) unsafe fn cuLinkAddData(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuLinkAddData_v2(state, kind, data, size, name, numOptions, options, optionValues) }
}

pub(crate) unsafe fn cuLinkAddFile(
    state: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuLinkAddFile_v2(state, kind, path, numOptions, options, optionValues) }
}

pub(crate) unsafe fn cuLinkComplete(
    state: CUlinkState,
    cubinOut: *mut *mut c_void,
    sizeOut: *mut usize,
) -> Result<(), CUresult> {
    let link = find(state)?;
    wanted(cubinOut)?;
    let inputs = std::mem::take(&mut *link.inputs.lock().unwrap_or_else(PoisonError::into_inner));
    let mut log = link.log.lock().unwrap_or_else(PoisonError::into_inner);
    // Loading finds the end of a text by its NUL, so the result has one.
    let begun = Instant::now();
    let output = joined(&inputs, &mut log.0);
    log.0.took(begun.elapsed());
    let mut output = output?;
    output.push(0);
    let mut place = link.output.lock().unwrap_or_else(PoisonError::into_inner);
    let output = place.insert(output.into_boxed_slice());
    // SAFETY: the program passes two places.
    unsafe {
        out::write(cubinOut, output.as_mut_ptr().cast())?;
        out::write_if_wanted(sizeOut, output.len());
    }
    Ok(())
}

pub(crate) unsafe fn cuLinkDestroy(state: CUlinkState) -> Result<(), CUresult> {
    find(state)?;
    LINKS.remove(state.0 as u64);
    Ok(())
}
