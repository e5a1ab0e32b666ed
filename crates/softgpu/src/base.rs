//! What all other parts use: handles, results of driver functions, messages, tickets, and files and
//! events that several processes share. Nothing here knows of a device.

pub(crate) mod ids;
pub(crate) mod memory_file;
pub(crate) mod messages;
pub(crate) mod process;
pub(crate) mod shared_event;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod ticket;
