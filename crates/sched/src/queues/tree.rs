//! The tree of queues: what an operator states, checked once, then plain indices.

use std::collections::HashMap;

use super::amounts::{Amounts, RESOURCES, Resource};
use super::decay::Millis;
use super::fair::MAX_WEIGHT;

/// One queue as an operator states it. Figures are as people write them and checked by
/// [`QueueTree::new`].
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    pub name: String,
    /// The queue it is part of; none for one right below the cluster.
    #[serde(default)]
    pub parent: Option<String>,
    /// What its work is sure to get. Not stated for a queue with children: the sum of theirs.
    #[serde(default)]
    pub deserved: Figures,
    /// What its work may use at most, even if more is idle.
    #[serde(default)]
    pub limit: Figures,
    /// Part of what others leave, among queues of the same priority.
    #[serde(default = "one")]
    pub weight: i64,
    /// Higher ones are first to get what others leave.
    #[serde(default)]
    pub priority: i32,
    /// Work runs this long before higher-priority work of its queue may take its place; not stated:
    /// as the parent says.
    #[serde(default)]
    pub preempt_min_runtime_s: Option<f64>,
    /// Work runs this long before other queues may reclaim what it uses; not stated: as the parent
    /// says.
    #[serde(default)]
    pub reclaim_min_runtime_s: Option<f64>,
}

/// Amounts as people write them; what is not stated depends on where they are used.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Figures {
    pub gpus: Option<f64>,
    pub gpu_memory_gib: Option<f64>,
    pub cpus: Option<f64>,
    pub memory_gib: Option<f64>,
    /// See [`crate::NodeSpec::gpu_units_milli`].
    pub gpu_units: Option<f64>,
}

impl QueueSpec {
    /// A queue below the cluster that deserves nothing, has no limit, weight 1 and priority 0.
    pub fn new(name: &str) -> QueueSpec {
        QueueSpec {
            name: name.to_string(),
            parent: None,
            deserved: Figures::default(),
            limit: Figures::default(),
            weight: 1,
            priority: 0,
            preempt_min_runtime_s: None,
            reclaim_min_runtime_s: None,
        }
    }

    pub fn below(mut self, parent: &str) -> QueueSpec {
        self.parent = Some(parent.to_string());
        self
    }

    pub fn deserving_gpus(mut self, gpus: f64) -> QueueSpec {
        self.deserved.gpus = Some(gpus);
        self
    }

    pub fn limited_to_gpus(mut self, gpus: f64) -> QueueSpec {
        self.limit.gpus = Some(gpus);
        self
    }
}

/// What is wrong with a tree of queues, by queue and field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue \"{queue}\", {field}: {problem}")]
pub struct QueueError {
    pub queue: String,
    pub field: &'static str,
    pub problem: String,
}

/// A queue by its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(u32);

impl QueueId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A checked queue.
#[derive(Debug, Clone)]
pub struct Queue {
    pub name: String,
    pub parent: Option<QueueId>,
    /// In the order in which they were stated.
    pub children: Vec<QueueId>,
    pub deserved: Amounts,
    pub limit: Amounts,
    pub weight: u32,
    pub priority: i32,
    pub preempt_min_runtime: Option<Millis>,
    pub reclaim_min_runtime: Option<Millis>,
}

/// All queues. Work is submitted to leaves only.
#[derive(Debug, Clone, Default)]
pub struct QueueTree {
    queues: Vec<Queue>,
    roots: Vec<QueueId>,
    by_name: HashMap<String, QueueId>,
    /// Parents stand before their children.
    top_down: Vec<QueueId>,
    shared: Vec<Resource>,
}

impl QueueTree {
    /// Checks names, parents and figures; the first thing wrong is the error.
    pub fn new(specs: &[QueueSpec]) -> Result<QueueTree, QueueError> {
        let by_name = names(specs)?;
        let mut tree = QueueTree { by_name, ..QueueTree::default() };
        for spec in specs {
            let queue = tree.check(spec)?;
            tree.queues.push(queue);
        }
        tree.connect()?;
        tree.total_deserved(specs)?;
        let deserved = |resource| tree.queues.iter().any(|queue| queue.deserved[resource] > 0);
        tree.shared = Resource::ALL.into_iter().filter(|&r| r == Resource::Gpu || deserved(r)).collect();
        Ok(tree)
    }

    /// Has these resources divided fairly as well, for a tree that leaves out queues which deserve
    /// some of them.
    pub fn sharing(mut self, resources: impl IntoIterator<Item = Resource>) -> QueueTree {
        self.shared.extend(resources);
        let shared = std::mem::take(&mut self.shared);
        self.shared = Resource::ALL.into_iter().filter(|resource| shared.contains(resource)).collect();
        self
    }

    /// Adds a queue without children. Those above it keep their figures, so what it deserves is
    /// within theirs.
    pub(super) fn push(&mut self, spec: &QueueSpec) -> Result<QueueId, QueueError> {
        if self.by_name.contains_key(&spec.name) {
            return Err(spec.wrong("name", "two queues have this name; rename one".to_string()));
        }
        let queue = self.check(spec)?;
        let siblings = queue.parent.map(|parent| &self.queue(parent).children);
        if let Some((parent, siblings)) = queue.parent.map(|parent| self.queue(parent)).zip(siblings) {
            let mut sum = queue.deserved;
            siblings.iter().for_each(|sibling| sum += self.queue(*sibling).deserved);
            if let Some(resource) = sum.exceeds(&parent.deserved) {
                let [children, own] = [sum, parent.deserved].map(|a| resource.describe(a[resource]));
                let problem = format!(
                    "with it the children of \"{}\" together deserve {children}, but that deserves {own}",
                    parent.name
                );
                return Err(spec.wrong(DESERVED[resource as usize], problem));
            }
        }
        let id = QueueId(self.queues.len() as u32);
        match queue.parent {
            Some(parent) => self.queues[parent.index()].children.push(id),
            None => self.roots.push(id),
        }
        let deserved = queue.deserved;
        self.by_name.insert(queue.name.clone(), id);
        self.queues.push(queue);
        self.top_down.push(id);
        let also: Vec<Resource> =
            Resource::ALL.into_iter().filter(|&resource| deserved[resource] > 0).collect();
        *self = std::mem::take(self).sharing(also);
        Ok(id)
    }

    pub fn queue(&self, queue: QueueId) -> &Queue {
        &self.queues[queue.index()]
    }

    pub fn find(&self, name: &str) -> Option<QueueId> {
        self.by_name.get(name).copied()
    }

    /// The queues right below the cluster.
    pub fn roots(&self) -> &[QueueId] {
        &self.roots
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// All queues, parents before their children.
    pub fn top_down(&self) -> impl DoubleEndedIterator<Item = QueueId> + '_ {
        self.top_down.iter().copied()
    }

    /// The queue and all above it, the queue first.
    pub fn path(&self, queue: QueueId) -> impl Iterator<Item = QueueId> + '_ {
        std::iter::successors(Some(queue), |&queue| self.queue(queue).parent)
    }

    /// Resources that are divided fairly: compute of GPUs, and every other one of which some queue
    /// deserves something. Limits hold for all resources.
    pub fn shared(&self) -> &[Resource] {
        &self.shared
    }

    /// The two queues below the last common ancestor of `a` and `b` that lead to them; none if one
    /// contains the other.
    pub fn part_ways(&self, a: QueueId, b: QueueId) -> Option<(QueueId, QueueId)> {
        let above = |queue| {
            let mut path: Vec<QueueId> = self.path(queue).collect();
            path.reverse();
            path
        };
        above(a).into_iter().zip(above(b)).find(|(a, b)| a != b)
    }

    /// How long work of `victim` runs before work of the same queue with a higher priority may take
    /// its place.
    pub fn preempt_min_runtime(&self, victim: QueueId) -> Millis {
        self.path(victim).find_map(|queue| self.queue(queue).preempt_min_runtime).unwrap_or(0)
    }

    /// How long work of `victim` runs before `reclaimer` may reclaim what it uses. The queue right
    /// below their common ancestor says so, or the nearest above it that does: cousins need not
    /// heed what a queue says for its siblings.
    pub fn reclaim_min_runtime(&self, reclaimer: QueueId, victim: QueueId) -> Millis {
        let from = self.part_ways(reclaimer, victim).map_or(victim, |(_, victim)| victim);
        self.path(from).find_map(|queue| self.queue(queue).reclaim_min_runtime).unwrap_or(0)
    }

    fn check(&self, spec: &QueueSpec) -> Result<Queue, QueueError> {
        let parent = match &spec.parent {
            None => None,
            Some(parent) => Some(self.by_name.get(parent).copied().ok_or_else(|| {
                let problem =
                    format!("there is no queue \"{parent}\"; name one of the queues, or leave it out");
                spec.wrong("parent", problem)
            })?),
        };
        if !(0..=i64::from(MAX_WEIGHT)).contains(&spec.weight) {
            let problem =
                format!("{} is not a weight; give a whole number from 0 to {MAX_WEIGHT}", spec.weight);
            return Err(spec.wrong("weight", problem));
        }
        let queue = Queue {
            name: spec.name.clone(),
            parent,
            children: Vec::new(),
            deserved: spec.amounts(&spec.deserved, &DESERVED, 0)?,
            limit: spec.amounts(&spec.limit, &LIMIT, u64::MAX)?,
            weight: spec.weight as u32,
            priority: spec.priority,
            preempt_min_runtime: spec.millis("preempt_min_runtime_s", spec.preempt_min_runtime_s)?,
            reclaim_min_runtime: spec.millis("reclaim_min_runtime_s", spec.reclaim_min_runtime_s)?,
        };
        match queue.deserved.exceeds(&queue.limit) {
            None => Ok(queue),
            Some(resource) => {
                let [deserved, limit] = [queue.deserved, queue.limit].map(|a| resource.describe(a[resource]));
                let problem = format!("{deserved} is above the queue's own limit of {limit}");
                Err(spec.wrong(DESERVED[resource as usize], problem))
            }
        }
    }

    /// Children, roots and the order from the top; a queue that is not reached from the top is on
    /// or below a cycle.
    fn connect(&mut self) -> Result<(), QueueError> {
        for index in 0..self.queues.len() {
            let id = QueueId(index as u32);
            match self.queues[index].parent {
                Some(parent) => self.queues[parent.index()].children.push(id),
                None => self.roots.push(id),
            }
        }
        let mut top_down = self.roots.clone();
        let mut next = 0;
        while let Some(&queue) = top_down.get(next) {
            top_down.extend(&self.queue(queue).children);
            next += 1;
        }
        self.top_down = top_down;
        if self.top_down.len() == self.queues.len() {
            return Ok(());
        }
        Err(self.cycle())
    }

    /// Names a cycle; there is one.
    fn cycle(&self) -> QueueError {
        let mut reached = vec![false; self.queues.len()];
        self.top_down.iter().for_each(|queue| reached[queue.index()] = true);
        let lost = reached.iter().position(|&reached| !reached).unwrap_or_default();
        // As many steps upwards as there are queues end on the cycle, wherever they began.
        let start = self.path(QueueId(lost as u32)).nth(self.queues.len()).unwrap_or(QueueId(lost as u32));
        let mut names = vec![format!("\"{}\"", self.queue(start).name)];
        for queue in self.path(start).skip(1) {
            names.push(format!("\"{}\"", self.queue(queue).name));
            if queue == start {
                break;
            }
        }
        let problem =
            format!("{} is a cycle; one of them must stand below the cluster", names.join(" is part of "));
        QueueError { queue: self.queue(start).name.clone(), field: "parent", problem }
    }

    /// Gives parents that state nothing the sum of their children, and refuses children that
    /// deserve more than the parent.
    fn total_deserved(&mut self, specs: &[QueueSpec]) -> Result<(), QueueError> {
        for id in self.top_down.clone().into_iter().rev() {
            let queue = &self.queues[id.index()];
            if queue.children.is_empty() {
                continue;
            }
            let mut sum = Amounts::ZERO;
            queue.children.iter().for_each(|child| sum += self.queue(*child).deserved);
            let spec = &specs[id.index()];
            for resource in Resource::ALL {
                let (stated, field) = (spec.deserved.stated(resource), DESERVED[resource as usize]);
                let bound = if stated.is_some() { queue.deserved[resource] } else { queue.limit[resource] };
                if sum[resource] > bound {
                    let [children, own] = [sum[resource], bound].map(|amount| resource.describe(amount));
                    let what = if stated.is_some() { "deserves" } else { "is limited to" };
                    let problem = format!(
                        "its children together deserve {children}, but it {what} {own}; raise it or lower theirs"
                    );
                    return Err(spec.wrong(field, problem));
                }
            }
            let stated = |resource: &Resource| spec.deserved.stated(*resource).is_none();
            for resource in Resource::ALL.iter().copied().filter(stated) {
                self.queues[id.index()].deserved[resource] = sum[resource];
            }
        }
        Ok(())
    }
}

const DESERVED: [&str; RESOURCES] = [
    "deserved.gpus",
    "deserved.gpu_memory_gib",
    "deserved.cpus",
    "deserved.memory_gib",
    "deserved.gpu_units",
];
const LIMIT: [&str; RESOURCES] =
    ["limit.gpus", "limit.gpu_memory_gib", "limit.cpus", "limit.memory_gib", "limit.gpu_units"];

/// No cluster has this number of GPUs, cores or GiB: more than this is a slip.
const ABSURD: f64 = 1e9;

fn one() -> i64 {
    1
}

fn names(specs: &[QueueSpec]) -> Result<HashMap<String, QueueId>, QueueError> {
    let mut by_name = HashMap::new();
    for (index, spec) in specs.iter().enumerate() {
        if spec.name.is_empty() {
            return Err(spec.wrong("name", format!("queue {} has no name", index + 1)));
        }
        if by_name.insert(spec.name.clone(), QueueId(index as u32)).is_some() {
            return Err(spec.wrong("name", "two queues have this name; rename one".to_string()));
        }
    }
    Ok(by_name)
}

impl Figures {
    fn stated(&self, resource: Resource) -> Option<f64> {
        match resource {
            Resource::Gpu => self.gpus,
            Resource::GpuMemory => self.gpu_memory_gib,
            Resource::Cpu => self.cpus,
            Resource::Memory => self.memory_gib,
            Resource::GpuUnits => self.gpu_units,
        }
    }
}

impl QueueSpec {
    fn wrong(&self, field: &'static str, problem: String) -> QueueError {
        QueueError { queue: self.name.clone(), field, problem }
    }

    fn amounts(
        &self,
        figures: &Figures,
        fields: &[&'static str; RESOURCES],
        unstated: u64,
    ) -> Result<Amounts, QueueError> {
        let mut amounts = Amounts::ZERO;
        for resource in Resource::ALL {
            let steps = match resource {
                Resource::Gpu | Resource::Cpu | Resource::GpuUnits => 1000.0,
                Resource::GpuMemory | Resource::Memory => 1024.0,
            };
            let field = fields[resource as usize];
            amounts[resource] = match figures.stated(resource) {
                None => unstated,
                Some(figure) => (self.sane(field, figure)? * steps).round() as u64,
            };
        }
        Ok(amounts)
    }

    fn millis(&self, field: &'static str, seconds: Option<f64>) -> Result<Option<Millis>, QueueError> {
        seconds.map(|seconds| Ok((self.sane(field, seconds)? * 1000.0).round() as Millis)).transpose()
    }

    fn sane(&self, field: &'static str, figure: f64) -> Result<f64, QueueError> {
        if (0.0..=ABSURD).contains(&figure) {
            return Ok(figure);
        }
        let problem = format!("{figure} is out of range; give a number from 0 to {ABSURD}, or leave it out");
        Err(self.wrong(field, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(specs: &[QueueSpec]) -> String {
        QueueTree::new(specs).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named_by_queue_and_field() {
        let a = QueueSpec::new("a");
        let weight = |weight| QueueSpec { weight, ..QueueSpec::new("a") };
        let runtime = |seconds| QueueSpec { reclaim_min_runtime_s: Some(seconds), ..QueueSpec::new("a") };
        for (specs, expect) in [
            (vec![QueueSpec::new("")], "queue \"\", name: queue 1 has no name"),
            (vec![a.clone(), a.clone()], "queue \"a\", name: two queues have this name"),
            (vec![a.clone().below("b")], "queue \"a\", parent: there is no queue \"b\""),
            (vec![a.clone().below("a")], "queue \"a\", parent: \"a\" is part of \"a\" is a cycle"),
            (
                vec![
                    a.clone(),
                    QueueSpec::new("x").below("y"),
                    QueueSpec::new("y").below("z"),
                    QueueSpec::new("z").below("y"),
                ],
                "parent: \"",
            ),
            (vec![a.clone().deserving_gpus(-1.0)], "queue \"a\", deserved.gpus: -1 is out of range"),
            (vec![a.clone().deserving_gpus(f64::NAN)], "queue \"a\", deserved.gpus: NaN is out of range"),
            (
                vec![a.clone().deserving_gpus(1e12)],
                "queue \"a\", deserved.gpus: 1000000000000 is out of range",
            ),
            (vec![a.clone().limited_to_gpus(f64::INFINITY)], "queue \"a\", limit.gpus: inf is out of range"),
            (
                vec![a.clone().deserving_gpus(4.0).limited_to_gpus(2.0)],
                "queue \"a\", deserved.gpus: 4 GPUs is above the queue's own limit of 2 GPUs",
            ),
            (vec![weight(-1)], "queue \"a\", weight: -1 is not a weight"),
            (vec![weight(2_000_000)], "queue \"a\", weight: 2000000 is not a weight"),
            (vec![runtime(-5.0)], "queue \"a\", reclaim_min_runtime_s: -5 is out of range"),
            (
                vec![a.clone().deserving_gpus(2.0), QueueSpec::new("b").below("a").deserving_gpus(3.0)],
                "queue \"a\", deserved.gpus: its children together deserve 3 GPUs, but it deserves 2 GPUs",
            ),
            (
                vec![a.clone().limited_to_gpus(2.0), QueueSpec::new("b").below("a").deserving_gpus(3.0)],
                "queue \"a\", deserved.gpus: its children together deserve 3 GPUs, but it is limited to 2 GPUs",
            ),
        ] {
            let error = error(&specs);
            assert!(error.contains(expect), "{error}, not {expect}");
        }
    }

    #[test]
    fn a_cycle_below_which_queues_hang_is_found() {
        let specs =
            [QueueSpec::new("x").below("y"), QueueSpec::new("y").below("z"), QueueSpec::new("z").below("y")];
        let error = error(&specs);
        assert!(error.contains("is part of") && !error.contains("\"x\" is part"), "{error}");
    }

    #[test]
    fn a_parent_that_states_nothing_deserves_what_its_children_do() {
        let specs = [
            QueueSpec::new("b").below("a").deserving_gpus(1.5),
            QueueSpec::new("a"),
            QueueSpec::new("c").below("a").deserving_gpus(2.0),
        ];
        let tree = QueueTree::new(&specs).unwrap();
        let a = tree.find("a").unwrap();
        assert_eq!(tree.queue(a).deserved[Resource::Gpu], 3_500);
        assert_eq!(
            tree.part_ways(tree.find("b").unwrap(), tree.find("c").unwrap()),
            tree.find("b").zip(tree.find("c"))
        );
        assert_eq!(tree.part_ways(tree.find("b").unwrap(), a), None);
    }
}
