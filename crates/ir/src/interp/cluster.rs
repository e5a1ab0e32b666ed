//! The blocks of one cluster, which run together.

use super::memory::Memory;
use super::{GlobalMemory, InterpFault, Launch, Random, RunningBlock, State};

/// The blocks of a cluster while they run, by rank.
pub(super) struct RunningCluster {
    blocks: Vec<RunningBlock>,
}

impl RunningCluster {
    /// The cluster whose first block has the index `first`.
    pub(super) fn new(launch: &Launch<'_>, first: [u32; 3], size: [u32; 3]) -> RunningCluster {
        let [nx, ny, nz] = size;
        let block = |rank: u32| {
            let inside = [rank % nx, rank / nx % ny, rank / (nx * ny)];
            RunningBlock::new(launch, [0, 1, 2].map(|axis| first[axis] + inside[axis]), rank as usize)
        };
        RunningCluster { blocks: (0..nx * ny * nz).map(block).collect() }
    }

    pub(super) fn run(
        &mut self,
        launch: &Launch<'_>,
        memory: &mut dyn GlobalMemory,
        random: &mut Random,
        steps_left: &mut u64,
    ) -> Result<(), InterpFault> {
        let mut memory = Memory::new(launch, memory, self.blocks.len());
        loop {
            let ready: Vec<usize> =
                (0..self.blocks.len()).filter(|&block| self.blocks[block].is_ready()).collect();
            if !ready.is_empty() {
                let block = ready[random.below(ready.len())];
                self.blocks[block].turn(launch, &mut memory, random, steps_left)?;
                self.release_barrier();
                continue;
            }
            if self.blocks.iter().all(RunningBlock::has_ended) {
                return Ok(());
            }
            let mut released = self.release_barrier();
            for block in &mut self.blocks {
                released |= block.release(launch.kernel)?;
            }
            if !released {
                return Err(InterpFault::Deadlock);
            }
        }
    }

    /// Ends the phase of the cluster's barrier if every thread that has not ended has arrived;
    /// whether it did.
    fn release_barrier(&mut self) -> bool {
        let mut threads: Vec<_> = self.blocks.iter_mut().flat_map(|block| &mut block.threads).collect();
        let is_complete = threads.iter().all(|thread| thread.has_arrived || thread.state == State::Ended);
        if !is_complete || !threads.iter().any(|thread| thread.has_arrived) {
            return false;
        }
        for thread in &mut threads {
            thread.has_arrived = false;
            if thread.state == State::AtCluster {
                thread.state = State::Ready;
                thread.at += 1;
            }
        }
        true
    }
}

impl RunningBlock {
    /// A thread arrives at the barrier of the cluster, or waits there for the phase in which it has
    /// arrived.
    pub(super) fn come_to_cluster(&mut self, t: usize, waits: bool) {
        let thread = &mut self.threads[t];
        if waits && thread.has_arrived {
            thread.state = State::AtCluster;
            return;
        }
        thread.has_arrived |= !waits;
        thread.at += 1;
    }
}
