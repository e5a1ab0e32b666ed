//! Webhooks: events that are sent to addresses outside.
//!
//! ```text
//!  change ─ audit entry ─▶ event ──▶ deliveries ─ one transaction ─▶ database
//!                                                                      │ due
//!   receiver ◀── POST, signed ── sender (on the server that leads) ◀───┘
//!   mail server ◀──── message ─────┤
//!                                  └── outcome: delivered, or again later, or failed
//! ```
//! An event becomes a row of the database in the transaction of the change that it is about (an
//! outbox), so no event is lost with a server, and none is sent about a change that failed. A
//! server that stops after it has sent an event and before it has written that sends it again under
//! the same id.

mod address;
mod event;
mod mail;
mod sender;
mod signature;

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use sluice_api::client::{CheckAddress, Web};
use sluice_api::webhook::{NewWebhook, Webhook, WebhookFormat};
use tokio::sync::Notify;

use crate::store::NewDelivery;

use address::{Guard, check_url};
pub(crate) use event::{Event, test_event};
pub use mail::MailConfig;
pub(crate) use mail::Mailer;
pub(crate) use signature::secret;

/// What a server needs to send events.
pub(crate) struct Outgoing {
    guard: Arc<Guard>,
    /// The client, or the reason why there is none.
    web: Result<Web, String>,
    /// Sends mail, if the operator has named a mail server.
    mailer: Option<Arc<Mailer>>,
    /// Wakes the sender.
    pub(crate) news: Notify,
}

impl Outgoing {
    /// Makes a sender that may connect to addresses on the public Internet, and to these networks.
    pub(crate) fn new(allowed: Vec<IpNet>, mailer: Option<Mailer>) -> Outgoing {
        let guard = Arc::new(Guard::new(allowed));
        let check: Arc<dyn CheckAddress> = guard.clone();
        let web = Web::guarded(check, sender::ANSWER_TIME_MAX);
        Outgoing { guard, web, mailer: mailer.map(Arc::new), news: Notify::new() }
    }

    /// Checks where a new webhook leads and returns its format. The error is the field that is
    /// wrong, and why.
    pub(crate) fn check(&self, new: &NewWebhook) -> Result<WebhookFormat, (&'static str, String)> {
        if !mail::is_mail(&new.url) {
            check_url(&new.url, &self.guard).map_err(|why| ("url", why))?;
            return match new.format.unwrap_or_default() {
                WebhookFormat::Mail => Err(("format", "mail is the format of mailto: URLs".into())),
                format => Ok(format),
            };
        }
        let mailer = self.mailer().map_err(|why| ("url", why))?;
        mailer.check(&new.url, &new.tenant).map_err(|why| ("url", why))?;
        match new.format {
            None | Some(WebhookFormat::Mail) => Ok(WebhookFormat::Mail),
            Some(_) => Err(("format", "the format of a mailto: URL is mail".into())),
        }
    }

    fn mailer(&self) -> Result<&Arc<Mailer>, String> {
        let none = "this server sends no mail; its operator names a mail server with --mail-server";
        self.mailer.as_ref().ok_or_else(|| none.to_owned())
    }
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing::new(Vec::new(), None)
    }
}

/// The webhooks, by their ids.
pub(crate) type Webhooks = BTreeMap<String, Webhook>;

/// Returns the deliveries of an event to all webhooks that want it.
pub(crate) fn deliveries(webhooks: &Webhooks, event: &Event) -> Vec<NewDelivery> {
    let wanted = webhooks.values().filter(|webhook| webhook.wants(event.kind, &event.tenant));
    wanted.map(|webhook| event.delivery(&webhook.id)).collect()
}
