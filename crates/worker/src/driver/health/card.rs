//! The readings of one GPU, from look to look. Pure state: what a GPU reports becomes findings
//! here.

use super::xid::{self, Xid};
use sluice_worker_link::health::{Finding, Harm, Look};

/// A GPU that was too hot is so until it is cooler than its limit by this difference: no finding
/// comes and goes with one degree.
const COOLER_C: u32 = 10;
/// The hardware slows a GPU down for moments in good health too; this number of slow looks in a row
/// is more than a moment.
const BRAKED_LOOKS: u32 = 10;

/// What a GPU reports of itself at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// The driver does not reach it.
    pub(super) lost: bool,
    pub(super) temperature_c: Option<u32>,
    /// Where the hardware slows it down.
    pub(super) slowdown_at_c: Option<u32>,
    /// The hardware slows it down, for heat or for the power supply's sake.
    pub(super) braked: bool,
    /// ECC errors since the driver was loaded.
    pub(super) uncorrected: Option<u64>,
    pub(super) remap_pending: bool,
    pub(super) remap_failed: bool,
}

#[derive(Debug)]
pub(super) struct Card {
    gpu: u32,
    lost: bool,
    hot: bool,
    braked_looks: u32,
    /// What the count was before: errors from before this process was there are not new.
    uncorrected: Option<u64>,
    remap_failed: bool,
    last_xid: Option<u64>,
}

impl Card {
    pub(super) fn new(gpu: u32) -> Card {
        Card {
            gpu,
            lost: false,
            hot: false,
            braked_looks: 0,
            uncorrected: None,
            remap_failed: false,
            last_xid: None,
        }
    }

    pub(super) fn gpu(&self) -> u32 {
        self.gpu
    }

    /// The number of the last Xid error that was seen.
    pub(super) fn last_xid(&self) -> Option<u64> {
        self.last_xid
    }

    pub(super) fn xid(&mut self, number: u64, look: &mut Look) {
        self.last_xid = Some(number);
        match xid::meaning(number) {
            Xid::Card(harm, what) => look.lasting.push(self.finding(format!("Xid {number}: {what}"), harm)),
            Xid::Program(what) => {
                eprintln!("sluice node: GPU {}: Xid {number}: {what}; not the card's fault", self.gpu)
            }
            Xid::Unknown => {
                eprintln!("sluice node: GPU {}: Xid {number}, of which nothing is known here", self.gpu)
            }
        }
    }

    pub(super) fn double_bit(&mut self, look: &mut Look) {
        look.lasting.push(self.finding("a double-bit ECC error".into(), Harm::Lost));
    }

    pub(super) fn look(&mut self, reading: &Reading, look: &mut Look) {
        if reading.lost {
            let lost = self.finding("the driver does not reach the GPU any more".into(), Harm::Lost);
            // It does not end by itself; and an operator who unfences the GPU all the same learns
            // that it is still so.
            (if self.lost { &mut look.passing } else { &mut look.lasting }).push(lost);
            self.lost = true;
            return;
        }
        self.lost = false;
        self.look_at_memory(reading, look);
        if let (Some(now), Some(limit)) = (reading.temperature_c, reading.slowdown_at_c) {
            self.hot = now >= if self.hot { limit.saturating_sub(COOLER_C) } else { limit };
            if self.hot {
                let what = format!("{now} C; its hardware slows it down at {limit} C");
                look.passing.push(self.finding(what, Harm::Degraded));
            }
        }
        self.braked_looks = if reading.braked { self.braked_looks.saturating_add(1) } else { 0 };
        if self.braked_looks >= BRAKED_LOOKS && !self.hot {
            let what = "its hardware slows it down: look at its cooling and its power supply".into();
            look.passing.push(self.finding(what, Harm::Degraded));
        }
    }

    fn look_at_memory(&mut self, reading: &Reading, look: &mut Look) {
        if let Some(now) = reading.uncorrected {
            let more = now.saturating_sub(self.uncorrected.unwrap_or(now));
            self.uncorrected = Some(now);
            if more > 0 {
                let what = format!("{more} uncorrectable ECC errors");
                look.lasting.push(self.finding(what, Harm::Contained));
            }
        }
        if reading.remap_pending {
            let what = "rows of its memory are to be replaced; it needs a reset".into();
            look.passing.push(self.finding(what, Harm::Degraded));
        }
        if reading.remap_failed && !self.remap_failed {
            let what = "its memory has no rows left to replace bad ones with".into();
            look.lasting.push(self.finding(what, Harm::Contained));
        }
        self.remap_failed = reading.remap_failed;
    }

    fn finding(&self, what: String, harm: Harm) -> Finding {
        Finding { gpu: self.gpu, what, harm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(card: &mut Card, reading: &Reading) -> (Vec<String>, Vec<String>) {
        let mut look = Look::default();
        card.look(reading, &mut look);
        let texts = |findings: Vec<Finding>| findings.into_iter().map(|finding| finding.what).collect();
        (texts(look.lasting), texts(look.passing))
    }

    #[test]
    fn heat_begins_at_the_limit_and_ends_well_below_it() {
        let mut card = Card::new(0);
        let temperatures = [89, 90, 89, 81, 80, 79, 89, 90];
        let hot = temperatures.map(|now| {
            let reading = Reading { temperature_c: Some(now), slowdown_at_c: Some(90), ..Reading::default() };
            !look(&mut card, &reading).1.is_empty()
        });
        assert_eq!(hot, [false, true, true, true, true, false, false, true]);
    }

    #[test]
    fn a_moment_of_slowdown_is_no_finding() {
        let mut card = Card::new(0);
        let braked = Reading { braked: true, ..Reading::default() };
        for round in 0..3 {
            for _ in 0..BRAKED_LOOKS - 1 {
                assert_eq!(look(&mut card, &braked), (vec![], vec![]), "{round}");
            }
            look(&mut card, &Reading::default());
        }
        (0..BRAKED_LOOKS).for_each(|_| drop(look(&mut card, &braked)));
        assert_eq!(look(&mut card, &braked).1.len(), 1);
    }

    #[test]
    fn only_errors_of_this_time_count_and_each_once() {
        let mut card = Card::new(0);
        let errors = |uncorrected| Reading { uncorrected: Some(uncorrected), ..Reading::default() };
        let counts = [3, 3, 5, 5, 0, 1].map(|count| look(&mut card, &errors(count)).0.len());
        assert_eq!(counts, [0, 0, 1, 0, 0, 1], "a driver that was loaded anew counts from 0");
    }

    #[test]
    fn a_lost_card_is_lost_for_good_and_says_nothing_else() {
        let mut card = Card::new(3);
        let lost = Reading { lost: true, remap_pending: true, ..Reading::default() };
        let mut said = Look::default();
        card.look(&lost, &mut said);
        assert_eq!((said.lasting.len(), said.passing.len()), (1, 0));
        card.look(&lost, &mut said);
        assert_eq!((said.lasting.len(), said.passing.len()), (1, 1));
        assert_eq!((said.lasting[0].gpu, said.lasting[0].harm), (3, Harm::Lost));
    }

    #[test]
    fn rows_to_be_replaced_are_said_until_a_reset() {
        let mut card = Card::new(0);
        let pending = Reading { remap_pending: true, ..Reading::default() };
        assert_eq!([&pending, &pending].map(|reading| look(&mut card, reading).1.len()), [1, 1]);
        assert_eq!(look(&mut card, &Reading::default()).1.len(), 0);
        let failed = Reading { remap_failed: true, ..Reading::default() };
        assert_eq!([&failed, &failed].map(|reading| look(&mut card, reading).0.len()), [1, 0]);
    }
}
