//! The worker as a process: how it is confined, which system calls remain, how it ends, and what is
//! done about a driver that does not return.

pub(crate) mod calls;
pub(crate) mod ending;
pub(crate) mod hang;
pub mod sandbox;
pub(crate) mod watchdog;
