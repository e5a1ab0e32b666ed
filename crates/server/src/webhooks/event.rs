//! Events: what of the audit log people outside want to know at once.

use serde_json::{Value, json};
use sluice_api::audit::Entry;
use sluice_api::bill::{BudgetStatus, Currency};
use sluice_api::lease::LeaseId;
use sluice_api::tenant::TenantPath;
use sluice_api::webhook::{EventKind, WebhookFormat};

use crate::fleet::{FOR_OTHERS, Fleet};
use crate::store::NewDelivery;

/// A lease that waited for less than this was granted as it was asked for.
const WAITED_MS: u64 = 5_000;
/// Digits of the hash of an audit entry that identify its event.
const ID_DIGITS: usize = 24;

/// Something that happened to a tenant; to `/` what concerns the GPUs of all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: EventKind,
    pub(crate) tenant: TenantPath,
    pub(crate) at_ms: u64,
    pub(crate) data: Value,
}

impl Event {
    /// Returns the event that an audit entry is about, if people want to know of it at once.
    pub(crate) fn of(entry: &Entry, detail: &Value, fleet: &Fleet) -> Option<Event> {
        let (kind, tenant, data) = match entry.action.as_str() {
            "budget.passed" => {
                let tenant = entry.subject.parse().ok()?;
                (EventKind::BudgetPassed, tenant, with(detail, "tenant", &json!(entry.subject)))
            }
            "invoice.issued" => {
                let tenant = detail.get("tenant").and_then(Value::as_str)?.parse().ok()?;
                (EventKind::InvoiceIssued, tenant, with(detail, "number", &json!(entry.subject)))
            }
            "node.silent" => of_fleet(EventKind::NodeSilent, "node", entry, detail),
            "node.reports" => of_fleet(EventKind::NodeReports, "node", entry, detail),
            "node.lost" => of_fleet(EventKind::NodeLost, "node", entry, detail),
            "node.wanted" => of_fleet(EventKind::NodeWanted, "for", entry, detail),
            "node.idle" => of_fleet(EventKind::NodeIdle, "node", entry, detail),
            "gpu.fenced" => of_fleet(EventKind::GpuFenced, "gpu", entry, detail),
            "gpu.unfenced" => of_fleet(EventKind::GpuUnfenced, "gpu", entry, detail),
            "gpu.suspected" => of_fleet(EventKind::GpuSuspected, "gpu", entry, detail),
            action => return Event::of_lease(action, entry, detail, fleet),
        };
        Some(Event { id: id(entry), kind, tenant, at_ms: entry.at_ms, data })
    }

    fn of_lease(action: &str, entry: &Entry, detail: &Value, fleet: &Fleet) -> Option<Event> {
        let is_set = |name: &str| detail.get(name).and_then(Value::as_bool) == Some(true);
        let kind = match action {
            "lease.granted" => EventKind::LeaseStarted,
            "lease.preempted" => EventKind::LeasePreempted,
            "lease.idle" => EventKind::LeaseIdle,
            "lease.requeued" => EventKind::LeaseRequeued,
            "lease.resized" if is_set("suspended") => EventKind::LeaseSuspended,
            "lease.ended" if is_set("expired") => EventKind::LeaseExpired,
            _ => return None,
        };
        let lease = fleet.lease(entry.subject.parse::<LeaseId>().ok()?)?;
        let waited_ms = entry.at_ms.saturating_sub(lease.queued_at_ms);
        if kind == EventKind::LeaseStarted && waited_ms < WAITED_MS {
            return None;
        }
        let mut data = with(detail, "lease", &json!(lease.id));
        data["name"] = json!(lease.ask.name);
        data["user"] = json!(lease.person);
        data["tenant"] = json!(lease.tenant);
        if kind == EventKind::LeaseStarted {
            data["waited_ms"] = json!(waited_ms);
        }
        // A lease that others are preempted for may be another tenant's.
        if let Some(object) = data.as_object_mut() {
            object.remove("for");
            object.remove(FOR_OTHERS);
        }
        Some(Event { id: id(entry), kind, tenant: lease.tenant.clone(), at_ms: entry.at_ms, data })
    }

    pub(crate) fn delivery(&self, webhook: &str) -> NewDelivery {
        NewDelivery {
            webhook: webhook.to_owned(),
            event: self.id.clone(),
            kind: self.kind,
            body: self.body(),
            at_ms: self.at_ms,
        }
    }

    fn body(&self) -> String {
        let time = jiff::Timestamp::from_millisecond(i64::try_from(self.at_ms).unwrap_or(0));
        let time = time.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string();
        json!({ "type": self.kind, "timestamp": time, "data": self.data }).to_string()
    }
}

/// Makes the event of a test delivery, which a person asked for.
pub(crate) fn test_event(entry: &Entry, tenant: TenantPath) -> Event {
    let data = json!({ "message": "This is a test of a webhook of Sluice.", "tenant": tenant });
    Event { id: id(entry), kind: EventKind::WebhookTest, tenant, at_ms: entry.at_ms, data }
}

/// Returns the id of the event of an audit entry. It is the same whenever it is asked for.
fn id(entry: &Entry) -> String {
    format!("evt_{}", entry.hash.chars().take(ID_DIGITS).collect::<String>())
}

fn of_fleet(kind: EventKind, what: &str, entry: &Entry, detail: &Value) -> (EventKind, TenantPath, Value) {
    (kind, TenantPath::root(), with(detail, what, &json!(entry.subject)))
}

fn with(detail: &Value, name: &str, value: &Value) -> Value {
    let mut data = if detail.is_object() { detail.clone() } else { json!({}) };
    data[name] = value.clone();
    data
}

/// Returns the body of a request in a format. Slack gives a meaning to `&`, `<` and `>` only
/// (Slack's "Formatting text for app surfaces").
pub(super) fn formatted(body: &str, format: WebhookFormat) -> String {
    if format != WebhookFormat::Slack {
        return body.to_owned();
    }
    let event: Value = serde_json::from_str(body).unwrap_or_default();
    let text = sentence(&event).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    json!({ "text": text }).to_string()
}

/// Says in a sentence, without the full stop, what happened.
pub(super) fn sentence(event: &Value) -> String {
    let data = &event["data"];
    let text = |name: &str| match &data[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let lease = || {
        let name = text("name");
        let name = if name.is_empty() { name } else { format!(" ({name})") };
        format!("Lease {}{name} of {}", text("lease"), text("tenant"))
    };
    let because = |name: &str| match text(name) {
        why if why.is_empty() => String::new(),
        why => format!(": {why}"),
    };
    match event["type"].as_str().and_then(|kind| kind.parse().ok()) {
        Some(EventKind::LeaseStarted) => {
            let waited_s = data["waited_ms"].as_u64().unwrap_or(0) / 1000;
            format!("{} has its GPU after waiting for {waited_s} s", lease())
        }
        Some(EventKind::LeasePreempted) => format!("{} has to leave its GPUs{}", lease(), because("reason")),
        Some(EventKind::LeaseIdle) => {
            format!("{} is about to be suspended{}", lease(), because("reason"))
        }
        Some(EventKind::LeaseSuspended) => format!("{} is suspended", lease()),
        Some(EventKind::LeaseRequeued) => {
            format!("{} waits in the queue again{}", lease(), because("reason"))
        }
        Some(EventKind::LeaseExpired) => format!("{} has ended{}", lease(), because("reason")),
        Some(EventKind::BudgetPassed) => match serde_json::from_value::<BudgetStatus>(data.clone()) {
            Ok(status) => budget_sentence(&text("tenant"), &status),
            Err(_) => "A budget has passed a mark".to_owned(),
        },
        Some(EventKind::GpuFenced) => {
            let why = data["fence"]["why"].as_str().unwrap_or_default();
            format!("GPU {} is out of use: {why}", text("gpu"))
        }
        Some(EventKind::GpuUnfenced) => format!("GPU {} is used again{}", text("gpu"), because("why")),
        Some(EventKind::GpuSuspected) => format!("GPU {} may be faulty{}", text("gpu"), because("why")),
        Some(EventKind::NodeSilent) => format!("Node {} has stopped reporting", text("node")),
        Some(EventKind::NodeReports) => format!("Node {} reports again", text("node")),
        Some(EventKind::NodeLost) => format!("The leases of node {} are queued again", text("node")),
        Some(EventKind::NodeWanted) => {
            let (leases, gpus) = (text("leases"), text("gpus"));
            format!("No node has room for {leases} leases of {gpus} GPUs each (pool: {})", text("for"))
        }
        Some(EventKind::NodeIdle) => {
            let idle_min = data["idle_ms"].as_u64().unwrap_or(0) / 60_000;
            format!("Node {} has had no lease for {idle_min} min", text("node"))
        }
        Some(EventKind::InvoiceIssued) => {
            format!("Invoice {} of {} has been issued", text("number"), text("tenant"))
        }
        Some(EventKind::WebhookTest) => text("message").trim_end_matches('.').to_owned(),
        None => "Something happened that this release has no words for".to_owned(),
    }
}

fn budget_sentence(tenant: &str, status: &BudgetStatus) -> String {
    let currency =
        status.currency.as_ref().map_or_else(String::new, |currency: &Currency| format!(" {currency}"));
    let money = |micro: u64| format!("{}.{:02}", micro / 1_000_000, micro % 1_000_000 / 10_000);
    let (spent, of) = (money(status.spent_micro), money(status.budget.micro));
    format!("{tenant} has spent {} % of its budget ({spent} of {of}{currency})", status.spent_percent)
}

#[cfg(test)]
mod tests {
    use sluice_api::audit::Head;

    use super::*;

    fn entry(action: &str, subject: &str, at_ms: u64, detail: &Value) -> Entry {
        Entry::after(&Head::default(), at_ms, "t (a test)", action, subject, &detail.to_string())
    }

    fn fleet() -> (Fleet, LeaseId) {
        let mut fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let ask = serde_json::from_value(json!({ "name": "<b>train</b>" })).unwrap();
        let id = fleet.request("acme/research".parse().unwrap(), ask, "t".into(), 1_000);
        (fleet, id)
    }

    #[test]
    fn a_lease_that_waited_is_an_event_when_it_starts() {
        let (fleet, id) = fleet();
        let (detail, subject) = (json!({ "attempt": 1 }), id.to_string());
        let at = |at_ms| Event::of(&entry("lease.granted", &subject, at_ms, &detail), &detail, &fleet);
        assert_eq!(at(1_000 + WAITED_MS - 1), None, "it did not wait");
        let event = at(1_000 + WAITED_MS).unwrap();
        assert_eq!((event.kind, event.tenant.as_str()), (EventKind::LeaseStarted, "acme/research"));
        assert_eq!((&event.data["waited_ms"], &event.data["lease"]), (&json!(WAITED_MS), &json!(id)));
        assert_eq!(event.id, at(1_000 + WAITED_MS).unwrap().id, "its id does not change");
    }

    #[test]
    fn only_leases_that_nobody_ended_are_events_at_their_end() {
        let (fleet, id) = fleet();
        let of = |action: &str, detail: Value| {
            Event::of(&entry(action, &id.to_string(), 9, &detail), &detail, &fleet).map(|event| event.kind)
        };
        assert_eq!(of("lease.ended", json!({ "reason": "its program ended" })), None);
        let expired = json!({ "reason": "no program claimed it in time", "expired": true });
        assert_eq!(of("lease.ended", expired), Some(EventKind::LeaseExpired));
        assert_eq!(of("lease.resized", json!({ "suspended": false })), None);
        assert_eq!(of("lease.resized", json!({ "suspended": true })), Some(EventKind::LeaseSuspended));
        assert_eq!(of("lease.requested", json!({})), None);
    }

    #[test]
    fn a_preempted_lease_does_not_learn_for_whom() {
        let (fleet, id) = fleet();
        let detail = json!({ "reason": "room is needed", "until_ms": 7, "for": 99 });
        let event =
            Event::of(&entry("lease.preempted", &id.to_string(), 9, &detail), &detail, &fleet).unwrap();
        assert_eq!(event.data.get("for"), None);
        assert_eq!(event.data["reason"], "room is needed");
    }

    #[test]
    fn faults_of_gpus_and_nodes_are_events_of_the_root() {
        let (fleet, _) = fleet();
        let detail = json!({ "leases": [1] });
        let event = Event::of(&entry("node.lost", "gpu7", 9, &detail), &detail, &fleet).unwrap();
        assert_eq!((event.kind, event.tenant.is_root()), (EventKind::NodeLost, true));
        assert_eq!(event.data, json!({ "leases": [1], "node": "gpu7" }));
    }

    #[test]
    fn slack_gets_a_sentence_in_which_names_are_text() {
        let (fleet, id) = fleet();
        let detail = json!({ "reason": "room & more is needed" });
        let event =
            Event::of(&entry("lease.preempted", &id.to_string(), 9, &detail), &detail, &fleet).unwrap();
        let body: Value = serde_json::from_str(&formatted(&event.body(), WebhookFormat::Slack)).unwrap();
        let expected = format!(
            "Lease {id} (&lt;b&gt;train&lt;/b&gt;) of acme/research has to leave its GPUs: room &amp; more is needed"
        );
        assert_eq!(body, json!({ "text": expected }));
    }

    #[test]
    fn every_event_has_a_sentence() {
        for &kind in EventKind::ALL {
            let body = json!({ "type": kind, "data": { "message": "a test" } }).to_string();
            let said: Value = serde_json::from_str(&formatted(&body, WebhookFormat::Slack)).unwrap();
            let text = said["text"].as_str().unwrap();
            assert!(!text.is_empty() && !text.contains("no words"), "{kind:?}: {text}");
        }
    }
}
