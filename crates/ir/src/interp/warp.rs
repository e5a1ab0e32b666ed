//! What lanes of a warp and threads of a block do together.

use super::{InterpFault, RunningBlock, State, matrix, scalar};
use crate::{BarrierKind, Inst, InstId, Kernel, MatchKind, ShuffleMode, VoteKind};

impl RunningBlock {
    /// Carries out a collective instruction at which all lanes of its member mask have come, if
    /// there is one.
    pub(super) fn release_warp(&mut self, kernel: &Kernel, warp: usize) -> bool {
        let first = warp * 32;
        let lanes = first..self.threads.len().min(first + 32);
        let at = |threads: &[super::Thread], t: usize| match threads[t].state {
            State::AtWarp(id) => Some(id),
            _ => None,
        };
        for t in lanes.clone() {
            let Some(id) = at(&self.threads, t) else { continue };
            let mask = self.value(t, member_mask(&kernel.inst(id).inst));
            let members: Vec<usize> = lanes
                .clone()
                .filter(|&lane| mask >> (lane - first) & 1 == 1 && self.threads[lane].state != State::Ended)
                .collect();
            // A lane that names a mask without itself is undefined in PTX; it continues alone.
            let members = if members.contains(&t) { members } else { vec![t] };
            if members.iter().all(|&lane| at(&self.threads, lane) == Some(id)) {
                self.together(kernel, id, first, &members);
                for lane in members {
                    self.threads[lane].state = State::Ready;
                    self.threads[lane].at += 1;
                }
                return true;
            }
        }
        false
    }

    fn together(&mut self, kernel: &Kernel, id: InstId, first: usize, members: &[usize]) {
        let data = kernel.inst(id);
        if let Inst::MatrixMultiply { form, args, .. } = &data.inst {
            let registers = |arg: usize, lane: usize| match members.contains(&(first + lane)) {
                true => self.value(first + lane, args[arg]) as u32,
                // PTX has all lanes take part.
                false => 0,
            };
            let sums = matrix::multiply(*form, registers);
            for &lane in members {
                for (value, register) in data.results().zip(&sums) {
                    self.set(lane, value, register[lane - first].into());
                }
            }
            return;
        }
        let mask = members.iter().fold(0u64, |mask, lane| mask | 1 << (lane - first));
        // Results are computed from the values before any lane's is written.
        let results: Vec<[u64; 2]> =
            members.iter().map(|&lane| self.lane_result(&data.inst, lane, first, members, mask)).collect();
        for (&lane, result) in members.iter().zip(results) {
            for (index, value) in data.results().enumerate() {
                self.set(lane, value, result[index]);
            }
        }
    }

    fn lane_result(&self, inst: &Inst, lane: usize, first: usize, members: &[usize], mask: u64) -> [u64; 2] {
        match inst {
            Inst::Shuffle { mode, value, lane: operand, clamp, .. } => {
                let (b, c) = (self.value(lane, *operand) as u32 & 31, self.value(lane, *clamp) as u32);
                let (source, in_range) = shuffle_source(*mode, (lane - first) as u32, b, c);
                let from = first + source as usize;
                let from = if in_range && members.contains(&from) { from } else { lane };
                [self.value(from, *value), in_range.into()]
            }
            Inst::Vote { kind, predicate, .. } => {
                let holds = |&member: &usize| self.value(member, *predicate) != 0;
                let all = members.iter().all(holds);
                let any = members.iter().any(holds);
                let ballot = members
                    .iter()
                    .filter(|member| holds(member))
                    .fold(0, |bits, member| bits | 1u64 << (member - first));
                let result = match kind {
                    VoteKind::All => all.into(),
                    VoteKind::Any => any.into(),
                    VoteKind::Uniform => (all || !any).into(),
                    VoteKind::Ballot => ballot,
                };
                [result, 0]
            }
            Inst::Match { kind, value, .. } => {
                let mine = self.value(lane, *value);
                let same = members.iter().filter(|member| self.value(**member, *value) == mine);
                let same = same.fold(0u64, |bits, member| bits | 1 << (member - first));
                match kind {
                    MatchKind::Any => [same, 0],
                    MatchKind::All => {
                        if same == mask {
                            [mask, 1]
                        } else {
                            [0, 0]
                        }
                    }
                }
            }
            Inst::Redux { op, ty, value, .. } => {
                let values = members.iter().map(|member| self.value(*member, *value));
                [values.reduce(|a, b| scalar::redux(*op, *ty, a, b)).unwrap_or(0), 0]
            }
            Inst::WarpSync { .. } => [0, 0],
            _ => unreachable!("{inst:?} is not collective"),
        }
    }

    /// A thread comes to a barrier; whether the barrier is complete, [`Self::release_barrier`]
    /// finds out.
    pub(super) fn come_to_barrier(
        &mut self,
        t: usize,
        id: InstId,
        kind: BarrierKind,
        name: u64,
        count: Option<u64>,
        predicate: bool,
    ) -> Result<(), InterpFault> {
        let Some(barrier) = self.barriers.get_mut(name as usize) else {
            return Err(InterpFault::Unsupported("barrier above 15"));
        };
        barrier.count = count.map(|count| count as usize);
        if kind == BarrierKind::Arrive {
            barrier.arrived += 1;
            self.threads[t].at += 1;
        } else {
            barrier.waiting.push((t, id, predicate));
            self.threads[t].state = State::AtBarrier;
        }
        Ok(())
    }

    pub(super) fn release_barrier(&mut self, kernel: &Kernel, name: usize) -> bool {
        // Threads are counted by whole warps; those that have ended no longer take part.
        let living = self.threads.iter().filter(|thread| thread.state != State::Ended).count();
        let barrier = &mut self.barriers[name];
        let come = barrier.waiting.len() + barrier.arrived;
        let expected = barrier.count.unwrap_or(living);
        if barrier.waiting.is_empty() || come < expected {
            return false;
        }
        let waiting = std::mem::take(&mut barrier.waiting);
        barrier.arrived = 0;
        let set = waiting.iter().filter(|(_, _, predicate)| *predicate).count();
        for &(t, id, _) in &waiting {
            let data = kernel.inst(id);
            if let Inst::Barrier { kind, .. } = data.inst {
                let result = match kind {
                    BarrierKind::ReduceAnd => Some((set == waiting.len()).into()),
                    BarrierKind::ReduceOr => Some((set > 0).into()),
                    BarrierKind::ReducePopc => Some(set as u64),
                    BarrierKind::Sync | BarrierKind::Arrive => None,
                };
                if let Some(result) = result {
                    self.set(t, data.result(0), result);
                }
            }
            self.threads[t].state = State::Ready;
            self.threads[t].at += 1;
        }
        true
    }
}

fn member_mask(inst: &Inst) -> crate::Value {
    match inst {
        Inst::Shuffle { mask, .. }
        | Inst::Vote { mask, .. }
        | Inst::Match { mask, .. }
        | Inst::Redux { mask, .. }
        | Inst::MatrixMultiply { mask, .. }
        | Inst::WarpSync { mask } => *mask,
        _ => unreachable!("{inst:?} has no member mask"),
    }
}

/// The source lane and whether it is in range (PTX ISA, "shfl.sync").
fn shuffle_source(mode: ShuffleMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let max = (lane & segment) | (clamp & !segment);
    let min = lane & segment;
    let (source, in_range) = match mode {
        ShuffleMode::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= max as i32),
        ShuffleMode::Down => (lane + b, lane + b <= max),
        ShuffleMode::Butterfly => (lane ^ b, lane ^ b <= max),
        ShuffleMode::Index => {
            let source = min | (b & !segment & 31);
            (source, source <= max)
        }
    };
    if in_range { (source & 31, true) } else { (lane, false) }
}
