//! Queue lists: the tree over which GPUs are shared fairly.

use std::collections::HashMap;
use std::path::Path;

use super::table::{InputError, Row, Table};

/// A queue; jobs wait in those that have none below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub name: String,
    pub line: u64,
    pub parent: Option<String>,
    /// What it gets before anybody gets more, in thousandths of a GPU.
    pub deserved_milli: u64,
    /// What it never exceeds; `None` is no limit.
    pub limit_milli: Option<u64>,
    /// Its part of what is left, relative to its siblings of the same priority.
    pub weight: u32,
    /// Siblings of a higher priority take from what is left first.
    pub priority: i32,
}

const GPUS_MAX: f64 = 64e6;
const WEIGHT_MAX: u64 = 1_000_000;
const PRIORITY_MAX: i64 = 1_000_000;
const QUEUES_MAX: usize = 100_000;

pub fn read_queues(path: &Path) -> Result<Vec<Queue>, InputError> {
    queues_of(&Table::open(path)?)
}

pub(super) fn queues_of(table: &Table) -> Result<Vec<Queue>, InputError> {
    table.expect_columns(&["name"], &["parent", "deserved_gpus", "limit_gpus", "weight", "priority"])?;
    let rows: Vec<Row<'_>> = table.rows().collect();
    if rows.is_empty() {
        return Err(table.wrong("lists no queue"));
    }
    if rows.len() > QUEUES_MAX {
        return Err(table.wrong(format!("more than {QUEUES_MAX} queues")));
    }
    let mut by_name: HashMap<&str, Row<'_>> = HashMap::new();
    for row in &rows {
        let name = row.name("name")?;
        if let Some(earlier) = by_name.insert(name, *row) {
            let problem = format!("{name:?} is the name of line {} already", earlier.line());
            return Err(row.wrong("name", problem));
        }
    }
    for row in &rows {
        check_ancestors(*row, &by_name)?;
    }
    rows.into_iter().map(queue).collect()
}

/// Follows the parents up to a root; a tree has fewer levels than queues.
fn check_ancestors(row: Row<'_>, by_name: &HashMap<&str, Row<'_>>) -> Result<(), InputError> {
    let name = row.text("name");
    let mut path = vec![name];
    let mut at = row;
    while !at.text("parent").is_empty() {
        let parent = at.text("parent");
        let Some(above) = by_name.get(parent) else {
            return Err(at.wrong("parent", format!("there is no queue {parent:?}")));
        };
        path.push(parent);
        if parent == name {
            return Err(row.wrong("parent", format!("the queues form a cycle: {}", path.join(" -> "))));
        }
        if path.len() > LEVELS_MAX {
            let problem = format!("more than {LEVELS_MAX} levels of queues, or a cycle above {name:?}");
            return Err(row.wrong("parent", problem));
        }
        at = *above;
    }
    Ok(())
}

const LEVELS_MAX: usize = 16;

fn queue(row: Row<'_>) -> Result<Queue, InputError> {
    let gpus = |row: &Row<'_>, column| Ok((row.decimal(column, 0.0..=GPUS_MAX)? * 1000.0).round() as u64);
    let deserved_milli = row.or("deserved_gpus", 0, |row| gpus(row, "deserved_gpus"))?;
    let limit_milli = row.or("limit_gpus", None, |row| gpus(row, "limit_gpus").map(Some))?;
    if limit_milli.is_some_and(|limit| limit < deserved_milli) {
        return Err(row.wrong("limit_gpus", "is less than deserved_gpus"));
    }
    Ok(Queue {
        name: row.name("name")?.into(),
        line: row.line(),
        parent: Some(row.text("parent")).filter(|parent| !parent.is_empty()).map(str::to_owned),
        deserved_milli,
        limit_milli,
        weight: row.or("weight", 1, |row| row.whole("weight", 0..=WEIGHT_MAX))? as u32,
        priority: row.or("priority", 0, |row| row.signed("priority", -PRIORITY_MAX..=PRIORITY_MAX))? as i32,
    })
}
