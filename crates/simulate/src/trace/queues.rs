//! Queue lists: the tree over which GPUs are shared fairly. The scheduler checks the tree; what it
//! complains about is given the line that says it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sluice_sched::queues::{Figures, QueueError, QueueSpec, QueueTree};

use super::jobs::{Job, Jobs};
use super::table::{InputError, Row, Table};

/// A checked tree of queues; jobs wait in those that have none below them.
#[derive(Clone, Debug)]
pub struct Queues {
    tree: QueueTree,
}

const GPUS_MAX: f64 = 64e6;
const WEIGHT_MAX: u64 = sluice_sched::queues::MAX_WEIGHT as u64;
const PRIORITY_MAX: i64 = 1_000_000;
const QUEUES_MAX: usize = 100_000;
/// As for jobs, in seconds.
const RUNTIME_S_MAX: f64 = 3e8;

/// The queue of jobs that name none.
const UNNAMED: &str = "all";

pub fn read_queues(path: &Path) -> Result<Queues, InputError> {
    queues_of(&Table::open(path)?)
}

pub(super) fn queues_of(table: &Table) -> Result<Queues, InputError> {
    table.expect_columns(
        &["name"],
        &[
            "parent",
            "deserved_gpus",
            "limit_gpus",
            "weight",
            "priority",
            "preempt_min_runtime_s",
            "reclaim_min_runtime_s",
        ],
    )?;
    let rows: Vec<Row<'_>> = table.rows().collect();
    if rows.is_empty() {
        return Err(table.wrong("lists no queue"));
    }
    if rows.len() > QUEUES_MAX {
        return Err(table.wrong(format!("more than {QUEUES_MAX} queues")));
    }
    let specs = rows.iter().map(spec).collect::<Result<Vec<QueueSpec>, InputError>>()?;
    match QueueTree::new(&specs) {
        Ok(tree) => Ok(Queues { tree }),
        Err(QueueError { queue, field, problem }) => {
            // The last one: of two with the same name the second is wrong.
            let row = rows.iter().rfind(|row| row.text("name") == queue);
            let column = match field {
                "deserved.gpus" => "deserved_gpus",
                "limit.gpus" => "limit_gpus",
                field => field,
            };
            Err(row.map_or_else(|| table.wrong(&problem), |row| row.wrong(column, &problem)))
        }
    }
}

fn spec(row: &Row<'_>) -> Result<QueueSpec, InputError> {
    let gpus = |column| {
        let stated = row.or(column, None, |row| row.decimal(column, 0.0..=GPUS_MAX).map(Some))?;
        Ok(Figures { gpus: stated, ..Figures::default() })
    };
    let seconds = |column| row.or(column, None, |row| row.decimal(column, 0.0..=RUNTIME_S_MAX).map(Some));
    let (deserved, limit) = (gpus("deserved_gpus")?, gpus("limit_gpus")?);
    if let (Some(deserved), Some(limit)) = (deserved.gpus, limit.gpus)
        && limit < deserved
    {
        return Err(row.wrong("limit_gpus", "is less than deserved_gpus"));
    }
    Ok(QueueSpec {
        name: row.name("name")?.into(),
        parent: Some(row.text("parent")).filter(|parent| !parent.is_empty()).map(str::to_owned),
        deserved,
        limit,
        weight: row.or("weight", 1, |row| row.whole("weight", 0..=WEIGHT_MAX))? as i64,
        priority: row.or("priority", 0, |row| row.signed("priority", -PRIORITY_MAX..=PRIORITY_MAX))? as i32,
        preempt_min_runtime_s: seconds("preempt_min_runtime_s")?,
        reclaim_min_runtime_s: seconds("reclaim_min_runtime_s")?,
    })
}

impl Queues {
    /// Without a list: each queue that jobs name deserves an equal part of the GPUs.
    pub fn named_by(jobs: &Jobs, gpus: u32) -> Result<Queues, InputError> {
        let mut lines: BTreeMap<&str, &Job> = BTreeMap::new();
        for job in &jobs.jobs {
            lines.entry(Queues::name_for(job)).or_insert(job);
        }
        let names: BTreeSet<&str> = lines.keys().copied().collect();
        let part = f64::from(gpus) / names.len().max(1) as f64;
        let specs: Vec<QueueSpec> =
            names.iter().map(|name| QueueSpec::new(name).deserving_gpus(part)).collect();
        match QueueTree::new(&specs) {
            Ok(tree) => Ok(Queues { tree }),
            Err(error) => Err(jobs.wrong_queue(lines[error.queue.as_str()], error.problem)),
        }
    }

    /// Refuses jobs in queues that do not exist or have others below them.
    pub fn check(&self, jobs: &Jobs) -> Result<(), InputError> {
        for job in &jobs.jobs {
            let name = Queues::name_for(job);
            let problem = match self.tree.find(name) {
                Some(queue) if self.tree.queue(queue).children.is_empty() => continue,
                Some(_) => format!("{name:?} has queues below it; jobs wait in the lowest queues"),
                None if job.queue.is_empty() => {
                    format!("is empty, and there is no queue {UNNAMED:?} for such jobs")
                }
                None => format!("there is no queue {name:?}"),
            };
            return Err(jobs.wrong_queue(job, problem));
        }
        Ok(())
    }

    pub(crate) fn tree(&self) -> &QueueTree {
        &self.tree
    }

    pub(crate) fn name_for(job: &Job) -> &str {
        if job.queue.is_empty() { UNNAMED } else { &job.queue }
    }
}
