//! A session that is in a checkpoint: its program waits until it is restored.

use std::time::Duration;

use sluice_wire::address::Endpoint;

/// Between one question and the next.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// How long a node that has said so may be away, as while its machine is started anew: the session
/// has no use for it meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Tells the user, once.
pub(crate) fn say(node: &Endpoint) {
    crate::abi::errors::say(format_args!(
        "the session was taken off the node {} into a checkpoint; the program waits until `sluice restore`, Ctrl-C ends it",
        node.place()
    ));
}
