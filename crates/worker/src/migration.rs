//! A session that continues in another worker, on another GPU.
//!
//! ```text
//!  old worker                                     new worker
//!    | stops reading, finishes its work             |
//!    | --- state: streams of bytes, recipes ------> | makes the objects anew, under the same ids
//!    | --- contents of device memory -------------> | at the same addresses
//!    | waits                                        | says Arrived to the daemon
//!    x the daemon ends it, or says Stay             | the client comes back, to this one
//! ```
//!
//! The old worker keeps everything until the daemon has decided, so a move that fails at any step
//! leaves the session where it was. What cannot be made anew is named before anything stops
//! ([`unmovable`]).
//!
//! | module | contents |
//! |---|---|
//! | [`unmovable`] | why a session cannot move |
//! | [`pause`] | the reader stops between two frames |
//! | [`depart`] | the old worker |
//! | [`arrive`] | the new worker |

pub(crate) mod arrive;
pub(crate) mod depart;
pub(crate) mod pause;
mod unmovable;

use sluice_wire::migration::SessionState;

/// Most bytes of a session's state besides its memory: the images of its modules, mostly.
const STATE_MAX: u64 = 4 << 30;

/// The pieces of device memory whose contents follow a state: GPU of the lease, address, bytes.
fn contents_of(state: &SessionState) -> impl Iterator<Item = (u32, u64, u64)> {
    // Modules are of the context of a lease's GPU, and any can copy from there.
    let variables = state.variables.iter().map(|variable| (0, variable.address, variable.bytes));
    let memory = state.memory.iter().map(|memory| (memory.gpu, memory.address, memory.bytes));
    variables.chain(memory)
}
