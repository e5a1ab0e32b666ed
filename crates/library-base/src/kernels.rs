//! Kernels that are loaded, one for each context and name.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use crate::driver::{Driver, Error, Function, Outcome, Stream};
use crate::writer::Source;

/// Functions by the id of their context, which is never used again, and by their name.
static LOADED: Mutex<Option<HashMap<(u64, String), Function>>> = Mutex::new(None);

/// Where a kernel runs: the stream, the number of blocks and of threads in a block.
#[derive(Clone, Copy)]
pub struct Launch {
    pub stream: Stream,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// Launches a kernel in the current context, and loads it before if it is not there yet.
///
/// `name` decides what `source` returns.
pub fn launch(at: Launch, name: String, source: impl FnOnce(&str) -> Source, arguments: &[u64]) -> Outcome {
    let driver = Driver::get()?;
    let function = function(driver, name, source)?;
    driver.launch(function, at.grid, at.block, at.stream, arguments)
}

fn function(driver: &Driver, name: String, source: impl FnOnce(&str) -> Source) -> Outcome<Function> {
    let context = driver.context_id()?;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    let key = (context, name);
    if let Some(&function) = loaded.get(&key) {
        return Ok(function);
    }
    let text = CString::new(source(&key.1).text).map_err(|_| Error::Failed)?;
    let name = CString::new(key.1.as_str()).map_err(|_| Error::Failed)?;
    let function = driver.load(&text, &name)?;
    loaded.insert(key, function);
    Ok(function)
}
