//! How GPUs are divided among jobs: what a job takes, and how long it runs with that.

use serde::Serialize;

use crate::trace::{Job, Jobs};

/// A way to divide GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    /// A job gets whole GPUs, whatever part it asks for.
    WholeGpus,
    /// A job gets the smallest of NVIDIA's MIG profiles that has what it asks for. In favour of
    /// MIG, every model can be divided, any profiles fit together whose compute does, and profiles
    /// take no more memory than is asked for.
    Mig,
    /// A job gets the smallest profile that has what it needs, which may be less than it asks for.
    MigNeeded,
    /// The device plugin's replicas: each job gets one of this number of equal turns on a GPU, and
    /// runs longer where it needs more than its turn.
    TimeSlicing { replicas: u16 },
    /// A job gets the share that it asks for.
    Shares,
    /// A job gets the share that it needs.
    SharesNeeded,
}

/// A whole GPU in thousandths.
const WHOLE: u16 = 1000;
/// MIG profiles by compute: sevenths of a GPU, and eighths of its memory.
const PROFILES: [(u16, u32); 5] = [(1, 1), (2, 2), (3, 4), (4, 4), (7, 8)];

impl Allocation {
    /// All that can be compared for these jobs. Right-sizing takes a `needed_share`.
    pub fn all(jobs: &Jobs) -> Vec<Allocation> {
        let knows_need = jobs.jobs.iter().any(|job| job.needed_share_milli > 0);
        let mut all = vec![
            Allocation::WholeGpus,
            Allocation::Mig,
            Allocation::TimeSlicing { replicas: 2 },
            Allocation::TimeSlicing { replicas: 4 },
            Allocation::Shares,
        ];
        if knows_need {
            all.extend([Allocation::MigNeeded, Allocation::SharesNeeded]);
        }
        all
    }

    /// As reports call it.
    pub fn name(self) -> String {
        match self {
            Allocation::WholeGpus => "whole GPUs".into(),
            Allocation::Mig => "MIG".into(),
            Allocation::MigNeeded => "MIG, right-sized".into(),
            Allocation::TimeSlicing { replicas } => format!("{replicas} time slices"),
            Allocation::Shares => "shares".into(),
            Allocation::SharesNeeded => "shares, right-sized".into(),
        }
    }

    /// The job as it is allocated. `gpu_memory_mib` is the memory of the largest GPU, 0 where it is
    /// not known.
    pub(super) fn apply(self, job: &Job, gpu_memory_mib: u32) -> Job {
        let mut job = job.clone();
        if job.gpus == 0 {
            return job;
        }
        let asked = job.share_milli;
        let needed = if job.needed_share_milli > 0 { job.needed_share_milli.min(asked) } else { asked };
        match self {
            Allocation::WholeGpus => job.share_milli = WHOLE,
            Allocation::Mig => mig(&mut job, asked, gpu_memory_mib),
            Allocation::MigNeeded => mig(&mut job, needed, gpu_memory_mib),
            Allocation::TimeSlicing { replicas } => {
                let turn = WHOLE / replicas.max(1);
                job.share_milli = turn;
                if let Some(timing) = &mut job.timing
                    && needed > turn
                {
                    timing.duration_ms = timing.duration_ms * u64::from(needed) / u64::from(turn);
                }
            }
            Allocation::Shares => {}
            Allocation::SharesNeeded => job.share_milli = needed,
        }
        job
    }
}

/// The smallest profile with this share and the job's memory.
fn mig(job: &mut Job, share_milli: u16, gpu_memory_mib: u32) {
    let fits = |&(sevenths, eighths): &(u16, u32)| {
        let memory = gpu_memory_mib == 0 || job.gpu_memory_mib <= gpu_memory_mib / 8 * eighths;
        u32::from(sevenths) * u32::from(WHOLE) >= u32::from(share_milli) * 7 && memory
    };
    let (sevenths, _) = PROFILES.into_iter().find(fits).unwrap_or(PROFILES[PROFILES.len() - 1]);
    job.share_milli = WHOLE * sevenths / 7;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::jobs_from_text;

    fn job(share: &str, needed: &str, memory: &str) -> Job {
        let header = "name,cpus,memory_gib,gpus,share,needed_share,gpu_memory_gib,arrival_s,duration_s\n";
        let text = format!("{header}j,1,1,1,{share},{needed},{memory},0,100\n");
        jobs_from_text(&text).unwrap().jobs.remove(0)
    }

    #[test]
    fn each_allocation_takes_what_it_is_known_for() {
        let check = |allocation: Allocation, job: &Job, share: u16, seconds: u64| {
            let got = allocation.apply(job, 80 * 1024);
            let duration_ms = got.timing.unwrap().duration_ms;
            assert_eq!((got.share_milli, duration_ms), (share, seconds * 1000), "{allocation:?}");
        };
        let half = job("0.5", "0.3", "8");
        check(Allocation::WholeGpus, &half, 1000, 100);
        // Four of seven parts are the first profile with half of the compute.
        check(Allocation::Mig, &half, 571, 100);
        check(Allocation::MigNeeded, &half, 428, 100);
        check(Allocation::TimeSlicing { replicas: 2 }, &half, 500, 100);
        // It needs 30 % and has a quarter.
        check(Allocation::TimeSlicing { replicas: 4 }, &half, 250, 120);
        check(Allocation::Shares, &half, 500, 100);
        check(Allocation::SharesNeeded, &half, 300, 100);
        // 30 GiB of 80 are in no profile below four eighths.
        check(Allocation::Mig, &job("0.1", "", "30"), 428, 100);
        let unknown = job("0.5", "", "");
        check(Allocation::SharesNeeded, &unknown, 500, 100);
    }

    #[test]
    fn right_sizing_is_compared_where_needs_are_known() {
        let list = |needed: &str| {
            let header = "name,cpus,memory_gib,gpus,share,needed_share\n";
            jobs_from_text(&format!("{header}j,1,1,1,0.5,{needed}\n")).unwrap()
        };
        assert!(Allocation::all(&list("0.2")).contains(&Allocation::SharesNeeded));
        assert!(!Allocation::all(&list("")).contains(&Allocation::SharesNeeded));
    }
}
