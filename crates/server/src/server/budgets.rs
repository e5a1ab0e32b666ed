//! What is spent of budgets, added up from the ledger, and the marks that are passed.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_api::bill::{Bill, Budget, BudgetStatus, Currency};
use sluice_api::problem::Problem;
use sluice_api::tenant::TenantPath;

use super::{Books, Server, unwell};
use crate::auth::Principal;
use crate::billing::{self, Period};
use crate::fleet::{Fleet, Passed, Spent};

/// What is spent of budgets is added up this often.
const BUDGETS_EVERY: Duration = Duration::from_secs(5);
/// The pause between two sums is at least this many times as long as the last sum took.
const BUDGETS_PAUSE: u32 = 10;

impl Server {
    /// Says of every budget what is spent of it, from the ledger. All servers look, since all
    /// answer questions about it and any may lead next; the one that leads says in the audit log
    /// which marks were passed.
    pub(super) async fn look_at_budgets(&self) -> Result<(), Problem> {
        let budgets = |books: &Books, now_ms: u64| -> (u64, BTreeMap<TenantPath, Budget>) {
            let budgets = books.fleet.budgets().iter();
            (now_ms, budgets.map(|(tenant, budget)| (tenant.clone(), budget.clone())).collect())
        };
        let (now_ms, budgets) = self.read(budgets).await?;
        if budgets.is_empty() {
            return Ok(());
        }
        // One moment is the end of all periods, so that budgets of one kind are of one period.
        let period = |budget: &Budget| Period { from_ms: budget.per.began_ms(now_ms), until_ms: now_ms + 1 };
        let wanted = budgets.iter().map(|(tenant, budget)| (tenant.clone(), period(budget))).collect();
        let spent = |bill: Bill| {
            let micro = u64::try_from(bill.total_micro).unwrap_or(0);
            (bill.tenant, Spent { period_from_ms: bill.from_ms, micro })
        };
        let bills = billing::bills_of(&self.store, wanted).await.map_err(unwell)?;
        let spent: Vec<(TenantPath, Spent)> = bills.into_iter().map(spent).collect();
        // What is spent of a budget that was declared anew meanwhile may be of another period.
        let of_same = |fleet: &Fleet| -> Vec<(TenantPath, Spent)> {
            let same =
                |(tenant, _): &&(TenantPath, Spent)| fleet.budgets().get(tenant) == budgets.get(tenant);
            spent.iter().filter(same).cloned().collect()
        };
        if self.fence().is_none() {
            let take = |books: &mut Books, _| drop(books.fleet.set_spent(of_same(&books.fleet)));
            return self.hear(take).await;
        }
        let mut change = self.change().await?;
        let spent = of_same(change.fleet());
        let passed = change.fleet().set_spent(spent);
        if passed.is_empty() {
            change.leave();
            return Ok(());
        }
        let currency = change.books().seller.currency.clone();
        for Passed { tenant, status, .. } in passed.iter().filter(|passed| passed.mark_percent > 0) {
            tracing::info!(%tenant, "{}", spent_line(tenant, status, currency.as_ref()));
            change.audit(&Principal::server(), "budget.passed", tenant.as_str(), serde_json::json!(status));
        }
        change.wake();
        change.commit().await
    }

    /// Keeps up with what is spent of budgets, beside the scheduler: to add it up may take long.
    /// Never returns.
    pub(crate) async fn follow_budgets(&self) {
        let mut pause = BUDGETS_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let begun = tokio::time::Instant::now();
            let is_known = !self.disk.is_full() && self.say_what_is_spent().await;
            // The database has other things to do.
            pause = if is_known { BUDGETS_EVERY.max(begun.elapsed() * BUDGETS_PAUSE) } else { BUDGETS_EVERY };
        }
    }

    /// Whether it could be added up.
    pub(super) async fn say_what_is_spent(&self) -> bool {
        let looked = self.look_at_budgets().await;
        if let Err(problem) = &looked {
            tracing::warn!("budgets: {problem}");
        }
        looked.is_ok()
    }
}

/// `acme has spent 104 % of its budget (10.4 of 10 EUR)`
pub(super) fn spent_line(tenant: &TenantPath, status: &BudgetStatus, currency: Option<&Currency>) -> String {
    // In the currency's units, without digits that say nothing.
    let money = |micro: u64| {
        let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let (spent, of) = (money(status.spent_micro), money(status.budget.micro));
    let currency = currency.map_or_else(String::new, |currency| format!(" {currency}"));
    format!("{tenant} has spent {} % of its budget ({spent} of {of}{currency})", status.spent_percent)
}
