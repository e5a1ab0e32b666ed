//! Leases that get more or less of their GPUs while their programs run, or are suspended: that is a
//! size without compute.
//!
//! ```text
//!                      room                  its node has taken it
//!  asked ──▶ Waiting ───────▶ Sent ─────────────────────────────────▶ the new size
//!     │                        ▲ │   its node refuses: programs hold more memory
//!     └──── room at once ──────┘ └──────────────────────────────────▶ Refused: the old size
//! ```
//! While a change is sent, the lease counts as the larger of both sizes in each amount: what it
//! gives up is lent to others only when its node has said that it has no more, and what it gets is
//! not lent to others from the moment in which the node may give it. The node is notified by a
//! grant with a higher version, which it checks alone, again and again until a report says what
//! became of it.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_api::GPU_PPM;
use sluice_api::grant::Grant;
use sluice_api::lease::{LeaseId, LeaseState, ResizeLease, ResizeState, Resizing};
use sluice_api::node::{NodeId, Resized, VacatedLease};
use sluice_api::tenant::TenantPath;

use super::lease::{SeatResize, Size, Stage};
use super::{Fleet, LeaseRecord, Seat, Taken, WHY_MAX, printable};

/// A grant that resizes is signed anew for every report; a node need not take one that is older.
pub(super) const GRANT_MS: u64 = 60_000;

/// Why a lease is not resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoResize {
    /// It could be when others have given room back.
    NoRoom(String),
    /// Waiting would not help.
    Never(String),
}

impl Fleet {
    /// What a lease would have after a change, on all its GPUs. A refusal says what speaks against
    /// asking for it at all.
    pub(crate) fn resized(&self, id: LeaseId, resize: &ResizeLease) -> Result<Size, NoResize> {
        let never = |reason: String| Err(NoResize::Never(reason));
        let Some(lease) = self.leases.get(&id) else { return never(format!("there is no lease {id}")) };
        let state = lease.state;
        let seats = || lease.held().map(|(_, seat)| seat);
        if state != LeaseState::Running || !seats().all(|seat| seat.claimed && seat.stays()) {
            return never(format!(
                "lease {id} is {}; only a lease whose programs run, and which does not have to make room, can be resized",
                state.name()
            ));
        }
        if lease.ask.units_milli.is_some() {
            return never(format!("lease {id} was asked for in units; only a share can be changed"));
        }
        if seats().any(|seat| seat.target().is_some()) {
            return never(format!("lease {id} is moving to another node; ask again when it is there"));
        }
        if seats().any(is_sent) {
            return never(format!(
                "lease {id} is being resized already; ask again when that has come to its end"
            ));
        }
        let Some(first) = seats().next() else { return never(format!("lease {id} has no GPU any more")) };
        let mut to = lease.asked_size(first).resized(resize);
        if !(1..=GPU_PPM).contains(&to.share_ppm) {
            return never(format!("a share is 1 to {GPU_PPM} (a whole GPU), not {}", to.share_ppm));
        }
        if !(to.share_ppm..=GPU_PPM).contains(&to.limit_ppm) {
            let (share, limit) = (percent(to.share_ppm.into()), percent(to.limit_ppm.into()));
            return never(format!(
                "a limit of compute is not below the share ({share} %), and this one is {limit} %"
            ));
        }
        let limit_ppm = first.limit_of_tier(to.share_ppm);
        if resize.limit_ppm.is_some_and(|asked| asked > limit_ppm) {
            let (tier, limit) = (lease.ask.tier.name(), percent(limit_ppm.into()));
            return never(format!("the tier {tier} has no more than {limit} % of a GPU in this pool"));
        }
        to.limit_ppm = to.limit_ppm.min(limit_ppm);
        if to.memory == 0 {
            return never("a lease has some memory".into());
        }
        Ok(to)
    }

    /// What is in the way of a lease that is to have this much, as far as GPUs, quotas and budgets
    /// go.
    pub(crate) fn no_room_to_resize(&self, id: LeaseId, to: Size, now_ms: u64) -> Option<NoResize> {
        let lease = self.leases.get(&id)?;
        let grows = |seat: &Seat| {
            let from = lease.size(seat);
            to.held_ppm() > from.held_ppm()
                || to.memory > from.memory
                || seat.memory_held_as(to) > seat.held_memory()
        };
        if !lease.held().any(|(_, seat)| grows(seat)) {
            return None;
        }
        if let Some((tenant, _)) = self.budgets.spent(&lease.tenant) {
            return Some(NoResize::NoRoom(format!("{tenant} has spent what it may in this period")));
        }
        let on_gpus = lease.held().find_map(|(_, seat)| self.no_room_on(lease, seat, to, now_ms));
        on_gpus.or_else(|| lease.tenant.lineage().find_map(|tenant| self.over_quota(lease, &tenant, to)))
    }

    fn no_room_on(&self, lease: &LeaseRecord, seat: &Seat, to: Size, now_ms: u64) -> Option<NoResize> {
        let node = self.nodes.get(&seat.node)?;
        if !self.is_online(node, now_ms) {
            return Some(NoResize::NoRoom(format!("its node {} does not report now", node.name)));
        }
        let own = lease.size(seat);
        seat.gpus.iter().find_map(|&gpu| {
            let taken = self.taken(seat.node, gpu);
            let others_ppm = taken.ppm - u64::from(own.held_ppm());
            let fixed = lease.is_fixed_at(seat);
            let (has_memory, memory) = (seat.held_memory(), seat.memory_held_as(to));
            let others = Taken {
                memory: taken.memory - has_memory,
                fixed_memory: taken.fixed_memory - if fixed { has_memory } else { 0 },
                ..taken
            };
            let has_whole = taken.whole > u32::from(own.held_ppm() == GPU_PPM);
            let alone = to.held_ppm() == GPU_PPM || has_whole;
            let promised_ppm = if alone { GPU_PPM } else { self.promised_ppm(node, gpu) };
            let free_ppm = u64::from(promised_ppm).saturating_sub(others_ppm);
            let all_memory = node.gpus.get(gpu as usize).map_or(0, |gpu| gpu.memory);
            if to.memory > all_memory {
                let detail = format!("GPU {}/{gpu} has {} MiB of memory", node.name, all_memory >> 20);
                return Some(NoResize::Never(detail));
            }
            let free_memory = self.free_memory(node, gpu, &others, fixed).largest;
            let is_over = u64::from(to.held_ppm()) > free_ppm && to.held_ppm() > own.held_ppm()
                || memory > free_memory && memory > has_memory;
            is_over.then(|| {
                NoResize::NoRoom(format!(
                    "beside the other leases on GPU {}/{gpu} it can have up to {} % of the compute and {} MiB of memory",
                    node.name,
                    percent(free_ppm),
                    free_memory >> 20
                ))
            })
        })
    }

    /// The first quota of a tenant that it would pass.
    fn over_quota(&self, lease: &LeaseRecord, tenant: &TenantPath, to: Size) -> Option<NoResize> {
        let quota = self.tenants.get(tenant)?;
        let holding = self.holding(tenant);
        let before = Amounts::of(self, lease, |seat| (lease.size(seat).held_ppm(), seat.held_memory()));
        let after = Amounts::of(self, lease, |seat| (to.held_ppm(), seat.memory_held_as(to)));
        let gpus = |ppm: u64| ppm as f64 / f64::from(GPU_PPM);
        let limit = quota.limit_milli.map(|milli| u64::from(milli) * 1000);
        let held = holding.ppm - before.ppm + after.ppm;
        if let Some(limit) = limit.filter(|&limit| held > limit && after.ppm > before.ppm) {
            return Some(NoResize::NoRoom(format!(
                "with that {tenant} would hold {} GPUs, and it may hold {}",
                gpus(held),
                gpus(limit)
            )));
        }
        let held = (holding.memory - before.memory + after.memory).div_ceil(1 << 20);
        if let Some(limit) =
            quota.memory_limit_mib.filter(|&limit| held > limit && after.memory > before.memory)
        {
            return Some(NoResize::NoRoom(format!(
                "with that {tenant} would hold {held} MiB of GPU memory, and it may hold {limit} MiB"
            )));
        }
        if let Some(limit) = quota.units_limit_milli.filter(|_| after.units_milli > before.units_milli) {
            let held = self.held_units_milli().get(tenant).copied().unwrap_or(0);
            let held = held.saturating_sub(before.units_milli) + after.units_milli;
            if held > limit {
                let [held, limit] = [held, limit].map(|milli| milli as f64 / 1000.0);
                return Some(NoResize::NoRoom(format!(
                    "with that {tenant} would hold {held} units, and it may hold {limit}"
                )));
            }
        }
        self.over_guarantee(lease, tenant, &before, &after)
    }

    /// What may not be preempted gets what its tenants are guaranteed, and no more.
    fn over_guarantee(
        &self,
        lease: &LeaseRecord,
        tenant: &TenantPath,
        before: &Amounts,
        after: &Amounts,
    ) -> Option<NoResize> {
        if lease.is_preemptible() || after.ppm <= before.ppm {
            return None;
        }
        let guaranteed = u64::from(self.tenants.get(tenant)?.guaranteed_milli) * 1000;
        let is_fixed =
            |other: &&LeaseRecord| other.holds() && !other.is_preemptible() && tenant.contains(&other.tenant);
        let fixed: u64 = self.leases.values().filter(is_fixed).map(LeaseRecord::ppm).sum();
        let held = fixed - before.ppm.min(fixed) + after.ppm;
        (held > guaranteed).then(|| {
            let gpus = |ppm: u64| ppm as f64 / f64::from(GPU_PPM);
            NoResize::NoRoom(format!(
                "it may not be preempted, so it gets guaranteed GPUs only: with that {tenant} would hold {} of those, and it \
                 has {}",
                gpus(held),
                gpus(guaranteed)
            ))
        })
    }

    /// Has its nodes change what a lease has. There is room.
    pub(crate) fn send_resize(&mut self, id: LeaseId, to: Size) {
        self.tell(id, "lease.resizing", detail_of(to));
        self.change(id, |lease| {
            let sizes: Vec<Size> = lease.seats.iter().map(|seat| lease.size(seat)).collect();
            for (seat, from) in lease.seats.iter_mut().zip(sizes).filter(|(seat, _)| !seat.over) {
                seat.share_ppm = Some(from.held_ppm().max(to.held_ppm()));
                seat.memory = from.memory.max(to.memory);
                // One that is resumed needs room for what it is to have, whatever it had before.
                seat.vacated =
                    seat.vacated.map(|stays| if to.suspended { stays } else { stays.max(to.memory) });
                seat.version += 1;
                seat.resizing = Some(SeatResize { from, to, stage: Stage::Sent });
            }
            set_asked(lease, to);
        });
    }

    /// Has a change wait until there is room.
    pub(crate) fn wait_to_resize(&mut self, id: LeaseId, to: Size, reason: String) {
        let waits = |seat: &Seat| {
            matches!(&seat.resizing, Some(SeatResize { to: known, stage: Stage::Waiting { reason: why }, .. })
                if *known == to && *why == reason)
        };
        if self.leases.get(&id).is_some_and(|lease| lease.held().all(|(_, seat)| waits(seat))) {
            return;
        }
        self.change(id, |lease| {
            let sizes: Vec<Size> = lease.seats.iter().map(|seat| lease.size(seat)).collect();
            for (seat, from) in lease.seats.iter_mut().zip(sizes).filter(|(seat, _)| !seat.over) {
                let stage = Stage::Waiting { reason: reason.clone() };
                seat.resizing = Some(SeatResize { from, to, stage });
            }
        });
    }

    /// Running leases that wait for room to be resized, and to what; the first that asked for a
    /// lease is the first.
    pub(crate) fn waiting_resizes(&self) -> Vec<(LeaseId, Size)> {
        let waits = |lease: &LeaseRecord| {
            let mut seats = lease.held().map(|(_, seat)| seat);
            let resize = seats.next()?.resizing.as_ref()?;
            let is_still = lease.held().all(|(_, seat)| seat.target().is_none());
            let waits = lease.state == LeaseState::Running && matches!(resize.stage, Stage::Waiting { .. });
            let waits = waits && is_still;
            waits.then_some((lease.id, resize.to))
        };
        self.leases.values().filter_map(waits).collect()
    }

    /// Takes over what a node says of the grants that resize leases there.
    pub(super) fn settle_resizes(&mut self, node: NodeId, resized: &[Resized]) {
        let said: BTreeMap<_, _> = resized.iter().map(|resized| (resized.attempt, resized)).collect();
        for id in self.account.on_node(node) {
            let Some(lease) = self.leases.get(&id) else { continue };
            let settled: Vec<(usize, Option<String>)> = (0..)
                .zip(&lease.seats)
                .filter(|(_, seat)| seat.node == node && is_sent(seat))
                .filter_map(|(task, seat)| {
                    let said = said.get(&lease.attempt_of(task))?;
                    (said.version == seat.version).then(|| (task, said.refused.clone()))
                })
                .collect();
            for (task, refused) in settled {
                self.settle_resize(id, task, refused);
            }
        }
    }

    fn settle_resize(&mut self, id: LeaseId, task: usize, refused: Option<String>) {
        let Some(resize) = self.leases.get(&id).and_then(|lease| lease.seats.get(task)?.resizing.clone())
        else {
            return;
        };
        let refused = refused.map(|text| text.chars().map(printable).take(WHY_MAX).collect::<String>());
        let mut detail = detail_of(resize.to);
        detail["tasks"] = json!([task]);
        if let Some(reason) = &refused {
            detail["reason"] = reason.as_str().into();
        }
        self.tell(id, if refused.is_some() { "lease.resize_refused" } else { "lease.resized" }, detail);
        self.change(id, |lease| {
            let has = if refused.is_some() { resize.from } else { resize.to };
            if refused.is_some() {
                set_asked(lease, resize.from);
            }
            let Some(seat) = lease.seats.get_mut(task) else { return };
            (seat.share_ppm, seat.memory) = (Some(has.held_ppm()), has.memory);
            seat.suspended = has.suspended;
            seat.vacated = seat.vacated.filter(|_| has.suspended);
            seat.resizing = refused.map(|reason| SeatResize { stage: Stage::Refused { reason }, ..resize });
        });
    }

    /// Takes over which suspended leases have left a node's GPUs: others can have the memory.
    pub(super) fn settle_vacated(&mut self, node: NodeId, vacated: &[VacatedLease]) {
        let stays: BTreeMap<_, _> = vacated.iter().map(|vacated| (vacated.attempt, vacated.stays)).collect();
        for id in self.account.on_node(node) {
            let Some(lease) = self.leases.get(&id) else { continue };
            let said = |(task, seat): (usize, &Seat)| {
                let said = stays.get(&lease.attempt_of(task)).copied();
                // The node may have said it before it knew that the lease is to come back.
                let said = if is_resumed(seat) { seat.vacated } else { said };
                (task, said.filter(|_| seat.suspended))
            };
            let here = (0..).zip(&lease.seats).filter(|(_, seat)| seat.node == node && !seat.over);
            let news = here.filter(|&(task, seat)| said((task, seat)).1 != seat.vacated);
            let news: Vec<(usize, Option<u64>)> = news.map(said).collect();
            if news.is_empty() {
                continue;
            }
            self.change(id, |lease| {
                for (task, stays) in news {
                    if let Some(seat) = lease.seats.get_mut(task) {
                        seat.vacated = stays;
                    }
                }
            });
        }
    }

    /// The grants that resize leases of a node, until it has said what became of them.
    pub(crate) fn resizing_grants(&self, node: NodeId, now_ms: u64) -> Vec<Grant> {
        let leases = self.account.on_node(node).into_iter().filter_map(|id| self.leases.get(&id));
        leases
            .flat_map(|lease| self.resizing_grants_of(lease, now_ms))
            .filter(|grant| grant.node == node)
            .collect()
    }

    /// Returns the grants that resize one lease.
    pub(crate) fn resizing_grants_of(&self, lease: &LeaseRecord, now_ms: u64) -> Vec<Grant> {
        let grant = |(task, seat): (u32, &Seat)| {
            let to = seat.resizing.as_ref().filter(|resize| resize.stage == Stage::Sent)?.to;
            let grant = Grant { version: seat.version, ..self.grant_of(lease, task, seat) };
            Some(Grant { expires_at_ms: now_ms + GRANT_MS, ..sized(grant, to) })
        };
        lease.held().filter_map(grant).collect()
    }
}

/// A grant of this size.
pub(super) fn sized(grant: Grant, size: Size) -> Grant {
    let Size { share_ppm, limit_ppm, memory, suspended } = size;
    let hard_cap = limit_ppm == share_ppm && limit_ppm < GPU_PPM;
    let limit_ppm = (!hard_cap && limit_ppm < GPU_PPM).then_some(limit_ppm);
    Grant { share_ppm, memory, hard_cap, limit_ppm, suspended, ..grant }
}

/// A change of a lease as users see it: that of the first task that is not done with it.
pub(super) fn view(lease: &LeaseRecord) -> Option<Resizing> {
    let of_seat = |seat: &Seat| {
        let SeatResize { to, stage, .. } = seat.resizing.as_ref()?;
        let (state, reason) = match stage {
            Stage::Waiting { reason } => (ResizeState::Waiting, Some(reason.clone())),
            Stage::Sent => (ResizeState::Sent, None),
            Stage::Refused { reason } => (ResizeState::Refused, Some(reason.clone())),
        };
        let &Size { share_ppm, limit_ppm, memory, suspended } = to;
        Some(Resizing { state, share_ppm, limit_ppm, memory, suspended, reason })
    };
    let changes: Vec<Resizing> = lease.held().filter_map(|(_, seat)| of_seat(seat)).collect();
    let under_way = changes.iter().find(|resizing| resizing.state != ResizeState::Refused);
    under_way.or(changes.first()).cloned()
}

fn is_sent(seat: &Seat) -> bool {
    seat.resizing.as_ref().is_some_and(|resize| resize.stage == Stage::Sent)
}

/// Its node has been sent that it is to come back.
fn is_resumed(seat: &Seat) -> bool {
    let resumes = |resize: &SeatResize| resize.stage == Stage::Sent && !resize.to.suspended;
    seat.resizing.as_ref().is_some_and(resumes)
}

/// What it is to have should it be queued again, or get further tasks.
fn set_asked(lease: &mut LeaseRecord, size: Size) {
    lease.ask.share_ppm = size.share_ppm;
    lease.ask.memory = size.memory;
    let of_tier = lease.held().map(|(_, seat)| seat.limit_of_tier(size.share_ppm)).min();
    let asked_ppm = if lease.ask.hard_cap { size.share_ppm } else { lease.ask.limit_ppm() };
    // A limit that its tier sets in this pool is not one that it has asked for.
    if asked_ppm.min(of_tier.unwrap_or(GPU_PPM)) == size.limit_ppm {
        return;
    }
    lease.ask.hard_cap = size.limit_ppm == size.share_ppm && size.limit_ppm < GPU_PPM;
    let is_limit = !lease.ask.hard_cap && size.limit_ppm < GPU_PPM;
    lease.ask.limit_ppm = is_limit.then_some(size.limit_ppm);
}

fn detail_of(to: Size) -> serde_json::Value {
    let Size { share_ppm, limit_ppm, memory, suspended } = to;
    json!({ "share_ppm": share_ppm, "limit_ppm": limit_ppm, "memory": memory, "suspended": suspended })
}

fn percent(ppm: u64) -> f64 {
    ppm as f64 / f64::from(GPU_PPM / 100)
}

/// What a lease holds of all its GPUs.
struct Amounts {
    ppm: u64,
    memory: u64,
    units_milli: u64,
}

impl Amounts {
    /// With these millionths and bytes of each GPU of each of its seats.
    fn of(fleet: &Fleet, lease: &LeaseRecord, held: impl Fn(&Seat) -> (u32, u64)) -> Amounts {
        let mut amounts = Amounts { ppm: 0, memory: 0, units_milli: 0 };
        for (_, seat) in lease.held() {
            let (share_ppm, memory) = held(seat);
            let gpus = fleet.nodes.get(&seat.node).map_or(&[][..], |node| &node.gpus);
            for &gpu in &seat.gpus {
                amounts.ppm += u64::from(share_ppm);
                amounts.memory += memory;
                let gflops = gpus.get(gpu as usize).map_or(0, |gpu| gpu.gflops);
                amounts.units_milli += u64::from(share_ppm) * gflops / u64::from(GPU_PPM);
            }
        }
        amounts
    }
}
