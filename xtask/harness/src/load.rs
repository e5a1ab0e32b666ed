//! What the machine does besides our own work: a measurement of shares means nothing where others
//! take the processors.

use std::collections::HashMap;

use anyhow::{Context, Result};

/// CPU time since the machine's start, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of all processors, and what they could have done.
    busy: u64,
    possible: u64,
    /// Of this process and all that it started.
    own: u64,
}

impl Load {
    pub fn now() -> Result<Load> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<u64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
        // user nice system idle iowait irq softirq steal; what guests take is part of user and nice
        // (proc_stat(5)).
        let possible: u64 = ticks.iter().take(8).sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Ok(Load { busy: possible - idle, possible, own: own()? })
    }

    /// The part of the machine that others have taken since.
    pub fn others_since(self) -> Result<f64> {
        let now = Load::now()?;
        let (busy, own) = (now.busy - self.busy, now.own.saturating_sub(self.own));
        Ok(busy.saturating_sub(own) as f64 / (now.possible - self.possible).max(1) as f64)
    }
}

/// The time of this process, its descendants, and those of them that have ended and been waited
/// for.
fn own() -> Result<u64> {
    let mut processes = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may have ended since it was listed.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((_, fields)) = stat.rsplit_once(')') else { continue };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // ppid is the fourth field of all; utime, stime, cutime and cstime are the 14th to 17th
        // (proc_pid_stat(5)).
        let parent = fields.get(1).and_then(|parent| parent.parse::<u32>().ok());
        let ticks: u64 = fields.iter().skip(11).take(4).flat_map(|field| field.parse::<u64>()).sum();
        processes.insert(pid, (parent, ticks));
    }
    let us = std::process::id();
    let is_ours = |mut pid: u32| loop {
        if pid == us {
            break true;
        }
        match processes.get(&pid) {
            Some(&(Some(parent), _)) => pid = parent,
            _ => break false,
        }
    };
    Ok(processes.iter().filter(|(pid, _)| is_ours(**pid)).map(|(_, (_, ticks))| ticks).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_does_is_its_own() {
        let before = Load::now().unwrap();
        while own().unwrap() < before.own + 20 {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        let others = before.others_since().unwrap();
        assert!((0.0..=1.0).contains(&others), "{others}");
        assert!(Load::now().unwrap().busy > before.busy);
    }
}
