//! What all other parts use: handles, results of driver functions, messages, and files and events
//! that several processes share. Nothing here knows of a device.

pub(crate) mod messages;
pub(crate) mod process;
pub(crate) mod shared_event;
pub(crate) mod status;
pub(crate) mod table;
