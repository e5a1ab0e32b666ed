//! What each queue uses and asks for, and the fair share that follows from it.

use std::cmp::Ordering;

use super::amounts::{Amounts, RESOURCES, Resource};
use super::decay::{DecayedUse, Millis};
use super::fair::{Claim, Division, divide};
use super::tree::{QueueId, QueueTree};

/// One queue's figures; those of a parent contain its children's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    pub(super) allocated: Amounts,
    /// The part of `allocated` that may not be evicted.
    pub(super) fixed: Amounts,
    /// Running and pending work that may be evicted, and that may not, submitted to this very
    /// queue.
    requested: Amounts,
    requested_fixed: Amounts,
    used: [DecayedUse; RESOURCES],
    pub(super) share: Amounts,
}

impl Account {
    pub(super) fn has_history(&self) -> bool {
        self.used.iter().any(|used| used.level() > 0)
    }
}

/// The accounts of all queues.
#[derive(Debug, Clone)]
pub(super) struct Accounts {
    accounts: Vec<Account>,
    stale: bool,
}

/// How full a queue is, compared with its fair share; of several resources the fullest counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saturation {
    used: u64,
    share: u64,
}

impl Accounts {
    pub(super) fn new(tree: &QueueTree) -> Accounts {
        Accounts { accounts: vec![Account::default(); tree.len()], stale: true }
    }

    /// Adds the account of a queue that was added to the tree; what it uses is counted from a
    /// moment on, if at all.
    pub(super) fn add_account(&mut self, history: Option<(Millis, Millis)>) {
        let mut account = Account::default();
        if let Some((now, half_life)) = history {
            account.used.iter_mut().for_each(|used| _ = used.advance(now, half_life, 0));
        }
        self.accounts.push(account);
        self.stale = true;
    }

    pub(super) fn account(&self, queue: QueueId) -> &Account {
        &self.accounts[queue.index()]
    }

    /// Takes over from another queue what it has used of late; the clock may have been set back
    /// since.
    pub(super) fn keep_history(&mut self, queue: QueueId, of: &Account, now: Millis) {
        self.accounts[queue.index()].used = of.used.map(|used| used.not_after(now));
    }

    /// Nothing was used until now.
    pub(super) fn begin_history(&mut self, now: Millis, half_life: Millis) {
        for used in self.accounts.iter_mut().flat_map(|account| &mut account.used) {
            *used = DecayedUse::default();
            used.advance(now, half_life, 0);
        }
        self.stale = true;
    }

    /// The queue has used this before.
    pub(super) fn recall(
        &mut self,
        tree: &QueueTree,
        queue: QueueId,
        amounts: Amounts,
        half_life: Millis,
        times: (Millis, Millis),
    ) {
        for queue in tree.path(queue) {
            let used = &mut self.accounts[queue.index()].used;
            for (used, resource) in used.iter_mut().zip(Resource::ALL) {
                used.recall(half_life, times, amounts[resource]);
            }
        }
    }

    /// Work came to wait in the queue, or left it for good.
    pub(super) fn demand(&mut self, queue: QueueId, amounts: Amounts, preemptible: bool, more: bool) {
        let account = &mut self.accounts[queue.index()];
        let requested = if preemptible { &mut account.requested } else { &mut account.requested_fixed };
        if more {
            *requested += amounts
        } else {
            *requested -= amounts
        }
        self.stale = true;
    }

    /// Work of the queue began to use resources, or ceased to.
    pub(super) fn allocate(&mut self, tree: &QueueTree, queue: QueueId, amounts: Amounts, preemptible: bool) {
        for queue in tree.path(queue) {
            let account = &mut self.accounts[queue.index()];
            account.allocated += amounts;
            if !preemptible {
                account.fixed += amounts;
            }
        }
    }

    pub(super) fn release(&mut self, tree: &QueueTree, queue: QueueId, amounts: Amounts, preemptible: bool) {
        for queue in tree.path(queue) {
            let account = &mut self.accounts[queue.index()];
            account.allocated -= amounts;
            if !preemptible {
                account.fixed -= amounts;
            }
        }
    }

    /// The first queue, from the leaf upwards, whose limit more work would pass.
    pub(super) fn over_limit(
        &self,
        tree: &QueueTree,
        queue: QueueId,
        more: Amounts,
    ) -> Option<(QueueId, Resource)> {
        tree.path(queue).find_map(|queue| {
            let mut after = self.account(queue).allocated;
            after += more;
            after.exceeds(&tree.queue(queue).limit).map(|resource| (queue, resource))
        })
    }

    /// The first queue, from the leaf upwards, which would have more work that may not be evicted
    /// than it deserves.
    pub(super) fn over_quota(
        &self,
        tree: &QueueTree,
        queue: QueueId,
        more: Amounts,
    ) -> Option<(QueueId, Resource)> {
        tree.path(queue).find_map(|queue| {
            let mut after = self.account(queue).fixed;
            after += more;
            let deserved = &tree.queue(queue).deserved;
            let over = tree.shared().iter().find(|&&resource| after[resource] > deserved[resource]);
            over.map(|&resource| (queue, resource))
        })
    }

    pub(super) fn saturation(&self, tree: &QueueTree, queue: QueueId) -> Saturation {
        self.saturation_with(tree, queue, Amounts::ZERO)
    }

    /// The saturation if the queue had `more`.
    pub(super) fn saturation_with(&self, tree: &QueueTree, queue: QueueId, more: Amounts) -> Saturation {
        let account = self.account(queue);
        let of = |&resource: &Resource| Saturation {
            used: account.allocated[resource] + more[resource],
            share: account.share[resource],
        };
        tree.shared().iter().map(of).max().unwrap_or(Saturation { used: 0, share: 1 })
    }

    /// The first shared resource of which the queue has more than `bound`, with `more` added.
    pub(super) fn above(
        &self,
        tree: &QueueTree,
        queue: QueueId,
        more: Amounts,
        bound: &Amounts,
    ) -> Option<Resource> {
        let allocated = &self.account(queue).allocated;
        tree.shared().iter().copied().find(|&resource| allocated[resource] + more[resource] > bound[resource])
    }

    /// Whether shares have to be divided again.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(super) fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Lets time pass for what queues have used of late.
    pub(super) fn advance(&mut self, now: Millis, half_life: Millis) {
        for account in &mut self.accounts {
            for (used, resource) in account.used.iter_mut().zip(Resource::ALL) {
                used.advance(now, half_life, account.allocated[resource]);
            }
        }
        self.stale = true;
    }

    /// Divides `capacity` from the top: the queues below the cluster first, then each queue's share
    /// among its children. Says whether any share has changed.
    pub(super) fn divide(
        &mut self,
        tree: &QueueTree,
        capacity: Amounts,
        gpu_unit: u64,
        usage_percent: u32,
    ) -> bool {
        let before: Vec<Amounts> = self.accounts.iter().map(|account| account.share).collect();
        let requested = self.requested(tree);
        for account in &mut self.accounts {
            account.share = Amounts::UNLIMITED;
        }
        for &resource in tree.shared() {
            let unit = if resource == Resource::Gpu { gpu_unit } else { 1 };
            let division = Division { unit, usage_percent };
            let share_among = |books: &mut Accounts, amount: u64, queues: &[QueueId]| {
                let claim = |queue: &QueueId| books.claim(tree, *queue, resource, &requested, &capacity);
                let claims: Vec<Claim> = queues.iter().map(claim).collect();
                for (queue, share) in queues.iter().zip(divide(amount, division, &claims)) {
                    books.accounts[queue.index()].share[resource] = share;
                }
            };
            share_among(self, capacity[resource], tree.roots());
            for queue in tree.top_down() {
                let amount = self.account(queue).share[resource];
                share_among(self, amount, &tree.queue(queue).children);
            }
        }
        self.stale = false;
        self.accounts.iter().map(|account| account.share).ne(before)
    }

    fn claim(
        &self,
        tree: &QueueTree,
        id: QueueId,
        resource: Resource,
        requested: &[Amounts],
        capacity: &Amounts,
    ) -> Claim {
        let queue = tree.queue(id);
        let used = self.account(id).used[resource as usize].level();
        let ppm = (u128::from(used) * 1_000_000).checked_div(u128::from(capacity[resource])).unwrap_or(0);
        Claim {
            deserved: queue.deserved[resource],
            requested: requested[id.index()][resource],
            limit: queue.limit[resource],
            priority: queue.priority,
            weight: queue.weight,
            usage_ppm: ppm.min(1_000_000) as u32,
        }
    }

    /// What each queue's work could use: of work that may not be evicted no more than the queue
    /// deserves, and of children no more than their limits.
    fn requested(&self, tree: &QueueTree) -> Vec<Amounts> {
        let mut requested = vec![Amounts::ZERO; self.accounts.len()];
        for id in tree.top_down().rev() {
            let (queue, account) = (tree.queue(id), self.account(id));
            let mut own = account.requested;
            // Fixed work that runs above a quota that was lowered is asked for all the same: it
            // stays.
            own += account.requested_fixed.min(queue.deserved.max(account.fixed));
            requested[id.index()] += own;
            requested[id.index()] = requested[id.index()].min(queue.limit);
            if let Some(parent) = queue.parent {
                let amount = requested[id.index()];
                requested[parent.index()] += amount;
            }
        }
        requested
    }
}

impl Saturation {
    /// Whether `self`, made `percent` of what it is, is still below `other`.
    pub(super) fn is_below(self, percent: u32, other: Saturation) -> bool {
        let scaled = u128::from(self.used) * u128::from(percent);
        cross(scaled, self.share, u128::from(other.used) * 100, other.share).is_lt()
    }
}

impl Ord for Saturation {
    fn cmp(&self, other: &Saturation) -> Ordering {
        cross(self.used.into(), self.share, other.used.into(), other.share)
    }
}

impl PartialEq for Saturation {
    fn eq(&self, other: &Saturation) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Saturation {}

impl PartialOrd for Saturation {
    fn partial_cmp(&self, other: &Saturation) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares `a / b` with `c / d`. Something of no share is more than any ratio; nothing of no share
/// is 0.
fn cross(a: u128, b: u64, c: u128, d: u64) -> Ordering {
    match (a > 0 && b == 0, c > 0 && d == 0) {
        (true, true) => a.cmp(&c),
        (false, false) => (a * u128::from(d.max(1))).cmp(&(c * u128::from(b.max(1)))),
        (left, right) => left.cmp(&right),
    }
}
