//! `cargo xtask check-prose`: the language of comments, messages and documents.
//!
//! Four kinds of fault are counted over all Rust sources and Markdown files (see [`rules::Fault`]).
//! `xtask/prose-budget.tsv` says how many of each the repository may have. The check fails when a
//! count is above its budget, and asks for `--record` when one is below, so budgets only fall. A
//! budget covers the whole repository, because changes that land at the same time move files.

mod markdown;
mod rules;
mod rust;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use self::rules::{Fault, Finding};
use crate::process;

const BUDGET: &str = "xtask/prose-budget.tsv";
const BUDGET_HEAD: &str = "# fault\tcount; lowered by `cargo xtask check-prose --record`\n";
/// The glossary and the rules list the terms to avoid; the others are generated.
const NOT_CHECKED: [&str; 5] =
    ["docs/glossary.md", "docs/cuda-support.md", "docs/reference/cli.md", "/generated", "prose/rules.rs"];

type Counts = BTreeMap<Fault, usize>;

/// Runs `cargo xtask check-prose [--list [PLACE] | --record]`.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    let findings = findings(crate::root())?;
    match options {
        [] => check(&findings),
        ["--list"] => list(&findings, ""),
        ["--list", place] => list(&findings, place),
        ["--record"] => record(&findings),
        _ => bail!("usage: cargo xtask check-prose [--list [PLACE] | --record]"),
    }
}

/// Prints the counts of each part of the repository, and compares the sums with the budget.
fn check(findings: &[Finding]) -> Result<()> {
    print_table(findings);
    let text = fs::read_to_string(crate::root().join(BUDGET)).context(BUDGET)?;
    let verdict = compare(&totals(findings), &parse_budget(&text)?);
    for note in &verdict.below {
        println!("{note}");
    }
    ensure!(
        verdict.above.is_empty(),
        "{}\n`cargo xtask check-prose --list PLACE` prints each finding in a file or folder",
        verdict.above.join("\n")
    );
    Ok(())
}

/// Checks the repository as it is on disk.
pub(crate) fn check_repository() -> Result<()> {
    check(&findings(crate::root())?)
}

fn list(findings: &[Finding], place: &str) -> Result<()> {
    for finding in findings.iter().filter(|finding| finding.path.starts_with(place)) {
        println!("{finding}");
    }
    Ok(())
}

/// Writes the present counts as the new budget, unless one of them has risen.
fn record(findings: &[Finding]) -> Result<()> {
    let path = crate::root().join(BUDGET);
    let counts = totals(findings);
    if let Ok(text) = fs::read_to_string(&path) {
        let above = compare(&counts, &parse_budget(&text)?).above;
        ensure!(above.is_empty(), "a budget may only fall:\n{}", above.join("\n"));
    }
    fs::write(&path, budget_text(&counts)).context(BUDGET)
}

fn budget_text(counts: &Counts) -> String {
    let lines = counts.iter().map(|(fault, count)| format!("{}\t{count}\n", fault.name()));
    std::iter::once(BUDGET_HEAD.to_string()).chain(lines).collect()
}

fn parse_budget(text: &str) -> Result<Counts> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, count) = line.split_once('\t').with_context(|| format!("{BUDGET}: {line:?}"))?;
            let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name);
            let fault = fault.with_context(|| format!("{BUDGET}: there is no fault {name:?}"))?;
            Ok((fault, count.parse().with_context(|| format!("{BUDGET}: {line:?}"))?))
        })
        .collect()
}

#[derive(Debug, Default, PartialEq)]
struct Verdict {
    above: Vec<String>,
    below: Vec<String>,
}

fn compare(counts: &Counts, budget: &Counts) -> Verdict {
    let mut verdict = Verdict::default();
    for (fault, &count) in counts {
        let name = fault.name();
        let allowed = budget.get(fault).copied().unwrap_or(0);
        if count > allowed {
            let more = count - allowed;
            verdict.above.push(format!("{name}: {count}, {more} above the budget of {allowed}"));
        } else if count < allowed {
            let advice = "lower it with `cargo xtask check-prose --record`";
            verdict.below.push(format!("{name}: {count}, the budget is {allowed}: {advice}"));
        }
    }
    verdict
}

fn totals(findings: &[Finding]) -> Counts {
    let mut counts: Counts = Fault::ALL.into_iter().map(|fault| (fault, 0)).collect();
    for finding in findings {
        *counts.entry(finding.fault).or_default() += 1;
    }
    counts
}

/// Prints a row for each crate and each other folder of the repository.
fn print_table(findings: &[Finding]) {
    let mut parts: BTreeMap<String, Counts> = BTreeMap::new();
    for finding in findings {
        let counts = parts.entry(part_of(&finding.path)).or_default();
        *counts.entry(finding.fault).or_default() += 1;
    }
    let row = |name: &str, counts: &Counts| {
        let cells = Fault::ALL.map(|fault| counts.get(&fault).copied().unwrap_or(0).to_string());
        println!("{name:24}{}", cells.map(|cell| format!("{cell:>14}")).concat());
    };
    println!("{:24}{}", "", Fault::ALL.map(|fault| format!("{:>14}", fault.name())).concat());
    for (name, counts) in &parts {
        row(name, counts);
    }
    row("total", &totals(findings));
}

fn part_of(path: &str) -> String {
    let mut names = path.split('/');
    match (names.next(), names.next(), names.next()) {
        (Some(top @ ("crates" | "tests")), Some(name), Some(_)) => format!("{top}/{name}"),
        (Some(top), Some(_), _) => top.into(),
        _ => "(root)".into(),
    }
}

fn findings(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in sources(root)? {
        // A file can be deleted and still be in the index.
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        if path.ends_with(".md") {
            markdown::check(&path, &text, &mut findings);
        } else {
            rust::check(&path, &text, &mut findings);
        }
    }
    Ok(findings)
}

/// Returns the Rust and Markdown files that git knows or would add.
fn sources(root: &Path) -> Result<Vec<String>> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = process::output_of(git.args(["--", "*.rs", "*.md"]))?;
    let mut paths: Vec<String> = listed.lines().map(String::from).collect();
    paths.retain(|path| !NOT_CHECKED.iter().any(|excluded| path.contains(excluded)));
    paths.sort();
    paths.dedup();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_above_its_budget_fails_and_one_below_only_asks_for_a_lower_budget() {
        let budget = parse_budget("# head\nwide\t2\nrun-on\t2\nhome-term\t2\n").unwrap();
        let counts = [(Fault::Wide, 1), (Fault::RunOn, 2), (Fault::HomeTerm, 3), (Fault::People, 1)];
        let verdict = compare(&counts.into(), &budget);
        assert_eq!(verdict.above.len(), 2, "{verdict:?}");
        assert!(verdict.above[0].starts_with("home-term: 3, 1 above"));
        assert!(verdict.above[1].starts_with("person: 1, 1 above"));
        assert_eq!(verdict.below.len(), 1, "{verdict:?}");
        assert!(verdict.below[0].starts_with("wide: 1, the budget is 2"));
    }

    #[test]
    fn a_budget_is_read_as_it_is_written() {
        let counts = Counts::from([(Fault::Wide, 7), (Fault::People, 0)]);
        assert_eq!(parse_budget(&budget_text(&counts)).unwrap(), counts);
        assert!(parse_budget("no such fault\t1\n").is_err());
        assert!(parse_budget("wide\tmany\n").is_err());
    }

    #[test]
    fn findings_are_counted_for_each_crate() {
        assert_eq!(part_of("crates/wire/src/frame.rs"), "crates/wire");
        assert_eq!(part_of("xtask/src/main.rs"), "xtask");
        assert_eq!(part_of("README.md"), "(root)");
    }
}
