//! The linker: several PTX texts become one (CUDA Driver API, `cuLink*`).
//!
//! PTX needs no relocation: names tie it together. So linking is one text behind the other under the header of the
//! first, without the directives that may stand only once. Names that several texts define for themselves are not
//! told apart yet; the parser refuses such a text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUlinkState;

use crate::device::driver;
use crate::jit_options::Logs;
use crate::status::{Result, Status};
use crate::table::Table;

pub(crate) static LINKS: Table<Link> = Table::new(13);

/// A link under way.
pub(crate) struct Link {
    pub(crate) handle: usize,
    state: Mutex<State>,
}

pub(crate) struct State {
    texts: Vec<Vec<u8>>,
    /// The result, once asked for; the program holds a pointer to it.
    image: Option<Box<[u8]>>,
    logs: Logs,
}

// SAFETY: the log buffers are the program's for as long as the link lives (`cuLinkCreate`), from any thread.
unsafe impl Send for State {}

impl Link {
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

    /// Adds the PTX of an image.
    pub(crate) fn add(&self, image: &[u8]) -> Result<()> {
        use sluice_image::Image;
        let capability = driver()?.devices.first().ok_or(Status::NO_DEVICE)?.limits.capability;
        let text = Image::parse(image).and_then(|image| Ok(image.ptx(capability)?.into_owned()));
        let text = text.map_err(|error| self.fail(Status::NO_BINARY_FOR_GPU, &error.to_string()))?;
        // A mistake is told where it came in, not at the end.
        sluice_ptx::parse(text.as_slice())
            .map_err(|error| self.fail(Status::INVALID_PTX, &error.to_string()))?;
        self.state().texts.push(text);
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
            let mut image = link(state.texts.iter().map(Vec::as_slice));
            if let Err(error) = sluice_ptx::ModuleIndex::new(image.as_slice()) {
                state.logs.finish(&error.to_string());
                return Err(Status::INVALID_PTX);
            }
            image.push(0);
            state.image = Some(image.into_boxed_slice());
            state.logs.finish("");
        }
        let image = state.image.as_deref().unwrap_or_default();
        Ok((image.as_ptr(), image.len()))
    }
}

/// One text from several: the header of the one for the newest PTX version, and then the bodies of all.
pub(crate) fn link<'a>(texts: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let newest = texts.clone().max_by_key(|text| version(text)).unwrap_or_default();
    let mut out = Vec::new();
    for line in lines(newest).filter(|line| is_header(line)) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    for text in texts {
        for line in lines(text).filter(|line| !is_header(line)) {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
    }
    out
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n' || byte == 0)
}

/// Whether a line holds one of the directives that may stand only once.
fn is_header(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    [&b".version"[..], b".target", b".address_size"].iter().any(|word| line.starts_with(word))
}

/// `.version` as two numbers; (0, 0) where there is none.
fn version(text: &[u8]) -> (u32, u32) {
    let line = lines(text).find(|line| line.trim_ascii_start().starts_with(b".version")).unwrap_or_default();
    let word = String::from_utf8_lossy(line);
    let number = word.split_whitespace().nth(1).unwrap_or_default();
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_under_the_header_of_the_newest() {
        let old = b".version 7.0\n.target sm_70\n.address_size 64\n.func a() { ret; }\n";
        let new = b"// made today\n.version 8.1\n.target sm_90\n.address_size 64\n.func b() { ret; }\n";
        let linked = String::from_utf8(link([&old[..], &new[..]].into_iter())).expect("ASCII");
        assert!(linked.starts_with(".version 8.1\n.target sm_90\n.address_size 64\n"));
        assert_eq!(linked.matches(".version").count(), 1);
        assert!(linked.contains(".func a()") && linked.contains(".func b()"));
    }
}
