//! What becomes of leases, for the audit log.

use serde_json::{Value, json};
use sluice_api::lease::LeaseId;

use super::{Fleet, Seat, top};

/// Something that became of a lease.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) lease: LeaseId,
    /// As the audit log names it.
    pub(crate) action: &'static str,
    pub(crate) detail: Value,
}

impl Fleet {
    /// What became of leases since this was asked last, in its order.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// `detail` is an object, to which the attempt is added.
    pub(super) fn tell(&mut self, lease: LeaseId, action: &'static str, mut detail: Value) {
        let Some(record) = self.leases.get(&lease) else { return };
        detail["attempt"] = record.attempt.into();
        self.events.push(Event { lease, action, detail });
    }

    /// Where these seats are, of which the first is that of task `first`.
    pub(super) fn places(&self, first: usize, seats: &[Seat]) -> Vec<Value> {
        let place = |(task, seat): (usize, &Seat)| {
            let mut place = json!({ "task": task, "node": self.name_of(seat.node), "gpus": seat.gpus });
            if let Some(share_ppm) = seat.share_ppm {
                place["share_ppm"] = share_ppm.into();
            }
            place
        };
        (first..).zip(seats).map(place).collect()
    }

    /// Why a lease or some of its tasks have to make room, until when, and for whom.
    pub(super) fn notice(&self, id: LeaseId, reason: &str, at_ms: u64, taker: Option<LeaseId>) -> Value {
        let mut detail = json!({ "reason": reason, "until_ms": at_ms });
        self.name_taker(&mut detail, id, taker);
        detail
    }

    /// Says which lease gets the place of another one.
    pub(super) fn name_taker(&self, detail: &mut Value, id: LeaseId, taker: Option<LeaseId>) {
        if let Some(taker) = taker {
            let top_level = |id| self.leases.get(&id).map(|lease| top(&lease.tenant));
            let name = if top_level(taker) == top_level(id) { "for" } else { FOR_OTHERS };
            detail[name] = taker.into();
        }
    }
}

/// The field of an event's detail that has a lease of another top-level tenant.
pub(crate) const FOR_OTHERS: &str = "for_other_tenant";
