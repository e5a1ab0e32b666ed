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
//! | [`cloned`] | for a clone: memory that both have until one of them writes |
//! | [`compared`] | for a checkpoint: only what the other side lacks |
//! | [`arrive`] | the new worker |

pub(crate) mod arrive;
mod cloned;
mod compared;
pub(crate) mod depart;
pub(crate) mod pause;
mod unmovable;
