//! The sizes of programs' next runs, found anew when runs have ended.

use std::time::Duration;

use serde_json::json;
use sluice_api::autonomy::{Mode, ProgramName};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use tokio::time::Instant;

use super::{Books, Server};
use crate::auth::Principal;
use crate::autonomy::SizedProgram;
use crate::billing::Period;
use crate::recommendations;

/// The runs that are looked at ended in the last two weeks.
const HISTORY_MS: u64 = 14 * 24 * 3_600_000;
/// Of a tenant with many leases only those of a shorter time, and not of less than this.
const HISTORY_MS_MIN: u64 = 3_600_000;
/// Runs that end together are looked at together.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// A look is followed by a pause of this many times what it took, for the database has more to do.
const PAUSE: u32 = 20;
/// It is looked this often whether runs have ended, should it not be said.
const LOOK_EVERY: Duration = Duration::from_secs(60);

impl Server {
    /// Finds the sizes of the next runs of programs while this server leads; never returns.
    pub(crate) async fn follow_programs(&self) {
        loop {
            let _ = tokio::time::timeout(LOOK_EVERY, self.run_ended.notified()).await;
            let begun = Instant::now();
            if self.fence().is_some()
                && !self.disk.is_full()
                && let Err(problem) = self.size_programs().await
            {
                tracing::warn!("sizes of programs: {problem}");
            }
            tokio::time::sleep((begun.elapsed() * PAUSE).max(PAUSE_MIN)).await;
        }
    }

    async fn size_programs(&self) -> Result<(), Problem> {
        let consenting = |books: &mut Books, _| -> Vec<TenantPath> {
            let ended = std::mem::take(&mut books.autonomy.ended);
            let rules = &books.autonomy.rules;
            ended.into_iter().filter(|tenant| rules.in_force(tenant).mode >= Mode::NextRun).collect()
        };
        for tenant in self.hear(consenting).await? {
            // One tenant with too long a history is no reason to leave the others out.
            if let Err(problem) = self.size_programs_of(&tenant).await {
                tracing::warn!(%tenant, "sizes of programs of {tenant}: {problem}");
            }
        }
        Ok(())
    }

    async fn size_programs_of(&self, tenant: &TenantPath) -> Result<(), Problem> {
        let (now_ms, mut history_ms) = (self.now_ms(), HISTORY_MS);
        let looks_at = recommendations::looks_at(self).await?;
        let only_it = |of: &TenantPath, pool: &str| of == tenant && looks_at(of, pool);
        let programs = loop {
            let period = Period { from_ms: now_ms.saturating_sub(history_ms), until_ms: now_ms + 1 };
            match recommendations::programs(self, tenant, period, &only_it).await {
                // It is too much to look at: the latest part of it will do.
                Err(problem) if problem.is(Kind::Invalid) && history_ms > HISTORY_MS_MIN => history_ms /= 2,
                found => break found?,
            }
        };
        let mut change = self.change().await?;
        let mut is_new = false;
        for ((tenant, program), runs) in programs {
            let name = ProgramName { tenant, program };
            let autonomy = &change.books().autonomy;
            let is_let = autonomy.rules.in_force(&name.tenant).mode >= Mode::NextRun;
            if !is_let || autonomy.left_alone.contains_key(&name) {
                continue;
            }
            let before = autonomy.sizes.get(&name).cloned();
            let floor_percent = autonomy.rules.floor_ppm(&name.tenant, 100);
            let now_ms = change.now_ms;
            let Some(after) = SizedProgram::after(before.as_ref(), &runs, floor_percent, now_ms) else {
                continue;
            };
            let shown = after.shown(&name);
            let before = before.map(|before| before.shown(&name));
            let detail = json!({ "before": before, "after": shown, "reason": shown.why });
            change.audit(&Principal::server(), "program.sized", &name.program, detail);
            change.set_program_size(name, Some(after));
            is_new = true;
        }
        if is_new {
            return change.commit().await;
        }
        change.leave();
        Ok(())
    }
}
