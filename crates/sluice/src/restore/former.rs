//! What a node says of a session that was there, and whether it may be restored elsewhere then.

use std::io::ErrorKind;

use anyhow::{Result, bail};
use sluice_control::{Cause, Connection, Failure};
use sluice_wire::address::Endpoint;
use sluice_wire::checkpoint::Manifest;
use sluice_wire::control::{Control, LeaseQuestion};
use sluice_wire::handshake::LeaseToken;

#[derive(Debug)]
pub(crate) enum Said {
    /// It is in a checkpoint.
    Stored,
    /// The node knows nothing of it, as where its daemon was started anew.
    Unknown,
    /// Its program continues on the node of this name.
    GoesOn(String),
    Silent(Failure),
}

/// Asks a node what has become of a lease.
pub(crate) fn ask(node: &Endpoint, token: LeaseToken) -> Said {
    let asked = Connection::open(node).and_then(|mut connection| {
        Ok(match connection.ask_once(LeaseQuestion { token })? {
            Control::LeaseStored(_) => Said::Stored,
            Control::LeaseHere(_) => Said::GoesOn(node.to_string()),
            Control::LeaseMoved(moved) => Said::GoesOn(moved.node),
            _ => return Err(connection.unexpected()),
        })
    });
    match asked {
        Ok(said) => said,
        Err(Failure { cause: Cause::Refused(_), .. }) => Said::Unknown,
        Err(failure) => Said::Silent(failure),
    }
}

/// Whether a session may be restored, as far as its former node has said. `is_gone` says that the
/// user knows that nodes which do not answer never will.
pub(super) fn check(said: &Said, manifest: &Manifest, is_gone: bool) -> Result<()> {
    let earlier = manifest.restoring.as_ref().map(|earlier| &earlier.node);
    let former = &manifest.node;
    match said {
        Said::Stored => Ok(()),
        // An earlier restore has sent it there, and has not come to its end.
        Said::GoesOn(node) if earlier == Some(node) => Ok(()),
        Said::GoesOn(node) => bail!("its program continues, on {node}"),
        Said::Unknown if manifest.stopped || is_gone => Ok(()),
        Said::Silent(failure) if is_gone || (manifest.stopped && is_down(failure)) => Ok(()),
        Said::Unknown => bail!(
            "it is not known whether its program has left {former}, where its lease is not known: if that node was \
             started anew, say --former-node-is-gone"
        ),
        Said::Silent(failure) => bail!(
            "it is not known whether its program has left {former} ({failure}): try again when that answers, or say \
             --former-node-is-gone if it never will"
        ),
    }
}

/// Whether an earlier restore that has not come to its end may be made again, as far as the node
/// has said to which it was.
pub(super) fn check_earlier(said: &Said, node: &str, is_gone: bool) -> Result<()> {
    match said {
        Said::Unknown => Ok(()),
        Said::Silent(_) if is_gone => Ok(()),
        Said::Silent(failure) => bail!(
            "an earlier restore to {node} did not come to its end, and it is not known whether the program continues there \
             ({failure}): try again when that answers, or say --former-node-is-gone if it never will"
        ),
        Said::Stored | Said::GoesOn(_) => bail!(
            "an earlier restore has brought it to {node}; if its program does not continue there, try again once \
             `sluice sessions --node {node}` does not show it any more"
        ),
    }
}

/// Whether no node is there, rather than one that is slow or not to be understood.
fn is_down(failure: &Failure) -> bool {
    match &failure.cause {
        Cause::NobodyListens | Cause::UnknownHost(_) => true,
        Cause::Connection(error) => !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::checkpoint::Restored;

    use super::*;

    fn manifest(stopped: bool) -> Manifest {
        let whole = sluice_wire::sample::manifest(&[1; 300]);
        Manifest { node: "a:1".into(), stops: true, stopped, restored: None, restoring: None, ..whole }
    }

    fn silent(cause: Cause) -> Said {
        Said::Silent(Failure { node: "a:1".into(), cause })
    }

    #[test]
    fn only_a_session_that_has_left_is_restored() {
        let timeout = || silent(Cause::Connection(ErrorKind::TimedOut.into()));
        let cases = [
            (Said::Stored, true, true),
            (Said::GoesOn("b:1".into()), false, false),
            (Said::Unknown, false, true),
            (silent(Cause::NobodyListens), false, true),
            (timeout(), false, false),
            (silent(Cause::UnexpectedAnswer), false, false),
        ];
        for (said, unsure, stopped) in cases {
            assert_eq!(check(&said, &manifest(false), false).is_ok(), unsure, "{said:?}");
            assert_eq!(check(&said, &manifest(true), false).is_ok(), stopped, "{said:?}");
        }
        assert!(check(&timeout(), &manifest(false), true).is_ok());
        assert!(check(&Said::GoesOn("b:1".into()), &manifest(true), true).is_err());
    }

    #[test]
    fn a_restore_that_has_not_ended_is_made_again_where_its_node_has_nothing() {
        let earlier = Restored { at_ms: 1, node: "b:1".into(), session: 3 };
        let manifest = Manifest { restoring: Some(earlier), ..manifest(true) };
        assert!(check(&Said::GoesOn("b:1".into()), &manifest, false).is_ok());
        assert!(check(&Said::GoesOn("c:1".into()), &manifest, false).is_err());
        assert!(check_earlier(&Said::Unknown, "b:1", false).is_ok());
        assert!(check_earlier(&Said::GoesOn("b:1".into()), "b:1", true).is_err());
        assert!(check_earlier(&Said::Stored, "b:1", true).is_err());
        assert!(check_earlier(&silent(Cause::NobodyListens), "b:1", false).is_err());
    }
}
