//! The size of a program's next runs, from the runs that it had with the present one.

use serde::{Deserialize, Serialize};
use sluice_api::autonomy::{ProgramName, ProgramSize};
use sluice_iq::Run;
use sluice_iq::live::{Live, Step};

/// What the next runs of a program get, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SizedProgram {
    pub(crate) live: Live,
    /// Runs that began earlier had another size.
    pub(crate) since_ms: u64,
    pub(crate) why: String,
}

/// A run and when it began.
pub(crate) type DatedRun = (u64, Run);

impl SizedProgram {
    /// Takes the runs of a program into account, the earliest first. None if the size of the next
    /// runs stays what it is.
    pub(crate) fn after(
        known: Option<&SizedProgram>,
        runs: &[DatedRun],
        floor_percent: u32,
        now_ms: u64,
    ) -> Option<SizedProgram> {
        let latest = &runs.last()?.1;
        let floor_ppm =
            |asked_ppm: u32| (u64::from(asked_ppm) * u64::from(floor_percent)).div_ceil(100) as u32;
        let first = || {
            let memory = latest.memory / u64::from(latest.gpus.max(1));
            Live::new(latest.share_ppm, memory, floor_ppm(latest.share_ppm))
        };
        let mut live = known.map_or_else(first, |known| known.live);
        let since_ms = known.map_or(0, |known| known.since_ms);
        let is_of_it = |(began_ms, run): &&DatedRun| *began_ms >= since_ms && run.share_ppm == live.share_ppm;
        let with_it: Vec<Run> = runs.iter().filter(is_of_it).map(|(_, run)| run.clone()).collect();
        let count = with_it.len();
        let why = match live.step(&with_it, 0) {
            Step::Kept => return None,
            Step::Lowered => format!("{count} earlier runs needed no more"),
            Step::GivenBack => "earlier runs were short of less".to_owned(),
        };
        Some(SizedProgram { live, since_ms: now_ms, why })
    }

    pub(crate) fn shown(&self, name: &ProgramName) -> ProgramSize {
        ProgramSize {
            tenant: name.tenant.clone(),
            program: name.program.clone(),
            asked_share_ppm: self.live.asked_share_ppm,
            asked_memory: self.live.asked_memory,
            share_ppm: self.live.share_ppm,
            memory: self.live.memory,
            set_at_ms: self.since_ms,
            why: self.why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_iq::Interval;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A run with a share, of which it uses so much of a GPU, both in per cent.
    fn run(at_ms: u64, share: u32, used: u64) -> DatedRun {
        let interval = Interval { held_ms: 10_000, used_ppm_ms: used * 10_000 * 10_000 };
        let run = Run {
            gpus: 1,
            share_ppm: share * 10_000,
            memory: 16 * GIB,
            memory_peak: 2 * GIB,
            intervals: vec![interval; 6],
        };
        (at_ms, run)
    }

    fn runs(at_ms: u64, count: u64, share: u32, used: u64) -> Vec<DatedRun> {
        (0..count).map(|number| run(at_ms + number, share, used)).collect()
    }

    #[test]
    fn a_program_gets_less_once_and_keeps_it_while_that_fits() {
        let first = runs(0, 10, 100, 30);
        assert_eq!(SizedProgram::after(None, &first[..2], 25, 50), None, "two runs are no evidence");
        let size = SizedProgram::after(None, &first, 25, 50).unwrap();
        assert_eq!((size.live.share_ppm, size.live.asked_share_ppm, size.since_ms), (350_000, 1_000_000, 50));
        assert!(size.live.memory < 3 * GIB && size.why.contains("10 earlier runs"), "{size:?}");
        // The same runs say nothing of the new size, and runs that fit in it change nothing.
        assert_eq!(SizedProgram::after(Some(&size), &first, 25, 60), None);
        let mut all = first;
        all.extend(runs(60, 20, 35, 30));
        assert_eq!(SizedProgram::after(Some(&size), &all, 25, 90), None);
    }

    #[test]
    fn a_program_that_is_short_gets_back_what_it_asked_for() {
        let size = SizedProgram::after(None, &runs(0, 10, 100, 30), 25, 50).unwrap();
        let back = SizedProgram::after(Some(&size), &runs(60, 1, 35, 35), 25, 70).unwrap();
        assert_eq!((back.live.share_ppm, back.live.floor_ppm), (1_000_000, 400_000));
        // What was too little is never tried again.
        let again = SizedProgram::after(Some(&back), &runs(80, 10, 100, 30), 25, 99).unwrap();
        assert_eq!(again.live.share_ppm, 400_000);
    }

    #[test]
    fn a_floor_and_sizes_that_were_given_by_hand_count() {
        let size = SizedProgram::after(None, &runs(0, 10, 100, 5), 60, 50).unwrap();
        assert_eq!(size.live.share_ppm, 600_000);
        assert_eq!(SizedProgram::after(Some(&size), &runs(60, 10, 20, 20), 60, 99), None);
        assert_eq!(SizedProgram::after(None, &[], 60, 99), None);
    }
}
