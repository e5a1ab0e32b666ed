//! A tree of files that becomes a package: the same files as a tar archive, whatever contains it.
//!
//! Archives are reproducible. Entries are sorted by path, belong to root, and have one time, that
//! of the commit.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

/// What stands at a path.
#[derive(Clone, Debug)]
enum Content {
    Folder,
    /// A file with the contents of this one.
    File(PathBuf),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Entry {
    content: Content,
    mode: u32,
    owner: u32,
}

/// Files by their paths, which are relative and use `/`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Adds a copy of `from` with these permissions.
    pub(crate) fn file(&mut self, path: &str, from: &Path, mode: u32) {
        self.insert(path, Content::File(from.to_owned()), mode);
    }

    /// Adds a file with these contents that everyone may read.
    pub(crate) fn text(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.insert(path, Content::Bytes(contents.into()), 0o644);
    }

    /// Adds a script.
    pub(crate) fn script(&mut self, path: &str, contents: impl Into<Vec<u8>>) {
        self.insert(path, Content::Bytes(contents.into()), 0o755);
    }

    /// Adds a folder with permissions and an owner of its own. Other folders need not be named.
    pub(crate) fn folder(&mut self, path: &str, mode: u32, owner: u32) {
        self.insert(path, Content::Folder, mode);
        self.entries.entry(path.to_owned()).and_modify(|entry| entry.owner = owner);
    }

    fn insert(&mut self, path: &str, content: Content, mode: u32) {
        for (at, _) in path.match_indices('/') {
            let folder = Entry { content: Content::Folder, mode: 0o755, owner: 0 };
            self.entries.entry(path[..at].to_owned()).or_insert(folder);
        }
        self.entries.insert(path.to_owned(), Entry { content, mode, owner: 0 });
    }

    /// Path, permissions and contents of each file.
    pub(crate) fn files(&self) -> Result<Vec<(String, u32, Vec<u8>)>> {
        let mut files = Vec::new();
        for (path, entry) in &self.entries {
            let contents = match &entry.content {
                Content::File(from) => read(from)?,
                Content::Bytes(bytes) => bytes.clone(),
                Content::Folder => continue,
            };
            files.push((path.clone(), entry.mode, contents));
        }
        Ok(files)
    }

    /// The sum of the sizes of all files, in bytes.
    pub(crate) fn size(&self) -> Result<u64> {
        let size = |entry: &Entry| match &entry.content {
            Content::File(from) => Ok(from.metadata().with_context(|| from.display().to_string())?.len()),
            Content::Bytes(bytes) => Ok(bytes.len() as u64),
            Content::Folder => Ok(0),
        };
        self.entries.values().map(size).sum()
    }

    /// Writes a tar archive.
    pub(crate) fn write_tar(&self, time_s: u64, out: impl Write) -> Result<()> {
        let mut archive = tar::Builder::new(out);
        for (path, entry) in &self.entries {
            append(&mut archive, path, entry, time_s).with_context(|| path.clone())?;
        }
        archive.into_inner()?.flush()?;
        Ok(())
    }

    /// The tar archive, compressed by gzip.
    pub(crate) fn tar_gz(&self, time_s: u64) -> Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        self.write_tar(time_s, &mut encoder)?;
        Ok(encoder.finish()?)
    }
}

fn append(archive: &mut tar::Builder<impl Write>, path: &str, entry: &Entry, time_s: u64) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_mtime(time_s);
    header.set_uid(entry.owner.into());
    header.set_gid(entry.owner.into());
    let bytes = match &entry.content {
        Content::Folder => {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_size(0);
            return Ok(archive.append_data(&mut header, format!("{path}/"), std::io::empty())?);
        }
        Content::File(from) => read(from)?,
        Content::Bytes(bytes) => bytes.clone(),
    };
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(bytes.len() as u64);
    Ok(archive.append_data(&mut header, path, bytes.as_slice())?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_of_the_same_files_are_the_same_bytes() {
        let tree = |order: [&str; 2]| {
            let mut tree = Tree::default();
            order.into_iter().for_each(|path| tree.text(path, path));
            tree.folder("var/lib/x", 0o700, 7);
            tree.tar_gz(12).unwrap()
        };
        let bytes = tree(["usr/bin/a", "etc/b"]);
        assert_eq!(bytes, tree(["etc/b", "usr/bin/a"]));
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(header.mtime().unwrap(), 12);
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.uid().unwrap())
        });
        let expected = [
            ("etc/", 0o755, 0),
            ("etc/b", 0o644, 0),
            ("usr/", 0o755, 0),
            ("usr/bin/", 0o755, 0),
            ("usr/bin/a", 0o644, 0),
            ("var/", 0o755, 0),
            ("var/lib/", 0o755, 0),
            ("var/lib/x/", 0o700, 7),
        ];
        let expected = expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner));
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }
}
