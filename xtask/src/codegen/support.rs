//! `docs/cuda-support.md`: what is supported of CUDA, and on which evidence.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::ensure;

use super::{coverage, declaration::*};

/// Tab-separated rows that tests write: function, back end, test, date.
const RESULTS: &str = "docs/cuda-support.results";

pub(crate) fn generate(api: &Declarations, root: &Path) -> anyhow::Result<String> {
    let results = results(&fs::read_to_string(root.join(RESULTS)).unwrap_or_default())?;
    let mut out = String::from(INTRODUCTION);
    let absent = api.functions.iter().filter(|f| !is_built(f)).count();
    let symbols: usize = api.functions.iter().map(|f| 1 + usize::from(f.variant.is_some())).sum();
    let _ = writeln!(
        out,
        "{symbols} symbols of {} functions: {} supported, {absent} absent or refused, {} exercised by a test.\n",
        api.functions.len(),
        api.functions.len() - absent,
        api.functions.iter().filter(|f| results.contains_key(f.name.as_str())).count(),
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
                "\n## {section}\n\n| function | since | answered | evidence |\n|---|---|---|---|"
            );
        }
        row(&mut out, function, &results);
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
    !matches!(function.class, Class::Absent(_) | Class::Refused(_))
}

/// Why functions are absent or refused, and how many for each reason, most first.
fn reasons(out: &mut String, api: &Declarations) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for function in &api.functions {
        match &function.class {
            Class::Absent(reason) => *counts.entry(("absent", reason)).or_default() += 1,
            Class::Refused(reason) => *counts.entry(("refused", reason)).or_default() += 1,
            _ => {}
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let _ = writeln!(out, "| reason | answer | functions |\n|---|---|---|");
    for ((answer, reason), count) in counts {
        let _ = writeln!(out, "| {reason} | {answer} | {count} |");
    }
}

fn row(out: &mut String, function: &Function, results: &HashMap<String, Vec<String>>) {
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
        Class::Refused(reason) => format!("refused: {reason}"),
    };
    let evidence = match (results.get(&function.name), &function.class) {
        (Some(rows), _) => rows.join("; "),
        (None, Class::Absent(_) | Class::Refused(_)) => String::new(),
        (None, _) => match coverage::refuses(&function.name) {
            Some(test) => format!("its errors, as it knows no other answer: {test}"),
            None => "not exercised".into(),
        },
    };
    let _ = writeln!(out, "| {name} | {version} | {answer} | {evidence} |");
}

/// Evidence by function, in the order of the file.
fn results(text: &str) -> anyhow::Result<HashMap<String, Vec<String>>> {
    let mut rows: HashMap<String, Vec<String>> = HashMap::new();
    for (index, line) in
        text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        let columns: Vec<&str> = line.split('\t').collect();
        ensure!(columns.len() == 4, "{RESULTS}:{}: a row is function, back end, test, date", index + 1);
        let evidence = format!("{}: {} ({})", columns[1], columns[2], columns[3]);
        rows.entry(columns[0].to_string()).or_default().push(evidence);
    }
    Ok(rows)
}

const INTRODUCTION: &str = "\
# CUDA driver functions

Generated by `cargo xtask codegen` from `crates/cuda/driver.api` and `docs/cuda-support.results`; not to be edited.

Every symbol that libcuda has in CUDA 12.9 and 13.5 is exported. *Queued* functions return without waiting for the node,
those that *wait* need its answer, those answered *in the client* send nothing. An *absent* function returns
`CUDA_ERROR_NOT_SUPPORTED`, says so once on stderr, and `cuGetProcAddress` does not find it. A *refused* one is found,
since programs look for it on every driver, and answers as a driver does for a device without that ability. *Since* is the CUDA version
from which `cuGetProcAddress` knows the function. Evidence is the tests that called it, with the back end they ran on;
*byte by byte* is a driver that records what reaches it and answers at random, and a test that compares every byte both ways.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_that_a_traced_program_calls_is_missing() {
        let api = super::super::declarations(crate::root()).unwrap();
        let text = fs::read_to_string(crate::root().join(RESULTS)).unwrap();
        let evidence = results(&text).unwrap();
        assert_eq!(TRACED.lines().count(), 138);
        for name in TRACED.lines() {
            let function = named(&api, name).unwrap_or_else(|| panic!("{name} is not declared"));
            assert!(is_built(function), "{name} is not built");
            assert!(evidence.contains_key(&function.name), "no test has called {name}");
        }
    }
}
