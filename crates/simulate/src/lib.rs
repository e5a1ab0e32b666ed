//! `sluice simulate`: what a cluster would do with a workload, in virtual time, decided by the
//! production scheduler.

mod arrivals;
mod fill;
mod generate;
mod packing;
mod parallel;
pub mod plot;
mod policy;
mod replay;
mod report;
mod site;
mod stranded;
mod summary;
pub mod trace;
mod value;

pub use arrivals::ARRIVED_PERCENT_MAX;
pub use fill::{COLUMNS, FillPlan, FillReport, PolicyFill, STRANDED_AT_PERCENT, fill};
pub use generate::{Mix, Synthetic};
pub use policy::{History, PolicyName};
pub use replay::{
    EstimateReport, Eviction, Late, PolicyReplay, QueueReplay, ReplayError, ReplayPlan, ReplayReport, Wait,
    Waiting, replay, replay_with_estimates,
};
pub use report::{
    Figure, FigureFormat, Source, fill_figures, fill_page, replay_figures, replay_page, value_page,
    write_figures,
};
pub use site::{Site, SiteError};
pub use summary::Spread;
pub use value::{Allocation, Carried, ValueError, ValuePlan, ValueReport, value};
