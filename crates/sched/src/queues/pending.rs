//! The waiting work of one queue, by class.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::decay::Millis;
use super::job::{Class, JobId};
use super::why::Why;

/// A class of waiting work by its place in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClassId(u64);

/// Jobs of one class, and what is known of why they wait.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) class: Class,
    /// First come, first served.
    pub(super) jobs: BTreeSet<JobId>,
    /// Why the first of them was not served when it was last tried.
    pub(super) why: Why,
    /// No node had room for it when this number of releases had been counted.
    pub(super) no_room_at: Option<u64>,
    /// No consolidation made room for it then, either.
    pub(super) not_consolidated_at: Option<u64>,
    /// Until work in its way leaves its minimum run time and may move.
    pub(super) gather_at: Option<Millis>,
    /// Nothing could be reclaimed for it in this state of the cluster.
    pub(super) not_reclaimed_at: Option<u64>,
    /// Nothing at all could be taken from others for it in this state of the cluster.
    pub(super) not_taken_at: Option<u64>,
    /// Until work that it might take leaves its minimum run time.
    pub(super) retry_at: Option<Millis>,
}

/// The order among the classes of a queue: higher priority, minimum before surplus, first
/// come.
pub(super) type Precedence = (Reverse<i32>, bool, JobId, ClassId);

#[derive(Debug, Clone, Default)]
pub(super) struct Pending {
    classes: BTreeMap<ClassId, Waiting>,
    by_class: HashMap<Class, ClassId>,
    next: u64,
}

impl Pending {
    pub(super) fn insert(&mut self, class: Class, job: JobId) {
        let id = *self.by_class.entry(class).or_insert_with(|| {
            self.next += 1;
            ClassId(self.next)
        });
        let fresh = || Waiting {
            class,
            jobs: BTreeSet::new(),
            why: Why::default(),
            no_room_at: None,
            not_consolidated_at: None,
            gather_at: None,
            not_reclaimed_at: None,
            not_taken_at: None,
            retry_at: None,
        };
        self.classes.entry(id).or_insert_with(fresh).jobs.insert(job);
    }

    pub(super) fn remove(&mut self, class: &Class, job: JobId) {
        let Some(&id) = self.by_class.get(class) else { return };
        let Some(waiting) = self.classes.get_mut(&id) else { return };
        waiting.jobs.remove(&job);
        if waiting.jobs.is_empty() {
            self.classes.remove(&id);
            self.by_class.remove(class);
        }
    }

    pub(super) fn get(&self, id: ClassId) -> Option<&Waiting> {
        self.classes.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ClassId) -> Option<&mut Waiting> {
        self.classes.get_mut(&id)
    }

    pub(super) fn id_of(&self, class: &Class) -> Option<ClassId> {
        self.by_class.get(class).copied()
    }

    pub(super) fn of_class(&self, class: &Class) -> Option<&Waiting> {
        self.get(self.id_of(class)?)
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = (ClassId, &Waiting)> {
        self.classes.iter().map(|(&id, waiting)| (id, waiting))
    }

    pub(super) fn waiting_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.classes.values_mut()
    }

    /// The precedence of the first job of a class; none if nothing of it waits any more.
    pub(super) fn precedence(&self, id: ClassId) -> Option<Precedence> {
        let waiting = self.get(id)?;
        let first = *waiting.jobs.first()?;
        Some((Reverse(waiting.class.priority), waiting.class.surplus, first, id))
    }
}
