//! Which builds of Sluice and of the driver a worker consists of.

use std::ffi::c_void;

/// A number that is the same only where all that is loaded into this process was built the same, by
/// the notes that linkers leave (`NT_GNU_BUILD_ID`); 0 where this program has none.
pub(crate) fn number() -> u64 {
    let mut seen = Seen { builds: blake3::Hasher::new(), objects: 0, is_ours_known: false };
    // SAFETY: the callback is called before this returns, with the address of a local that nothing
    // else uses.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut seen).cast()) };
    let hash = *seen.builds.finalize().as_bytes();
    if seen.is_ours_known { u64::from_le_bytes(std::array::from_fn(|i| hash[i])).max(1) } else { 0 }
}

struct Seen {
    builds: blake3::Hasher,
    objects: u32,
    /// The first object is the program itself.
    is_ours_known: bool,
}

unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, seen: *mut c_void) -> i32 {
    // SAFETY: the loader passes an object that stays while this runs, and `number` its own `Seen`.
    let (object, seen) = unsafe { (&*object, &mut *seen.cast::<Seen>()) };
    // SAFETY: the loader counts the program headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let mut has_id = false;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let start = (object.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: notes are part of what is loaded, at the object's base.
        let notes = unsafe { std::slice::from_raw_parts(start, header.p_memsz as usize) };
        if let Some(id) = build_id(notes) {
            seen.builds.update(id);
            has_id = true;
            seen.is_ours_known |= seen.objects == 0;
        }
    }
    if !has_id && !object.dlpi_name.is_null() {
        // The names of drivers have their version.
        // SAFETY: the loader ends names with a NUL.
        seen.builds.update(unsafe { std::ffi::CStr::from_ptr(object.dlpi_name) }.to_bytes());
    }
    seen.objects += 1;
    0
}

/// The build id among notes: each has the sizes of its name and of its text and its kind, and both
/// are padded to 4 bytes (System V ABI, "Note Section").
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const BUILD_ID: u32 = 3;
    let word =
        |notes: &[u8], i: usize| Some(u32::from_le_bytes(notes.get(4 * i..)?.get(..4)?.try_into().ok()?));
    loop {
        let (name, text, kind) = (word(notes, 0)? as usize, word(notes, 1)? as usize, word(notes, 2)?);
        let rest = notes.get(12..)?;
        let padded = name.checked_next_multiple_of(4)?;
        if kind == BUILD_ID && rest.starts_with(b"GNU\0") {
            return rest.get(padded..)?.get(..text);
        }
        notes = rest.get(padded.checked_add(text.checked_next_multiple_of(4)?)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, name: &[u8], text: &[u8]) -> Vec<u8> {
        let mut note = [name.len() as u32, text.len() as u32, kind].map(u32::to_le_bytes).concat();
        for part in [name, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn a_build_id_is_found_among_other_notes() {
        let id = note(3, b"GNU\0", b"12345");
        assert_eq!(
            build_id(&[note(1, b"GNU\0", b"abi"), note(3, b"Go\0", b"x"), id].concat()),
            Some(&b"12345"[..])
        );
        assert_eq!(build_id(&note(1, b"GNU\0", b"abi")), None);
        assert_eq!(build_id(&[u32::MAX.to_le_bytes(); 3].concat()), None);
    }

    #[test]
    fn this_build_has_one_number() {
        assert_ne!(number(), 0);
        assert_eq!(number(), number());
    }
}
