//! One process per client process: takes the client's commands off its socket and executes them
//! through a CUDA driver, whichever it is.
//!
//! ```text
//!   connection  the client's socket, and sessions that leave for another worker or arrive
//!   custom      the commands that are executed by hand
//!   sharing     memory and events of several processes of a lease, also on other nodes
//!   live        memory that the program uses while device code runs
//!   pipeline    from frames to driver calls, in order
//!   copies      between the client's memory and the device
//!   graphs      graphs, captures, what they hold
//!   green       green contexts
//!   arrays      arrays, textures, tiles
//!   modules     images, kernels, the cache of images
//!   session     the state of a session, and what a command's arguments are checked against
//!   memory      device memory within what the lease grants, extents, moves to host memory
//!   schedule    when work reaches the GPU: the gate, work ahead of it, streams
//!   driver      a driver from its name to a context, and what is asked of it without a session
//!   outbox      what goes back to the client
//!   process     confinement, system calls that remain, the end, drivers that do not return
//! ```
//!
//! That is the way of a command. A session owns the state of most folders, in files that know no
//! session (`arrays/records.rs`, `graphs/records.rs`, `live/mirrors.rs`); the rest of a folder
//! works on sessions. What executes large copies and live memory is in four files that know each
//! other: `copies`, `copies/bulk`, `live` and `pipeline`; no other circle has more.
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

// In the order of the list above.
mod connection;

mod custom;

mod sharing;

mod live;

mod pipeline;

mod copies;

mod graphs;

mod green;

mod arrays;

mod modules;

mod session;

mod memory;

mod schedule;

mod driver;

mod outbox;

mod process;

mod generated {
    // One shape for every function: some casts change nothing, some messages have no fields.
    #[allow(clippy::unnecessary_cast, unused_variables, unreachable_pub)]
    pub(crate) mod dispatch;
    pub(crate) mod kinds;
}

#[cfg(any(test, feature = "fuzz"))]
pub mod malformed;
#[cfg(test)]
mod malformed_frames_tests;
#[cfg(test)]
mod malformed_tests;

pub use process::sandbox;
pub use schedule::gate;

/// Runs this process as a worker, as the daemon starts it; never returns.
///
/// `arguments` are what follows those of the daemon's worker command: none to serve a session,
/// [`PROBE`] and a driver to say what that driver has, [`WATCH`] and a library to watch GPUs
/// through, [`FACTS`] and the same to say where they stand, [`sandbox::ARGUMENT`] and a folder to
/// say how a worker is confined, [`MEASURE`] and a driver to measure its GPUs.
pub fn main(arguments: &[OsString]) -> ! {
    let [argument, what] = arguments else { connection::serve::serve() };
    let out = &mut std::io::stdout().lock();
    let done = match argument.to_str() {
        Some(PROBE) => read(what).map(|driver| driver::probe::probe(&driver, out).map_err(|e| e.to_string())),
        Some(MEASURE) => {
            read(what).map(|driver| driver::measure::measure(&driver, out).map_err(|e| e.to_string()))
        }
        Some(WATCH) => read(what).map(|watch| driver::health::watch(&watch, out).map_err(|e| e.to_string())),
        Some(sandbox::ARGUMENT) => {
            read(what).map(|cache: Option<PathBuf>| say_confinement(cache.as_deref(), out))
        }
        Some(FACTS) => {
            read(what).map(|watch| driver::health::facts::say(&watch, out).map_err(|e| e.to_string()))
        }
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
