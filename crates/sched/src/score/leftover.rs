//! The leftover potential: how much of what is free on a node is expected to be left over when the
//! cluster is full.
//!
//! Free compute is worth little where it will be left over anyway: on a node short of CPU, on a GPU
//! whose rest no usual request fits, or of a model that few ask for. A request goes where what it
//! takes, together with what it spoils or rescues of the rest, would have been left over the most:
//! where the potential of the node falls the most. What is left over in which state comes from
//! replaying the workload's history ([`Training`](crate::Training)).

use crate::score::Choice;
use crate::score::fit::takes_milli;
use crate::score::room::{Room, choose_gpus};
use crate::{GPUS_PER_NODE_MAX, MODELS_MAX, ModelId, Node, NodeSpec, Request, WHOLE_GPU_MILLI};

/// Shares by which a GPU's room is classified, and amounts of CPU, of a node and per free GPU of
/// it: quantiles of what the history asks for.
const ROOM_BOUNDS: usize = 24;
const CPU_BOUNDS: usize = 10;
const CPU_PER_GPU_BOUNDS: usize = 12;

/// Scores are whole multiples of this leftover, in thousandths of a GPU. Finer scores place
/// worse: equal ones go to the first node in a fixed order, and that packs.
const STEP_MILLI: i64 = 40;
/// The score of a placement that changes nothing; nodes change by less than their GPUs, as far as
/// these are not overcommitted.
const NEUTRAL_SCORE: i64 = GPUS_PER_NODE_MAX as i64 * WHOLE_GPU_MILLI as i64 / STEP_MILLI + 1;

/// Observations of a coarser state, in GPUs, that its mean counts for in the mean of a finer state.
const PRIOR_GPUS: f64 = 30.0;

/// The states by which free compute is classified: the GPU's model, the node's free CPU per free
/// GPU, the node's free CPU, and the room on the GPU; of GPUs that are free as a whole, how many of
/// them the node has.
#[derive(Debug, Clone)]
pub(crate) struct States {
    /// Which rows are a model's; models that no node had in training share the last.
    model: [u8; MODELS_MAX],
    models: usize,
    cpu_per_gpu: Vec<u32>,
    cpu: Vec<u32>,
    /// The room of a GPU by its free compute, below a whole GPU.
    room: Vec<u8>,
    rooms: usize,
}

impl States {
    pub(crate) fn new(nodes: &[NodeSpec], history: &[Request]) -> States {
        let mut model = [u8::MAX; MODELS_MAX];
        let mut models = 0;
        for spec in nodes {
            if model[spec.model.index()] == u8::MAX {
                model[spec.model.index()] = models;
                models += 1;
            }
        }
        let model = model.map(|row| row.min(models));
        let with_gpu = || history.iter().filter(|request| request.total_gpu_milli() > 0);
        let mut shares: Vec<u32> = with_gpu()
            .map(|request| request.gpu_milli.into())
            .filter(|&milli| milli < WHOLE_GPU_MILLI.into())
            .collect();
        shares.sort_unstable();
        shares.dedup();
        let shares = quantiles(shares, ROOM_BOUNDS);
        let room = (0..WHOLE_GPU_MILLI).map(|free| bucket(&shares, free.into()) as u8).collect();
        let cpu_per_gpu = with_gpu().map(|request| per_gpu(request.cpu_milli, request.total_gpu_milli()));
        States {
            model,
            models: usize::from(models) + 1,
            cpu_per_gpu: quantiles(cpu_per_gpu.collect(), CPU_PER_GPU_BOUNDS),
            cpu: quantiles(history.iter().map(|request| request.cpu_milli).collect(), CPU_BOUNDS),
            room,
            rooms: shares.len() + 1 + GPUS_PER_NODE_MAX,
        }
    }

    /// The state of each GPU with free compute: its index on the node, the state, and the compute.
    pub(crate) fn of(&self, node: &Node, mut each: impl FnMut(usize, usize, u16)) {
        let room = Room::of(node);
        let row = self.row(room.model, room.cpu_milli, room.gpu_milli);
        let is_whole = |milli: u16| milli == room.whole_milli;
        let whole = room.gpus().iter().filter(|&&milli| is_whole(milli)).count();
        for (gpu, &milli) in room.gpus().iter().enumerate().filter(|&(_, &milli)| milli > 0) {
            let column = if is_whole(milli) { self.whole(whole) } else { self.fraction(milli) };
            each(gpu, row + column, milli);
        }
    }

    fn count(&self) -> usize {
        self.index(self.models, 0, 0)
    }

    fn index(&self, model: usize, cpu_per_gpu: usize, cpu: usize) -> usize {
        ((model * (self.cpu_per_gpu.len() + 1) + cpu_per_gpu) * (self.cpu.len() + 1) + cpu) * self.rooms
    }

    /// The first of the states that differ only in the room on the GPU.
    fn row(&self, model: ModelId, cpu_milli: u32, gpu_milli: u32) -> usize {
        let cpu_per_gpu = bucket(&self.cpu_per_gpu, per_gpu(cpu_milli, gpu_milli.into()));
        self.index(self.model[model.index()].into(), cpu_per_gpu, bucket(&self.cpu, cpu_milli))
    }

    fn fraction(&self, milli: u16) -> usize {
        // Of an overcommitted GPU more than one whole GPU may be free.
        self.room[usize::from(milli.min(WHOLE_GPU_MILLI - 1))].into()
    }

    /// For a GPU that is free as a whole, one of `whole` on its node.
    fn whole(&self, whole: usize) -> usize {
        self.rooms - GPUS_PER_NODE_MAX + whole - 1
    }
}

/// Bounds between `count` parts of the values with equally many in each, centred; without
/// repetitions.
fn quantiles(mut values: Vec<u32>, count: usize) -> Vec<u32> {
    values.sort_unstable();
    let centre = |part: usize| values.get(values.len() * (2 * part + 1) / (2 * count)).copied();
    let mut bounds: Vec<u32> = (0..count).filter_map(centre).collect();
    bounds.dedup();
    bounds
}

fn bucket(bounds: &[u32], value: u32) -> usize {
    bounds.partition_point(|&bound| bound <= value)
}

/// CPU per GPU, both in thousandths; where there is no GPU to share the CPU, none.
fn per_gpu(cpu_milli: u32, gpu_milli: u64) -> u32 {
    let per_gpu = (u64::from(cpu_milli) * u64::from(WHOLE_GPU_MILLI)).checked_div(gpu_milli);
    per_gpu.unwrap_or(0).try_into().unwrap_or(u32::MAX)
}

/// What was free in each state, and what of it was left over.
#[derive(Debug, Clone)]
pub(crate) struct Observations {
    states: States,
    sums: Vec<Sum>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    free_gpus: f64,
    left_gpus: f64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.free_gpus += other.free_gpus;
        self.left_gpus += other.left_gpus;
    }

    /// The share left over, drawn towards that of a coarser state where little was seen of this
    /// one.
    fn share(&self, coarser: f64) -> f64 {
        (self.left_gpus + coarser * PRIOR_GPUS) / (self.free_gpus + PRIOR_GPUS)
    }
}

impl Observations {
    pub(crate) fn new(states: States) -> Observations {
        let sums = vec![Sum::default(); states.count()];
        Observations { states, sums }
    }

    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    /// Of `free_milli` in this state, `left_milli` were left over.
    pub(crate) fn add(&mut self, state: usize, free_milli: u16, left_milli: u16) {
        let [free_gpus, left_gpus] = [free_milli, left_milli].map(|milli| f64::from(milli) / 1000.0);
        self.sums[state].add(Sum { free_gpus, left_gpus });
    }

    /// Lets what comes count for more than what was.
    pub(crate) fn fade(&mut self, factor: f64) {
        for sum in &mut self.sums {
            sum.free_gpus *= factor;
            sum.left_gpus *= factor;
        }
    }

    /// Means over coarser states support the finer ones: all, model, room, CPU per GPU, CPU.
    pub(crate) fn leftover(&self) -> Leftover {
        let states = &self.states;
        let sum = |range: &mut dyn Iterator<Item = usize>| {
            range.fold(Sum::default(), |mut sum, state| {
                sum.add(self.sums[state]);
                sum
            })
        };
        let (per_gpus, cpus) = (states.cpu_per_gpu.len() + 1, states.cpu.len() + 1);
        let mut share = vec![0; states.count()];
        let all = sum(&mut (0..states.count())).share(1.0);
        for model in 0..states.models {
            let of_model = sum(&mut (states.index(model, 0, 0)..states.index(model + 1, 0, 0))).share(all);
            for room in 0..states.rooms {
                let rows =
                    |per_gpu: usize| (0..cpus).map(move |cpu| states.index(model, per_gpu, cpu) + room);
                let of_room = sum(&mut (0..per_gpus).flat_map(rows)).share(of_model);
                for per_gpu in 0..per_gpus {
                    let of_per_gpu = sum(&mut rows(per_gpu)).share(of_room);
                    for state in rows(per_gpu) {
                        share[state] = (self.sums[state].share(of_per_gpu) * f64::from(u16::MAX)) as u16;
                    }
                }
            }
        }
        Leftover { states: states.clone(), share }
    }
}

/// A learned leftover potential.
#[derive(Debug, Clone)]
pub struct Leftover {
    states: States,
    /// Of free compute in each state, the share that is left over; `u16::MAX` for all of it.
    share: Vec<u16>,
}

impl Leftover {
    pub(crate) fn choose(&self, node: &Node, request: &Request) -> Choice {
        let Room { model, cpu_milli, gpu_milli, whole_milli, .. } = Room::of(node);
        let before = self.of(node);
        // All ways to place the request leave the node with the same CPU and the same GPU compute
        // in all.
        let left_milli = gpu_milli - takes_milli(node, request);
        let shares = self.shares(model, cpu_milli - request.cpu_milli, left_milli);
        choose_gpus(node, request, |gpus| {
            let fall = (before - self.amount(shares, whole_milli, gpus))
                .div_euclid(STEP_MILLI * i64::from(u16::MAX));
            (NEUTRAL_SCORE + fall).max(0) as u32
        })
    }

    /// The potential of the node as it is.
    pub(crate) fn of(&self, node: &Node) -> i64 {
        let room = Room::of(node);
        let shares = self.shares(room.model, room.cpu_milli, room.gpu_milli);
        self.amount(shares, room.whole_milli, room.gpus())
    }

    /// The shares left over by the room on the GPU, for a node with this much free.
    fn shares(&self, model: ModelId, cpu_milli: u32, gpu_milli: u32) -> &[u16] {
        &self.share[self.states.row(model, cpu_milli, gpu_milli)..][..self.states.rooms]
    }

    /// Compute that will be left over, in thousandths of a GPU times `u16::MAX`.
    fn amount(&self, share: &[u16], whole_milli: u16, gpus: &[u16]) -> i64 {
        let (mut whole, mut amount) = (0, 0);
        for &milli in gpus {
            if milli == whole_milli {
                whole += 1;
            } else {
                amount += i64::from(milli) * i64::from(share[self.states.fraction(milli)]);
            }
        }
        if whole > 0 {
            let share = i64::from(share[self.states.whole(whole)]);
            amount += whole as i64 * i64::from(whole_milli) * share;
        }
        amount
    }
}
