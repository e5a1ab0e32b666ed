//! Node lists: our own format and openb's.

use std::collections::HashMap;
use std::path::Path;

use super::table::{InputError, Row, Table};

/// A machine of the simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Where the list says it.
    pub line: u64,
    pub cpu_milli: u32,
    pub memory_mib: u32,
    pub gpus: u8,
    /// Empty on a node without a GPU.
    pub model: String,
    /// Of each GPU; 0 where the list does not say.
    pub gpu_memory_mib: u32,
    /// How much of that may be allocated, in percent; above 100, jobs that do not fit on a GPU
    /// together run in time slices.
    pub memory_overcommit_percent: u32,
    /// Empty where the list does not say.
    pub rack: String,
    pub zone: String,
}

impl Node {
    /// What may be allocated of the memory of each GPU.
    pub fn gpu_memory_leasable_mib(&self) -> u32 {
        let leasable = u64::from(self.gpu_memory_mib) * u64::from(self.memory_overcommit_percent) / 100;
        u32::try_from(leasable).unwrap_or(u32::MAX)
    }
}

pub(super) const CPUS_MAX: u64 = 100_000;
pub(super) const MEMORY_MIB_MAX: u64 = 1 << 30;
pub(super) const GPUS_MAX: u64 = sluice_sched::GPUS_PER_NODE_MAX as u64;
const NODES_MAX: usize = 1_000_000;

/// Reads a list in either format; the header tells which.
pub fn read_nodes(path: &Path) -> Result<Vec<Node>, InputError> {
    nodes_of(&Table::open(path)?)
}

pub(super) fn nodes_of(table: &Table) -> Result<Vec<Node>, InputError> {
    let read: fn(Row<'_>) -> Result<Node, InputError> = if table.has("sn") {
        table.expect_columns(&["sn", "cpu_milli", "memory_mib", "gpu", "model"], &[])?;
        openb_node
    } else {
        table.expect_columns(
            &["name", "cpus", "memory_gib", "gpus"],
            &["model", "gpu_memory_gib", "memory_overcommit_percent", "rack", "zone"],
        )?;
        own_node
    };
    let mut nodes = Vec::new();
    let mut lines: HashMap<&str, u64> = HashMap::new();
    let name_column = if table.has("sn") { "sn" } else { "name" };
    for row in table.rows() {
        if nodes.len() == NODES_MAX {
            return Err(table.wrong(format!("more than {NODES_MAX} nodes")));
        }
        if let Some(line) = lines.insert(row.text(name_column), row.line()) {
            let name = row.text(name_column);
            return Err(row.wrong(name_column, format!("{name:?} is the name of line {line} already")));
        }
        nodes.push(read(row)?);
    }
    if nodes.is_empty() {
        return Err(table.wrong("lists no node"));
    }
    if nodes.iter().all(|node| node.gpus == 0) {
        return Err(table.wrong("no node has a GPU"));
    }
    Ok(nodes)
}

fn openb_node(row: Row<'_>) -> Result<Node, InputError> {
    let gpus = row.whole("gpu", 0..=GPUS_MAX)? as u8;
    Ok(Node {
        name: row.name("sn")?.into(),
        line: row.line(),
        cpu_milli: row.whole("cpu_milli", 1..=CPUS_MAX * 1000)? as u32,
        memory_mib: row.whole("memory_mib", 1..=MEMORY_MIB_MAX)? as u32,
        gpus,
        model: model(row, gpus)?,
        gpu_memory_mib: 0,
        memory_overcommit_percent: 100,
        rack: String::new(),
        zone: String::new(),
    })
}

fn own_node(row: Row<'_>) -> Result<Node, InputError> {
    let gpus = row.whole("gpus", 0..=GPUS_MAX)? as u8;
    Ok(Node {
        name: row.name("name")?.into(),
        line: row.line(),
        cpu_milli: cpu_milli(row, 0.001)?,
        memory_mib: memory_mib(row, "memory_gib", 0.001)?,
        gpus,
        model: model(row, gpus)?,
        gpu_memory_mib: row.or("gpu_memory_gib", 0, |row| memory_mib(*row, "gpu_memory_gib", 0.001))?,
        memory_overcommit_percent: row
            .or("memory_overcommit_percent", 100, |row| row.whole("memory_overcommit_percent", 100..=1000))?
            as u32,
        rack: row.or("rack", String::new(), |row| row.name("rack").map(str::to_owned))?,
        zone: row.or("zone", String::new(), |row| row.name("zone").map(str::to_owned))?,
    })
}

/// Required where there are GPUs: requests name models.
fn model(row: Row<'_>, gpus: u8) -> Result<String, InputError> {
    match row.text("model") {
        "" if gpus > 0 => Err(row.wrong("model", "is empty, but the node has GPUs")),
        model if gpus == 0 && !model.is_empty() => {
            Err(row.wrong("model", format!("{model:?} on a node without a GPU")))
        }
        model if model.contains('|') => {
            Err(row.wrong("model", format!("{model:?} contains \"|\", which separates models in requests")))
        }
        "" => Ok(String::new()),
        _ => row.name("model").map(str::to_owned),
    }
}

/// The column `cpus`, decimal cores.
pub(super) fn cpu_milli(row: Row<'_>, min: f64) -> Result<u32, InputError> {
    Ok((row.decimal("cpus", min..=CPUS_MAX as f64)? * 1000.0).round() as u32)
}

/// A column of decimal GiB.
pub(super) fn memory_mib(row: Row<'_>, column: &str, min: f64) -> Result<u32, InputError> {
    let gib = row.decimal(column, min..=(MEMORY_MIB_MAX >> 10) as f64)?;
    // Rounded up: a request must not shrink, and a node's rounding error is below a MiB.
    Ok((gib * 1024.0).ceil() as u32)
}
