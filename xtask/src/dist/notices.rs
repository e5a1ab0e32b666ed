//! Notices of the crates that are linked into the binaries, from the licence files that they bring.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::product::ALSO_BUILT;
use crate::process;

const HEAD: &str = "\
Sluice is licensed under the Apache License 2.0 (LICENSE). Its binaries contain the crates below. Each is followed by its
version, its licence and the licence files of its package.
";

/// Beginnings of the names of licence files, in upper case.
const LICENCE_FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// The notices of all crates that the product links, and of the web view.
pub(crate) fn of_crates() -> Result<String> {
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    cargo.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let metadata: Value = serde_json::from_str(&process::output_of(&mut cargo)?).context("cargo metadata")?;
    let packages = linked(&metadata)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let title = format!("{} {} ({})", field("name"), field("version"), field("license"));
        let manifest = Path::new(field("manifest_path"));
        let text = licence_files(manifest.parent().context("a folder")?)?;
        texts.entry(text).or_default().push(title);
    }
    let mut notices = HEAD.to_owned();
    for (text, titles) in texts {
        let text = match text.as_str() {
            "" => "(No licence file in the package.)",
            text => text,
        };
        notices.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(100), titles.join("\n")));
    }
    let web = crate::root().join("web/dist/licences.txt");
    let web = std::fs::read_to_string(&web).with_context(|| web.display().to_string())?;
    notices.push_str(&format!("\n{}\nThe web view\n\n{}\n", "=".repeat(100), web.trim()));
    Ok(notices)
}

/// The foreign packages that the product's packages reach by dependencies that are linked.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()
        .context("packages")?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().context("nodes")? {
        let is_linked = |dependency: &&Value| {
            let kinds = dependency["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let dependencies = list(&node["deps"]);
        let ids = dependencies.iter().filter(is_linked).filter_map(|d| d["pkg"].as_str().map(String::from));
        uses.insert(node["id"].as_str().context("an id")?.to_owned(), ids.collect());
    }
    let ours = metadata["workspace_default_members"].as_array().context("default members")?;
    let mut open: Vec<String> = ours.iter().filter_map(|id| id.as_str().map(String::from)).collect();
    let also = packages.values().filter(|p| ALSO_BUILT.iter().any(|name| p["name"] == *name));
    open.extend(also.filter_map(|package| package["id"].as_str().map(String::from)));
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id.clone()) {
            open.extend(uses.get(&id).into_iter().flatten().cloned());
        }
    }
    let found = seen.iter().filter_map(|id| packages.get(id.as_str()).copied());
    Ok(found.filter(|package| !package["source"].is_null()).collect())
}

/// The contents of the licence files in a package's folder.
fn licence_files(folder: &Path) -> Result<String> {
    let mut texts = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_licence = LICENCE_FILES.iter().any(|start| name.to_uppercase().starts_with(start));
        if is_licence && entry.file_type()?.is_file() {
            let text = std::fs::read(entry.path())?;
            texts.insert(name, String::from_utf8_lossy(&text).trim().to_owned());
        }
    }
    Ok(texts.into_values().collect::<Vec<_>>().join("\n\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn notices_name_what_is_linked_with_its_licence() {
        let notices = super::of_crates().unwrap();
        for part in ["cranelift-codegen ", "Apache-2.0 WITH LLVM-exception", "ring ", "The web view"] {
            assert!(notices.contains(part), "no {part:?}");
        }
        // A dependency of tests, and one of the product itself.
        for part in ["\nproptest ", "\nsluice-wire "] {
            assert!(!notices.contains(part), "{part:?} is not linked from elsewhere");
        }
    }
}
