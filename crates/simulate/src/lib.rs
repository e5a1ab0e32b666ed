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

pub use arrivals::ARRIVED_PERCENT_MAX;
pub use fill::{COLUMNS, FillPlan, FillReport, PolicyFill, STRANDED_AT_PERCENT, fill};
pub use generate::Synthetic;
pub use policy::{History, PolicyName};
pub use replay::{
    Eviction, PolicyReplay, QueueReplay, ReplayError, ReplayPlan, ReplayReport, Wait, Waiting, replay,
};
pub use report::{
    Figure, FigureFormat, Source, fill_figures, fill_page, replay_figures, replay_page, write_figures,
};
pub use site::{Site, SiteError};
pub use summary::Spread;
