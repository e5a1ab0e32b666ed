//! The sanitizer's state in one process.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::findings::{Findings, Key};
use crate::memory::{Memory, Region};
use crate::report::{Finding, Kind};
use crate::shadow::Shadow;
use crate::tools::Tools;

/// Watches the memory and the kernels of a process.
#[derive(Debug)]
pub struct Sanitizer {
    pub(crate) tools: Tools,
    pub(crate) memory: Memory,
    pub(crate) findings: Findings,
    /// Logical time; advances with each synchronization.
    time: AtomicU32,
    numbers: AtomicU64,
}

/// Memory that kernels may use from now on.
#[derive(Clone, Copy, Debug)]
pub struct NewRegion {
    pub base: u64,
    pub bytes: u64,
    /// What it is, for people to read.
    pub label: &'static str,
    /// Whether it has contents already, or may get some that the sanitizer does not see.
    pub is_written: bool,
    /// Whether the program has to free it.
    pub can_leak: bool,
}

impl Sanitizer {
    /// `log` is where findings go at once ([`crate::log`]).
    pub fn new(tools: Tools, log: Option<File>) -> Arc<Sanitizer> {
        Arc::new(Sanitizer {
            tools,
            memory: Memory::default(),
            findings: Findings::new(log),
            time: AtomicU32::new(1),
            numbers: AtomicU64::new(1),
        })
    }

    /// What was found so far.
    pub fn findings(&self) -> Vec<Finding> {
        self.findings.all()
    }

    /// Memory has been allocated.
    pub fn allocated(&self, new: NewRegion) {
        let NewRegion { base, bytes, label, is_written, can_leak } = new;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let shadow = match is_written || !self.tools.initcheck {
            true => Shadow::default(),
            false => Shadow::unwritten(bytes),
        };
        let region = Region::new(base, bytes, label, number, shadow);
        if can_leak && self.tools.leakcheck {
            self.findings.allocated(region.describe(base));
        }
        self.memory.insert(region);
    }

    /// The program has freed the memory that starts at `base`.
    pub fn freed(&self, base: u64) {
        self.free(base, None);
    }

    /// The program frees it in the order of a stream, which has come to the free once `is_gone`
    /// says so.
    pub fn leaves(&self, base: u64, is_gone: impl Fn() -> bool + Send + Sync + 'static) {
        self.free(base, Some(Box::new(is_gone)));
    }

    /// The memory is gone with its context or process, without a free by the program.
    pub fn abandoned(&self, base: u64) {
        _ = self.memory.free(base, None);
    }

    fn free(&self, base: u64, is_gone: Option<crate::memory::IsGone>) {
        let freed = self.memory.free(base, is_gone);
        if let Some(region) = freed.filter(|_| self.tools.leakcheck) {
            self.findings.freed(region.number);
        }
    }

    /// The program has filled memory, or copied its own memory there.
    pub fn written(&self, address: u64, bytes: u64) {
        self.memory
            .for_each(address, bytes, |region, offset, bytes| region.shadow.set_written(offset, bytes));
    }

    /// Device memory has been copied to other device memory.
    pub fn copied(&self, to: u64, from: u64, bytes: u64) {
        let source = self.memory.at_or_before(from).filter(|region| region.covers(from, bytes));
        let Some(source) = source else { return self.written(to, bytes) };
        self.memory.for_each(to, bytes, |region, offset, part| {
            let start = region.base + offset - to;
            region.shadow.copy_from(offset, &source.shadow, from - source.base + start, part);
        });
    }

    /// The program has asked for a copy or fill of memory that is not all allocated.
    pub fn invalid_copy(&self, address: u64, bytes: u64) {
        if !self.tools.memcheck {
            return;
        }
        let region = self.memory.nearest(address).map(|(region, _)| region);
        // Each call is a finding of its own, as nothing tells which line of the program it is.
        let line = self.numbers.fetch_add(1, Ordering::Relaxed) as u32;
        let key = Key { kind: Kind::InvalidCopy, kernel: String::new(), line, other_line: 0 };
        self.findings.add(key, || Finding {
            kind: Kind::InvalidCopy,
            kernel: None,
            access: None,
            ptx_line: 0,
            source: None,
            block: None,
            thread: None,
            address: Some(address),
            region: region.map(|region| region.describe(address)),
            other: None,
            detail: Some(format!("a copy or fill of {bytes} bytes")),
            count: 1,
        });
    }

    /// Advances the time: what came before is of this time or an earlier one, what follows is of a
    /// later one.
    pub(crate) fn tick(&self) -> u32 {
        self.time.fetch_add(1, Ordering::AcqRel)
    }

    pub(crate) fn now(&self) -> u32 {
        self.time.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NewRegion =
        NewRegion { base: 0x1000, bytes: 64, label: "device memory", is_written: false, can_leak: true };

    #[test]
    fn copies_carry_what_is_known_of_their_source() {
        let sanitizer = Sanitizer::new(Tools::default(), None);
        sanitizer.allocated(A);
        sanitizer.allocated(NewRegion { base: 0x2000, ..A });
        sanitizer.written(0x1000, 8);
        sanitizer.copied(0x2020, 0x1004, 8);
        let region = sanitizer.memory.at_or_before(0x2000).unwrap();
        assert!(region.shadow.is_written(0x20, 4) && !region.shadow.is_written(0x24, 1));
        sanitizer.copied(0x2024, 0x7fff_0000, 4);
        assert!(region.shadow.is_written(0x24, 4), "the program's own memory");
    }

    #[test]
    fn a_copy_beyond_an_allocation_names_it() {
        let sanitizer = Sanitizer::new(Tools::default(), None);
        sanitizer.allocated(A);
        sanitizer.invalid_copy(0x1020, 64);
        let findings = sanitizer.findings();
        assert_eq!(findings[0].kind, Kind::InvalidCopy);
        assert_eq!(findings[0].region.as_ref().unwrap().offset, 0x20);
    }
}
