//! `docs/cuda-support.md`: what is supported of CUDA, and on which evidence.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::bail;

use super::{coverage, declaration::*};
use crate::evidence::NVIDIA;

/// Tab-separated rows that tests write: function, back end, test, date.
const RESULTS: &str = "docs/cuda-support.results";

pub(crate) fn generate(api: &Declarations, root: &Path) -> anyhow::Result<String> {
    let (results, seen) = results(&fs::read_to_string(root.join(RESULTS)).unwrap_or_default())?;
    let mut out = String::from(INTRODUCTION);
    let absent = api.functions.iter().filter(|f| !is_built(f)).count();
    let symbols: usize = api.functions.iter().map(|f| 1 + usize::from(f.variant.is_some())).sum();
    let _ = writeln!(
        out,
        "{symbols} symbols of {} functions: {} supported, {absent} absent, {} exercised by a test, {} seen on NVIDIA's driver.\n",
        api.functions.len(),
        api.functions.len() - absent,
        api.functions.iter().filter(|f| results.contains_key(f.name.as_str())).count(),
        api.functions.iter().filter(|f| seen.contains_key(f.name.as_str())).count(),
    );
    let traced: Vec<&Function> = TRACED.lines().filter_map(|name| named(api, name)).collect();
    let _ = writeln!(
        out,
        "Of the {} symbols that PyTorch, JAX, CuPy, numba, llama.cpp and others were seen to call, {} are supported and {} exercised.\n",
        TRACED.lines().count(),
        traced.iter().filter(|f| is_built(f)).count(),
        traced.iter().filter(|f| results.contains_key(f.name.as_str())).count(),
    );
    reasons(&mut out, api);
    let mut section = "";
    for function in &api.functions {
        if section != function.section {
            section = &function.section;
            let _ = writeln!(
                out,
                "\n## {section}\n\n| function | since | answered | on NVIDIA | evidence |\n|---|---|---|---|---|"
            );
        }
        row(&mut out, function, &results, &seen);
    }
    Ok(out.trim_end().to_string() + "\n")
}

/// Symbols that programs were seen to call, one a line.
const TRACED: &str = include_str!("traced.txt");

/// The function that a symbol leads to, be it that of a per-thread default stream.
fn named<'a>(api: &'a Declarations, symbol: &str) -> Option<&'a Function> {
    let is_variant = |f: &Function| {
        let variant = f.variant.as_ref().and_then(|variant| symbol.strip_suffix(variant.suffix));
        variant.and_then(|rest| rest.strip_suffix('_')).is_some_and(|rest| rest == f.name)
    };
    api.functions.iter().find(|f| f.name == symbol || is_variant(f))
}

fn is_built(function: &Function) -> bool {
    !matches!(function.class, Class::Absent(_))
}

/// Why functions are absent, and how many for each reason, most first.
fn reasons(out: &mut String, api: &Declarations) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for function in &api.functions {
        if let Class::Absent(reason) = &function.class {
            *counts.entry(reason).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let _ = writeln!(out, "| reason | absent functions |\n|---|---|");
    for (reason, count) in counts {
        let _ = writeln!(out, "| {reason} | {count} |");
    }
}

fn row(out: &mut String, function: &Function, results: &Evidence, seen: &Evidence) {
    let name = match &function.variant {
        Some(variant) => format!("`{}` (`_{}`)", function.name, variant.suffix),
        None => format!("`{}`", function.name),
    };
    let version = match function.version {
        Some(version) => format!("{}.{}", version / 1000, version % 1000 / 10),
        None => "-".into(),
    };
    let answer = match &function.class {
        Class::Local => "in the client".into(),
        Class::Queued | Class::CustomQueued => "queued".into(),
        Class::Waiting | Class::CustomWaiting => "waits".into(),
        Class::Via(target) => format!("by `{target}`"),
        Class::Absent(reason) => format!("absent: {reason}"),
    };
    let evidence = match (results.get(&function.name), &function.class) {
        (Some(rows), _) => rows.join("; "),
        (None, Class::Absent(_)) => String::new(),
        (None, _) => match coverage::refuses(&function.name) {
            Some(test) => format!("its errors, as it knows no other answer: {test}"),
            None => "not exercised".into(),
        },
    };
    let seen = seen.get(&function.name).map(|rows| rows.join("; ")).unwrap_or_default();
    let _ = writeln!(out, "| {name} | {version} | {answer} | {seen} | {evidence} |");
}

/// By function.
type Evidence = HashMap<String, Vec<String>>;

/// What tests called, and what was seen on NVIDIA's driver; each in the order of the file.
fn results(text: &str) -> anyhow::Result<(Evidence, Evidence)> {
    let (mut rows, mut seen) = (Evidence::new(), Evidence::new());
    for (index, line) in
        text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        let columns: Vec<&str> = line.split('\t').collect();
        let [function, back_end, test, date] = columns[..] else {
            bail!("{RESULTS}:{}: a row is function, back end, test, date", index + 1);
        };
        let (of, text) = match back_end.strip_prefix(NVIDIA) {
            Some(driver) => (&mut seen, format!("{driver}, {date}")),
            None => (&mut rows, format!("{back_end}: {test} ({date})")),
        };
        of.entry(function.to_string()).or_default().push(text);
    }
    Ok((rows, seen))
}

const INTRODUCTION: &str = "\
# CUDA driver functions

Generated by `cargo xtask codegen` from `crates/cuda/driver.api` and `docs/cuda-support.results`; not to be edited.

Every symbol that libcuda has in CUDA 12.9 and 13.5 is exported, those for OpenGL, EGL and VDPAU included. *Queued* functions return without waiting for the node,
those that *wait* need its answer, those answered *in the client* send nothing. An *absent* function returns
`CUDA_ERROR_NOT_SUPPORTED` and says so once on stderr. `cuGetProcAddress` finds it where the driver's version has it, since programs look
functions up that they never call. *Since* is the CUDA version from which `cuGetProcAddress` knows the function. Evidence is the tests that called it, with the back end they ran on;
*byte by byte* is a driver that records what reaches it and answers at random, and a test that compares every byte both ways.
*On NVIDIA* is the version of NVIDIA's driver on a node with which a program's call has succeeded, and when: `cargo xtask gpu-check --bundle`
makes what sees that on a machine with a GPU, and `cargo xtask gpu-check --record FOLDER` writes here what it saw. Where nothing was seen it is empty.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_that_a_traced_program_calls_is_missing() {
        let api = super::super::declarations(crate::root()).unwrap();
        let text = fs::read_to_string(crate::root().join(RESULTS)).unwrap();
        let (evidence, _) = results(&text).unwrap();
        assert_eq!(TRACED.lines().count(), 138);
        for name in TRACED.lines() {
            let function = named(&api, name).unwrap_or_else(|| panic!("{name} is not declared"));
            assert!(is_built(function), "{name} is not built");
            assert!(evidence.contains_key(&function.name), "no test has called {name}");
        }
    }

    #[test]
    fn what_was_seen_on_nvidia_is_a_column_of_its_own() {
        let api = super::super::declarations(crate::root()).unwrap();
        let function = named(&api, "cuInit").unwrap();
        let text = "cuInit\tNVIDIA 580.65.06\tgpu-check on NVIDIA H200\t2026-11-24\n\
                    cuInit\tsoftware GPU\tgraphs\t2026-11-23\n";
        let (evidence, seen) = results(text).unwrap();
        let mut out = String::new();
        row(&mut out, function, &evidence, &seen);
        row(&mut out, function, &Evidence::new(), &Evidence::new());
        let expect = "| `cuInit` | 2.0 | in the client | 580.65.06, 2026-11-24 | software GPU: graphs (2026-11-23) |\n\
                      | `cuInit` | 2.0 | in the client |  | not exercised |\n";
        assert_eq!(out, expect);
        assert!(results("cuInit\tonly this").is_err());
    }
}
