//! One process per client process: takes the client's commands off its socket and executes them
//! through a CUDA driver, whichever it is.
//!
//! Everything that a session owns lives in its process: the driver, the contexts, the memory. A
//! fault, a limit that is exceeded or a client that is gone ends the process, and with it
//! everything that has to be freed. The daemon keeps the accounts ([`link`]) and decides who
//! computes ([`gate`]); it never touches the data.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use sluice_worker_link::health::{ARGUMENT as WATCH, FACTS_ARGUMENT as FACTS};
use sluice_worker_link::measure::ARGUMENT as MEASURE;
use sluice_worker_link::probe::ARGUMENT as PROBE;
use sluice_worker_link::{INHERITED_FDS, counters, link};

mod ahead;
mod arrays;
mod attributes;
mod backlog;
mod ballast;
mod brake;
mod budget;
mod builds;
mod bulk;
mod callbacks;
mod calls;
mod checks;
mod chunks;
mod client;
mod copies;
mod current;
mod custom;
mod device;
mod driver;
mod driver_memory;
mod driver_output;
mod elsewhere;
mod ending;
mod event;
mod execute;
pub mod gate;
mod generated {
    // One shape for every function: some casts change nothing, some messages have no fields.
    #[allow(clippy::unnecessary_cast, unused_variables, unreachable_pub)]
    pub(crate) mod dispatch;
}
mod code_cache;
mod disk_cache;
mod graphs;
mod green;
mod hang;
mod health;
mod host_calls;
mod host_copies;
mod host_memory;
#[cfg(test)]
mod host_memory_tests;
mod images;
mod kinds;
mod launch_times;
mod live;
#[cfg(test)]
mod loaded_driver_tests;
#[cfg(any(test, feature = "fuzz"))]
pub mod malformed;
#[cfg(test)]
mod malformed_frames_tests;
#[cfg(test)]
mod malformed_tests;
mod measure;
mod memory;
mod migration;
mod mirror;
mod modules;
mod objects;
mod outbox;
mod peers;
mod pipeline;
mod probe;
mod reader;
mod recipes;
pub mod sandbox;
mod serve;
mod session;
mod sharing;
mod snapshot;
mod software;
mod staging;
mod streams;
mod virtual_memory;
mod watchdog;
mod watches;

/// Runs this process as a worker, as the daemon starts it; never returns.
///
/// `arguments` are what follows those of the daemon's worker command: none to serve a session,
/// [`PROBE`] and a driver to say what that driver has, [`WATCH`] and a library to watch GPUs
/// through, [`FACTS`] and the same to say where they stand, [`sandbox::ARGUMENT`] and a folder to
/// say how a worker is confined, [`MEASURE`] and a driver to measure its GPUs.
pub fn main(arguments: &[OsString]) -> ! {
    let [argument, what] = arguments else { serve::serve() };
    let out = &mut std::io::stdout().lock();
    let done = match argument.to_str() {
        Some(PROBE) => read(what).map(|driver| probe::probe(&driver, out).map_err(|e| e.to_string())),
        Some(MEASURE) => read(what).map(|driver| measure::measure(&driver, out).map_err(|e| e.to_string())),
        Some(WATCH) => read(what).map(|watch| health::watch(&watch, out).map_err(|e| e.to_string())),
        Some(sandbox::ARGUMENT) => {
            read(what).map(|cache: Option<PathBuf>| say_confinement(cache.as_deref(), out))
        }
        Some(FACTS) => read(what).map(|watch| health::facts::say(&watch, out).map_err(|e| e.to_string())),
        _ => None,
    };
    let Some(done) = done else {
        eprintln!("sluice worker: not started by a node");
        std::process::exit(2)
    };
    match done {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}

/// Confines this process as a worker of a software GPU is, and says what that has come to.
fn say_confinement(cache: Option<&Path>, out: &mut impl Write) -> Result<(), String> {
    sandbox::drop_inheritance().map_err(|error| error.to_string())?;
    let confined = sandbox::enter(cache).map_err(|error| error.to_string())?;
    let text = serde_json::to_string(&confined.confinement).map_err(|error| error.to_string())?;
    writeln!(out, "{text}").map_err(|error| error.to_string())
}

fn read<T: serde::de::DeserializeOwned>(argument: &OsString) -> Option<T> {
    argument.to_str().and_then(|text| serde_json::from_str(text).ok())
}
