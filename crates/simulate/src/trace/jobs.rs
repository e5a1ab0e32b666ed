//! Job lists: our own format and openb's pods.

use std::collections::HashSet;
use std::path::Path;

use super::nodes::{CPUS_MAX, GPUS_MAX, MEMORY_MIB_MAX, cpu_milli, memory_mib};
use super::table::{InputError, Row, Table};

/// One line of a job list: a gang of `members` equal requests that start together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub name: String,
    /// Where the list says it.
    pub line: u64,
    /// What each member needs.
    pub cpu_milli: u32,
    pub memory_mib: u32,
    pub gpus: u8,
    /// Of each GPU, in thousandths; 1000 is the whole GPU, 0 where there is none.
    pub share_milli: u16,
    /// The share that would suffice, as `sluice iq` finds it; 0 where the list does not say.
    pub needed_share_milli: u16,
    /// Of each GPU; 0 where device memory is not counted.
    pub gpu_memory_mib: u32,
    /// Accepted models; any, if empty.
    pub models: Vec<String>,
    pub members: u32,
    pub timing: Option<Timing>,
    /// When a pod of openb came and how long it ran; none where it was never scheduled.
    pub recorded: Option<Timing>,
    /// Empty where the list names none.
    pub queue: String,
    /// The domain that all members share, if possible or in any case.
    pub together: Option<Together>,
    pub priority: i32,
    pub preemptible: bool,
}

/// When a job comes and how long it computes; lists without it are for filling a cluster up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub arrival_ms: u64,
    pub duration_ms: u64,
}

/// How near each other the members of a job stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Together {
    PreferRack,
    PreferZone,
    RequireRack,
    RequireZone,
}

impl Together {
    const NAMES: [(&str, Together); 4] = [
        ("prefer-rack", Together::PreferRack),
        ("prefer-zone", Together::PreferZone),
        ("require-rack", Together::RequireRack),
        ("require-zone", Together::RequireZone),
    ];
}

impl Job {
    /// GPU demand of all members, in thousandths of a GPU.
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.members) * u64::from(self.gpus) * u64::from(self.share_milli)
    }
}

/// Ten years: longer is a slip, or milliseconds where seconds were meant.
const SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;
const MEMBERS_MAX: u64 = 100_000;
const PRIORITY_MAX: i64 = 1_000_000_000;

/// A job list and what its header says about it.
#[derive(Clone, Debug)]
pub struct Jobs {
    /// In the order of the list.
    pub jobs: Vec<Job>,
    pub format: Format,
    file: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Own,
    Openb,
}

/// Reads a list in either format; the header tells which.
pub fn read_jobs(path: &Path) -> Result<Jobs, InputError> {
    jobs_of(&Table::open(path)?, path.display().to_string())
}

pub(super) fn jobs_of(table: &Table, file: String) -> Result<Jobs, InputError> {
    let format = if table.has("num_gpu") {
        table.expect_columns(
            &["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"],
            &["gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"],
        )?;
        Format::Openb
    } else {
        table.expect_columns(
            &["name", "cpus", "memory_gib", "gpus"],
            &[
                "arrival_s",
                "duration_s",
                "share",
                "needed_share",
                "gpu_memory_gib",
                "models",
                "members",
                "queue",
                "together",
                "priority",
                "preemptible",
            ],
        )?;
        if table.has("arrival_s") != table.has("duration_s") {
            return Err(table.wrong("arrival_s and duration_s come together: one of the columns is missing"));
        }
        Format::Own
    };
    let mut names = HashSet::new();
    let mut jobs = Vec::new();
    for row in table.rows() {
        let name = row.name("name")?;
        if !names.insert(name) {
            return Err(row.wrong("name", format!("{name:?} appears twice")));
        }
        jobs.push(match format {
            Format::Own => own_job(row)?,
            Format::Openb => openb_job(row)?,
        });
    }
    if jobs.iter().all(|job| job.gpus == 0) {
        return Err(table.wrong("no job asks for a GPU"));
    }
    Ok(Jobs { jobs, format, file })
}

impl Jobs {
    /// Whether jobs come and end, rather than fill the cluster up.
    pub fn timed(&self) -> bool {
        self.jobs.iter().any(|job| job.timing.is_some())
    }

    /// The jobs with the times that openb's list recorded instead of none; without those that never
    /// ran.
    pub fn at_recorded_times(mut self) -> Jobs {
        self.jobs.retain(|job| job.timing.is_some() || job.recorded.is_some());
        for job in &mut self.jobs {
            job.timing = job.timing.or(job.recorded);
        }
        self
    }

    pub(super) fn wrong_queue(&self, job: &Job, problem: String) -> InputError {
        InputError::Field { file: self.file.clone(), line: job.line, field: "queue".into(), problem }
    }

    /// A complaint about the wish of a job.
    pub(crate) fn complain(&self, job: &Job, wish: Wish, problem: String) -> InputError {
        let field = match (self.format, wish) {
            (Format::Openb, Wish::Cpus) => "cpu_milli",
            (Format::Openb, Wish::Memory) => "memory_mib",
            (Format::Openb, Wish::Gpus) => "num_gpu",
            (Format::Openb, Wish::Models) => "gpu_spec",
            (Format::Own, Wish::Cpus) => "cpus",
            (Format::Own, Wish::Memory) => "memory_gib",
            (Format::Own, Wish::Gpus) => "gpus",
            (Format::Own, Wish::Models) => "models",
            (_, Wish::GpuMemory) => "gpu_memory_gib",
            (_, Wish::Members) => "members",
        };
        InputError::Field { file: self.file.clone(), line: job.line, field: field.into(), problem }
    }
}

/// What a job asks for that a cluster may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Cpus,
    Memory,
    Gpus,
    Models,
    GpuMemory,
    Members,
}

fn openb_job(row: Row<'_>) -> Result<Job, InputError> {
    let gpus = row.whole("num_gpu", 0..=GPUS_MAX)? as u8;
    let share_milli = match gpus {
        0 => row.or("gpu_milli", 0, |row| row.whole("gpu_milli", 0..=0))?,
        1 => row.whole("gpu_milli", 1..=1000)?,
        _ => match row.whole("gpu_milli", 1..=1000)? {
            1000 => 1000,
            _ => return Err(row.wrong("gpu_milli", "a request for several GPUs takes whole ones: 1000 each")),
        },
    } as u16;
    Ok(Job {
        name: row.name("name")?.into(),
        line: row.line(),
        cpu_milli: row.whole("cpu_milli", 0..=CPUS_MAX * 1000)? as u32,
        memory_mib: row.whole("memory_mib", 0..=MEMORY_MIB_MAX)? as u32,
        gpus,
        share_milli,
        needed_share_milli: 0,
        gpu_memory_mib: 0,
        models: models(row, "gpu_spec", gpus)?,
        members: 1,
        timing: None,
        recorded: recorded(&row)?,
        queue: String::new(),
        together: None,
        priority: 0,
        preemptible: false,
    })
}

fn own_job(row: Row<'_>) -> Result<Job, InputError> {
    let gpus = row.whole("gpus", 0..=GPUS_MAX)? as u8;
    let timing = |row: &Row<'_>| {
        Ok(Some(Timing {
            arrival_ms: milliseconds(row, "arrival_s", 0.0)?,
            duration_ms: milliseconds(row, "duration_s", 0.001)?,
        }))
    };
    Ok(Job {
        name: row.name("name")?.into(),
        line: row.line(),
        cpu_milli: cpu_milli(row, 0.0)?,
        memory_mib: memory_mib(row, "memory_gib", 0.0)?,
        gpus,
        share_milli: share_milli(row, "share", gpus)?.unwrap_or(if gpus == 0 { 0 } else { 1000 }),
        needed_share_milli: share_milli(row, "needed_share", gpus)?.unwrap_or(0),
        gpu_memory_mib: match (row.text("gpu_memory_gib"), gpus) {
            ("", _) => 0,
            (_, 0) => return Err(row.wrong("gpu_memory_gib", "for a job without a GPU")),
            _ => memory_mib(row, "gpu_memory_gib", 0.001)?,
        },
        models: models(row, "models", gpus)?,
        members: row.or("members", 1, |row| row.whole("members", 1..=MEMBERS_MAX))? as u32,
        timing: if row.has("arrival_s") { timing(&row)? } else { None },
        recorded: None,
        queue: row.or("queue", String::new(), |row| row.name("queue").map(str::to_owned))?,
        together: row.or("together", None, together)?,
        priority: row.or("priority", 0, |row| row.signed("priority", -PRIORITY_MAX..=PRIORITY_MAX))? as i32,
        preemptible: row.or("preemptible", true, |row| row.yes_or_no("preemptible"))?,
    })
}

/// The times of a pod that was scheduled and has ended; seconds since the trace's first pod.
fn recorded(row: &Row<'_>) -> Result<Option<Timing>, InputError> {
    let seconds = |column| row.or(column, None, |row| row.whole(column, 0..=SECONDS_MAX).map(Some));
    let (Some(created), Some(scheduled), Some(deleted)) =
        (seconds("creation_time")?, seconds("scheduled_time")?, seconds("deletion_time")?)
    else {
        return Ok(None);
    };
    let duration_ms = deleted.saturating_sub(scheduled).max(1) * 1000;
    Ok(Some(Timing { arrival_ms: created * 1000, duration_ms }))
}

fn share_milli(row: Row<'_>, column: &str, gpus: u8) -> Result<Option<u16>, InputError> {
    if gpus == 0 {
        return row.or(column, None, |row| Err(row.wrong(column, "for a job without a GPU")));
    }
    let share = row.or(column, None, |row| row.decimal(column, 0.001..=1.0).map(Some))?;
    Ok(share.map(|share| (share * 1000.0).round() as u16))
}

fn together(row: &Row<'_>) -> Result<Option<Together>, InputError> {
    let text = row.text("together");
    match Together::NAMES.iter().find(|(name, _)| *name == text) {
        Some((_, together)) => Ok(Some(*together)),
        None => {
            let names = Together::NAMES.map(|(name, _)| name).join(", ");
            Err(row.wrong("together", format!("{text:?} is none of {names}")))
        }
    }
}

fn milliseconds(row: &Row<'_>, column: &str, min: f64) -> Result<u64, InputError> {
    Ok((row.decimal(column, min..=SECONDS_MAX as f64)? * 1000.0).round() as u64)
}

/// Models joined by `|`.
fn models(row: Row<'_>, column: &str, gpus: u8) -> Result<Vec<String>, InputError> {
    let text = row.text(column);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if gpus == 0 {
        return Err(row.wrong(column, "for a job without a GPU"));
    }
    let models: Vec<String> = text.split('|').map(|model| model.trim().to_owned()).collect();
    if models.iter().any(String::is_empty) {
        return Err(row.wrong(column, format!("{text:?} names an empty model")));
    }
    Ok(models)
}
