//! Tenants with their quotas, and sums of what is guaranteed, kept up to date with every change.
//!
//! A guarantee covers what is guaranteed below it, so a change of one quota changes sums along the
//! path to the root and nowhere else: whether a quota contradicts others is known without a look at
//! all tenants.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use sluice_api::tenant::{Quota, TenantPath};

/// Guaranteed thousandths of GPUs and of units, and MiB of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guarantee(pub(crate) [u64; 3]);

impl Guarantee {
    /// The fields of a quota, in the same order.
    pub(crate) const FIELDS: [&str; 3] =
        ["guaranteed_milli", "guaranteed_units_milli", "guaranteed_memory_mib"];

    fn of(quota: &Quota) -> Guarantee {
        Guarantee([quota.guaranteed_milli.into(), quota.guaranteed_units_milli, quota.guaranteed_memory_mib])
    }

    pub(crate) fn with(self, other: Guarantee, combine: fn(u64, u64) -> u64) -> Guarantee {
        Guarantee(std::array::from_fn(|i| combine(self.0[i], other.0[i])))
    }
}

/// What is right below a tenant, or below the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Below {
    tenants: usize,
    guaranteed: Guarantee,
}

/// How many tenants have a quota of some kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Those that are guaranteed anything.
    guaranteed: usize,
    /// Those that are guaranteed some of each resource.
    guaranteed_of: [usize; 3],
    /// Those with a limit in units.
    units_limits: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenants {
    quotas: BTreeMap<TenantPath, Quota>,
    below: HashMap<TenantPath, Below>,
    /// Tenants of each tree below the root, by the path of its top.
    of_tree: HashMap<TenantPath, usize>,
    counts: Counts,
}

impl Tenants {
    pub(crate) fn len(&self) -> usize {
        self.quotas.len()
    }

    pub(crate) fn contains(&self, path: &TenantPath) -> bool {
        self.quotas.contains_key(path)
    }

    pub(crate) fn get(&self, path: &TenantPath) -> Option<&Quota> {
        self.quotas.get(path)
    }

    /// Counts the tenants of one tree, its top included.
    pub(crate) fn count_in_tree(&self, top: &TenantPath) -> usize {
        self.of_tree.get(top).copied().unwrap_or(0)
    }

    /// Lists a tenant and all below it in the order of their paths, or those after a path; of the
    /// root all tenants.
    pub(crate) fn within<'a>(
        &'a self,
        scope: &TenantPath,
        after: Option<&'a TenantPath>,
    ) -> impl Iterator<Item = (&'a TenantPath, &'a Quota)> + use<'a> {
        let own =
            self.quotas.get_key_value(scope).filter(|(path, _)| after.is_none_or(|after| *path > after));
        let (from, until) = match scope.is_root() {
            true => (Bound::Unbounded, Bound::Unbounded),
            // What is below begins with the path and a slash, and `0` is the character after the
            // slash.
            false => (Bound::Included(format!("{scope}/")), Bound::Excluded(format!("{scope}0"))),
        };
        let from = match (from, after) {
            (Bound::Included(from), Some(after)) if after.as_str() >= from.as_str() => {
                Bound::Excluded(after.as_str().to_owned())
            }
            (Bound::Unbounded, Some(after)) => Bound::Excluded(after.as_str().to_owned()),
            (from, _) => from,
        };
        let is_empty = match (&from, &until) {
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(until)) => from >= until,
            _ => false,
        };
        let below = (!is_empty).then(|| self.quotas.range::<str, _>((as_str(&from), as_str(&until))));
        own.into_iter().chain(below.into_iter().flatten())
    }

    /// Sets a quota, and creates the tenant if there is none; gives back the quota that it had.
    pub(crate) fn set(&mut self, path: TenantPath, quota: Quota) -> Option<Quota> {
        let before = self.all_of(&path);
        self.count(&quota, |count| *count += 1);
        let known = self.quotas.insert(path.clone(), quota);
        match &known {
            Some(known) => self.count(known, |count| *count -= 1),
            None => {
                self.below.entry(above(&path)).or_default().tenants += 1;
                *self.of_tree.entry(top(&path)).or_default() += 1;
            }
        }
        self.propagate(&path, before);
        known
    }

    /// Removes a tenant, which has none below it.
    pub(crate) fn remove(&mut self, path: &TenantPath) -> Option<Quota> {
        let before = self.all_of(path);
        let known = self.quotas.remove(path)?;
        self.count(&known, |count| *count -= 1);
        self.propagate(path, before);
        let above = above(path);
        if let Some(below) = self.below.get_mut(&above) {
            below.tenants -= 1;
            if *below == Below::default() {
                self.below.remove(&above);
            }
        }
        let top = top(path);
        if let Some(count) = self.of_tree.get_mut(&top) {
            *count -= 1;
            if *count == 0 {
                self.of_tree.remove(&top);
            }
        }
        Some(known)
    }

    /// Looks at what would be if these quotas were set; everything is as before afterwards.
    pub(crate) fn trying<T>(
        &mut self,
        quotas: impl IntoIterator<Item = (TenantPath, Quota)>,
        look: impl FnOnce(&Tenants) -> T,
    ) -> T {
        let mut undo = Vec::new();
        for (path, quota) in quotas {
            let known = self.set(path.clone(), quota);
            undo.push((path, known));
        }
        let seen = look(self);
        for (path, known) in undo.into_iter().rev() {
            match known {
                Some(known) => drop(self.set(path, known)),
                None => drop(self.remove(&path)),
            }
        }
        seen
    }

    /// Says what is guaranteed to a tenant and those below it.
    pub(crate) fn all_of(&self, path: &TenantPath) -> Guarantee {
        let own = self.quotas.get(path).map(Guarantee::of).unwrap_or_default();
        own.with(self.below_of(path).unwrap_or_default(), u64::max)
    }

    /// Says what is guaranteed to the tenants right below a tenant or the root; none where there
    /// are none.
    pub(crate) fn below_of(&self, path: &TenantPath) -> Option<Guarantee> {
        self.below.get(path).map(|below| below.guaranteed)
    }

    /// Says of which resources something is guaranteed to any tenant.
    pub(crate) fn guarantees(&self) -> [bool; 3] {
        self.counts.guaranteed_of.map(|count| count > 0)
    }

    pub(crate) fn have_units_limits(&self) -> bool {
        self.counts.units_limits > 0
    }

    /// Names the first tenant, by its path, that is guaranteed something, but nothing of what
    /// another is guaranteed: so its guarantee would be of nothing, since one is within all that is
    /// guaranteed to any tenant.
    pub(crate) fn incomplete(&self) -> Option<(&TenantPath, &'static str)> {
        // GPUs always count.
        let counts = |i: usize| i == 0 || self.counts.guaranteed_of[i] > 0;
        if !(0..3).any(|i| counts(i) && self.counts.guaranteed_of[i] < self.counts.guaranteed) {
            return None;
        }
        let lacks = |of: [u64; 3]| (0..3).find(|&i| counts(i) && of[i] == 0).map(|i| Guarantee::FIELDS[i]);
        let guarantees = self.quotas.iter().map(|(path, quota)| (path, Guarantee::of(quota).0));
        let mut guaranteed = guarantees.filter(|(_, of)| of.iter().any(|&amount| amount > 0));
        guaranteed.find_map(|(path, of)| Some((path, lacks(of)?)))
    }

    fn count(&mut self, quota: &Quota, change: impl Fn(&mut usize)) {
        let of = Guarantee::of(quota).0;
        if of.iter().any(|&amount| amount > 0) {
            change(&mut self.counts.guaranteed);
        }
        for (count, _) in self.counts.guaranteed_of.iter_mut().zip(of).filter(|(_, amount)| *amount > 0) {
            change(count);
        }
        if quota.units_limit_milli.is_some() {
            change(&mut self.counts.units_limits);
        }
    }

    /// Carries a change of what is guaranteed to a tenant, from `before` to what is now, up to the
    /// root.
    fn propagate(&mut self, path: &TenantPath, mut before: Guarantee) {
        let mut path = path.clone();
        while !path.is_root() {
            let now = self.all_of(&path);
            if now == before {
                return;
            }
            let parent = above(&path);
            let parent_before = self.all_of(&parent);
            let below = self.below.entry(parent.clone()).or_default();
            below.guaranteed =
                below.guaranteed.with(before, u64::saturating_sub).with(now, u64::saturating_add);
            if *below == Below::default() {
                self.below.remove(&parent);
            }
            (path, before) = (parent, parent_before);
        }
    }
}

impl FromIterator<(TenantPath, Quota)> for Tenants {
    fn from_iter<I: IntoIterator<Item = (TenantPath, Quota)>>(quotas: I) -> Tenants {
        let mut tenants = Tenants::default();
        for (path, quota) in quotas {
            tenants.set(path, quota);
        }
        tenants
    }
}

fn above(path: &TenantPath) -> TenantPath {
    path.parent().unwrap_or_else(TenantPath::root)
}

/// The tenant right below the root that a tenant is, or is below.
pub(crate) fn top(path: &TenantPath) -> TenantPath {
    path.lineage().last().unwrap_or_else(TenantPath::root)
}

fn as_str(bound: &Bound<String>) -> Bound<&str> {
    match bound {
        Bound::Included(text) => Bound::Included(text),
        Bound::Excluded(text) => Bound::Excluded(text),
        Bound::Unbounded => Bound::Unbounded,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> TenantPath {
        text.parse().unwrap()
    }

    fn quota(gpus: u32, units: u64) -> Quota {
        Quota { guaranteed_milli: gpus, guaranteed_units_milli: units, ..Quota::default() }
    }

    #[test]
    fn a_scope_is_a_tenant_and_all_below_it_and_no_other() {
        let names = ["acme", "acme-x", "acme.y", "acme/a", "acme/a/b", "acme/c", "acme0", "b"];
        let tenants: Tenants = names.iter().map(|name| (path(name), Quota::default())).collect();
        let within = |scope: &str, after: Option<&str>| -> Vec<String> {
            let after = after.map(path);
            tenants.within(&path(scope), after.as_ref()).map(|(path, _)| path.to_string()).collect()
        };
        assert_eq!(within("/", None), names);
        assert_eq!(within("/", Some("acme/a")), names[4..]);
        assert_eq!(within("acme", None), ["acme", "acme/a", "acme/a/b", "acme/c"]);
        assert_eq!(within("acme", Some("acme")), ["acme/a", "acme/a/b", "acme/c"]);
        assert_eq!(within("acme", Some("acme-x")), ["acme/a", "acme/a/b", "acme/c"]);
        assert_eq!(within("acme", Some("acme/a/b")), ["acme/c"]);
        assert_eq!(within("acme", Some("b")), Vec::<String>::new());
        assert_eq!(within("c", None), Vec::<String>::new());
    }

    #[test]
    fn a_guarantee_covers_what_is_below_it() {
        let mut tenants: Tenants = [("a", 5), ("a/b", 3), ("a/c", 4), ("a/c/d", 6)]
            .map(|(name, gpus)| (path(name), quota(gpus, 0)))
            .into_iter()
            .collect();
        let all = |tenants: &Tenants, name: &str| tenants.all_of(&path(name)).0[0];
        assert_eq!(["a", "a/b", "a/c", "a/c/d"].map(|name| all(&tenants, name)), [9, 3, 6, 6]);
        tenants.set(path("a/c/d"), quota(1, 0));
        assert_eq!(["a", "a/c"].map(|name| all(&tenants, name)), [7, 4]);
        tenants.remove(&path("a/c/d"));
        tenants.remove(&path("a/c"));
        assert_eq!((all(&tenants, "a"), tenants.count_in_tree(&path("a"))), (5, 2));
    }

    #[test]
    fn sums_are_as_if_all_had_been_set_at_once_and_a_trial_leaves_nothing() {
        let paths =
            || prop_oneof![Just("a"), Just("a/b"), Just("a/b/c"), Just("a/d"), Just("e"), Just("e/f")];
        let quotas =
            || (paths(), 0..4_u32, 0..3_u64).prop_map(|(name, gpus, units)| (path(name), quota(gpus, units)));
        let changes = proptest::collection::vec(quotas(), 0..20);
        proptest!(|(first in changes, tried in proptest::collection::vec(quotas(), 0..5))| {
            let mut tenants = Tenants::default();
            for (path, quota) in first {
                // As the API has it: parents are there first.
                for above in path.lineage().skip(1) {
                    if !tenants.contains(&above) {
                        tenants.set(above, Quota::default());
                    }
                }
                tenants.set(path, quota);
            }
            let anew: Tenants = tenants.quotas.clone().into_iter().collect();
            prop_assert_eq!(&tenants, &anew);
            let before = tenants.clone();
            tenants.trying(tried, |_| ());
            prop_assert_eq!(&tenants, &before);
        });
    }
}
