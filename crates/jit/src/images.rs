//! Textures and surfaces that a block has used, so that they are looked up once and not by each
//! instruction.

use std::cell::UnsafeCell;
use std::sync::Arc;

use sluice_ir::texture::{self, Image, PlainRead, Sampling, Texture};

/// Images that are remembered, by the last bits of their keys.
const REMEMBERED: usize = 32;

/// The images of one executor thread, for as long as its launch runs.
#[derive(Default)]
pub(crate) struct Images {
    readings: Remembered<Reading>,
    surfaces: Remembered<Arc<Image>>,
}

/// A texture as an instruction reads it.
pub(crate) struct Reading {
    pub(crate) texture: Arc<Texture>,
    pub(crate) sampling: Sampling,
    /// What can be read for many lanes at a time.
    pub(crate) plain: Option<PlainRead>,
}

impl Reading {
    fn new(object: u64, how: u32) -> Option<Reading> {
        let (texture, sampling) = (texture::find(object)?, Sampling::from_bits(how));
        let plain = texture.plain_read(sampling);
        Some(Reading { texture, sampling, plain })
    }
}

impl Images {
    /// The texture with this number, as the instruction with these bits of [`Sampling`] reads it.
    ///
    /// # Safety
    /// Nothing uses a reading any more that was returned before.
    #[inline]
    pub(crate) unsafe fn reading(&self, object: u64, how: u32) -> Option<&Reading> {
        // SAFETY: by this function's contract.
        unsafe { self.readings.get((object, how), || Reading::new(object, how)) }
    }

    /// The image of the surface with this number.
    ///
    /// # Safety
    /// Nothing uses an image any more that was returned before.
    pub(crate) unsafe fn surface(&self, object: u64) -> Option<&Image> {
        // SAFETY: by this function's contract.
        unsafe { self.surfaces.get((object, 0), || texture::surface(object)) }.map(|image| &**image)
    }
}

/// Entries of one kind. The cell makes it unusable by two threads.
struct Remembered<T>(UnsafeCell<[Entry<T>; REMEMBERED]>);

/// An image's number and how it is read, and what is known of both.
type Entry<T> = Option<((u64, u32), T)>;

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Remembered(UnsafeCell::new(std::array::from_fn(|_| None)))
    }
}

impl<T> Remembered<T> {
    /// What is known under this key, which the next one that is asked for may replace.
    ///
    /// # Safety
    /// Nothing uses an entry any more that was returned before.
    #[inline]
    unsafe fn get(&self, key: (u64, u32), find: impl FnOnce() -> Option<T>) -> Option<&T> {
        let place = (key.0 as usize ^ key.1 as usize) % REMEMBERED;
        // SAFETY: one thread uses this, and by this function's contract nothing else refers to an
        // entry.
        let entry = unsafe { &mut (&mut *self.0.get())[place] };
        if entry.as_ref().is_none_or(|(known, _)| *known != key) {
            *entry = Some((key, find()?));
        }
        entry.as_ref().map(|(_, found)| found)
    }
}
