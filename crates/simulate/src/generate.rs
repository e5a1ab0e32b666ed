//! A synthetic cluster and workload of any size, for trying things out where there is no trace.
//!
//! Servers of eight GPUs in racks and zones, three models; notebooks and inference on parts of
//! GPUs, single GPUs, whole servers and gangs of servers; durations with a long tail; three
//! departments with teams that deserve three quarters of the GPUs. Work arrives evenly, 15 % faster
//! than all GPUs could do it, so that queues form and drain in the end.

use std::fmt::Write;
use std::io;
use std::path::Path;

use sluice_sched::Random;

/// What to make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// Rounded up to whole servers of eight.
    pub gpus: u32,
    pub jobs: u32,
    pub seed: u64,
    pub mix: Mix,
}

/// The work that fills the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Training takes most of the GPU time.
    Training,
    /// Notebooks, inference and training would hold a third of the GPUs each if each job held
    /// whole ones.
    Even,
}

impl Mix {
    /// The teams of [`TEAMS`] by how many of 100 jobs they submit.
    fn jobs(self) -> [u32; TEAMS.len()] {
        match self {
            Mix::Training => TEAMS.map(|(.., jobs)| jobs),
            Mix::Even => [8, 5, 2, 42, 2, 41],
        }
    }
}

/// The lists as CSV text.
struct Lists {
    nodes: String,
    jobs: String,
    queues: String,
}

const GPUS_PER_NODE: u32 = 8;
const NODES_PER_RACK: u32 = 4;
const ZONES: u32 = 3;
/// Far from the seeds of jobs; "needs" in ASCII.
const NEEDS_SEED: u64 = 0x006e_6565_6473;
const LOAD: f64 = 1.15;

/// Model, its memory in GiB, and how many of ten nodes have it.
const MODELS: [(&str, u32, u32); 3] = [("H100", 80, 4), ("A100", 80, 4), ("L40S", 48, 2)];

/// Department, team, percent of the GPUs that it deserves, and percent of the jobs that it submits.
const TEAMS: [(&str, &str, u32, u32); 6] = [
    ("research", "language", 25, 30),
    ("research", "vision", 10, 20),
    ("research", "robotics", 5, 10),
    ("product", "inference", 20, 15),
    ("product", "ranking", 10, 15),
    ("sandbox", "notebooks", 5, 10),
];

impl Synthetic {
    /// Writes `nodes.csv`, `jobs.csv` and `queues.csv` into the folder, which is made if need be.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let lists = self.lists();
        std::fs::create_dir_all(folder)?;
        for (name, text) in
            [("nodes.csv", lists.nodes), ("jobs.csv", lists.jobs), ("queues.csv", lists.queues)]
        {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(())
    }

    fn lists(&self) -> Lists {
        Lists { nodes: self.nodes(), jobs: self.jobs(), queues: self.queues() }
    }

    fn nodes(&self) -> String {
        let mut text = String::from("name,cpus,memory_gib,gpus,model,gpu_memory_gib,rack,zone\n");
        for node in 0..self.gpus.div_ceil(GPUS_PER_NODE) {
            let rack = node / NODES_PER_RACK;
            let (mut place, mut chosen) = (rack % 10, MODELS[0]);
            for model in MODELS {
                chosen = model;
                match place.checked_sub(model.2) {
                    Some(beyond) => place = beyond,
                    None => break,
                }
            }
            let (model, gpu_memory, _) = chosen;
            let zone = rack % ZONES;
            let _ = writeln!(
                text,
                "node-{node:05},128,1024,{GPUS_PER_NODE},{model},{gpu_memory},rack-{rack:04},zone-{zone}"
            );
        }
        text
    }

    fn queues(&self) -> String {
        let mut text = String::from("name,parent,deserved_gpus,weight\n");
        for (index, (department, ..)) in TEAMS.iter().enumerate() {
            if !TEAMS[..index].iter().any(|(earlier, ..)| earlier == department) {
                let _ = writeln!(text, "{department},,,1");
            }
        }
        let gpus = f64::from(self.gpus.div_ceil(GPUS_PER_NODE) * GPUS_PER_NODE);
        for (department, team, percent, _) in TEAMS {
            let deserved = (gpus * f64::from(percent) / 100.0).floor();
            let _ = writeln!(text, "{team},{department},{deserved},{percent}");
        }
        text
    }

    fn jobs(&self) -> String {
        let mut random = Random::new(self.seed);
        let jobs: Vec<Drawn> = (0..self.jobs).map(|_| self.draw(&mut random)).collect();
        let work_s: f64 = jobs.iter().map(|job| job.gpus() * f64::from(job.duration_s)).sum();
        let gpus = f64::from(self.gpus.div_ceil(GPUS_PER_NODE) * GPUS_PER_NODE);
        let span_s = work_s / (gpus * LOAD);
        let mut arrivals: Vec<f64> = jobs.iter().map(|_| uniform(&mut random) * span_s).collect();
        arrivals.sort_by(f64::total_cmp);
        let mut text = String::from(
            "name,arrival_s,duration_s,cpus,memory_gib,gpus,share,needed_share,gpu_memory_gib,models,members,queue,together,\
             priority,preemptible\n",
        );
        // Drawn apart, so that the jobs are the same as without needs.
        let mut needs = Random::new(self.seed ^ NEEDS_SEED);
        for (index, (job, arrival)) in jobs.iter().zip(arrivals).enumerate() {
            let Drawn {
                duration_s,
                size: Size { gpus, share, cpus, memory, gpu_memory, members },
                models,
                team,
                priority,
            } = job;
            let together = if *members > 1 { "prefer-zone" } else { "" };
            let needed = share * needed_part(team, &mut needs);
            let preemptible = if *team == "inference" { "no" } else { "yes" };
            let _ = writeln!(
                text,
                "job-{index:06},{arrival:.1},{duration_s},{cpus},{memory},{gpus},{share},{needed:.3},{gpu_memory},{models},{members},{team},\
                 {together},{priority},{preemptible}"
            );
        }
        text
    }

    fn draw(&self, random: &mut Random) -> Drawn {
        let jobs = self.mix.jobs();
        let choices: [_; TEAMS.len()] = std::array::from_fn(|index| (TEAMS[index].1, jobs[index]));
        let team = pick(random, &choices);
        let gang = self.gang(random);
        let size = match team {
            "notebooks" => pick(random, &[(Size::part(0.1, 8), 50), (Size::part(0.25, 20), 50)]),
            "inference" => {
                pick(random, &[(Size::part(0.25, 20), 40), (Size::part(0.5, 24), 30), (Size::whole(1), 30)])
            }
            _ => pick(
                random,
                &[
                    (Size::part(0.5, 24), 15),
                    (Size::whole(1), 55),
                    (Size::whole(2), 10),
                    (Size::whole(4), 8),
                    (Size::whole(8), 10),
                    (Size { members: gang, ..Size::whole(8) }, 2),
                ],
            ),
        };
        let models = if size.gpus == 8 {
            [("", 50), ("H100", 20), ("H100|A100", 30)]
        } else {
            [("", 80), ("H100", 5), ("H100|A100", 15)]
        };
        Drawn {
            // Log-normal around 40 minutes.
            duration_s: (2400.0 * (1.2 * normal(random)).exp()).clamp(30.0, 1e6) as u32,
            size,
            models: pick(random, &models),
            team,
            priority: pick(random, &[(0, 85), (10, 12), (100, 3)]),
        }
    }

    /// Servers of a gang: no more than an eighth of the cluster.
    fn gang(&self, random: &mut Random) -> u32 {
        let most = (self.gpus / GPUS_PER_NODE / 8).max(1);
        pick(random, &[(2, 50), (4, 30), (8, 15), (16, 5)]).min(most)
    }
}

/// The part of the share that a job asks for with which it would do as well. Notebooks need theirs
/// for their bursts; training waits for its input, and services for requests.
fn needed_part(team: &str, random: &mut Random) -> f64 {
    let (least, most) = match team {
        "notebooks" => (0.5, 1.0),
        "inference" | "ranking" => (0.25, 0.75),
        _ => (0.4, 1.0),
    };
    least + (most - least) * uniform(random)
}

struct Drawn {
    duration_s: u32,
    size: Size,
    models: &'static str,
    team: &'static str,
    priority: u32,
}

impl Drawn {
    fn gpus(&self) -> f64 {
        f64::from(self.size.gpus * self.size.members) * self.size.share
    }
}

/// What each member asks for; memory in GiB.
#[derive(Clone, Copy)]
struct Size {
    gpus: u32,
    share: f64,
    cpus: u32,
    memory: u32,
    gpu_memory: u32,
    members: u32,
}

impl Size {
    fn part(share: f64, gpu_memory: u32) -> Size {
        Size { gpus: 1, share, cpus: 2, memory: 12, gpu_memory, members: 1 }
    }

    fn whole(gpus: u32) -> Size {
        Size { gpus, share: 1.0, cpus: 12 * gpus, memory: 96 * gpus, gpu_memory: 40, members: 1 }
    }
}

/// One of the choices, as often as its weight says.
fn pick<T: Copy>(random: &mut Random, choices: &[(T, u32)]) -> T {
    let total: u32 = choices.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(total as usize) as u32;
    for (choice, weight) in choices {
        match left.checked_sub(*weight) {
            Some(beyond) => left = beyond,
            None => return *choice,
        }
    }
    choices[choices.len() - 1].0
}

/// From 0 to below 1.
fn uniform(random: &mut Random) -> f64 {
    random.below(1 << 30) as f64 / f64::from(1 << 30)
}

/// About normal, with mean 0 and deviation 1: the sum of twelve uniform numbers.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Site;
    use crate::trace::{jobs_from_text, nodes_from_text, queues_from_text};

    #[test]
    fn made_up_lists_are_lists_that_are_accepted() {
        for (gpus, jobs) in [(8, 50), (100, 500), (2000, 3000)] {
            let lists = Synthetic { gpus, jobs, seed: 1, mix: Mix::Even }.lists();
            let site = Site::new(&nodes_from_text(&lists.nodes).unwrap()).unwrap();
            let list = jobs_from_text(&lists.jobs).unwrap();
            assert_eq!((site.gpus(), list.jobs.len()), (gpus.next_multiple_of(8), jobs as usize));
            queues_from_text(&lists.queues).unwrap().check(&list).unwrap();
            let impossible = site.impossible(&list);
            // The smallest cluster has one model only.
            assert!(gpus < 100 || impossible.is_empty(), "{impossible:?}");
        }
    }

    #[test]
    fn seeds_repeat() {
        let jobs = |seed| Synthetic { gpus: 80, jobs: 20, seed, mix: Mix::Training }.jobs();
        assert_eq!(jobs(1), jobs(1));
        assert_ne!(jobs(1), jobs(2));
    }
}
