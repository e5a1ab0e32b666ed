//! The software GPU as a `libcuda.so.1` of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

fn library() -> PathBuf {
    crate::target_folder().join("release/libsluice_softgpu_cuda.so")
}

/// A folder in which the software GPU is the `libcuda.so.1` that programs find.
pub fn driver_folder() -> Result<PathBuf> {
    let folder = crate::target_folder().join("software-gpu");
    std::fs::create_dir_all(&folder)?;
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = folder.join(format!("made-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
    std::os::unix::fs::symlink(library(), &made).with_context(|| made.display().to_string())?;
    // In one step: another test may be using it.
    let link = folder.join("libcuda.so.1");
    std::fs::rename(&made, &link).with_context(|| link.display().to_string())?;
    Ok(folder)
}

/// The option of a node that lends it as a driver that it loads.
pub fn by_path() -> String {
    format!("library:{}", library().display())
}
