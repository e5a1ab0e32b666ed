//! Webhooks: events that are sent to addresses outside.
//!
//! ```text
//!  change ─ audit entry ─▶ event ──▶ deliveries ─ one transaction ─▶ database
//!                                                                      │ due
//!   receiver ◀── POST, signed ── sender (on the server that leads) ◀───┘
//!                                  └── outcome: delivered, or again later, or failed
//! ```
//! An event becomes a row of the database in the transaction of the change that it is about (an
//! outbox), so no event is lost with a server, and none is sent about a change that failed. A
//! server that stops after it has sent an event and before it has written that sends it again under
//! the same id.

mod address;
mod event;
mod sender;
mod signature;

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use sluice_api::client::{CheckAddress, Web};
use sluice_api::webhook::Webhook;
use tokio::sync::Notify;

use crate::store::NewDelivery;

pub(crate) use address::{Guard, check_url};
pub(crate) use event::{Event, test_event};
pub(crate) use signature::secret;

/// What a server needs to send events.
pub(crate) struct Outgoing {
    pub(crate) guard: Arc<Guard>,
    /// The client, or the reason why there is none.
    web: Result<Web, String>,
    /// Wakes the sender.
    pub(crate) news: Notify,
}

impl Outgoing {
    /// Makes a sender that may connect to addresses on the public Internet, and to these networks.
    pub(crate) fn new(allowed: Vec<IpNet>) -> Outgoing {
        let guard = Arc::new(Guard::new(allowed));
        let check: Arc<dyn CheckAddress> = guard.clone();
        let web = Web::guarded(check, sender::ANSWER_TIME_MAX);
        Outgoing { guard, web, news: Notify::new() }
    }
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing::new(Vec::new())
    }
}

/// The webhooks, by their ids.
pub(crate) type Webhooks = BTreeMap<String, Webhook>;

/// Returns the deliveries of an event to all webhooks that want it.
pub(crate) fn deliveries(webhooks: &Webhooks, event: &Event) -> Vec<NewDelivery> {
    let wanted = webhooks.values().filter(|webhook| webhook.wants(event.kind, &event.tenant));
    wanted.map(|webhook| event.delivery(&webhook.id)).collect()
}
