//! The name of this build.

use std::ffi::{c_int, c_void};
use std::slice;

/// Type and owner of the note that has the build's name (elf(5), "Notes").
const NT_GNU_BUILD_ID: u32 = 3;
const GNU: &[u8] = b"GNU\0";

/// What the linker named the executable or library with this code in it (ld(1), `--build-id`), a
/// hash of its contents. `None` if it was linked without.
pub(super) fn build_id() -> Option<Vec<u8>> {
    let mut found = None;
    // SAFETY: the callback is called before this returns, and its data is a place for its result.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// Looks for the note in one loaded file; not zero once this code's file has been seen.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the system hands over a valid description (dl_iterate_phdr(3)).
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: as above: it has this number of headers.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let segment = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        start..start.saturating_add(header.p_memsz)
    };
    let here = build_id as *const () as u64;
    let is_ours =
        |header: &libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && segment(header).contains(&here);
    if !headers.iter().any(is_ours) {
        return 0;
    }
    // SAFETY: `build_id` passes a place of this type.
    let found = unsafe { &mut *found.cast::<Option<Vec<u8>>>() };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let place = segment(header);
        // SAFETY: the segment is part of the file that this code is loaded from, and readable.
        let notes = unsafe { slice::from_raw_parts(place.start as *const u8, header.p_memsz as usize) };
        *found = found.take().or_else(|| find(notes));
    }
    1
}

/// The build's name among the notes of a segment: of each note three words (length of the owner's
/// name, length of its contents, type), then both, each padded to four bytes.
fn find(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let [owner, contents, kind] =
            [0, 4, 8].map(|at| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let padded = |bytes: u32| (bytes as usize).next_multiple_of(4);
        let name = rest.get(..owner as usize)?;
        let contents_at = padded(owner);
        let body = rest.get(contents_at..contents_at.checked_add(contents as usize)?)?;
        if kind == NT_GNU_BUILD_ID && name == GNU && !body.is_empty() {
            return Some(body.to_vec());
        }
        notes = rest.get(contents_at + padded(contents)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [owner.len() as u32, contents.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        for part in [owner, contents] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_note_is_found_behind_others() {
        let notes = [note(GNU, 1, b"abi"), note(b"Go\0", 3, b"other"), note(GNU, 3, b"name")].concat();
        assert_eq!(find(&notes), Some(b"name".to_vec()));
        assert_eq!(find(&notes[..notes.len() - 1]), None, "cut off");
        assert_eq!(find(&note(GNU, 1, b"abi")), None);
        assert_eq!(find(&note(GNU, 3, b"")), None);
    }

    #[test]
    fn this_build_has_a_name_or_says_so() {
        // Without a name nothing is stored; with one it is the same each time.
        assert_eq!(build_id(), build_id());
    }
}
