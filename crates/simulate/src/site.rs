//! A cluster as the lists describe it, in the scheduler's terms: models and places by number.

use std::collections::HashMap;

use sluice_sched::{
    Cluster, DomainId, LabelSet, MODELS_MAX, Misfit, ModelId, ModelSet, NodeSpec, Request, fit,
};

use crate::trace::{InputError, Job, Jobs, Node, Together, Wish};

/// Nodes in the order of their list, and the names behind the numbers.
#[derive(Clone, Debug)]
pub struct Site {
    specs: Vec<NodeSpec>,
    models: Vec<String>,
    gpus: u32,
}

/// A cluster that the scheduler cannot describe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    #[error(
        "the nodes have more than {MODELS_MAX} GPU models; give models that may stand for each other one name"
    )]
    TooManyModels,
}

impl Site {
    pub fn new(nodes: &[Node]) -> Result<Site, SiteError> {
        let mut models: Vec<String> = Vec::new();
        let mut zones = Numbers::default();
        let mut racks = Numbers::default();
        let mut specs = Vec::new();
        for node in nodes {
            let model = match models.iter().position(|model| *model == node.model) {
                Some(known) => known,
                // A node without a GPU counts for no model; whichever number it has is not looked
                // at.
                None if node.gpus == 0 => 0,
                None => {
                    models.push(node.model.clone());
                    models.len() - 1
                }
            };
            // Racks of different zones may bear the same name.
            let rack = format!("{}\n{}", node.zone, node.rack);
            specs.push(NodeSpec {
                cpu_milli: node.cpu_milli,
                memory_mib: node.memory_mib,
                gpus: node.gpus,
                model: u8::try_from(model).ok().and_then(ModelId::new).ok_or(SiteError::TooManyModels)?,
                gpu_milli: sluice_sched::WHOLE_GPU_MILLI,
                gpu_memory_mib: node.gpu_memory_mib,
                gpu_memory_leasable_mib: node.gpu_memory_leasable_mib(),
                gpu_units_milli: 0,
                labels: LabelSet::NONE,
                domains: vec![zones.number(&node.zone), racks.number(&rack)],
            });
        }
        let gpus = nodes.iter().map(|node| u32::from(node.gpus)).sum();
        Ok(Site { specs, models, gpus })
    }

    pub(crate) fn specs(&self) -> &[NodeSpec] {
        &self.specs
    }

    pub fn nodes(&self) -> usize {
        self.specs.len()
    }

    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Compute of all GPUs, in thousandths of one.
    pub fn capacity_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(sluice_sched::WHOLE_GPU_MILLI)
    }

    /// The empty cluster with its nodes in this order, which decides between nodes that are equally
    /// good.
    pub fn cluster(&self, order: impl IntoIterator<Item = usize>) -> Cluster {
        let mut cluster = Cluster::new();
        for index in order {
            let added = cluster.add_node(self.specs[index].clone());
            debug_assert!(added.is_ok(), "the reader keeps to the scheduler's limits: {added:?}");
        }
        cluster
    }

    /// What each member of the job asks for. Models that no node has are left out.
    pub fn request(&self, job: &Job) -> Request {
        let known = |name: &String| {
            let index = self.models.iter().position(|model| model == name)?;
            ModelId::new(index as u8)
        };
        let models =
            if job.models.is_empty() { ModelSet::ALL } else { job.models.iter().filter_map(known).collect() };
        let request = Request::cpu(job.cpu_milli, job.memory_mib)
            .with_gpus(job.gpus, job.share_milli)
            .with_gpu_memory(job.gpu_memory_mib)
            .with_models(models);
        // One that waits for memory on a GPU must hold none of another.
        if job.gpus > 1 { request.with_fixed_memory() } else { request }
    }

    /// The jobs that do not fit while all nodes are empty, each with the complaint about it.
    pub fn impossible(&self, jobs: &Jobs) -> Vec<InputError> {
        let wishes = self.impossible_wishes(&jobs.jobs).into_iter();
        wishes.map(|(index, wish, problem)| jobs.complain(&jobs.jobs[index], wish, problem)).collect()
    }

    /// Takes these jobs off the list.
    pub fn leave_out_impossible(&self, jobs: &mut Jobs) {
        let impossible = self.impossible_wishes(&jobs.jobs);
        for (index, ..) in impossible.into_iter().rev() {
            jobs.jobs.remove(index);
        }
    }

    /// The job's place in the list, what it asks for in vain, and why.
    fn impossible_wishes(&self, jobs: &[Job]) -> Vec<(usize, Wish, String)> {
        let empty = self.cluster(0..self.nodes());
        let mut answers: HashMap<Request, Option<Misfit>> = HashMap::new();
        let mut rooms: HashMap<(Request, Option<Together>), u64> = HashMap::new();
        let mut found = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let request = self.request(job);
            if let Some(misfit) = *answers.entry(request).or_insert_with(|| nearest_misfit(&empty, &request))
            {
                let (wish, problem) = self.explain(job, misfit);
                found.push((index, wish, problem));
            } else if job.members > 1 {
                let level = job.together.and_then(required_level);
                let together = job.together.filter(|_| level.is_some());
                let room = *rooms.entry((request, together)).or_insert_with(|| room(&empty, &request, level));
                if u64::from(job.members) > room {
                    let (near, domain) = match together {
                        Some(Together::RequireRack) => ("in one rack", "the roomiest empty rack"),
                        Some(Together::RequireZone) => ("in one zone", "the roomiest empty zone"),
                        _ => ("together", "the empty cluster"),
                    };
                    let problem = format!("{} {near}; {domain} has room for {room}", job.members);
                    found.push((index, Wish::Members, problem));
                }
            }
        }
        found
    }

    fn explain(&self, job: &Job, misfit: Misfit) -> (Wish, String) {
        let of_model = match job.models.join(" or ") {
            models if models.is_empty() || job.gpus == 0 => String::new(),
            models => format!(" with {models}"),
        };
        let accepts = |spec: &&NodeSpec| job.gpus == 0 || self.request(job).models.contains(spec.model);
        let most =
            |amount: fn(&NodeSpec) -> u32| self.specs.iter().filter(accepts).map(amount).max().unwrap_or(0);
        let most_gpus = most(|spec| spec.gpus.into());
        if most_gpus == 0 && job.gpus > 0 {
            return (Wish::Models, format!("no node has a GPU of the model {}", job.models.join(" or ")));
        }
        let too_much = |wish, asked: u32, most: u32, unit: &str| {
            let problem = if asked > most {
                format!("asks for {asked}{unit}; the largest node{of_model} has {most}")
            } else {
                format!("no single node{of_model} has {asked}{unit} and everything else that is asked for")
            };
            (wish, problem)
        };
        match misfit {
            Misfit::Cpu => {
                too_much(Wish::Cpus, job.cpu_milli, most(|spec| spec.cpu_milli), " thousandths of a CPU")
            }
            Misfit::Memory => too_much(Wish::Memory, job.memory_mib, most(|spec| spec.memory_mib), " MiB"),
            Misfit::GpuMemory => too_much(
                Wish::GpuMemory,
                job.gpu_memory_mib,
                most(|spec| spec.gpu_memory_mib),
                " MiB on each GPU",
            ),
            _ => too_much(Wish::Gpus, job.gpus.into(), most_gpus, " GPUs"),
        }
    }
}

/// The filter that the node which came nearest to fitting fails; none, if one fits.
fn nearest_misfit(cluster: &Cluster, request: &Request) -> Option<Misfit> {
    let mut nearest = None;
    for (_, node) in cluster.nodes() {
        match fit(node, request) {
            Ok(()) => return None,
            Err(misfit) => nearest = nearest.max(Some(misfit as usize)),
        }
    }
    nearest.and_then(|order| Misfit::ALL.get(order).copied())
}

/// The level of a site's domains in which all members have to be: zones, then racks.
fn required_level(together: Together) -> Option<usize> {
    match together {
        Together::RequireZone => Some(0),
        Together::RequireRack => Some(1),
        Together::PreferRack | Together::PreferZone => None,
    }
}

/// How many members the empty cluster holds; with a level, how many the domain does that holds the
/// most.
fn room(empty: &Cluster, request: &Request, level: Option<usize>) -> u64 {
    let on_node = |node: &sluice_sched::Node| {
        let times = |has: u32, each: u32| has.checked_div(each).unwrap_or(u32::MAX);
        let per_gpu =
            times(1000, request.gpu_milli.into()).min(node.spec().parts_of_empty_gpu(request, u32::MAX));
        // A member takes different GPUs: as many rounds over the node's GPUs as each of them has
        // room for.
        let slots = per_gpu.saturating_mul(node.spec().gpus.into());
        times(slots, request.gpus.into())
            .min(times(node.free_cpu_milli(), request.cpu_milli))
            .min(times(node.free_memory_mib(), request.memory_mib))
    };
    let nodes = empty.nodes().filter(|(_, node)| fit(node, request).is_ok());
    let mut domains: HashMap<Option<DomainId>, u64> = HashMap::new();
    for (_, node) in nodes {
        let domain = level.and_then(|level| node.spec().domains.get(level).copied());
        *domains.entry(domain).or_default() += u64::from(on_node(node));
    }
    domains.into_values().max().unwrap_or(0)
}

/// Names numbered in the order of their first mention.
#[derive(Default)]
struct Numbers(HashMap<String, u32>);

impl Numbers {
    fn number(&mut self, name: &str) -> DomainId {
        let next = self.0.len() as u32;
        DomainId(*self.0.entry(name.to_owned()).or_insert(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{jobs_from_text, nodes_from_text};

    const CLUSTER: &str =
        "name,cpus,memory_gib,gpus,model,gpu_memory_gib\na,8,32,4,A100,80\nb,64,256,1,T4,16\n";

    #[test]
    fn overcommitted_memory_holds_jobs_that_each_fit_on_a_gpu() {
        let room = |percent: u32, cells: &str| {
            let nodes = format!(
                "name,cpus,memory_gib,gpus,model,gpu_memory_gib,memory_overcommit_percent\na,64,64,2,A100,80,{percent}\n"
            );
            let jobs = format!("name,cpus,memory_gib,gpus,share,gpu_memory_gib\nj,0,0,{cells}\n");
            let site = Site::new(&nodes_from_text(&nodes).unwrap()).unwrap();
            let job = &jobs_from_text(&jobs).unwrap().jobs[0];
            super::room(&site.cluster([0]), &site.request(job), None)
        };
        assert_eq!([100, 200, 300].map(|percent| room(percent, "1,0.1,56")), [2, 4, 8]);
        assert_eq!(room(1000, "1,0.5,56"), 4, "shares add up to a GPU");
        assert_eq!(room(200, "1,0.1,81"), 0, "no GPU has as much");
        assert_eq!(room(200, "2,0.1,56"), 1, "jobs of several GPUs stay there");
    }

    #[test]
    fn impossible_jobs_are_named_by_the_wish_that_cannot_be_met() {
        let site = Site::new(&nodes_from_text(CLUSTER).unwrap()).unwrap();
        let check = |cells: &str, expect: &str| {
            let text = format!("name,cpus,memory_gib,gpus,models,gpu_memory_gib\nj,{cells}\n");
            let found = site.impossible(&jobs_from_text(&text).unwrap());
            assert_eq!(
                found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
                expect,
                "{cells}"
            );
        };
        check("1,1,4,,", "");
        check("1,1,1,H100|T4,", "");
        check("1,1,5,,", "jobs.csv:2: gpus: asks for 5 GPUs; the largest node has 4");
        check("1,1,2,T4,", "jobs.csv:2: gpus: asks for 2 GPUs; the largest node with T4 has 1");
        check("1,1,1,H100,", "jobs.csv:2: models: no node has a GPU of the model H100");
        check(
            "65,1,1,,",
            "jobs.csv:2: cpus: asks for 65000 thousandths of a CPU; the largest node has 64000",
        );
        check(
            "1,33,1,A100,",
            "jobs.csv:2: memory_gib: asks for 33792 MiB; the largest node with A100 has 32768",
        );
        check(
            "1,1,1,,81",
            "jobs.csv:2: gpu_memory_gib: asks for 82944 MiB on each GPU; the largest node has 81920",
        );
        check("4,1,2,A100,", "");
        check(
            "9,1,4,,",
            "jobs.csv:2: cpus: no single node has 9000 thousandths of a CPU and everything else that is asked for",
        );
    }

    #[test]
    fn members_have_to_fit_one_rack_where_that_is_required() {
        let nodes = "name,cpus,memory_gib,gpus,model,rack\na,8,32,4,T4,r1\nb,8,32,4,T4,r1\nc,8,32,4,T4,r2\n";
        let site = Site::new(&nodes_from_text(nodes).unwrap()).unwrap();
        let check = |members: u32, together: &str, expect: &str| {
            let text = format!("name,cpus,memory_gib,gpus,members,together\nj,1,1,4,{members},{together}\n");
            let found = site.impossible(&jobs_from_text(&text).unwrap());
            assert_eq!(found.first().map(ToString::to_string).unwrap_or_default(), expect, "{together}");
        };
        check(3, "prefer-rack", "");
        check(3, "require-zone", "");
        check(2, "require-rack", "");
        check(
            3,
            "require-rack",
            "jobs.csv:2: members: 3 in one rack; the roomiest empty rack has room for 2",
        );
        check(
            4,
            "require-zone",
            "jobs.csv:2: members: 4 in one zone; the roomiest empty zone has room for 3",
        );
        check(4, "", "jobs.csv:2: members: 4 together; the empty cluster has room for 3");
    }

    #[test]
    fn models_are_limited() {
        let list = |models: usize| {
            let mut text = String::from("name,cpus,memory_gib,gpus,model\n");
            (0..models).for_each(|model| text.push_str(&format!("n{model},8,32,1,M{model}\n")));
            Site::new(&nodes_from_text(&text).unwrap()).map(|site| site.gpus())
        };
        assert_eq!(list(64), Ok(64));
        assert_eq!(list(65), Err(SiteError::TooManyModels));
    }
}
