//! What cannot be handed over, since it is between two states that only threads know of.

use super::Stopped;

impl Stopped<'_> {
    /// What it is; nothing where all can be handed over.
    pub(crate) fn unsettled(&self) -> Option<String> {
        let moving = |session: &u64| format!("session {session} moves");
        let unclaimed =
            |session: &u64| format!("session {session} is a clone that its child has yet to take");
        let sessions = self.ledger.sessions.iter().find_map(|(session, record)| {
            let moves = record.migration.is_moving().then(|| moving(session));
            moves.or_else(|| record.is_unclaimed.then(|| unclaimed(session)))
        });
        let leases = || {
            self.ledger.leases.iter().find_map(|(lease, record)| match record {
                record if record.closing => Some(format!("lease {lease} is ending")),
                record if record.arrives => Some(format!("lease {lease} comes from another node")),
                record if record.has_moved => Some(format!("lease {lease} leaves for another node")),
                record if record.holder.as_ref().is_some_and(|holder| !holder.can_stay()) => {
                    let text = "cannot come back on another connection, and this one cannot be passed on now";
                    Some(format!("the holder of lease {lease} {text}"))
                }
                _ => None,
            })
        };
        sessions.or_else(leases)
    }
}
