//! Whose business an entry of the audit log is, and what of it they are shown.

use serde_json::Value;
use sluice_api::audit::Entry;
use sluice_api::tenant::TenantPath;

use crate::auth::Principal;
use crate::fleet::{FOR_OTHERS, Fleet};
use crate::policy::Action;

/// What a tenant is not to know: an invoice that has not been issued.
const HIDDEN: [&str; 2] = ["invoice.drafted", "invoice.discarded"];
/// Where the detail of an entry names its tenant.
const PLACES: [&str; 4] = ["/tenant", "/after/tenant", "/before/tenant", "/record/tenant"];

/// The tenant that an entry concerns: whose lease, budget, token or other thing it is about, else
/// that of its actor. None where it concerns the whole installation.
pub(crate) fn tenant_of(
    fleet: &Fleet,
    actor: &Principal,
    action: &str,
    subject: &str,
    detail: &Value,
) -> Option<TenantPath> {
    if HIDDEN.contains(&action) {
        return None;
    }
    let own = match action.split('.').next().unwrap_or_default() {
        "lease" => subject.parse().ok().and_then(|id| fleet.lease(id)).map(|lease| lease.tenant.clone()),
        "tenant" | "budget" | "bill" | "consent" => subject.parse().ok(),
        _ => PLACES.iter().find_map(|place| detail.pointer(place)?.as_str()?.parse().ok()),
    };
    own.or_else(|| Some(actor.token.tenant.clone())).filter(|tenant| !tenant.is_root())
}

/// An entry as it is shown to a principal. The lease that another is preempted for is left out
/// where it is of another top-level tenant, unless the principal may see the whole log.
pub(crate) fn shown_to(principal: &Principal, entry: Entry) -> Entry {
    match principal.may(Action::SeeAudit, &TenantPath::root()) {
        true => entry,
        false => without_others(entry),
    }
}

fn without_others(entry: Entry) -> Entry {
    let Ok(Value::Object(mut detail)) = serde_json::from_str(&entry.detail) else { return entry };
    match detail.remove(FOR_OTHERS) {
        Some(_) => Entry { detail: Value::Object(detail).to_string(), ..entry },
        None => entry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use sluice_api::audit::Head;

    #[test]
    fn an_entry_concerns_the_tenant_that_it_is_about() {
        let fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let check = |action: &str, subject: &str, detail: Value, expect: Option<&str>| {
            let found = tenant_of(&fleet, &Principal::server(), action, subject, &detail);
            assert_eq!(found.as_ref().map(TenantPath::as_str), expect, "{action} {subject} {detail}");
        };
        check("consent.changed", "acme", json!({ "before": null }), Some("acme"));
        check("bill.corrected", "acme/a", json!({}), Some("acme/a"));
        check("program.sized", "train.py", json!({ "after": { "tenant": "acme" } }), Some("acme"));
        check("usage.accepted", "4f2a", json!({ "record": { "tenant": "acme" } }), Some("acme"));
        check("webhook.made", "w1", json!({ "tenant": "acme" }), Some("acme"));
        check("invoice.issued", "7", json!({ "tenant": "acme" }), Some("acme"));
        check("invoice.drafted", "7", json!({ "tenant": "acme" }), None);
        check("lease.granted", "99", json!({}), None);
        check("node.joined", "gpu1", json!({ "address": "h:1" }), None);
        check("tenant.changed", "/", json!({}), None);
    }

    #[test]
    fn the_lease_that_another_gives_way_to_is_not_named() {
        let entry = |detail: &str| Entry::after(&Head::default(), 7, "a", "lease.preempted", "3", detail);
        let shown = without_others(entry(r#"{"for_other_tenant":99,"reason":"room is needed"}"#));
        assert_eq!(shown.detail, r#"{"reason":"room is needed"}"#);
        assert_eq!(shown.hash, entry(r#"{"for_other_tenant":99,"reason":"room is needed"}"#).hash);
        assert_eq!(without_others(entry("{}")), entry("{}"));
    }
}
