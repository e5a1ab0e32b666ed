//! A kernel while it runs.

use std::fmt;
use std::sync::Arc;

use sluice_ir::{Access, AccessKind, Space};

use crate::block::Block;
use crate::findings::Key;
use crate::report::{AccessText, Finding, Kind, Source};
use crate::sanitizer::Sanitizer;

/// Finds the line of the source for a line of the PTX text.
type FindSource = Arc<dyn Fn(u32) -> Option<Source> + Send + Sync>;

/// What the sanitizer has to know of a launch.
#[derive(Clone)]
pub struct LaunchInfo {
    /// The kernel's name in its module.
    pub kernel: String,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks.
    pub grid: [u32; 3],
    pub source: FindSource,
}

/// A launch of an instrumented kernel.
pub struct Launch {
    pub(crate) sanitizer: Arc<Sanitizer>,
    pub(crate) info: LaunchInfo,
    /// When it began.
    pub(crate) time: u32,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({})", self.info.kernel)
    }
}

impl Launch {
    /// Begins a launch, which is ordered behind all earlier ones.
    pub fn begin(sanitizer: &Arc<Sanitizer>, info: LaunchInfo) -> Launch {
        let time = sanitizer.tick();
        Launch { sanitizer: Arc::clone(sanitizer), info, time }
    }

    /// A block of it, to be run by one thread of the host.
    pub fn block(&self) -> Block<'_> {
        Block::new(self)
    }

    pub(crate) fn threads(&self) -> usize {
        self.info.block.iter().map(|&n| n as usize).product()
    }

    /// The index of a thread in its block.
    pub(crate) fn thread(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.info.block.map(|n| n.max(1));
        [number % x, number / x % y, number / x / y]
    }

    /// The number of a block in its grid.
    pub(crate) fn number(&self, [x, y, z]: [u32; 3]) -> u64 {
        let [nx, ny, _] = self.info.grid.map(u64::from);
        u64::from(x) + nx * (u64::from(y) + ny * u64::from(z))
    }

    pub(crate) fn key(&self, kind: Kind, line: u32, other_line: u32) -> Key {
        Key { kind, kernel: self.info.kernel.clone(), line, other_line }
    }

    /// A finding at a line of the kernel, with what all of them have.
    pub(crate) fn finding(&self, kind: Kind, line: u32) -> Finding {
        Finding {
            kind,
            kernel: Some(self.info.kernel.clone()),
            access: None,
            ptx_line: line,
            source: self.source(line),
            block: None,
            thread: None,
            address: None,
            region: None,
            other: None,
            detail: None,
            count: 1,
        }
    }

    pub(crate) fn source(&self, line: u32) -> Option<Source> {
        if line == 0 { None } else { (self.info.source)(line) }
    }
}

impl Drop for Launch {
    /// The counts of its findings are final.
    fn drop(&mut self) {
        self.sanitizer.findings.flush();
    }
}

pub(crate) fn access_text(access: &Access, space: Space) -> AccessText {
    let what = match access.kind {
        AccessKind::Read => "read",
        AccessKind::Write => "write",
        AccessKind::Atomic => "atomic",
    };
    let space = match space {
        Space::Shared => "shared",
        Space::Local => "local",
        Space::Const => "constant",
        Space::Generic | Space::Global | Space::Param => "global",
    };
    AccessText { what: what.into(), space: space.into(), bytes: access.bytes }
}
