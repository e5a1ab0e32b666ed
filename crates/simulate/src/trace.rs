//! Reading clusters and workloads: lists of nodes, jobs and queues, in our own format
//! (docs/simulate.md) and in that of the openb trace (Alibaba's cluster-trace-gpu-v2023). A file
//! that is wrong gives one error with file, line and field.

mod jobs;
mod nodes;
mod queues;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use jobs::Wish;
pub use jobs::{Format, Job, Jobs, Timing, Together, read_jobs};
pub use nodes::{Node, read_nodes};
pub use queues::{Queues, read_queues};
pub use table::InputError;

#[cfg(test)]
pub(crate) fn nodes_from_text(text: &str) -> Result<Vec<Node>, InputError> {
    nodes::nodes_of(&table::Table::read("nodes.csv", text.as_bytes())?)
}

#[cfg(test)]
pub(crate) fn jobs_from_text(text: &str) -> Result<Jobs, InputError> {
    jobs::jobs_of(&table::Table::read("jobs.csv", text.as_bytes())?, "jobs.csv".into())
}

#[cfg(test)]
pub(crate) fn queues_from_text(text: &str) -> Result<Queues, InputError> {
    queues::queues_of(&table::Table::read("queues.csv", text.as_bytes())?)
}
