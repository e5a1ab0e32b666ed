//! What processes use, from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// CPU time of a process and of all below it, those that have ended included.
pub(crate) fn cpu_of_tree(root: u32) -> Result<Duration> {
    let mut ticks = 0;
    for id in tree(root)? {
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let fields = fields_after_name(&stat);
        // utime, stime; of the root also cutime and cstime, which are its ended children's
        // (proc_pid_stat(5), 14 to 17).
        let counted = if id == root { 11..15 } else { 11..13 };
        ticks += fields[counted].iter().filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    }
    // SAFETY: asks for a constant of the system.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Ok(Duration::from_millis(ticks * 1000 / per_second))
}

/// Bytes that a process has in memory.
pub(crate) fn resident(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

fn tree(root: u32) -> Result<Vec<u32>> {
    let mut tree = vec![root];
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = fields_after_name(&stat).get(1).and_then(|parent| parent.parse::<u32>().ok()) {
            parents.push((id, parent));
        }
    }
    let mut at = 0;
    while at < tree.len() {
        let parent = tree[at];
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        at += 1;
    }
    Ok(tree)
}

/// The fields from the third, the state, on: the second is a name that may hold anything.
fn fields_after_name(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect()
}
