//! Textures and surfaces that a block has used, so that they are looked up once and not by each
//! instruction.

use std::cell::UnsafeCell;
use std::sync::Arc;

use sluice_ir::texture::{self, Image, Texture};

/// Images that are remembered, by the last bits of their numbers.
const REMEMBERED: usize = 32;

/// The images of one executor thread, for as long as its launch runs.
#[derive(Default)]
pub(crate) struct Images {
    textures: Remembered<Texture>,
    surfaces: Remembered<Image>,
}

impl Images {
    /// The texture with this number.
    ///
    /// # Safety
    /// Nothing uses a texture any more that was returned before.
    pub(crate) unsafe fn texture(&self, object: u64) -> Option<&Texture> {
        // SAFETY: by this function's contract.
        unsafe { self.textures.get(object, texture::find) }
    }

    /// The image of the surface with this number.
    ///
    /// # Safety
    /// Nothing uses an image any more that was returned before.
    pub(crate) unsafe fn surface(&self, object: u64) -> Option<&Image> {
        // SAFETY: by this function's contract.
        unsafe { self.surfaces.get(object, texture::surface) }
    }
}

/// Entries of one kind. The cell makes it unusable by two threads.
struct Remembered<T>(UnsafeCell<[Entry<T>; REMEMBERED]>);

/// An image and its number.
type Entry<T> = Option<(u64, Arc<T>)>;

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Remembered(UnsafeCell::new(std::array::from_fn(|_| None)))
    }
}

impl<T> Remembered<T> {
    /// The image with this number, which the next one that is asked for may replace.
    ///
    /// # Safety
    /// Nothing uses an image any more that was returned before.
    #[inline]
    unsafe fn get(&self, object: u64, find: impl FnOnce(u64) -> Option<Arc<T>>) -> Option<&T> {
        let place = object as usize % REMEMBERED;
        // SAFETY: one thread uses this, and by this function's contract nothing else refers to an
        // entry.
        let entry = unsafe { &mut (&mut *self.0.get())[place] };
        if entry.as_ref().is_none_or(|(known, _)| *known != object) {
            *entry = Some((object, find(object)?));
        }
        entry.as_ref().map(|(_, image)| &**image)
    }
}
