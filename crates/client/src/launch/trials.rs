//! Launches that only the driver can judge: whether all blocks of a grid fit on the device at a
//! time, and which clusters there can be. Programs try one after the other until one is taken, so
//! the first of a kind waits for the driver's word. What it has taken once it takes again, until
//! the function is changed: those are queued like any other launch.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUlaunchAttribute, CUlaunchAttributeID, CUresult};
use sluice_wire::Dim;

use crate::context;
use crate::launch::limits::Geometry;

/// Kinds of launches that are kept for a function. Programs have a handful; one that has more
/// starts anew.
const KINDS_MAX: usize = 64;

/// A launch of such a kind.
#[derive(Debug)]
pub(crate) struct Trial {
    kind: Kind,
    /// Its blocks: where they fit, fewer fit as well.
    blocks: u64,
}

/// What launches have in common of which the driver says the same, but for how many blocks they
/// have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    /// A green context is smaller than its device.
    place: usize,
    block: Dim,
    shared_bytes: u32,
    is_cooperative: bool,
    /// The cluster, and what is left over of the grid.
    cluster: Option<(Dim, Dim)>,
}

/// The most blocks that the driver has taken in a launch of each kind.
#[derive(Debug, Default)]
pub(crate) struct Trials(Mutex<HashMap<Kind, u64>>);

/// Whether only the driver can judge a launch.
pub(crate) fn of(geometry: &Geometry, attributes: &[CUlaunchAttribute]) -> Option<Trial> {
    let value = |id| attributes.iter().find(|attribute| attribute.id == id).map(|attribute| &attribute.value);
    let is_cooperative = value(CUlaunchAttributeID::COOPERATIVE).is_some_and(|value| value.number() != 0);
    let cluster = value(CUlaunchAttributeID::CLUSTER_DIMENSION).map(|value| {
        let cluster = value.dimension();
        let left_over = |i: usize| geometry.grid[i].checked_rem(cluster[i]).unwrap_or(geometry.grid[i]);
        (cluster, [left_over(0), left_over(1), left_over(2)])
    });
    if !is_cooperative && cluster.is_none() {
        return None;
    }
    let place = context::current_or_null().0;
    let (block, shared_bytes) = (geometry.block, geometry.shared_bytes);
    let blocks = geometry.grid.iter().fold(1, |blocks: u64, &n| blocks.saturating_mul(n.into()));
    Some(Trial { kind: Kind { place, block, shared_bytes, is_cooperative, cluster }, blocks })
}

impl Trials {
    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The function is another one now.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Makes a launch: by `queue` if one like it was taken, else by `try_out`.
    pub(crate) fn make(
        &self,
        trial: Trial,
        try_out: impl FnOnce() -> Result<(), CUresult>,
        queue: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        if self.lock().get(&trial.kind).is_some_and(|&taken| trial.blocks <= taken) {
            return queue();
        }
        try_out()?;
        let mut taken = self.lock();
        if taken.len() >= KINDS_MAX {
            taken.clear();
        }
        taken.insert(trial.kind, trial.blocks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use sluice_cuda::CUlaunchAttributeValue;

    use super::*;

    fn attribute(id: CUlaunchAttributeID, numbers: &[u32]) -> CUlaunchAttribute {
        let mut value = CUlaunchAttributeValue::default();
        value.words[..numbers.len()].copy_from_slice(numbers);
        CUlaunchAttribute { id, value, ..Default::default() }
    }

    fn geometry(grid: u32, block: u32) -> Geometry {
        Geometry { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes: 0 }
    }

    #[test]
    fn the_first_of_a_kind_waits_for_the_driver() {
        let (trials, made) = (Trials::default(), RefCell::new(String::new()));
        let note = |how| {
            made.borrow_mut().push(how);
            Ok(())
        };
        let cooperative = [attribute(CUlaunchAttributeID::COOPERATIVE, &[1])];
        let make = |grid, block| {
            let trial = of(&geometry(grid, block), &cooperative).expect("only the driver can judge it");
            trials.make(trial, || note('w'), || note('q')).unwrap();
        };
        [(8, 32), (8, 32), (4, 32), (9, 32), (9, 32), (9, 64)].into_iter().for_each(|(g, b)| make(g, b));
        assert_eq!(*made.borrow(), "wqqwqw");
        trials.forget();
        make(4, 32);
        assert_eq!(*made.borrow(), "wqqwqww");
    }

    #[test]
    fn what_the_driver_refuses_it_is_asked_again() {
        let trials = Trials::default();
        let cluster = [attribute(CUlaunchAttributeID::CLUSTER_DIMENSION, &[2, 1, 1])];
        let refuse = || Err(CUresult::INVALID_CLUSTER_SIZE);
        for _ in 0..2 {
            let trial = of(&geometry(8, 32), &cluster).unwrap();
            let made = trials.make(trial, refuse, || panic!("nothing was taken"));
            assert_eq!(made, Err(CUresult::INVALID_CLUSTER_SIZE));
        }
        // A grid that the cluster does not divide says nothing of one that it does.
        trials.make(of(&geometry(8, 32), &cluster).unwrap(), || Ok(()), refuse).unwrap();
        assert_eq!(trials.make(of(&geometry(7, 32), &cluster).unwrap(), refuse, || Ok(())), refuse());
    }

    #[test]
    fn most_launches_are_nothing_special() {
        let programmatic = attribute(CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION, &[1]);
        let not_cooperative = attribute(CUlaunchAttributeID::COOPERATIVE, &[0]);
        assert!(of(&geometry(8, 32), &[programmatic, not_cooperative]).is_none());
    }
}
