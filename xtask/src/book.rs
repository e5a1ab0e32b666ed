//! `cargo xtask book`: the documents as a site, built by mdBook.
//!
//! The documents link to each other as files of the repository, so that they can be read there.
//! mdBook wants all pages below one folder. So the pages are copied to `target/book/src`, with
//! those of the root among them and links changed to match, and `docs/SUMMARY.md` is their order.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use harness::Skipped;

use crate::process;

/// Pages that are not in `docs`, and their names in the book.
const ROOT_PAGES: [(&str, &str); 4] = [
    ("README.md", "introduction.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("CHANGELOG.md", "changelog.md"),
];
const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: &str = "book.toml";

/// Runs `cargo xtask book [--check]`.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    match options {
        [] => {
            ensure!(has_mdbook(), "the book is built by mdBook: `cargo install mdbook`");
            build()
        }
        ["--check"] => check_links().and_then(|()| check_build()),
        _ => bail!("usage: cargo xtask book [--check]"),
    }
}

/// Fails for links whose file or heading does not exist, and for pages that the book leaves out.
pub(crate) fn check_links() -> Result<()> {
    let root = crate::root();
    let mut pages = pages(root)?;
    // Its links are those of the book.
    pages.retain(|page| page != SUMMARY);
    let mut faults = links::broken(root, &pages)?;
    faults.extend(missing_pages(root)?);
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Builds the book where mdBook is installed.
pub(crate) fn check_build() -> Result<()> {
    if !has_mdbook() {
        return Err(Skipped("mdBook is not installed".into()).into());
    }
    build()
}

fn has_mdbook() -> bool {
    let mut version = Command::new("mdbook");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

fn build() -> Result<()> {
    let folder = stage(crate::root(), &crate::target_folder().join("book"))?;
    process::run(Command::new("mdbook").arg("build").arg(&folder))?;
    println!("the book is {}", folder.join("book/index.html").display());
    Ok(())
}

/// Copies the book's sources to `folder`, which is made anew.
fn stage(root: &Path, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let source = folder.join("src");
    fs::create_dir_all(&source)?;
    fs::copy(root.join(SETTINGS), folder.join(SETTINGS)).context(SETTINGS)?;
    copy_folder(&root.join("docs"), &source, "")?;
    for (page, name) in ROOT_PAGES {
        let text = fs::read_to_string(root.join(page)).context(page)?;
        fs::write(source.join(name), of_root(&text))?;
    }
    fs::copy(root.join("crates/server/openapi.json"), source.join("openapi.json"))?;
    fs::copy(root.join("LICENSE"), source.join("LICENSE"))?;
    Ok(folder.into())
}

fn copy_folder(from: &Path, to: &Path, up: &str) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target, &format!("{up}../"))?;
        } else if entry.path().extension().is_some_and(|extension| extension == "md") {
            fs::write(target, of_docs(&fs::read_to_string(entry.path())?, up))?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Changes the links of a page of the root.
fn of_root(text: &str) -> String {
    let text = text.replace("](docs/", "](");
    let renamed =
        |text: String, (page, name): (&str, &str)| text.replace(&format!("]({page}"), &format!("]({name}"));
    ROOT_PAGES.into_iter().fold(text, renamed)
}

/// Changes the links of a page of `docs`; `up` leads from its folder to `docs`.
fn of_docs(text: &str, up: &str) -> String {
    let renamed = |text: String, (page, name): (&str, &str)| {
        text.replace(&format!("]({up}../{page}"), &format!("]({up}{name}"))
    };
    let text = text.replace(&format!("]({up}../crates/server/openapi.json"), &format!("]({up}openapi.json"));
    ROOT_PAGES.into_iter().fold(text, renamed)
}

/// Returns all Markdown files of the repository.
fn pages(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]);
    let listed = process::output_of(&mut git)?;
    Ok(listed.lines().filter(|page| root.join(page).is_file()).map(String::from).collect())
}

/// Returns a line for each page of `docs` that the summary does not name.
fn missing_pages(root: &Path) -> Result<Vec<String>> {
    let summary = fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    let named: BTreeSet<&str> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    let pages = pages(root)?.into_iter().filter_map(|page| Some(page.strip_prefix("docs/")?.to_owned()));
    let left_out = pages.filter(|page| page != "SUMMARY.md" && !named.contains(page.as_str()));
    Ok(left_out.map(|page| format!("{SUMMARY} does not name {page}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_the_pages_of_the_root_into_the_book() {
        assert_eq!(of_root("[a](docs/tls.md) [b](ARCHITECTURE.md#x)"), "[a](tls.md) [b](architecture.md#x)");
        assert_eq!(of_docs("[a](../README.md) [b](tls.md)", ""), "[a](introduction.md) [b](tls.md)");
        assert_eq!(of_docs("[a](../../CHANGELOG.md)", "../"), "[a](../changelog.md)");
    }

    #[test]
    fn every_page_is_in_the_book_and_every_link_leads_somewhere() {
        check_links().unwrap();
    }

    #[test]
    fn the_book_has_a_file_for_each_entry_of_its_summary() {
        let folder = tempfile::tempdir().unwrap();
        let staged = stage(crate::root(), &folder.path().join("book")).unwrap();
        let summary = fs::read_to_string(staged.join("src/SUMMARY.md")).unwrap();
        for page in summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(staged.join("src").join(page).is_file(), "{page}");
        }
        assert!(
            links::broken(&staged.join("src"), &links::pages_below(&staged.join("src"))).unwrap().is_empty()
        );
    }
}
