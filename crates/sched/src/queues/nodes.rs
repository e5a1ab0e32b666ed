//! Nodes that come, are cleared, and go, with work on them.
//!
//! ```text
//! add_node ─▶ schedulable ◀─ set_schedulable ─▶ not schedulable ─▶ remove_node
//!                  └────────────── drain ──────────────▲
//! ```
//!
//! [`Scheduler::drain`] asks what may be evicted to leave; what may not runs to its end there.
//! [`Scheduler::remove_node`] is for nodes that are empty, or gone: whatever ran there is lost, and
//! waits again.

use std::collections::BTreeSet;

use super::decay::Millis;
use super::job::JobId;
use super::scheduler::Scheduler;
use super::why::{Action, Evicted};
use crate::{ClusterError, Links, NodeId, NodeSpec};

impl Scheduler {
    /// The id of a removed node goes to the next one added.
    pub fn add_node(&mut self, spec: NodeSpec) -> Result<NodeId, ClusterError> {
        let node = self.cluster.add_node(spec)?;
        self.domains.add(node, self.cluster.node(node).spec());
        if node.index() == self.on_node.len() {
            self.on_node.push(Vec::new());
        }
        self.room_came_to_be(node);
        self.changed_from_outside();
        Ok(node)
    }

    /// A node that is not schedulable keeps its work, gets nothing new, and counts for nothing when
    /// shares are divided.
    pub fn set_schedulable(&mut self, node: NodeId, schedulable: bool) -> Result<(), ClusterError> {
        self.cluster.set_schedulable(node, schedulable)?;
        self.room_came_to_be(node);
        self.changed_from_outside();
        Ok(())
    }

    /// A GPU that is fenced keeps its work, gets nothing new, and counts for nothing when shares
    /// are divided.
    pub fn set_fenced(&mut self, node: NodeId, gpu: usize, fenced: bool) -> Result<(), ClusterError> {
        if self.cluster.set_fenced(node, gpu, fenced)? {
            self.room_came_to_be(node);
            self.changed_from_outside();
        }
        Ok(())
    }

    /// How near the GPUs of a node are to each other, see [`Cluster::set_links`].
    pub fn set_links(&mut self, node: NodeId, links: Links) -> Result<(), ClusterError> {
        if self.cluster.set_links(node, links)? {
            self.room_came_to_be(node);
            self.changed_from_outside();
        }
        Ok(())
    }

    /// The job is not put on this node before it is forgiven: it would not take the job, though it
    /// has room. Others are not affected; meanwhile nothing is moved or evicted for this job. Tasks
    /// that are there already stay.
    pub fn avoid(&mut self, id: JobId, node: NodeId) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.avoids.contains(&node)) else { return };
        job.avoids.push(node);
        self.avoided.entry(node).or_default().push(id);
        self.line_up(id);
        self.changed_from_outside();
    }

    /// The node may be tried again for all jobs that avoided it.
    pub fn forgive(&mut self, node: NodeId) {
        for id in self.avoided.remove(&node).unwrap_or_default() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.avoids.retain(|&avoided| avoided != node);
            self.line_up(id);
            self.changed_from_outside();
        }
    }

    /// Tasks on the node, in the order of jobs and tasks; none on a node that is not known.
    pub fn tasks_on(&self, node: NodeId) -> Vec<(JobId, u32)> {
        let mut tasks = self.on_node.get(node.index()).cloned().unwrap_or_default();
        tasks.sort_unstable();
        tasks
    }

    /// The node gets nothing new, and what may be evicted leaves it now: tasks above a job's
    /// minimum alone, otherwise the whole job, which waits at its old place in line and goes
    /// elsewhere with the next cycle. Work that may not be evicted stays; when
    /// [`Scheduler::tasks_on`] is empty, the node can be removed.
    pub fn drain(&mut self, now: Millis, node: NodeId) -> Result<Vec<Action>, ClusterError> {
        self.set_schedulable(node, false)?;
        self.now = self.now.max(now);
        for (id, number) in self.tasks_on(node).into_iter().rev() {
            let Some(job) = self.jobs.get(&id).filter(|job| job.spec.preemptible) else { continue };
            if job.tasks[number as usize].is_none() {
                continue; // It left with its job.
            }
            if job.running > job.spec.tasks_min {
                self.evict_drained(id, number);
            } else {
                let numbers: Vec<u32> = job.tasks().map(|(number, _)| number).collect();
                numbers.into_iter().for_each(|number| self.evict_drained(id, number));
            }
            self.check_stale(id);
            self.line_up(id);
        }
        Ok(std::mem::take(&mut self.actions))
    }

    fn evict_drained(&mut self, job: JobId, task: u32) {
        if let Some(placement) = self.stop(job, task) {
            self.actions.push(Action::Evict { job, task, placement, because: Evicted::Drained });
        }
    }

    /// The node is gone, and with it the tasks that ran there, which are returned and wait again as
    /// after [`Scheduler::task_lost`].
    pub fn remove_node(&mut self, now: Millis, node: NodeId) -> Result<Vec<(JobId, u32)>, ClusterError> {
        self.cluster.set_schedulable(node, false)?;
        let lost = self.tasks_on(node);
        for &(id, number) in &lost {
            self.stop(id, number);
        }
        let spec = self.cluster.node(node).spec().clone();
        self.cluster.remove_node(node)?;
        self.forgive(node);
        self.domains.remove(node, &spec);
        self.now = self.now.max(now);
        for id in lost.iter().map(|&(id, _)| id).collect::<BTreeSet<_>>() {
            self.check_stale(id);
            self.line_up(id);
        }
        self.room_came_to_be(node);
        self.changed_from_outside();
        Ok(lost)
    }
}
