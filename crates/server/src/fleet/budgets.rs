//! Budgets, what of them is spent, and which marks that has passed.

use std::collections::BTreeMap;

use sluice_api::bill::{Budget, BudgetEnd, BudgetStatus, TightestBudget};
use sluice_api::tenant::{Tenant, TenantPath};

/// Percent at which it is said how far a budget is spent; the last is the end.
const MARKS: [u64; 4] = [50, 80, 95, 100];

/// What was spent in the period that began at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) period_from_ms: u64,
    pub(crate) micro: u64,
}

/// A mark that a budget has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) tenant: TenantPath,
    pub(crate) mark_percent: u64,
    pub(crate) status: BudgetStatus,
}

#[derive(Debug, Default)]
pub(crate) struct Budgets {
    entries: BTreeMap<TenantPath, Entry>,
}

#[derive(Debug)]
struct Entry {
    budget: Budget,
    spent: Spent,
    /// The last mark that was passed in this period.
    mark_percent: u64,
}

impl Entry {
    fn new(budget: Budget) -> Entry {
        Entry { budget, spent: Spent::default(), mark_percent: 0 }
    }

    /// All of it, and that has consequences.
    fn is_spent(&self) -> bool {
        self.mark_percent >= 100 && self.budget.then != BudgetEnd::Warn
    }

    fn percent(&self) -> u64 {
        let percent = u128::from(self.spent.micro) * 100 / u128::from(self.budget.micro.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    fn status(&self) -> BudgetStatus {
        let (spent_micro, spent_percent) = (self.spent.micro, self.percent());
        BudgetStatus { budget: self.budget.clone(), spent_micro, spent_percent, currency: None }
    }
}

impl Budgets {
    pub(super) fn new(tenants: &[Tenant]) -> Budgets {
        let entry = |tenant: &Tenant| Some((tenant.path.clone(), Entry::new(tenant.budget.clone()?)));
        Budgets { entries: tenants.iter().filter_map(entry).collect() }
    }

    pub(super) fn set(&mut self, tenant: TenantPath, budget: Option<Budget>) -> Option<Budget> {
        let before = match budget {
            Some(budget) => self.entries.insert(tenant, Entry::new(budget)),
            None => self.entries.remove(&tenant),
        };
        before.map(|entry| entry.budget)
    }

    /// What was known to be spent of budgets that are still the same.
    pub(super) fn hear_as(&mut self, earlier: &Budgets) {
        for (tenant, entry) in &mut self.entries {
            if let Some(known) = earlier.entries.get(tenant).filter(|known| known.budget == entry.budget) {
                (entry.spent, entry.mark_percent) = (known.spent, known.mark_percent);
            }
        }
    }

    pub(super) fn set_spent(&mut self, spent: Vec<(TenantPath, Spent)>) -> Vec<Passed> {
        let mut passed = Vec::new();
        for (tenant, spent) in spent {
            let Some(entry) = self.entries.get_mut(&tenant) else { continue };
            let new_period = entry.spent.period_from_ms != spent.period_from_ms;
            let before = if new_period { 0 } else { entry.mark_percent };
            entry.spent = spent;
            let percent = entry.percent();
            entry.mark_percent = MARKS.into_iter().rfind(|&mark| percent >= mark).unwrap_or(0);
            if entry.mark_percent > before || (new_period && entry.mark_percent > 0) {
                let (mark_percent, status) = (entry.mark_percent, entry.status());
                passed.push(Passed { tenant, mark_percent, status });
            } else if entry.mark_percent < before || new_period {
                // What was held back for it may continue.
                passed.push(Passed { tenant, mark_percent: 0, status: entry.status() });
            }
        }
        passed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TenantPath, &Budget)> {
        self.entries.iter().map(|(tenant, entry)| (tenant, &entry.budget))
    }

    pub(crate) fn get(&self, tenant: &TenantPath) -> Option<&Budget> {
        self.entries.get(tenant).map(|entry| &entry.budget)
    }

    pub(crate) fn status(&self, tenant: &TenantPath) -> Option<BudgetStatus> {
        self.entries.get(tenant).map(Entry::status)
    }

    /// Of a tenant and those above it, the one that is spent the most.
    pub(crate) fn tightest(&self, tenant: &TenantPath, now_ms: u64) -> Option<TightestBudget> {
        let entries = tenant.lineage().filter_map(|above| self.entries.get(&above));
        let entry = entries.max_by_key(|entry| entry.percent())?;
        Some(TightestBudget {
            spent_percent: entry.percent(),
            then: entry.budget.then,
            until_ms: entry.budget.per.ends_ms(now_ms),
        })
    }

    /// The first budget, from the tenant upwards, that is spent and has consequences, with what
    /// these are.
    pub(crate) fn spent(&self, tenant: &TenantPath) -> Option<(TenantPath, BudgetEnd)> {
        tenant.lineage().find_map(|above| {
            let entry = self.entries.get(&above).filter(|entry| entry.is_spent())?;
            Some((above, entry.budget.then))
        })
    }

    /// When the last of those periods ends in which such a budget is spent; none if one is for
    /// ever.
    pub(crate) fn spent_until_ms(&self, tenant: &TenantPath, now_ms: u64) -> Option<u64> {
        let spent = |above| self.entries.get(&above).filter(|entry| entry.is_spent());
        let ends = tenant.lineage().filter_map(spent).map(|entry| entry.budget.per.ends_ms(now_ms));
        ends.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::bill::BudgetPeriod;

    use super::*;

    #[test]
    fn each_mark_is_passed_once_in_a_period() {
        let acme: TenantPath = "acme".parse().unwrap();
        let mut budgets = Budgets::default();
        budgets
            .set(acme.clone(), Some(Budget { micro: 1000, per: BudgetPeriod::Day, then: BudgetEnd::Hold }));
        let mut marks = |period_from_ms, micro| {
            let passed = budgets.set_spent(vec![(acme.clone(), Spent { period_from_ms, micro })]);
            let held = budgets.spent(&"acme/research".parse().unwrap()).is_some();
            (passed.iter().map(|passed| passed.mark_percent).collect::<Vec<_>>(), held)
        };
        assert_eq!(marks(0, 499), (vec![], false));
        assert_eq!(marks(0, 500), (vec![50], false));
        assert_eq!(marks(0, 799), (vec![], false));
        assert_eq!(marks(0, 800), (vec![80], false));
        assert_eq!(marks(0, 850), (vec![], false));
        assert_eq!(marks(0, 2000), (vec![100], true));
        assert_eq!(marks(0, 2001), (vec![], true));
        assert_eq!(marks(1, 0), (vec![0], false), "a new period has begun");
        assert_eq!(marks(1, 950), (vec![95], false));
    }

    #[test]
    fn the_tightest_budget_is_of_a_tenant_or_one_above_it() {
        const DAY_MS: u64 = 24 * 3_600_000;
        let mut budgets = Budgets::default();
        let [acme, research] = ["acme", "acme/research"].map(|path| path.parse::<TenantPath>().unwrap());
        let budget = |per, then| Some(Budget { micro: 1000, per, then });
        budgets.set(acme.clone(), budget(BudgetPeriod::Day, BudgetEnd::Hold));
        budgets.set(research.clone(), budget(BudgetPeriod::Ever, BudgetEnd::Warn));
        let spent = |tenant: &TenantPath, micro| (tenant.clone(), Spent { period_from_ms: 0, micro });
        budgets.set_spent(vec![spent(&acme, 830), spent(&research, 400)]);
        let tightest = |path: &str| budgets.tightest(&path.parse().unwrap(), 5);
        let above = TightestBudget { spent_percent: 83, then: BudgetEnd::Hold, until_ms: Some(DAY_MS) };
        assert_eq!((tightest("acme"), tightest("acme/sales")), (Some(above.clone()), Some(above)));
        assert_eq!(tightest("globex"), None);
        budgets.set_spent(vec![spent(&research, 900)]);
        let own = TightestBudget { spent_percent: 90, then: BudgetEnd::Warn, until_ms: None };
        assert_eq!(budgets.tightest(&research, 5), Some(own));
    }

    #[test]
    fn what_is_spent_is_known_after_the_database_was_read_again() {
        let tenant = |path: &str, micro| Tenant {
            path: path.parse().unwrap(),
            quota: Default::default(),
            budget: Some(Budget { micro, per: BudgetPeriod::Ever, then: BudgetEnd::Hold }),
            bill_to: None,
        };
        let mut earlier = Budgets::new(&[tenant("same", 10), tenant("raised", 10)]);
        let spent = Spent { period_from_ms: 0, micro: 10 };
        earlier.set_spent(vec![("same".parse().unwrap(), spent), ("raised".parse().unwrap(), spent)]);
        let mut now = Budgets::new(&[tenant("same", 10), tenant("raised", 20)]);
        now.hear_as(&earlier);
        assert!(now.spent(&"same".parse().unwrap()).is_some());
        assert!(now.spent(&"raised".parse().unwrap()).is_none());
        assert_eq!(now.set_spent(vec![("same".parse().unwrap(), spent)]), [], "it is not said again");
    }
}
