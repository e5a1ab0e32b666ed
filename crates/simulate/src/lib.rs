//! What a cluster would do with a workload, in virtual time: lists of nodes, jobs and queues in, charts out.

pub mod plot;
pub mod trace;
