//! Barriers, fences, and instructions of whole warps.

use super::Block;
use crate::report::{Finding, Kind};

impl Block<'_> {
    /// Lanes have executed a collective instruction together, each with its member mask.
    pub fn collective(&mut self, warp: u32, lanes: u32, masks: &[u32; 32], (line, is_sync): (u32, bool)) {
        for lane in bits(lanes).filter(|&lane| masks[lane as usize] >> lane & 1 == 0) {
            let detail = format!("the member mask is {:#010x}", masks[lane as usize]);
            self.report_sync(Kind::InvalidMask, line, Some(warp * 32 + lane), detail);
        }
        if !is_sync || !self.launch.sanitizer.tools.racecheck {
            return;
        }
        self.join();
        let time = self.launch.sanitizer.tick();
        let mut left = lanes;
        while left != 0 {
            // Groups with masks of their own meet at the same time.
            let first = left.trailing_zeros();
            let mask = masks[first as usize];
            let group = bits(left).filter(|&lane| lane == first || masks[lane as usize] == mask);
            let group = group.fold(0u32, |group, lane| group | 1 << lane);
            self.clocks.lanes_met(warp as usize, group, time);
            left &= !group;
        }
    }

    /// Lanes have executed a fence; `is_wide` beyond their block.
    pub fn fence(&mut self, warp: u32, lanes: u32, is_wide: bool) {
        self.join();
        let time = self.launch.sanitizer.tick();
        bits(lanes).for_each(|lane| self.clocks.joined((warp * 32 + lane) as usize, time, is_wide));
    }

    /// Lanes of a warp come to a barrier at this line.
    pub fn comes_to_barrier(&mut self, warp: u32, line: u32) {
        self.join();
        if let Some(own) = self.barrier_lines.get_mut(warp as usize) {
            *own = line;
        }
    }

    /// The line at which a warp came to a barrier last.
    pub fn barrier_line(&self, warp: u32) -> u32 {
        self.barrier_lines.get(warp as usize).copied().unwrap_or(0)
    }

    /// A barrier is complete. `parked` are the waiting lanes of each warp with the lines of their
    /// instructions, `arrived` the warps that were counted without waiting. `living` of the block's
    /// threads have not exited. `is_of_all` where the barrier waits for all threads.
    pub fn barrier_complete(
        &mut self,
        parked: &[(u32, u32, u32)],
        arrived: u32,
        (living, is_of_all): (u32, bool),
    ) {
        let threads = self.launch.threads() as u32;
        let first = parked.first().copied();
        if let Some((warp, lanes, line)) = first.filter(|_| is_of_all && living < threads) {
            let detail = format!("{} of {threads} threads have exited", threads - living);
            self.report_sync(Kind::ExitedAtBarrier, line, Some(warp * 32 + lanes.trailing_zeros()), detail);
        }
        for (place, &(warp, lanes, line)) in parked.iter().enumerate() {
            let other = parked[..place].iter().find(|other| other.0 == warp && other.2 != line);
            if let Some((_, _, other_line)) = other {
                let detail = format!("other threads of the warp are at line {other_line} of the PTX");
                let thread = warp * 32 + lanes.trailing_zeros();
                self.report_sync(Kind::DivergentBarrier, line, Some(thread), detail);
            }
        }
        let time = self.launch.sanitizer.tick();
        match is_of_all {
            true => self.clocks.all_met(time),
            false => {
                let warps = parked.iter().fold(arrived, |warps, &(warp, _, _)| warps | 1 << (warp % 32));
                self.clocks.warps_met(warps, time);
            }
        }
    }

    /// The blocks of the cluster or grid have met.
    pub fn blocks_met(&mut self) {
        let time = self.launch.sanitizer.tick();
        self.clocks.blocks_met(time);
    }

    /// No thread can continue: these wait at barriers, with the lines of their instructions.
    pub fn is_stuck(&mut self, parked: &[(u32, u32, u32)]) {
        for &(warp, lanes, line) in parked {
            let detail = "the other threads never come".to_owned();
            self.report_sync(Kind::BarrierDeadlock, line, Some(warp * 32 + lanes.trailing_zeros()), detail);
        }
    }

    /// Lanes of a warp wait at a collective instruction for others that never come.
    pub fn lacks_lanes(&mut self, warp: u32) {
        let detail = "lanes that the member mask names never come".to_owned();
        self.report_sync(Kind::MissingLanes, self.barrier_line(warp), Some(warp * 32), detail);
    }

    fn report_sync(&self, kind: Kind, line: u32, thread: Option<u32>, detail: String) {
        let launch = self.launch;
        if !launch.sanitizer.tools.synccheck {
            return;
        }
        launch.sanitizer.findings.add(launch.key(kind, line, 0), || Finding {
            block: Some(self.index),
            thread: thread.map(|thread| launch.thread(thread)),
            detail: Some(detail),
            ..launch.finding(kind, line)
        });
    }
}

/// The places of the bits that are set.
fn bits(mut word: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let place = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(place)
    })
}
