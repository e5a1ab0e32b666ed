//! Writes a session's log to a file, if `SLUICE_RECORD` names one: `sluice record` does.
//!
//! The file is written whenever commands go out or answers come in, so that at the program's end,
//! which is not announced, it holds what the node has been asked.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_wire::address::RECORD_VARIABLE;
use sluice_wire::control::SessionOpened;
use sluice_wire::{Frame, log};

/// A buffer of this many bytes is written by itself.
const WRITE_BYTES: usize = 64 << 10;
/// Most sessions that record under one name.
const SESSIONS_MAX: u32 = 1000;

pub(crate) struct Recorder {
    state: Mutex<State>,
}

struct State {
    /// `None` once writing has failed.
    file: Option<File>,
    buffer: Vec<u8>,
}

/// Whether a log is asked for.
pub(crate) fn is_wanted() -> bool {
    path().is_some()
}

fn path() -> Option<OsString> {
    std::env::var_os(RECORD_VARIABLE).filter(|value| !value.is_empty())
}

impl Recorder {
    /// Begins a log of the session, if one is wanted. Where there can be none that is said, and the
    /// program runs on.
    pub(crate) fn begin(opened: &SessionOpened) -> Option<Recorder> {
        let path = path()?;
        if opened.range.is_none() {
            crate::abi::errors::say(format_args!(
                "not recorded: this node's driver chooses device addresses itself, so a replay would get other ones"
            ));
            return None;
        }
        let (file, path) = match create(&path) {
            Ok(created) => created,
            Err(error) => {
                crate::abi::errors::say(format_args!("not recorded: {}: {error}", path.display()));
                return None;
            }
        };
        let mut buffer = Vec::new();
        if let Err(error) = log::begin(opened, &mut buffer) {
            crate::abi::errors::say(format_args!("not recorded: {}: {error}", path.display()));
            return None;
        }
        let recorder = Recorder { state: Mutex::new(State { file: Some(file), buffer }) };
        recorder.write();
        Some(recorder)
    }

    /// A command has been given its place in the session.
    pub(crate) fn sent(&self, frame: &[u8]) {
        let mut state = self.lock();
        state.buffer.extend_from_slice(frame);
        if state.buffer.len() >= WRITE_BYTES {
            state.write();
        }
    }

    /// A frame has come, and the program is about to learn of it.
    pub(crate) fn came(&self, frame: &Frame<'_>) {
        let mut state = self.lock();
        // What makes no sense here ends the session where it is delivered.
        let _ = log::came(frame, &mut state.buffer);
    }

    /// Puts what is there into the file.
    pub(crate) fn write(&self) {
        self.lock().write();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(&self.buffer)
        {
            crate::abi::errors::say(format_args!("the recording ends here: {error}"));
            self.file = None;
        }
        self.buffer.clear();
    }
}

/// The first process of a program writes to the file itself, each further session to one beside it:
/// `FILE.2`, `FILE.3`.
fn create(path: &OsString) -> std::io::Result<(File, PathBuf)> {
    for number in 1..=SESSIONS_MAX {
        let mut name = path.clone();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        match File::options().write(true).create_new(true).open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            done => return done.map(|file| (file, name.into())),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}
