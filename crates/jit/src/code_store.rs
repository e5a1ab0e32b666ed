//! Machine code that outlives its process.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sluice_ir::Kernel;

use crate::codegen::{Target, Tids};
use crate::compile::Generator;
use crate::object::Object;

mod build_id;

/// Where machine code is stored between processes. What it returns is executed: nothing that is
/// trusted less than this process may write there.
pub trait CodeStore: Send + Sync {
    /// What was last written under a key; `None` if nothing was.
    fn read(&self, key: &CodeKey) -> Option<Vec<u8>>;
    /// Stores the code under a key. A store may forget it; one that cannot be written costs time,
    /// nothing else.
    fn write(&self, key: &CodeKey, code: &[u8]);
}

/// Names the machine code of a kernel: the same for the same code alone. It is displayed as 64
/// hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeKey([u8; 32]);

impl fmt::Display for CodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A store and what its keys begin with.
pub(crate) struct Stored {
    store: Arc<dyn CodeStore>,
    /// Has taken in what makes machine code different for one kernel: this build and the processor.
    prefix: blake3::Hasher,
}

impl Stored {
    /// `None` where this build has no name, so that another build's code would be taken for its
    /// own.
    pub(crate) fn new(store: Arc<dyn CodeStore>, machine: &Target) -> Option<Stored> {
        let mut prefix = blake3::Hasher::new();
        prefix.update(&build_id::build_id()?);
        prefix.update(machine.processor().as_bytes());
        Some(Stored { store, prefix })
    }

    pub(crate) fn key(&self, kernel: &Kernel, tids: Tids, lanes: usize, by: Generator) -> CodeKey {
        let mut hasher = KeyHasher(self.prefix.clone());
        (kernel, tids, lanes, by).hash(&mut hasher);
        CodeKey(*hasher.0.finalize().as_bytes())
    }

    pub(crate) fn read(&self, key: &CodeKey) -> Option<Object> {
        Object::from_bytes(&self.store.read(key)?)
    }

    pub(crate) fn write(&self, key: &CodeKey, object: &Object) {
        if let Some(bytes) = object.to_bytes() {
            self.store.write(key, &bytes);
        }
    }
}

/// Gives a type that can be hashed a hash that two kernels do not share.
struct KeyHasher(blake3::Hasher);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        u64::from_ne_bytes(*self.0.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }
}
