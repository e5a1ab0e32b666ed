//! What the client of a session knows: numbers that mean something, what an honest client would say
//! now, and what the commands were made of that got furthest.

use std::cell::RefCell;
use std::collections::BTreeMap;

use sluice_wire::Op;

use super::stage::{RESERVATION, Stage};
use super::{EDGES, Random};
use crate::memory::chunks::CHUNK;

/// What the fields of a command are made of.
pub(crate) type Noise = [u64; 64];

/// Most numbers of a kind, honest payloads of an operation, and recipes of one.
const LIVE_MAX: usize = 64;
const SAID_MAX: usize = 16;
const RECIPES_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Known {
    /// By the types of the fields that hold them.
    live: BTreeMap<&'static str, Vec<u64>>,
    said: BTreeMap<u16, Vec<Vec<u8>>>,
    recipes: BTreeMap<u16, Recipes>,
    pub(crate) minted: u64,
    /// New ids in the command that is being made.
    fresh: RefCell<Vec<(&'static str, u64)>>,
}

/// Noise of which good commands were made. Numbers in it choose among what is live, so it stays
/// good.
#[derive(Default)]
struct Recipes {
    progress: Progress,
    noises: Vec<Noise>,
    next: usize,
}

/// How far a command got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    #[default]
    Refused,
    /// The driver was asked.
    Reached,
    Done,
}

impl Known {
    /// The session has ended: what its commands were made of is good for another one, too.
    pub(crate) fn forget_session(&mut self) {
        self.live.clear();
        self.said.clear();
    }

    /// Forgets what is gone, and most of what is old: that is not named again.
    pub(crate) fn tidy(&mut self, stage: &Stage) {
        for (of, numbers) in &mut self.live {
            numbers.retain(|number| stage.is_live(of, *number));
            numbers.drain(..numbers.len().saturating_sub(LIVE_MAX));
        }
    }

    pub(crate) fn add_live(&mut self, of: &'static str, number: u64) {
        self.live.entry(of).or_default().push(number);
    }

    /// An honest client has said this.
    pub(crate) fn add_said(&mut self, op: Op, payload: Vec<u8>) {
        let said = self.said.entry(op.0).or_default();
        said.drain(..said.len().saturating_sub(SAID_MAX - 1));
        said.push(payload);
    }

    pub(crate) fn said(&self, op: Op, choice: u64) -> Option<Vec<u8>> {
        let said = self.said.get(&op.0)?;
        Some(said[(choice % said.len() as u64) as usize].clone())
    }

    pub(crate) fn recipe(&self, op: Op, choice: u64) -> Option<Noise> {
        let noises = &self.recipes.get(&op.0)?.noises;
        Some(noises[(choice % noises.len() as u64) as usize])
    }

    /// A live number, of whatever kind.
    pub(crate) fn any_live(&self, random: &mut Random) -> u64 {
        let kinds = self.live.values().map(Vec::as_slice).filter(|numbers| !numbers.is_empty());
        let kinds: Vec<&[u64]> = kinds.collect();
        if kinds.is_empty() {
            0
        } else {
            let kind = random.one_of(&kinds);
            random.one_of(kind)
        }
    }

    /// A command is about to be made.
    pub(crate) fn begin(&self) {
        self.fresh.borrow_mut().clear();
    }

    /// The last command got this far: if it was executed, its new ids are live.
    pub(crate) fn settle(&mut self, op: Op, noise: Option<Noise>, progress: Progress) {
        if progress == Progress::Done {
            for (of, number) in self.fresh.get_mut().drain(..) {
                self.live.entry(of).or_default().push(number);
            }
        }
        let Some(noise) = noise.filter(|_| progress > Progress::Refused) else { return };
        let recipes = self.recipes.entry(op.0).or_default();
        if progress > recipes.progress {
            *recipes = Recipes { progress, ..Recipes::default() };
        }
        match recipes.noises.get_mut(recipes.next % RECIPES_MAX) {
            _ if progress < recipes.progress => return,
            Some(place) => *place = noise,
            None => recipes.noises.push(noise),
        }
        recipes.next += 1;
    }

    /// A number of a type that an honest client might say.
    pub(crate) fn plausible(&self, stage: &Stage, of: &'static str, raw: u64) -> u64 {
        /// How often a number that is dead is drawn again.
        const DRAWS: u64 = 4;
        let mut random = Random(raw);
        let is_fresh = random.below(8) < 2;
        match (of, self.live.get(of)) {
            (_, Some(live)) if !live.is_empty() && !is_fresh => {
                let mut draws = (0..DRAWS).map(|_| random.one_of(live)).collect::<Vec<_>>().into_iter();
                draws.find(|number| stage.is_live(of, *number)).unwrap_or(live[0])
            }
            ("DevicePtr", _) => RESERVATION + random.below(128) * CHUNK,
            (_, Some(_)) if random.below(4) > 0 => {
                // Between those that an honest client mints.
                let number = self.minted * 1000 + random.below(1 << 20);
                self.fresh.borrow_mut().push((of, number));
                number
            }
            ("u8" | "ImageHash" | "ExportToken" | "PeerToken", _) => raw,
            (_, _) => match random.below(8) {
                0 => random.one_of(EDGES),
                1 => raw,
                2 => random.below(4) * CHUNK,
                3 => random.below(4096),
                4 => 0,
                _ => random.below(8),
            },
        }
    }
}
