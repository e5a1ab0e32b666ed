//! Relative links of Markdown files: the file has to exist, and the heading in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// Returns a line for each link of `pages`, below `root`, that leads nowhere.
pub(super) fn broken(root: &Path, pages: &[String]) -> Result<Vec<String>> {
    let mut headings = BTreeMap::new();
    let mut faults = Vec::new();
    for page in pages {
        let text = fs::read_to_string(root.join(page)).with_context(|| page.clone())?;
        for link in links(&text) {
            if let Some(fault) = fault(root, page, &link, &mut headings)? {
                faults.push(format!("{page}: {link}: {fault}"));
            }
        }
    }
    Ok(faults)
}

type Headings = BTreeMap<PathBuf, BTreeSet<String>>;

fn fault(root: &Path, page: &str, link: &str, headings: &mut Headings) -> Result<Option<&'static str>> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" => PathBuf::from(page),
        path => normal(&Path::new(page).parent().unwrap_or(Path::new("")).join(path)),
    };
    if !root.join(&target).exists() {
        return Ok(Some("no such file"));
    }
    let Some(anchor) = anchor.filter(|_| target.extension().is_some_and(|it| it == "md")) else {
        return Ok(None);
    };
    if !headings.contains_key(&target) {
        let text = fs::read_to_string(root.join(&target))?;
        headings.insert(target.clone(), anchors(&text));
    }
    Ok((!headings[&target].contains(anchor)).then_some("no such heading"))
}

/// Resolves `..` without asking the file system.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if normal.pop() => {}
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn links(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { link_type: LinkType::Email, .. }) => None,
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    };
    parse(text).filter_map(target).collect()
}

/// Returns the anchors of all headings, made of their text as GitHub and mdBook do.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|it| it.push_str(&text)),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let numbered = (1..).map(|number| format!("{anchor}-{number}"));
                let free = std::iter::once(anchor.clone()).chain(numbered).find(|it| !anchors.contains(it));
                anchors.extend(free);
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the Markdown files below a folder.
#[cfg(test)]
pub(super) fn pages_below(root: &Path) -> Vec<String> {
    let mut folders = vec![root.to_path_buf()];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.strip_prefix(root).unwrap().to_str().unwrap().into());
            }
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_the_anchors_of_github() {
        let found = anchors("# What is `it`?\n\n## A, b\n\n## A b\n");
        let expected = ["what-is-it", "a-b", "a-b-1"].map(String::from);
        assert_eq!(found, expected.into());
    }

    #[test]
    fn a_link_to_a_missing_file_or_heading_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b.md"), "# Here\n[1](#here) [2](../c.md#there) [3](../c.md#no)")
            .unwrap();
        fs::write(folder.path().join("c.md"), "# There\n[4](a/none.md) [5](https://x.example/) ![6](a)")
            .unwrap();
        let faults = broken(folder.path(), &pages_below(folder.path())).unwrap();
        let mut faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        faults.sort_unstable();
        assert_eq!(faults, ["a/b.md: ../c.md#no: no such heading", "c.md: a/none.md: no such file"]);
    }
}
