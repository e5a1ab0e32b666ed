//! The reference interpreter: what a kernel means, slowly.
//!
//! It is the oracle of the back end's tests, so it takes the other road wherever there is one: each
//! thread has its own place and its own values, threads take turns of random length (lockstep would
//! hide what relies on it), and a collective instruction happens when all lanes of its member mask
//! that have not ended stand at it.
//!
//! One cluster runs at a time (without clusters, one block), in the order of indices, which is
//! enough for kernels whose blocks wait only for those of their cluster and for earlier ones.

mod cluster;
mod matrix;
mod memory;
mod scalar;
#[cfg(test)]
mod tests;
mod warp;

use crate::{BlockId, Inst, InstId, Kernel, SpecialRegister, Target, Terminator, Value};

use cluster::RunningCluster;
use memory::Memory;

pub use memory::{GlobalMemory, SparseMemory};

/// What to run.
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// In blocks.
    pub grid: [u32; 3],
    /// In threads.
    pub block: [u32; 3],
    /// Blocks of a cluster; each divides the grid's. None where nothing asks for clusters.
    pub cluster: Option<[u32; 3]>,
    pub dynamic_shared_bytes: u32,
    /// Of each thread, for kernels that need one.
    pub stack_bytes: u32,
    /// The parameter block, laid out as [`crate::ParamLayout`] says.
    pub params: &'a [u8],
    /// Addresses of the module variables, in the order of [`Kernel::globals`].
    pub globals: &'a [u64],
    /// Of the order in which threads run.
    pub seed: u64,
    /// Instructions that the whole grid may execute before it counts as endless.
    pub steps_max: u64,
}

/// Why a grid ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpFault {
    #[error("illegal address {address:#x}")]
    IllegalAddress { address: u64 },
    #[error("misaligned address {address:#x}")]
    MisalignedAddress { address: u64 },
    #[error("trap")]
    Trap,
    #[error("assertion failed")]
    Assert,
    #[error("no thread of the block can go on")]
    Deadlock,
    #[error("an instruction that the compiler does not have")]
    Missing,
    #[error("the stack of a thread is too small for its calls")]
    StackOverflow,
    #[error("more than {0} instructions")]
    Endless(u64),
    #[error("the reference interpreter has no {0}")]
    Unsupported(&'static str),
}

/// Runs a grid to its end.
pub fn run(launch: &Launch<'_>, memory: &mut dyn GlobalMemory) -> Result<(), InterpFault> {
    let mut random = Random(launch.seed);
    let mut steps_left = launch.steps_max;
    let size = launch.cluster.unwrap_or([1; 3]);
    let [nx, ny, nz] = [0, 1, 2].map(|axis| launch.grid[axis] / size[axis].max(1));
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                let first = [x * size[0], y * size[1], z * size[2]];
                RunningCluster::new(launch, first, size).run(launch, memory, &mut random, &mut steps_left)?;
            }
        }
    }
    Ok(())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// At a collective instruction of its warp.
    AtWarp(InstId),
    /// At a barrier, which counts it.
    AtBarrier,
    /// Waiting at the barrier of the cluster.
    AtCluster,
    Ended,
}

struct Thread {
    tid: [u32; 3],
    state: State,
    block: BlockId,
    /// Index into the block's instructions; their number stands for the terminator.
    at: usize,
    /// Whether it has arrived at the cluster's barrier in the present phase.
    has_arrived: bool,
    values: Vec<u64>,
    local: Vec<u8>,
}

/// A named barrier of the block (PTX ISA, "barrier").
#[derive(Default)]
struct Barrier {
    /// Waiting threads with the value of their predicate.
    waiting: Vec<(usize, InstId, bool)>,
    arrived: usize,
    /// Threads that it waits for; None for all of the block.
    count: Option<usize>,
}

/// A block of threads while it runs.
struct RunningBlock {
    ctaid: [u32; 3],
    /// Its rank in the cluster.
    rank: usize,
    threads: Vec<Thread>,
    barriers: [Barrier; 16],
    clock: u64,
}

impl RunningBlock {
    fn new(launch: &Launch<'_>, ctaid: [u32; 3], rank: usize) -> RunningBlock {
        let [nx, ny, nz] = launch.block;
        let stack_bytes = if launch.kernel.needs_stack { launch.stack_bytes } else { 0 };
        let thread = |index: u32| Thread {
            tid: [index % nx, index / nx % ny, index / (nx * ny)],
            state: State::Ready,
            block: BlockId(0),
            at: 0,
            has_arrived: false,
            values: vec![0; launch.kernel.values.len()],
            local: vec![0; (launch.kernel.local_bytes + stack_bytes) as usize],
        };
        RunningBlock {
            ctaid,
            rank,
            threads: (0..nx * ny * nz).map(thread).collect(),
            barriers: Default::default(),
            clock: 0,
        }
    }

    fn has_ended(&self) -> bool {
        self.threads.iter().all(|thread| thread.state == State::Ended)
    }

    fn is_ready(&self) -> bool {
        self.threads.iter().any(|thread| thread.state == State::Ready)
    }

    /// Some steps of one thread that is ready; there is one.
    fn turn(
        &mut self,
        launch: &Launch<'_>,
        memory: &mut Memory<'_>,
        random: &mut Random,
        steps_left: &mut u64,
    ) -> Result<(), InterpFault> {
        let ready: Vec<usize> =
            (0..self.threads.len()).filter(|&t| self.threads[t].state == State::Ready).collect();
        let thread = ready[random.below(ready.len())];
        for _ in 0..1 + random.below(40) {
            if self.threads[thread].state != State::Ready {
                break;
            }
            *steps_left = steps_left.checked_sub(1).ok_or(InterpFault::Endless(launch.steps_max))?;
            self.step(launch, memory, thread)?;
        }
        self.release(launch.kernel)?;
        Ok(())
    }

    /// Lets those go on whose collective instruction or barrier is complete; whether there were
    /// any.
    fn release(&mut self, kernel: &Kernel) -> Result<bool, InterpFault> {
        let warps = self.threads.len().div_ceil(32);
        let mut released = false;
        for warp in 0..warps {
            released |= self.release_warp(kernel, warp);
        }
        for barrier in 0..self.barriers.len() {
            released |= self.release_barrier(kernel, barrier);
        }
        Ok(released)
    }

    /// One instruction or terminator of one thread.
    fn step(&mut self, launch: &Launch<'_>, memory: &mut Memory<'_>, t: usize) -> Result<(), InterpFault> {
        self.clock += 1;
        let kernel = launch.kernel;
        let block = kernel.block(self.threads[t].block);
        let Some(&id) = block.insts.get(self.threads[t].at) else {
            return self.terminate(kernel, t);
        };
        let data = kernel.inst(id);
        if let Inst::Barrier { kind, id: name, count, predicate } = &data.inst {
            let (name, count) = (self.value(t, *name), count.map(|count| self.value(t, count)));
            let predicate = predicate.is_some_and(|predicate| self.value(t, predicate) != 0);
            return self.come_to_barrier(t, id, *kind, name, count, predicate);
        }
        if let Inst::ClusterBarrier { waits } = data.inst {
            self.come_to_cluster(t, waits);
            return Ok(());
        }
        if data.inst.is_collective() {
            self.threads[t].state = State::AtWarp(id);
            return Ok(());
        }
        let result = match &data.inst {
            Inst::Load { .. }
            | Inst::Store { .. }
            | Inst::Atomic { .. }
            | Inst::Sample { .. }
            | Inst::CallRuntime { .. } => {
                return self.access(launch, memory, t, id);
            }
            Inst::Special { register: SpecialRegister::TotalSharedBytes } => memory.shared_bytes(),
            Inst::Special { register } => self.special(launch, t, *register),
            Inst::GlobalAddress { global } => launch.globals[global.index()],
            Inst::WindowBase { window } => memory::window_base(*window, self.rank, t),
            Inst::ActiveMask => 1 << (t % 32),
            Inst::Fence { .. } | Inst::Nanosleep { .. } => {
                self.threads[t].at += 1;
                return Ok(());
            }
            pure => self.pure(t, pure),
        };
        self.set(t, data.result(0), result);
        self.threads[t].at += 1;
        Ok(())
    }

    fn pure(&self, t: usize, inst: &Inst) -> u64 {
        let v = |value: Value| self.value(t, value);
        match *inst {
            Inst::Const { bits, .. } => bits,
            Inst::Unary { op, ty, arg } => scalar::unary(op, ty, v(arg)),
            Inst::Binary { op, ty, args: [a, b] } => scalar::binary(op, ty, v(a), v(b)),
            Inst::Float { op, rounding, ty, args: [a, b] } => scalar::float(op, rounding, ty, v(a), v(b)),
            Inst::Fma { rounding, ty, args } => scalar::fma(rounding, ty, args.map(v)),
            Inst::Sqrt { rounding, ty, arg } => scalar::sqrt(rounding, ty, v(arg)),
            Inst::Permute { args } => scalar::permute(args.map(v)),
            Inst::Compare { cond, ty, args: [a, b] } => scalar::compare(cond, ty, v(a), v(b)).into(),
            Inst::FloatCompare { cond, ty, args: [a, b] } => {
                scalar::float_compare(cond, ty, v(a), v(b)).into()
            }
            Inst::Select { cond, args: [a, b], .. } => {
                if v(cond) != 0 {
                    v(a)
                } else {
                    v(b)
                }
            }
            Inst::Convert { op, from, to, arg } => scalar::convert(op, from, to, v(arg)),
            _ => unreachable!("{inst:?} is handled by the caller"),
        }
    }

    fn terminate(&mut self, kernel: &Kernel, t: usize) -> Result<(), InterpFault> {
        let target = match &kernel.block(self.threads[t].block).terminator {
            Terminator::Jump(target) => target,
            Terminator::Branch { cond, then, otherwise } => {
                if self.value(t, *cond) != 0 {
                    then
                } else {
                    otherwise
                }
            }
            Terminator::Switch { index, targets, default } => {
                targets.get(self.value(t, *index) as usize).unwrap_or(default)
            }
            Terminator::Exit => {
                self.threads[t].state = State::Ended;
                return Ok(());
            }
            Terminator::Trap => return Err(InterpFault::Trap),
        };
        self.enter(kernel, t, target);
        Ok(())
    }

    fn enter(&mut self, kernel: &Kernel, t: usize, target: &Target) {
        // All arguments are read before a parameter is written: they are assigned in parallel.
        let args: Vec<u64> = target.args.iter().map(|arg| self.value(t, *arg)).collect();
        for (param, arg) in kernel.block(target.block).params.iter().zip(args) {
            self.set(t, *param, arg);
        }
        self.threads[t].block = target.block;
        self.threads[t].at = 0;
    }

    fn special(&self, launch: &Launch<'_>, t: usize, register: SpecialRegister) -> u64 {
        use SpecialRegister::*;
        let [tid, ntid, ctaid, nctaid] = [self.threads[t].tid, launch.block, self.ctaid, launch.grid];
        let cluster = launch.cluster.unwrap_or([1; 3]);
        let value = match register {
            TidX => tid[0],
            TidY => tid[1],
            TidZ => tid[2],
            NtidX => ntid[0],
            NtidY => ntid[1],
            NtidZ => ntid[2],
            CtaidX => ctaid[0],
            CtaidY => ctaid[1],
            CtaidZ => ctaid[2],
            NctaidX => nctaid[0],
            NctaidY => nctaid[1],
            NctaidZ => nctaid[2],
            ClusterNctaidX => cluster[0],
            ClusterNctaidY => cluster[1],
            ClusterNctaidZ => cluster[2],
            IsExplicitCluster => launch.cluster.is_some().into(),
            ClusterSharedStride => return memory::SHARED_STRIDE,
            LaneId => t as u32 % 32,
            WarpId => t as u32 / 32,
            Nwarpid => self.threads.len().div_ceil(32) as u32,
            SmId | EnvReg(_) => 0,
            Nsmid => 1,
            GridId | Clock64 | GlobalTimer => return self.clock,
            Clock => self.clock as u32,
            DynamicSharedBytes => launch.dynamic_shared_bytes,
            TotalSharedBytes => unreachable!("answered by the memory"),
            LocalBytes => self.threads[t].local.len() as u32,
        };
        value.into()
    }

    fn value(&self, t: usize, value: Value) -> u64 {
        self.threads[t].values[value.index()]
    }

    fn set(&mut self, t: usize, value: Value, bits: u64) {
        self.threads[t].values[value.index()] = bits;
    }
}
