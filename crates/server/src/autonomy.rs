//! What the server changes about leases by itself, and who lets it.
//!
//! ```text
//!  a run ends ──▶ its usage ──▶ programs: the size of next runs ──▶ a lease that states no size
//!                                   ▲ consent of the tenant,
//!                                   │ bounds of tenants above it and of pools
//!  undo by a person ────────────────┴──▶ left alone
//! ```
//! Of all words that count for a lease the most cautious one is in force ([`Rules`]). Whatever is
//! changed is on the lease and in the audit log with its reason.

mod idle;
mod live;
mod programs;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::autonomy::{LeftAlone, Mode, ProgramName};
use sluice_api::lease::{LeaseId, NewLease};
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;

pub(crate) use idle::{IdleState, IdleStep, Now, Seen};
pub(crate) use live::{LiveLease, Measured};
pub(crate) use programs::{DatedRun, SizedProgram};
pub(crate) use rules::Rules;

use crate::fleet::Fleet;
use crate::store::{Store, StoreError};

/// What is kept of programs and of their tenants' consent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Autonomy {
    pub(crate) rules: Rules,
    pub(crate) left_alone: BTreeMap<ProgramName, LeftAlone>,
    /// What the next runs of programs get.
    pub(crate) sizes: BTreeMap<ProgramName, SizedProgram>,
    /// Tenants of which a run has ended since their programs were looked at; not stored.
    pub(crate) ended: BTreeSet<TenantPath>,
    /// What running leases have used of late, of tenants that let them be resized; not stored.
    measured: BTreeMap<LeaseId, Vec<Measured>>,
    /// Those among them of which something is new.
    measured_now: BTreeSet<LeaseId>,
}

impl Autonomy {
    pub(crate) async fn read(store: &Store) -> Result<Autonomy, StoreError> {
        let consents = store.consents().await?.into_iter();
        let rules = Rules::new(consents.map(|consent| (consent.tenant.clone(), consent)).collect());
        let left_alone = store.left_alone().await?.into_iter();
        let name =
            |left: &LeftAlone| ProgramName { tenant: left.tenant.clone(), program: left.program.clone() };
        Ok(Autonomy {
            // Runs may have ended before this server was there to see it.
            ended: rules.tenants().cloned().collect(),
            rules,
            left_alone: left_alone.map(|left| (name(&left), left)).collect(),
            sizes: store.program_sizes().await?.into_iter().collect(),
            measured: BTreeMap::new(),
            measured_now: BTreeSet::new(),
        })
    }

    /// Takes over what an earlier copy knew that is not stored.
    pub(crate) fn know_as(&mut self, earlier: &mut Autonomy) {
        self.ended = std::mem::take(&mut earlier.ended);
        self.measured = std::mem::take(&mut earlier.measured);
        self.measured_now = std::mem::take(&mut earlier.measured_now);
    }

    /// A usage record of a lease was counted.
    pub(crate) fn count(&mut self, record: &UsageRecord) {
        if record.last {
            self.ended.insert(record.tenant.clone());
            self.forget_measured(record.lease);
        } else if self.rules.in_force(&record.tenant).mode == Mode::Live
            && let Some(measured) = Measured::of(record)
        {
            measured.add_to(self.measured.entry(record.lease).or_default());
            self.measured_now.insert(record.lease);
        }
    }

    pub(crate) fn take_measured(&mut self) -> BTreeSet<LeaseId> {
        std::mem::take(&mut self.measured_now)
    }

    pub(crate) fn measured(&self, lease: LeaseId) -> &[Measured] {
        self.measured.get(&lease).map_or(&[], Vec::as_slice)
    }

    /// Forgets what leases used that are not `kept`.
    pub(crate) fn forget_measured_but(&mut self, kept: impl Fn(LeaseId) -> bool) {
        self.measured.retain(|&lease, _| kept(lease));
    }

    pub(crate) fn forget_measured(&mut self, lease: LeaseId) {
        self.measured.remove(&lease);
        self.measured_now.remove(&lease);
    }

    /// What a request gets instead of the size that it does not state, with the floor that its
    /// tenant keeps; none where it gets what it asks for.
    pub(crate) fn size_for(
        &self,
        fleet: &Fleet,
        tenant: &TenantPath,
        ask: &NewLease,
    ) -> Option<(u32, &SizedProgram)> {
        if !ask.use_default || ask.as_asked || ask.units_milli.is_some() || ask.name.is_empty() {
            return None;
        }
        let name = ProgramName { tenant: tenant.clone(), program: ask.name.clone() };
        let pool = ask.pool.iter().filter_map(|name| fleet.pools().get(name));
        if self.left_alone.contains_key(&name) || self.rules.mode_in(tenant, pool) < Mode::NextRun {
            return None;
        }
        // One that was learned from runs with another share says nothing of this request.
        let size = self.sizes.get(&name).filter(|size| size.live.asked_share_ppm == ask.share_ppm)?;
        let share_ppm = size.live.share_ppm.max(self.rules.floor_ppm(tenant, ask.share_ppm));
        let is_less = share_ppm < ask.share_ppm || size.live.memory < size.live.asked_memory;
        is_less.then_some((share_ppm.min(ask.share_ppm), size))
    }
}
