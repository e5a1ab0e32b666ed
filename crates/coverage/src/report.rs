//! The coverage of a run, from what its processes have recorded.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use crate::lcov::Tracefile;
use crate::log::{Event, Function, Module};

/// What the kernels of all processes of a run have executed.
#[derive(Debug, Default)]
pub struct Report {
    /// By name; processes that load the same text have the same module.
    modules: BTreeMap<String, Module>,
    /// Threads that have executed a line of a module's PTX text.
    counts: HashMap<(String, u32), u64>,
}

impl Report {
    /// Reads what all processes have recorded in a folder.
    pub fn read(folder: &Path) -> io::Result<Report> {
        let paths =
            folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
        let mut report = Report::default();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")) {
            let log = std::fs::read(path)?;
            let counts = std::fs::read(path.with_extension("counts"))?;
            report.add_process(&String::from_utf8_lossy(&log), &counts);
        }
        Ok(report)
    }

    /// Adds a process. The last line of one that was killed may be cut off, and counters of kernels
    /// that were never launched may be missing: they are 0.
    fn add_process(&mut self, log: &str, counts: &[u8]) {
        let counts: Vec<u64> =
            counts.as_chunks().0.iter().map(|bytes: &[u8; 8]| u64::from_le_bytes(*bytes)).collect();
        for event in log.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            match event {
                Event::Module(module) => {
                    self.modules.entry(module.name.clone()).or_insert(module);
                }
                Event::Kernel { module, first, lines } => {
                    let first = usize::try_from(first).unwrap_or(usize::MAX);
                    let counts = counts.get(first..).unwrap_or_default();
                    for (lines, &count) in lines.iter().zip(counts) {
                        for &line in lines {
                            let sum = self.counts.entry((module.clone(), line)).or_default();
                            *sum = sum.saturating_add(count);
                        }
                    }
                }
            }
        }
    }

    /// The PTX texts that are their own source, with their names.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.modules.values().filter_map(|module| Some((module.name.as_str(), module.text.as_deref()?)))
    }

    /// The counts by source line. PTX texts that are their own source are in `folder`.
    pub fn tracefile(&self, folder: &Path) -> Tracefile {
        let mut all = Tracefile::default();
        for module in self.modules.values() {
            let mut tracefile = Tracefile::default();
            for function in &module.functions {
                self.add_function(&mut tracefile, module, function, folder);
            }
            all.add(&tracefile);
        }
        all
    }

    /// The count of a source line is the largest one of its PTX lines.
    fn add_function(&self, tracefile: &mut Tracefile, module: &Module, function: &Function, folder: &Path) {
        let count = |line: u32| self.counts.get(&(module.name.clone(), line)).copied().unwrap_or_default();
        for (number, line) in function.lines.iter().enumerate() {
            let Some(name) = module.files.get(line.file as usize) else { continue };
            let name = match module.text {
                Some(_) => folder.join(name).display().to_string(),
                None => name.clone(),
            };
            let file = tracefile.file(&name);
            let known = file.lines.entry(line.line).or_default();
            *known = (*known).max(count(line.ptx));
            if number == 0 {
                let known = file.functions.entry(function.name.clone()).or_default();
                (known.line, known.count) = (line.line, count(line.ptx));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Line;
    use crate::recorder::Recorder;

    /// Two source lines, of which the second is twice in the PTX, and a function that is not used.
    fn module() -> Module {
        let line = |ptx, line| Line { ptx, file: 0, line };
        let lines = vec![line(10, 3), line(11, 4), line(14, 4)];
        let functions = vec![
            Function { name: "k".to_owned(), lines },
            Function { name: "unused".to_owned(), lines: vec![line(20, 8)] },
        ];
        Module { name: "module-1.ptx".to_owned(), text: None, files: vec!["k.cu".to_owned()], functions }
    }

    fn record(folder: &Path, process: &str, counts: [u64; 2]) {
        let recorder = Recorder::create(folder, process).unwrap();
        recorder.add_module("module-1.ptx", module);
        recorder.add_module("module-1.ptx", || unreachable!("it is in the log"));
        let other = recorder.add_kernel("module-1.ptx", &[vec![20]]);
        let kernel = recorder.add_kernel("module-1.ptx", &[vec![10, 11], vec![14]]);
        recorder.save(&other);
        for (counter, count) in kernel.values().iter().zip(counts) {
            counter.store(count, std::sync::atomic::Ordering::Relaxed);
        }
        recorder.save(&kernel);
    }

    #[test]
    fn counts_of_processes_are_added_and_a_source_line_has_the_largest_of_its_ptx_lines() {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), "1", [5, 7]);
        record(folder.path(), "2", [5, 0]);
        let want = "TN:\nSF:k.cu\nFN:3,k\nFN:8,unused\nFNDA:10,k\nFNDA:0,unused\nFNF:2\nFNH:1\n\
                    DA:3,10\nDA:4,10\nDA:8,0\nLF:3\nLH:2\nend_of_record\n";
        let report = Report::read(folder.path()).unwrap();
        assert_eq!(report.tracefile(Path::new("/out")).to_string(), want);
        assert_eq!(report.texts().count(), 0);
    }

    #[test]
    fn a_text_without_line_information_is_its_own_source() {
        let mut module = module();
        (module.text, module.files) = (Some("text".to_owned()), vec![module.name.clone()]);
        let report = Report { modules: [(module.name.clone(), module)].into(), counts: HashMap::default() };
        assert_eq!(report.texts().collect::<Vec<_>>(), [("module-1.ptx", "text")]);
        let text = report.tracefile(Path::new("/out")).to_string();
        assert!(text.contains("SF:/out/module-1.ptx\n") && text.contains("DA:4,0\n"), "{text}");
    }

    #[test]
    fn what_a_killed_process_did_not_write_counts_as_nothing() {
        let mut report = Report::default();
        let event = |event: &Event| serde_json::to_string(event).unwrap();
        let kernel = Event::Kernel { module: "m".to_owned(), first: 1, lines: vec![vec![1], vec![2]] };
        let log = format!("{}\n{}", event(&kernel), &event(&Event::Module(module()))[..20]);
        report.add_process(&log, &[&9_u64.to_le_bytes()[..], &4_u64.to_le_bytes(), &[1, 2]].concat());
        assert_eq!(report.counts, HashMap::from([(("m".to_owned(), 1), 4)]));
        assert!(report.modules.is_empty());
    }
}
