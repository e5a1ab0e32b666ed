//! Memory of warps, kept by one thread for the time of a launch.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use crate::context::{FrameLayout, WarpContext};

/// Hands out warp memory, the most recently used first: it is the one in the cache.
#[derive(Default)]
pub(crate) struct Frames {
    all: Vec<(*mut WarpContext, Layout)>,
    free: Vec<*mut WarpContext>,
}

impl Frames {
    /// Memory for one warp, and whether it is fresh (uninitialised) rather than given back by an
    /// earlier warp. All calls on one object pass the same layout.
    pub(crate) fn take(&mut self, frame: FrameLayout) -> (*mut WarpContext, bool) {
        if let Some(context) = self.free.pop() {
            return (context, false);
        }
        let size = (frame.size as usize).max(size_of::<WarpContext>());
        let layout =
            Layout::from_size_align(size, align_of::<WarpContext>()).expect("frames are below 4 GiB");
        // SAFETY: the layout's size is that of a context at least.
        let context = unsafe { alloc(layout) }.cast::<WarpContext>();
        if context.is_null() {
            handle_alloc_error(layout);
        }
        self.all.push((context, layout));
        (context, true)
    }

    /// Takes memory back whose warp has finished.
    pub(crate) fn give_back(&mut self, context: *mut WarpContext) {
        self.free.push(context);
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        for &(context, layout) in &self.all {
            // SAFETY: allocated in `take` with this layout.
            unsafe { dealloc(context.cast(), layout) };
        }
    }
}
