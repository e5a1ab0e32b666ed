//! Machine code of kernels in the cache on disk.

use std::sync::Arc;

use sluice_softgpu::{CodeKey, CodeStore};

use crate::modules::disk_cache::{self, DiskCache};

/// Code of one kernel beyond this is not read: it is a file that something else has written.
const CODE_MAX: u64 = 256 << 20;

/// Stores code beside the images. Whatever writes there can have its code executed here, so the
/// daemon says for which folders that may be ([`Start::stores_code`](crate::link::Start)).
pub(crate) struct CodeCache {
    folder: Arc<DiskCache>,
}

impl CodeCache {
    pub(crate) fn new(folder: Arc<DiskCache>) -> CodeCache {
        CodeCache { folder }
    }
}

impl CodeStore for CodeCache {
    fn read(&self, key: &CodeKey) -> Option<Vec<u8>> {
        let (file, size) = self.folder.find(&name_of(key))?;
        disk_cache::read(file, size.min(CODE_MAX)).ok()
    }

    /// The file is written at once: a short program ends soon after its kernels are compiled.
    fn write(&self, key: &CodeKey, code: &[u8]) {
        if self.folder.write(&name_of(key), code).is_err() {
            return;
        }
        if self.folder.is_due() {
            let folder = Arc::clone(&self.folder);
            let _ = std::thread::Builder::new().name("code cache".into()).spawn(move || folder.trim());
        }
    }
}

fn name_of(key: &CodeKey) -> String {
    format!("code-{key}")
}
