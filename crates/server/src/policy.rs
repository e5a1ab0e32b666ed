//! Who may do what: one function.

use sluice_api::tenant::TenantPath;
use sluice_api::token::Role;

/// What the API is asked to do, and for which tenant; `/` is the whole installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// See GPUs and nodes.
    SeeFleet,
    /// See tenants, leases, sessions, usage and bills.
    See,
    /// Ask for leases and end them.
    Lease,
    /// Give notice to a running lease.
    Preempt,
    /// Create tenants and change quotas.
    SetQuota,
    SetPrice,
    /// Say which nodes serve whom.
    SetPool,
    /// Take GPUs out of use, and back.
    Fence,
    /// Correct bills and issue invoices.
    Bill,
    /// Make or revoke tokens of a role.
    Token(Role),
    SeeTokens,
    /// Set what the next runs of programs get if they do not say.
    SetDefault,
    /// See, make and remove webhooks.
    Webhook,
    /// Say which identity provider's people are what.
    SetIdentity,
    SeeAudit,
    /// See metrics of the whole installation, which name all tenants.
    SeeMetrics,
    /// Lend GPUs.
    Join,
}

/// Whether a token of this role and scope may do it for `tenant`.
///
/// A tenant's administrator does not set the quota of its own tenant, only of those below; no
/// principal makes a token that can do more than its own.
pub(crate) fn allows(role: Role, scope: &TenantPath, action: Action, tenant: &TenantPath) -> bool {
    use Action::{
        Bill, Fence, Join, Lease, Preempt, See, SeeAudit, SeeFleet, SeeMetrics, SeeTokens, SetDefault,
        SetPool, SetPrice, SetQuota, Token, Webhook,
    };
    if role == Role::Platform && scope.is_root() {
        return action != Join;
    }
    if action == SeeFleet {
        return role != Role::Node;
    }
    // Metrics name all tenants: a token for a part of the tree sees none of them.
    if !scope.contains(tenant) || action == SeeMetrics && !scope.is_root() {
        return false;
    }
    match role {
        Role::Platform => false, // of a part of the tree there is none
        Role::Provider => {
            let own =
                matches!(action, See | SetPrice | SetPool | Fence | Bill | SeeTokens | SeeMetrics | Webhook);
            own || action == Token(Role::Node)
        }
        Role::TenantAdmin => match action {
            See | Lease | Preempt | SeeTokens | SeeAudit | SetDefault | Webhook => true,
            Token(role) => matches!(role, Role::TenantAdmin | Role::Member | Role::Viewer),
            SetQuota => tenant != scope,
            _ => false,
        },
        Role::Member => matches!(action, See | Lease),
        Role::Viewer => matches!(action, See | SeeMetrics),
        Role::Auditor => matches!(action, See | SeeTokens | SeeAudit | SeeMetrics),
        Role::Node => matches!(action, Join),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIONS: [Action; 18] = [
        Action::SeeFleet,
        Action::See,
        Action::Lease,
        Action::Preempt,
        Action::SetQuota,
        Action::SetPrice,
        Action::SetPool,
        Action::Fence,
        Action::Bill,
        Action::Token(Role::Member),
        Action::Token(Role::Platform),
        Action::SeeTokens,
        Action::SetDefault,
        Action::Webhook,
        Action::SetIdentity,
        Action::SeeAudit,
        Action::SeeMetrics,
        Action::Join,
    ];

    fn path(text: &str) -> TenantPath {
        text.parse().unwrap()
    }

    /// The names of the allowed actions.
    fn row(role: Role, scope: &str, tenant: &str) -> String {
        let names = [
            "fleet", "see", "lease", "preempt", "quota", "price", "pool", "fence", "bill", "member",
            "platform", "tokens", "default", "webhook", "identity", "audit", "metrics", "join",
        ];
        let allowed = |(action, name): (&Action, &str)| {
            allows(role, &path(scope), *action, &path(tenant)).then(|| name.to_owned())
        };
        ACTIONS.iter().zip(names).filter_map(allowed).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_role_at_home() {
        let check = |role, expect| assert_eq!(row(role, "acme", "acme/research"), expect, "{role:?}");
        check(Role::TenantAdmin, "fleet see lease preempt quota member tokens default webhook audit");
        check(Role::Member, "fleet see lease");
        check(Role::Viewer, "fleet see");
        check(Role::Auditor, "fleet see tokens audit");
        check(Role::Provider, "fleet see price pool fence bill tokens webhook");
        for role in Role::ALL {
            let is_operators = matches!(role, Role::Platform | Role::Provider | Role::Auditor | Role::Viewer);
            assert_eq!(allows(role, &path("/"), Action::SeeMetrics, &path("/")), is_operators, "{role:?}");
            assert!(!allows(role, &path("acme"), Action::SeeMetrics, &path("/")), "{role:?}");
        }
        check(Role::Node, "join");
        check(Role::Platform, "fleet");
        assert_eq!(
            row(Role::Platform, "/", "acme"),
            "fleet see lease preempt quota price pool fence bill member platform tokens default webhook identity audit metrics"
        );
    }

    #[test]
    fn nobody_acts_for_a_foreign_tenant() {
        for role in Role::ALL {
            for tenant in ["other", "acme2", "/"] {
                let seen = row(role, "acme", tenant);
                assert!(seen.is_empty() || seen == "fleet", "{role:?} on {tenant}: {seen}");
            }
        }
    }

    #[test]
    fn an_administrator_does_not_raise_its_own_quota() {
        assert!(!allows(Role::TenantAdmin, &path("acme"), Action::SetQuota, &path("acme")));
        assert!(allows(Role::TenantAdmin, &path("acme"), Action::SetQuota, &path("acme/a")));
    }
}
