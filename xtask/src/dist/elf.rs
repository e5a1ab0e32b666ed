//! What an ELF file asks of the system that loads it: libraries and versions of their symbols.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};

/// A version of glibc. The derived order is that of releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The requirements of one or more ELF files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requirements {
    /// Names of shared libraries, as the loader looks for them.
    pub(crate) libraries: BTreeSet<String>,
    /// The oldest glibc that has all symbols that are used.
    pub(crate) glibc: Glibc,
}

impl Requirements {
    /// Reads the dynamic section and the version references of a 64-bit ELF file.
    pub(crate) fn of(path: &Path) -> Result<Requirements> {
        let glibc = || -> Result<Glibc> { newest_glibc(&std::fs::read(path)?) };
        Ok(Requirements {
            libraries: libraries(path)?,
            glibc: glibc().with_context(|| path.display().to_string())?,
        })
    }

    /// Adds the requirements of another file.
    pub(crate) fn add(&mut self, other: Requirements) {
        self.libraries.extend(other.libraries);
        self.glibc = self.glibc.max(other.glibc);
    }
}

/// The shared libraries that the loader has to find for an ELF file.
pub(crate) fn libraries(path: &Path) -> Result<BTreeSet<String>> {
    let read = || -> Result<BTreeSet<String>> { needed(&std::fs::read(path)?) };
    read().with_context(|| path.display().to_string())
}

fn needed(data: &[u8]) -> Result<BTreeSet<String>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let Some((entries, strings)) = sections.dynamic(endian, data)? else {
        return Ok(BTreeSet::new());
    };
    let strings = sections.strings(endian, data, strings)?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    needed.map(|entry| text(entry.string(endian, strings)?)).collect()
}

fn newest_glibc(data: &[u8]) -> Result<Glibc> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut newest = Glibc::default();
    let Some((mut needs, strings)) = sections.gnu_verneed(endian, data)? else {
        return Ok(newest);
    };
    let strings = sections.strings(endian, data, strings)?;
    while let Some((_, mut versions)) = needs.next()? {
        while let Some(version) = versions.next()? {
            let name = text(version.name(endian, strings)?)?;
            newest = newest.max(glibc_version(&name)?.unwrap_or_default());
        }
    }
    Ok(newest)
}

fn text(bytes: &[u8]) -> Result<String> {
    Ok(std::str::from_utf8(bytes).context("a name that is no text")?.to_owned())
}

/// The release that a symbol version such as `GLIBC_2.34` stands for; none for other libraries'.
/// Private symbols bind a file to one build of glibc, so they are an error.
fn glibc_version(name: &str) -> Result<Option<Glibc>> {
    let Some(release) = name.strip_prefix("GLIBC_") else { return Ok(None) };
    let numbers: Vec<u32> = release.split('.').map_while(|number| number.parse().ok()).collect();
    match numbers[..] {
        [major, minor, ..] => Ok(Some(Glibc { major, minor })),
        // Features of the loader, each of which came with a release.
        _ if release == "ABI_DT_RELR" => Ok(Some(Glibc { major: 2, minor: 36 })),
        _ => bail!("symbol version {name} belongs to no release of glibc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_versions_are_compared_as_numbers() {
        let version = |name| glibc_version(name).unwrap();
        assert!(version("GLIBC_2.4") < version("GLIBC_2.34"));
        assert!(version("GLIBC_2.2.5") < version("GLIBC_2.3"));
        assert_eq!(version("GLIBC_2.34").unwrap().to_string(), "2.34");
        assert_eq!(version("GLIBC_ABI_DT_RELR"), version("GLIBC_2.36"));
        assert_eq!(version("GCC_3.0"), None);
        glibc_version("GLIBC_PRIVATE").expect_err("binds to one build of glibc");
    }

    #[test]
    fn this_test_program_needs_a_glibc_that_this_machine_has() {
        let program = std::env::current_exe().unwrap();
        let requirements = Requirements::of(&program).unwrap();
        assert!(requirements.libraries.contains("libc.so.6"), "{requirements:?}");
        // SAFETY: gnu_get_libc_version has no precondition and returns a static string.
        let here = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        let here = glibc_version(&format!("GLIBC_{}", here.to_str().unwrap())).unwrap().unwrap();
        assert!(requirements.glibc > Glibc::default());
        assert!(requirements.glibc <= here, "{requirements:?}, and this machine has {here}");
    }
}
