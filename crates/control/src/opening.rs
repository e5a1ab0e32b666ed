//! A lease is opened through disconnects: a client that asks for it again on another connection
//! gets the same.

use std::io;
use std::time::Duration;

use sluice_transport::opening::{Attempts, Verdict};
use sluice_wire::address::Endpoint;
use sluice_wire::control::Control;
use sluice_wire::handshake::Once;

use crate::{Cause, Connection, Failure};

/// Connects and asks for a lease, with what `question` makes of the attempt; the answer is granted
/// or refused. A node that was there is asked again after a cut, for as long as `patience` says:
/// `cut` is called for one that lasts.
pub fn open_lease<Q: Into<Control>>(
    node: &Endpoint,
    patience: Duration,
    question: impl Fn(Once) -> Q,
    cut: impl Fn(&Failure, Duration),
) -> Result<(Connection, Control), Failure> {
    let random = |error| Failure { node: node.place(), cause: Cause::Connection(error) };
    let mut attempts = Attempts::for_at_most(patience).map_err(random)?;
    let mut known = node.clone();
    loop {
        let asked = Connection::open(&known).and_then(|mut connection| {
            attempts.heard();
            // Whose authority was asked once is the same node the next time.
            known = connection.node().clone();
            let answer = connection.ask(question(attempts.once()).into());
            answer.map(|answer| (connection, answer))
        });
        let failure = match asked {
            Ok(opened) => return Ok(opened),
            Err(failure) => failure,
        };
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = match &failure.cause {
            // Its end is that of the node.
            _ if matches!(node, Endpoint::Unix(_)) => return Err(failure),
            Cause::Connection(error) | Cause::UnknownHost(error) => error,
            Cause::NobodyListens => &refused,
            // A handshake that fails in words is no cut.
            _ => return Err(failure),
        };
        match attempts.failed(error) {
            Verdict::Again(pause) => std::thread::sleep(pause),
            Verdict::AgainFor { pause, patience } => {
                cut(&failure, patience);
                std::thread::sleep(pause);
            }
            Verdict::Final => return Err(failure),
        }
    }
}
