//! Every command of `docs/reference/cli.md` has a page of the web view that does the same, or a
//! reason why none does: `tests/web/commands.tsv` says which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const REFERENCE: &str = include_str!("../../../docs/reference/cli.md");
const TABLE: &str = include_str!("../../../tests/web/commands.tsv");

/// Commands, their page or `-`, and how the page does it or why none does.
fn table() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let rows = TABLE.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    rows.map(|row| match row[..] {
        [command, page, how] if !how.is_empty() => (command, (page, how)),
        _ => panic!("{row:?} has not three columns"),
    })
    .collect()
}

fn source(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page_file(page: &str) -> PathBuf {
    super::folder().join(format!("src/pages/{page}.svelte"))
}

/// The files of pages, by the paths in `nav.ts`.
fn pages() -> BTreeMap<String, String> {
    let nav = source(&super::folder().join("src/lib/nav.ts"));
    let mut pages = BTreeMap::new();
    for line in nav.lines() {
        let value = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}: '"))?;
            Some(rest.split_once('\'')?.0.to_owned())
        };
        let component = line.split_once("component: ").and_then(|(_, rest)| rest.split([',', ' ']).next());
        if let (Some(path), Some(component)) = (value("path").or_else(|| value("prefix")), component) {
            // `LeasePage` is imported from `Lease.svelte`.
            pages.insert(path, component.trim_end_matches("Page").to_owned());
        }
    }
    assert!(pages.len() > 20, "nav.ts was read: {pages:?}");
    pages
}

/// What a page and the files that it imports say, to any depth.
fn said_by(page: &str) -> String {
    let (mut said, mut seen) = (String::new(), BTreeSet::new());
    let mut files = vec![page_file(page)];
    while let Some(path) = files.pop() {
        if seen.insert(path.clone()) {
            let text = source(&path);
            files.extend(imports(&path, &text));
            said += &text;
        }
    }
    said
}

fn imports(of: &Path, text: &str) -> Vec<PathBuf> {
    let named = text.split(" from '").skip(1).filter_map(|rest| rest.split_once('\'').map(|(name, _)| name));
    let files = named.filter(|name| name.starts_with('.')).filter_map(|name| {
        let path = of.parent()?.join(name);
        [path.clone(), PathBuf::from(format!("{}.ts", path.display()))]
            .into_iter()
            .find(|path| path.is_file())
    });
    files.filter_map(|path| path.canonicalize().ok()).collect()
}

/// `POST /api/v1/apply` as pages say it; other texts are looked for as they are.
fn call(how: &str) -> String {
    match how.split_once(' ') {
        Some((method @ ("GET" | "POST" | "PATCH" | "DELETE"), path)) => format!("api.{method}('{path}'"),
        _ => how.to_owned(),
    }
}

#[test]
fn every_command_has_a_page_or_a_reason() {
    let listed: BTreeSet<&str> = table().into_keys().collect();
    let headings = REFERENCE.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'));
    let commands: BTreeSet<&str> = headings.collect();
    assert!(commands.len() > 50, "the reference was read: {commands:?}");
    let missing: Vec<_> = commands.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&commands).collect();
    assert!(missing.is_empty(), "tests/web/commands.tsv lacks {missing:?}");
    assert!(gone.is_empty(), "tests/web/commands.tsv names what is no command: {gone:?}");
}

#[test]
fn each_page_does_what_the_table_says() {
    let (pages, mut said, mut wrong) = (pages(), BTreeMap::new(), Vec::new());
    for (command, (path, how)) in table().into_iter().filter(|(_, (path, _))| *path != "-") {
        let Some(page) = pages.get(path) else {
            wrong.push(format!("{command}: there is no page {path}"));
            continue;
        };
        let said = said.entry(page).or_insert_with(|| said_by(page));
        if !said.contains(&call(how)) {
            wrong.push(format!("{command}: {page}.svelte does not do {how}"));
        }
        // `sluice suspend` and `sluice resume` are one line of their page.
        let verb = command.split(' ').nth(1).unwrap_or_default();
        if !said.contains(&format!("sluice {verb}")) && !said.contains(&format!("'{verb}'")) {
            wrong.push(format!("{command}: {page}.svelte does not name it under \"As command\""));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_page_has_commands_for_both() {
    for (path, page) in pages() {
        let text = source(&page_file(&page));
        for part in ["commands=", "cli: ", "curl: "] {
            assert!(text.contains(part), "{path}: {page}.svelte has no {part}");
        }
    }
}
