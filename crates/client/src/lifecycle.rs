//! The beginning and the end of sessions, contexts and green contexts.
//!
//! What ends with a context is spread over all kinds of objects, so this folder knows all of them.
//! Nothing below it depends on it.

pub(crate) mod contexts;
pub(crate) mod ending;
pub(crate) mod fork;
pub(crate) mod green;
pub(crate) mod init;
