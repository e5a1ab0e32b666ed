//! `sluice simulate`: what a cluster would do with a workload, in virtual time, decided by the production scheduler.

mod arrivals;
mod fill;
mod parallel;
pub mod plot;
mod policy;
mod report;
mod site;
mod stranded;
mod summary;
pub mod trace;

pub use arrivals::ARRIVED_PERCENT_MAX;
pub use fill::{COLUMNS, FillPlan, FillReport, PolicyFill, STRANDED_AT_PERCENT, fill};
pub use policy::PolicyName;
pub use report::{Figure, Source, fill_figures, fill_page, write_figures};
pub use site::{Site, SiteError};
pub use summary::Spread;
