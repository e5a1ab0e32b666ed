//! Findings as people read them.

use std::fmt::Write;

use sluice_sanitize::{Finding, Kind, Region, Source, Tools};

/// The report at the end of a run.
pub(crate) fn report(tools: Tools, findings: &[&Finding], suppressed: usize, dropped: u64) -> String {
    let mut text = String::new();
    let count = match findings.len() {
        0 => "no errors found".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let left_out = match suppressed {
        0 => String::new(),
        count => format!(", {count} suppressed"),
    };
    let _ = writeln!(text, "sluice: sanitizer ({tools}): {count}{left_out}");
    for (number, finding) in (1..).zip(findings) {
        let _ = writeln!(text, "\n{number}. {}", headline(finding));
        for (name, value) in details(finding) {
            let _ = writeln!(text, "   {name:<8} {value}");
        }
    }
    if dropped > 0 {
        let _ = writeln!(text, "\n{dropped} more errors at other places are not listed");
    }
    text
}

/// A name as the source has it, where it is one of C++.
pub(crate) fn demangled(name: &str) -> String {
    let symbol = cpp_demangle::Symbol::new(name.as_bytes()).ok();
    symbol.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
}

fn headline(finding: &Finding) -> String {
    let mut text = finding.kind.name().to_owned();
    if let Some(access) = &finding.access {
        let _ = write!(text, ": {} of {} bytes in {} memory", access.what, access.bytes, access.space);
    }
    if let Some(detail) = &finding.detail {
        let _ = write!(text, ": {detail}");
    }
    if finding.count > 1 {
        let _ = write!(text, ", {} times", finding.count);
    }
    text
}

fn details(finding: &Finding) -> Vec<(&'static str, String)> {
    let mut details = Vec::new();
    if let Some(kernel) = &finding.kernel {
        details.push(("kernel", demangled(kernel)));
        details.push(("at", place(finding.source.as_ref(), finding.ptx_line)));
    }
    if let (Some(thread), Some(block)) = (finding.thread, finding.block) {
        details.push(("thread", format!("{} of block {}", index(thread), index(block))));
    }
    if let Some(address) = finding.address {
        details.push(("address", location(finding, address)));
    }
    if let Some(other) = &finding.other {
        let block = if other.is_same_block { "the same block" } else { "another block" };
        let at = place(other.source.as_ref(), other.ptx_line);
        details
            .push(("against", format!("{} by thread {} of {block}, {at}", other.what, index(other.thread))));
    }
    details
}

fn index([x, y, z]: [u32; 3]) -> String {
    format!("({x}, {y}, {z})")
}

fn place(source: Option<&Source>, ptx_line: u32) -> String {
    match source {
        Some(source) => format!("{}:{} (PTX line {ptx_line})", source.file, source.line),
        None => format!("PTX line {ptx_line}"),
    }
}

/// An address, and where it is from its allocation.
fn location(finding: &Finding, address: u64) -> String {
    let space = finding.access.as_ref().map_or("", |access| access.space.as_str());
    if matches!(space, "shared" | "local") {
        return format!("{address:#x} of {space} memory");
    }
    let Some(region) = &finding.region else { return format!("{address:#x}") };
    if finding.kind == Kind::Leak {
        return format!("{address:#x}: {} bytes, allocation {}", region.bytes, region.number);
    }
    let Region { label, base, bytes, number, offset, is_freed } = region;
    let (offset, size) = (*offset, *bytes as i64);
    let distance = match offset {
        ..0 => format!("{} bytes before", -offset),
        _ if offset >= size => format!("{} bytes after", offset - size),
        _ => format!("{offset} bytes into"),
    };
    let freed = if *is_freed { ", freed" } else { "" };
    format!("{address:#x} is {distance} {bytes} bytes of {label} at {base:#x} (allocation {number}{freed})")
}

/// A finding for tests.
#[cfg(test)]
pub(crate) fn example(kernel: &str) -> Finding {
    use sluice_sanitize::AccessText;
    let access = AccessText { what: "write".into(), space: "global".into(), bytes: 4 };
    let label = "device memory".to_owned();
    let region = Region { label, base: 0x1000, bytes: 128, number: 3, offset: 128, is_freed: false };
    Finding {
        kind: Kind::OutOfBounds,
        kernel: Some(kernel.to_owned()),
        access: Some(access),
        ptx_line: 31,
        source: Some(Source { file: "/src/scale.cu".into(), line: 12 }),
        block: Some([0; 3]),
        thread: Some([32, 0, 0]),
        address: Some(0x1080),
        region: Some(region),
        other: None,
        detail: None,
        count: 17,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_where_and_next_to_what() {
        let finding = example("_Z5scalePfi");
        let text = report(Tools::default(), &[&finding], 2, 0);
        let want = "\
sluice: sanitizer (memcheck,initcheck,racecheck,synccheck): 1 finding, 2 suppressed

1. out-of-bounds: write of 4 bytes in global memory, 17 times
   kernel   scale(float*, int)
   at       /src/scale.cu:12 (PTX line 31)
   thread   (32, 0, 0) of block (0, 0, 0)
   address  0x1080 is 0 bytes after 128 bytes of device memory at 0x1000 (allocation 3)
";
        assert_eq!(text, want);
    }

    #[test]
    fn names_that_are_not_of_cpp_stay() {
        assert_eq!(demangled("saxpy"), "saxpy");
        assert_eq!(demangled("_Z"), "_Z");
    }
}
