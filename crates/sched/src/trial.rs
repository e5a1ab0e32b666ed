//! Changes that are taken back unless they are committed.

use crate::{Cluster, ClusterError, Placement};

/// Allocates and releases on a cluster to see what would come of it: "would the gang fit if these
/// three were evicted?" Dropping a trial takes everything back in reverse order; [`Trial::commit`]
/// keeps it.
pub struct Trial<'a> {
    cluster: &'a mut Cluster,
    steps: Vec<Step>,
}

enum Step {
    Allocated(Placement),
    Released(Placement),
}

impl<'a> Trial<'a> {
    pub fn new(cluster: &'a mut Cluster) -> Trial<'a> {
        Trial { cluster, steps: Vec::new() }
    }

    /// The cluster as it would be.
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    pub fn allocate(&mut self, placement: &Placement) -> Result<(), ClusterError> {
        self.cluster.allocate(placement)?;
        self.steps.push(Step::Allocated(*placement));
        Ok(())
    }

    pub fn release(&mut self, placement: &Placement) -> Result<(), ClusterError> {
        self.cluster.release(placement)?;
        self.steps.push(Step::Released(*placement));
        Ok(())
    }

    /// A point to come back to with [`Trial::rollback_to`].
    pub fn savepoint(&self) -> usize {
        self.steps.len()
    }

    /// Takes back all steps after `savepoint`.
    pub fn rollback_to(&mut self, savepoint: usize) {
        while self.steps.len() > savepoint {
            let Some(step) = self.steps.pop() else { return };
            let undone = match step {
                Step::Allocated(placement) => self.cluster.release(&placement),
                Step::Released(placement) => self.cluster.restore(&placement),
            };
            debug_assert_eq!(undone, Ok(()), "the inverse of a step that succeeded");
        }
    }

    pub fn commit(mut self) {
        self.steps.clear();
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.rollback_to(0);
    }
}
