//! Queues of jobs over a cluster: who is served next, and who gives way.
//!
//! An operator states a tree of queues ([`QueueSpec`], checked by [`QueueTree`]); the caller
//! submits jobs ([`JobSpec`]: one task or a gang) and says when they end. [`Scheduler::cycle`] then
//! decides, in this order:
//!
//! 1. *allocate*: the job of the queue that is furthest below its fair share first, where the
//!    placement policy says;
//! 2. *consolidate*: move running work together where that makes a waiting job fit, and nothing
//!    else is lost;
//! 3. *reclaim*: a queue within its fair share takes back from queues above theirs;
//! 4. *preempt*: within a queue, higher priorities take from strictly lower ones;
//! 5. end gangs that have lost members for too long.
//!
//! Each [`Action`] carries its reason, and [`Scheduler::why`] says why a job waits. Time is an
//! argument, and equal calls give equal answers.
//!
//! ```
//! use sluice_sched::queues::{Action, Config, JobSpec, QueueSpec, QueueTree, Scheduler};
//! use sluice_sched::{
//!     DomainId, LabelSet, ModelId, NodeSpec, Placer, Policy, Request, WHOLE_GPU_MILLI,
//! };
//!
//! let tree = QueueTree::new(&[
//!     QueueSpec::new("vision").deserving_gpus(4.0),
//!     QueueSpec::new("speech"),
//! ])?;
//! let speech = tree.find("speech").unwrap();
//! let mut scheduler = Scheduler::new(tree, Placer::new(Policy::BestFit), Config::default());
//! scheduler.add_node(NodeSpec {
//!     cpu_milli: 64_000,
//!     memory_mib: 512 * 1024,
//!     gpus: 8,
//!     model: ModelId::new(0).unwrap(),
//!     gpu_milli: WHOLE_GPU_MILLI,
//!     gpu_memory_mib: 80 * 1024,
//!     gpu_memory_leasable_mib: 80 * 1024,
//!     gpu_units_milli: 0,
//!     labels: LabelSet::NONE,
//!     domains: vec![DomainId(0)],
//! })?;
//! let half = Request::cpu(4_000, 8 * 1024).with_gpus(1, 500).with_gpu_memory(40 * 1024);
//! let job = scheduler.submit(JobSpec::new(speech, half))?;
//! let actions = scheduler.cycle(0);
//! assert!(matches!(actions[..], [Action::Bind { job: bound, .. }] if bound == job));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod amounts;
mod books;
mod candidates;
mod consolidate;
mod cycle;
mod decay;
mod domains;
mod fair;
mod forecast;
mod gang;
mod job;
mod nodes;
mod pending;
mod reclaim;
mod releases;
mod relocate;
mod replace;
mod rights;
mod room;
mod scheduler;
mod slots;
mod take;
mod tree;
mod why;

pub use amounts::{Amounts, Resource};
pub use decay::{DecayedUse, Millis};
pub use fair::{Claim, Division, MAX_USAGE_PERCENT, MAX_WEIGHT, divide};
pub use forecast::Forecast;
pub use job::{Job, JobId, JobSpec, Mobility, SubmitError, TASKS_MAX, Topology};
pub use replace::{AddQueueError, HomelessWork};
pub use scheduler::{AdoptError, Config, Scheduler};
pub use tree::{Figures, Queue, QueueError, QueueId, QueueSpec, QueueTree};
pub use why::{Action, Blocked, Bound, Evicted, No, Why};
