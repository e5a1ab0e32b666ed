//! Webhooks: addresses to which the server sends events, by HTTP or by mail.
//!
//! A delivery is a POST as the Standard Webhooks specification (version 1) describes it. The
//! headers `webhook-id`, `webhook-timestamp` and `webhook-signature` identify, date and sign it:
//!
//! ```text
//! webhook-signature: v1,BASE64(HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}.{body}"))
//! ```
//! The key is the part of the secret after `whsec_`, in base64. An event has the same `webhook-id`
//! each time it is sent, so a receiver can discard what it has seen before.

use serde::{Deserialize, Serialize};

use crate::tenant::TenantPath;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:tt)*) => {
        /// The kinds of events.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum EventKind { $($(#[$doc])* #[serde(rename = $name)] $kind,)* }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$(EventKind::$kind),*];

            /// Returns the name as it is written in JSON.
            pub fn name(self) -> &'static str { match self { $(EventKind::$kind => $name,)* } }
        }
    };
}

kinds! {
    /// A lease got its place after it had waited in the queue.
    LeaseStarted "lease.started"
    /// A lease, or some of its tasks, has to leave its GPUs.
    LeasePreempted "lease.preempted"
    /// The programs of a lease were suspended.
    LeaseSuspended "lease.suspended"
    /// The programs of a lease are idle, and are suspended soon.
    LeaseIdle "lease.idle"
    /// A lease that had to leave its GPUs waits in the queue again.
    LeaseRequeued "lease.requeued"
    /// The server ended a lease without a request.
    LeaseExpired "lease.expired"
    /// A budget passed 50, 80, 95 or 100 %.
    BudgetPassed "budget.passed"
    /// A GPU takes no more leases because of a fault, or because an operator said so.
    GpuFenced "gpu.fenced"
    /// A GPU is used again.
    GpuUnfenced "gpu.unfenced"
    /// A GPU reports a fault and is not fenced, because many others do too.
    GpuSuspected "gpu.suspected"
    /// A node has stopped reporting.
    NodeSilent "node.silent"
    /// A node that was silent reports again.
    NodeReports "node.reports"
    /// The leases of a silent node are queued again.
    NodeLost "node.lost"
    /// Leases wait that no node has room for.
    NodeWanted "node.wanted"
    /// A node has had no lease for a while.
    NodeIdle "node.idle"
    /// An invoice was issued.
    InvoiceIssued "invoice.issued"
    /// A person asked for a delivery, to see whether the webhook works.
    WebhookTest "webhook.test"
}

impl std::str::FromStr for EventKind {
    type Err = String;

    fn from_str(text: &str) -> Result<EventKind, String> {
        EventKind::ALL.iter().copied().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("{text:?} is not an event; the events are {}", names.join(", "))
        })
    }
}

/// The format of the body of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WebhookFormat {
    /// The event as JSON: `{"type", "timestamp", "data"}`.
    #[default]
    Json,
    /// A sentence for a chat, as Slack and compatible services take it: `{"text"}`.
    Slack,
    /// A mail in plain text to the address of a `mailto:` URL. Mails are not signed.
    Mail,
}

impl WebhookFormat {
    /// Returns the name as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            WebhookFormat::Json => "json",
            WebhookFormat::Slack => "slack",
            WebhookFormat::Mail => "mail",
        }
    }
}

impl std::str::FromStr for WebhookFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<WebhookFormat, String> {
        let all = [WebhookFormat::Json, WebhookFormat::Slack, WebhookFormat::Mail];
        let known = all.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| format!("{text:?} is not a format; the formats are json, slack and mail"))
    }
}

/// A webhook to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewWebhook {
    /// The tenant whose events are sent, with those of all tenants below it. Events of GPUs and
    /// nodes are sent to webhooks of `/` only.
    pub tenant: TenantPath,
    /// `https://HOST/PATH`, or `mailto:ADDRESS` where the server sends mail.
    pub url: String,
    /// The format: `mail` for `mailto:` URLs and `json` for others unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<WebhookFormat>,
    /// The events to send. All events are sent if the list is empty.
    #[serde(default)]
    pub events: Vec<EventKind>,
    /// A name for people to read.
    #[serde(default)]
    pub name: String,
}

/// A webhook as it is listed, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    pub id: String,
    pub tenant: TenantPath,
    pub url: String,
    pub format: WebhookFormat,
    pub events: Vec<EventKind>,
    pub name: String,
    pub created_at_ms: u64,
    /// The time of the first failure since the last successful delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since_ms: Option<u64>,
    /// The reason why nothing is sent any more. A webhook without a reason is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// The number of events that were discarded because too many deliveries were pending.
    pub discarded: u64,
}

impl Webhook {
    /// Returns whether the webhook wants events of this kind about this tenant.
    pub fn wants(&self, kind: EventKind, tenant: &TenantPath) -> bool {
        let wants_kind = self.events.is_empty() || self.events.contains(&kind);
        self.disabled.is_none() && wants_kind && self.tenant.contains(tenant)
    }
}

/// A new webhook with its secret, which is shown only once.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MadeWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The key of the signatures: `whsec_` and base64.
    pub secret: String,
}

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeliveryState {
    /// It is sent when its time has come.
    Pending,
    /// The receiver answered with a status from 200 to 299. A mail was taken by the mail server.
    Delivered,
    /// It is not sent again.
    Failed,
}

impl DeliveryState {
    /// Returns the name as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Failed => "failed",
        }
    }
}

impl std::str::FromStr for DeliveryState {
    type Err = ();

    fn from_str(text: &str) -> Result<DeliveryState, ()> {
        let all = [DeliveryState::Pending, DeliveryState::Delivered, DeliveryState::Failed];
        all.into_iter().find(|state| state.name() == text).ok_or(())
    }
}

/// Delivery of one event to one webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// The id of the webhook.
    pub webhook: String,
    /// The id of the event, which is sent as `webhook-id`.
    pub id: String,
    pub event: EventKind,
    pub created_at_ms: u64,
    pub state: DeliveryState,
    /// The number of times that it was sent.
    pub attempts: u32,
    /// The time of the next attempt, while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at_ms: Option<u64>,
    /// The time of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_at_ms: Option<u64>,
    /// The status of the answer to the last attempt: that of HTTP, or for mail the reply code of
    /// SMTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The reason why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_gets_the_events_that_it_wants_of_its_part_of_the_tree() {
        let webhook = |events: Vec<EventKind>| Webhook {
            id: "wh".into(),
            tenant: "acme".parse().unwrap(),
            url: String::new(),
            format: WebhookFormat::Json,
            events,
            name: String::new(),
            created_at_ms: 0,
            failing_since_ms: None,
            disabled: None,
            discarded: 0,
        };
        let all = webhook(Vec::new());
        assert!(all.wants(EventKind::LeaseStarted, &"acme/research".parse().unwrap()));
        assert!(!all.wants(EventKind::LeaseStarted, &"globex".parse().unwrap()));
        assert!(!all.wants(EventKind::NodeLost, &TenantPath::root()), "nodes belong to the root");
        let one = webhook(vec![EventKind::BudgetPassed]);
        assert!(!one.wants(EventKind::LeaseStarted, &one.tenant));
        assert!(one.wants(EventKind::BudgetPassed, &one.tenant));
        let disabled = Webhook { disabled: Some("it failed".into()), ..all };
        assert!(!disabled.wants(EventKind::LeaseStarted, &disabled.tenant));
    }

    #[test]
    fn events_have_one_name() {
        for &kind in EventKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::json!(kind), kind.name());
        }
        assert!("lease.begun".parse::<EventKind>().unwrap_err().contains("lease.started"));
    }
}
