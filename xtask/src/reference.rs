//! `docs/reference/environment.md` is compared with the environment variables that the sources
//! name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/reference/environment.md");
const PREFIX: &str = "SLUICE_";
/// The start of variables with which tests talk to processes that they start.
const OF_TESTS: &str = "SLUICE_TEST";

/// Returns the variables in `text` behind `before`, which is a quotation mark.
fn variables(text: &str, before: char) -> BTreeSet<String> {
    let quoted = format!("{before}{PREFIX}");
    let rest = text.split(quoted.as_str()).skip(1);
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names = rest.filter_map(|rest| {
        let end = rest.find(|c: char| !is_part(c))?;
        rest[end..].starts_with(before).then(|| format!("{PREFIX}{}", &rest[..end]))
    });
    names.filter(|name| name != PREFIX && !name.starts_with(OF_TESTS)).collect()
}

fn below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(variables(&fs::read_to_string(path).unwrap(), '"'));
        }
    }
}

#[test]
fn every_environment_variable_is_on_its_page() {
    let mut read = BTreeSet::new();
    below(&crate::root().join("crates"), &mut read);
    assert!(read.len() > 20, "the sources were read: {read:?}");
    let described = variables(PAGE, '`');
    let missing: Vec<_> = read.difference(&described).collect();
    let gone: Vec<_> = described.difference(&read).collect();
    assert!(missing.is_empty(), "docs/reference/environment.md lacks {missing:?}");
    assert!(gone.is_empty(), "docs/reference/environment.md describes what is not read: {gone:?}");
}
