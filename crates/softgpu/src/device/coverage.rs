//! Which lines of kernels are executed, for processes whose environment asks for it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use sluice_coverage::log::{Function, Line, Module};
use sluice_coverage::{Counters, Recorder};
use sluice_ptx::ast::{self, Statement};
use sluice_ptx::{ModuleIndex, SourceLines};

use crate::base::process;

/// The folder in which each process records the coverage of its kernels.
const VARIABLE: &str = "SLUICE_COVERAGE";

/// The recorder that the environment asks for, opened with the first call.
pub(crate) fn recorder() -> Option<&'static Recorder> {
    static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
    let open = || {
        let folder = std::env::var_os(VARIABLE)?;
        let recorder = Recorder::create(Path::new(&folder), &process::unique_name());
        recorder
            .inspect_err(|error| eprintln!("sluice: {VARIABLE}: {}: {error}", Path::new(&folder).display()))
            .ok()
    };
    RECORDER.get_or_init(open).as_ref()
}

/// A module whose coverage is recorded.
pub(crate) struct CoveredModule {
    recorder: &'static Recorder,
    name: String,
}

impl CoveredModule {
    /// Enters a loaded module with all its functions, also those that are never launched. Nothing
    /// where coverage is not recorded.
    pub(crate) fn new(index: &ModuleIndex) -> Option<CoveredModule> {
        let recorder = recorder()?;
        let name = Module::name_of(index.text());
        recorder.add_module(&name, || describe(index, &name));
        Some(CoveredModule { recorder, name })
    }

    /// The counters of a kernel, for these lines of the PTX text.
    pub(crate) fn add_kernel(&self, lines: &[Vec<u32>]) -> KernelCoverage {
        KernelCoverage { recorder: self.recorder, counters: self.recorder.add_kernel(&self.name, lines) }
    }
}

/// A kernel whose coverage is recorded.
pub(crate) struct KernelCoverage {
    recorder: &'static Recorder,
    pub(crate) counters: Counters,
}

impl KernelCoverage {
    /// Records what was counted so far.
    pub(crate) fn save(&self) {
        self.recorder.save(&self.counters);
    }
}

/// The lines of a module: those of its source or, without line information, of the PTX text.
fn describe(index: &ModuleIndex, name: &str) -> Module {
    let source = SourceLines::new(index.text());
    let has_source = !source.is_empty();
    let mut files: Vec<String> = if has_source { Vec::new() } else { vec![name.to_owned()] };
    let mut names: HashSet<&str> = HashSet::new();
    let mut functions = Vec::new();
    for declared in index.functions() {
        if !names.insert(&declared.name) {
            continue;
        }
        // The text has been checked, so functions that cannot be parsed are declarations at most.
        let Some(Ok(function)) = index.parse_function(&declared.name) else { continue };
        let lines = ptx_lines(&function).into_iter().filter_map(|ptx| {
            if !has_source {
                return Some(Line { ptx, file: 0, line: ptx });
            }
            let (file, line) = source.find(ptx)?;
            let known = files.iter().position(|known| known == file);
            let file = known.unwrap_or_else(|| {
                files.push(file.to_owned());
                files.len() - 1
            });
            Some(Line { ptx, file: file as u32, line })
        });
        let lines: Vec<Line> = lines.collect();
        if !lines.is_empty() {
            functions.push(Function { name: function.name.to_string(), lines });
        }
    }
    let text = (!has_source).then(|| String::from_utf8_lossy(index.text()).into_owned());
    Module { name: name.to_owned(), text, files, functions }
}

/// Lines of the text that have instructions of a function.
fn ptx_lines(function: &ast::Function) -> Vec<u32> {
    let statements = function.body.iter().flat_map(|body| &body.statements);
    let mut lines: Vec<u32> = statements
        .filter_map(|statement| match statement {
            Statement::Label(_) => None,
            Statement::Instruction(instruction) => Some(instruction.line),
            Statement::Call(call) => Some(call.line),
        })
        .collect();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 7.0
.target sm_75
.address_size 64
.func f()
{
    ret;
}
.visible .entry k()
{
    .reg .b32 %r<2>;
    .loc 1 4 0
    mov.u32 %r1, 1; mov.u32 %r1, 2;
    call f;
    .loc 2 9 0
    ret;
}
";

    fn described(text: &str) -> Module {
        describe(&ModuleIndex::new(text.as_bytes()).unwrap(), "module-1.ptx")
    }

    #[test]
    fn lines_of_a_module_with_line_information_are_those_of_its_source() {
        let module = described(&format!("{TEXT}.file 1 \"k.cu\"\n.file 2 \"k.h\"\n"));
        let lines = [(12, 0, 4), (13, 0, 4), (15, 1, 9)].map(|(ptx, file, line)| Line { ptx, file, line });
        // The function `f` has no line information.
        assert_eq!(module.functions, [Function { name: "k".to_owned(), lines: lines.to_vec() }]);
        assert_eq!((module.text, module.files), (None, vec!["k.cu".to_owned(), "k.h".to_owned()]));
    }

    #[test]
    fn a_module_without_line_information_is_its_own_source() {
        let text: String =
            TEXT.lines().filter(|line| !line.contains(".loc")).map(|line| format!("{line}\n")).collect();
        let module = described(&text);
        let lines: Vec<Vec<u32>> = module
            .functions
            .iter()
            .map(|function| function.lines.iter().map(|line| line.line).collect())
            .collect();
        assert_eq!(lines, [vec![6], vec![11, 12, 13]]);
        assert_eq!((module.text, module.files), (Some(text), vec!["module-1.ptx".to_owned()]));
    }
}
