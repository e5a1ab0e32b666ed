//! Whose word counts.
//!
//! A tenant's own consent is the most that happens to its leases. Tenants above it and pools only
//! take away from that: what they have said is a bound, and what they have not said is none. So a
//! tenant cannot be made to take more than its own administrator has consented to, and an
//! administrator above it can stop everything below.

use std::collections::BTreeMap;

use sluice_api::autonomy::{Consent, FLOOR_PERCENT_USUAL, Mode, TenantAutonomy};
use sluice_api::pool::Pool;
use sluice_api::tenant::TenantPath;

/// The consents of tenants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    consents: BTreeMap<TenantPath, Consent>,
}

impl Rules {
    pub(crate) fn new(consents: BTreeMap<TenantPath, Consent>) -> Rules {
        Rules { consents }
    }

    pub(crate) fn get(&self, tenant: &TenantPath) -> Option<&Consent> {
        self.consents.get(tenant)
    }

    pub(crate) fn set(&mut self, consent: Consent) {
        self.consents.insert(consent.tenant.clone(), consent);
    }

    pub(crate) fn remove(&mut self, tenant: &TenantPath) {
        self.consents.remove(tenant);
    }

    /// The tenants that have said something.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &TenantPath> {
        self.consents.keys()
    }

    /// What is in force for a tenant, and whose word that is.
    pub(crate) fn in_force(&self, tenant: &TenantPath) -> TenantAutonomy {
        let consent = self.consents.get(tenant);
        let (mut mode, mut because) = match consent {
            Some(consent) => (consent.mode, format!("{tenant} has consented to it")),
            None => (Mode::default(), format!("{tenant} has said nothing")),
        };
        let above = tenant.lineage().skip(1).chain(Some(TenantPath::root()).filter(|_| !tenant.is_root()));
        for bound in above.filter_map(|above| self.consents.get(&above)) {
            if bound.mode < mode {
                (mode, because) = (bound.mode, format!("{} allows no more", bound.tenant));
            }
        }
        TenantAutonomy { tenant: tenant.clone(), consent: consent.cloned(), mode, because }
    }

    /// What is in force for leases of a tenant in these pools.
    pub(crate) fn mode_in<'a>(&self, tenant: &TenantPath, pools: impl Iterator<Item = &'a Pool>) -> Mode {
        let mode = self.in_force(tenant).mode;
        pools.filter_map(|pool| pool.autonomy).fold(mode, Mode::min)
    }

    /// The part of a share that a tenant's leases keep in any case, in millionths.
    pub(crate) fn floor_ppm(&self, tenant: &TenantPath, asked_ppm: u32) -> u32 {
        let percent = self.consents.get(tenant).map_or(FLOOR_PERCENT_USUAL, |consent| consent.floor_percent);
        (u64::from(asked_ppm) * u64::from(percent)).div_ceil(100) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TenantPath {
        text.parse().unwrap()
    }

    fn rules(said: &[(&str, Mode)]) -> Rules {
        let consent = |(tenant, mode): &(&str, Mode)| {
            (path(tenant), Consent { mode: *mode, ..Consent::unsaid(path(tenant)) })
        };
        Rules::new(said.iter().map(consent).collect())
    }

    fn pool(autonomy: Option<Mode>) -> Pool {
        Pool { autonomy, ..serde_json::from_value(serde_json::json!({ "name": "p" })).unwrap() }
    }

    #[test]
    fn a_child_gets_no_more_than_its_own_consent_and_no_more_than_those_above_allow() {
        let check = |said: &[(&str, Mode)], expect: Mode, whose: &str| {
            let found = rules(said).in_force(&path("acme/research"));
            assert_eq!(found.mode, expect, "{said:?}");
            assert!(found.because.contains(whose), "{found:?}");
        };
        let (acme, research) = ("acme", "acme/research");
        check(&[], Mode::Recommend, "has said nothing");
        check(&[(acme, Mode::Live), ("/", Mode::Live)], Mode::Recommend, "acme/research has said nothing");
        check(&[(research, Mode::Live)], Mode::Live, "acme/research has consented");
        check(&[(research, Mode::Live), (acme, Mode::NextRun)], Mode::NextRun, "acme allows");
        check(&[(research, Mode::Live), ("/", Mode::Off)], Mode::Off, "/ allows");
        check(&[(research, Mode::Off), (acme, Mode::Live)], Mode::Off, "acme/research has consented");
        check(&[(research, Mode::Live), ("acme/sales", Mode::Off)], Mode::Live, "acme/research");
    }

    #[test]
    fn pools_take_away_and_never_add() {
        let rules = rules(&[("acme", Mode::NextRun)]);
        let mode = |pools: &[Pool]| rules.mode_in(&path("acme"), pools.iter());
        assert_eq!(mode(&[]), Mode::NextRun);
        assert_eq!(mode(&[pool(Some(Mode::Live)), pool(None)]), Mode::NextRun);
        assert_eq!(mode(&[pool(Some(Mode::Live)), pool(Some(Mode::Off))]), Mode::Off);
    }

    #[test]
    fn a_floor_is_a_part_of_what_was_asked_for() {
        let mut rules = rules(&[]);
        assert_eq!(rules.floor_ppm(&path("acme"), 1_000_000), 250_000);
        rules.set(Consent { floor_percent: 60, ..Consent::unsaid(path("acme")) });
        assert_eq!(rules.floor_ppm(&path("acme"), 500_001), 300_001);
    }
}
