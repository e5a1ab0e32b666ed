//! Between the exported symbols and everything else: what may be called, in which session and
//! context a call runs, what is done before it travels, and how its handles become ids.
//!
//! This is the top of the library. [`handles`] implements [`Issue`](crate::session::issue::Issue),
//! through which everything below sends commands.

pub(crate) mod coredump;
pub(crate) mod guards;
pub(crate) mod handles;
pub(crate) mod hidden_tables;
pub(crate) mod permission;
pub(crate) mod proc_address;
pub(crate) mod routing;
