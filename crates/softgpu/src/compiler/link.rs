//! The linker: several PTX texts become one (CUDA Driver API, `cuLink*`), as [`sluice_ptx::link`]
//! says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUlinkState;
use sluice_ptx::Tuning;
use sluice_ptx::link::{Input, LinkError, link};

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::compiler::jit_options::Logs;
use crate::device::driver;

pub(crate) static LINKS: Table<PendingLink> = Table::new(13);

/// How a library of object files begins.
const ARCHIVE: &[u8] = b"!<arch>\n";

/// A link under way.
pub(crate) struct PendingLink {
    pub(crate) handle: usize,
    state: Mutex<State>,
}

pub(crate) struct State {
    /// What the program calls each text, and the text.
    texts: Vec<(String, Vec<u8>)>,
    /// The result, once asked for; the program holds a pointer to it.
    image: Option<Box<[u8]>>,
    logs: Logs,
}

// SAFETY: the log buffers are the program's for as long as the link lives (`cuLinkCreate`), from
// any thread.
unsafe impl Send for State {}

impl PendingLink {
    pub(crate) fn create(logs: Logs) -> Arc<Self> {
        LINKS.insert(|handle| Self {
            handle,
            state: Mutex::new(State { texts: Vec::new(), image: None, logs }),
        })
    }

    pub(crate) fn get(handle: CUlinkState) -> Result<Arc<Self>> {
        LINKS.get(handle.0).ok_or(Status::INVALID_HANDLE)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the PTX of an image, which messages call by its name if it has one. What its own
    /// options demand precedes what those of the link do.
    pub(crate) fn add(&self, name: Option<String>, image: &[u8], tuning: Tuning) -> Result<()> {
        use sluice_image::Image;
        if image.starts_with(ARCHIVE) {
            return Ok(());
        }
        let capability = driver()?.devices.first().ok_or(Status::NO_DEVICE)?.limits.capability;
        let text = Image::parse(image).and_then(|image| Ok(image.ptx(capability)?.into_owned()));
        let text = text.map_err(|error| self.fail(Status::NO_BINARY_FOR_GPU, &error.to_string()))?;
        // A mistake is reported where it came in, not at the end.
        let tuning = tuning.or(self.state().logs.tuning);
        let tuned = sluice_ptx::parse(text.as_slice()).and_then(|_| Ok(tuning.apply(&text)?.into_owned()));
        let text = tuned.map_err(|error| self.fail(Status::INVALID_PTX, &error.to_string()))?;
        let mut state = self.state();
        let name = name.unwrap_or_else(|| format!("input {}", state.texts.len() + 1));
        state.texts.push((name, text));
        Ok(())
    }

    /// Writes the error log.
    pub(crate) fn fail(&self, status: Status, message: &str) -> Status {
        self.state().logs.finish(message);
        status
    }

    /// Address and length of the linked image, which lives as long as the link.
    pub(crate) fn complete(&self) -> Result<(*const u8, usize)> {
        let mut state = self.state();
        if state.texts.is_empty() {
            return Err(Status::INVALID_VALUE);
        }
        if state.image.is_none() {
            state.logs.begin();
            let inputs = state.texts.iter().map(|(name, text)| Input { name, text });
            let mut image = match link(&inputs.collect::<Vec<_>>()) {
                Ok(image) => image,
                Err(error) => {
                    state.logs.finish(&error.to_string());
                    return Err(status_of(&error));
                }
            };
            image.push(0);
            state.image = Some(image.into_boxed_slice());
            state.logs.finish("");
        }
        let image = state.image.as_deref().unwrap_or_default();
        Ok((image.as_ptr(), image.len()))
    }
}

/// A mistake in a text is one of PTX; texts that do not fit together make no image.
pub(crate) fn status_of(error: &LinkError) -> Status {
    match error {
        LinkError::Parse { .. } => Status::INVALID_PTX,
        _ => Status::INVALID_IMAGE,
    }
}
