//! The code in an object file that LLVM has made (ELF-64, x86-64), in one piece: its sections with
//! code and constants behind each other, and behind them the addresses of the functions that the
//! code calls. What refers from one place of the piece to another is filled in here; the addresses
//! stay as relocations.

use std::collections::HashMap;

use crate::object::{Relocation, Symbol};

/// Alignment of a section's start that is granted at most: that of the memory that code gets.
const ALIGN_MAX: u64 = 4096;
/// Bytes that a kernel's code may have.
const CODE_MAX: usize = 1 << 28;

// Numbers of ELF and of its supplement for x86-64.
const PROGBITS: u32 = 1;
const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 4;
const ALLOCATED: u64 = 2;
const WRITABLE: u64 = 1;
const ABSOLUTE_64: u32 = 1;
const RELATIVE_32: u32 = 2;
const CALL_32: u32 = 4;
const GOT_RELATIVE: [u32; 3] = [9, 41, 42];
const RELATIVE_64: u32 = 24;

/// The parts that code becomes an object of.
pub(super) struct Code {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

struct Section<'f> {
    kind: u32,
    flags: u64,
    body: &'f [u8],
    align: u64,
    link: usize,
    info: usize,
    name: String,
}

/// Lays the code out. `entry` is the name of the function that comes first; `functions` names what
/// else there is.
pub(super) fn code(file: &[u8], entry: &str, functions: &HashMap<String, *const ()>) -> Result<Code, String> {
    let sections = sections(file).ok_or("LLVM's object file is cut short")?;
    let mut bytes = Vec::new();
    let mut places: Vec<Option<usize>> = vec![None; sections.len()];
    let is_kept = |section: &&(usize, &Section<'_>)| {
        let section = section.1;
        section.kind == PROGBITS && section.flags & ALLOCATED != 0 && section.name != ".eh_frame"
    };
    // The code first.
    let mut kept: Vec<(usize, &Section<'_>)> = sections.iter().enumerate().filter(|s| is_kept(&s)).collect();
    kept.sort_by_key(|(_, section)| section.name != ".text");
    for (index, section) in kept {
        if section.flags & WRITABLE != 0
            && !section.body.is_empty()
            && !section.name.starts_with(".data.rel.ro")
        {
            return Err(format!("it has a section {} of variables", section.name));
        }
        if section.align > ALIGN_MAX {
            return Err(format!("its section {} is aligned to {} bytes", section.name, section.align));
        }
        bytes.resize(bytes.len().next_multiple_of(section.align.max(1) as usize), 0);
        places[index] = Some(bytes.len());
        bytes.extend_from_slice(section.body);
        if bytes.len() > CODE_MAX {
            return Err("it is too large".into());
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let mut layout = Layout { bytes, relocations: Vec::new(), slots: HashMap::new(), functions };
    let mut has_entry = false;
    for table in sections.iter().filter(|section| section.kind == SYMBOLS) {
        for symbol in symbols(table, &sections) {
            let place = places.get(symbol.section).copied().flatten();
            has_entry |= symbol.name == entry && place == Some(0) && symbol.value == 0;
        }
    }
    if !has_entry {
        return Err(format!("{entry} is not where it was expected"));
    }
    for table in sections.iter().filter(|section| section.kind == RELOCATIONS) {
        let Some(place) = places.get(table.info).copied().flatten() else { continue };
        let list = sections.get(table.link).ok_or("it refers to a section that it does not have")?;
        let symbols = symbols(list, &sections);
        for entry in table.body.chunks_exact(24) {
            let word = |at: usize| u64::from_le_bytes(*entry[at..].first_chunk().expect("24 bytes"));
            let (offset, info, addend) = (word(0), word(8), word(16) as i64);
            let symbol = symbols.get((info >> 32) as usize).ok_or("it refers to no symbol")?;
            let target = places.get(symbol.section).copied().flatten();
            let target = target.map(|start| start as i64 + symbol.value as i64);
            layout.relocate(place + offset as usize, info as u32, &symbol.name, target, addend)?;
        }
    }
    Ok(Code { bytes: layout.bytes, relocations: layout.relocations })
}

struct Layout<'a> {
    bytes: Vec<u8>,
    relocations: Vec<Relocation>,
    /// By function, where its address is.
    slots: HashMap<String, usize>,
    functions: &'a HashMap<String, *const ()>,
}

impl Layout<'_> {
    fn relocate(
        &mut self,
        place: usize,
        kind: u32,
        name: &str,
        target: Option<i64>,
        addend: i64,
    ) -> Result<(), String> {
        let unknown = || format!("it refers to {name} (relocation {kind})");
        let from = place as i64;
        match (kind, target) {
            (RELATIVE_32 | CALL_32, Some(target)) => self.write(place, target + addend - from, 4),
            (RELATIVE_64, Some(target)) => self.write(place, target + addend - from, 8),
            (kind, None) if GOT_RELATIVE.contains(&kind) => {
                let slot = self.slot(name).ok_or_else(unknown)?;
                self.write(place, slot as i64 + addend - from, 4)
            }
            (ABSOLUTE_64, None) if addend == 0 => {
                let symbol = Symbol::function(*self.functions.get(name).ok_or_else(unknown)?);
                let offset = u32::try_from(place).map_err(|_| unknown())?;
                self.relocations.push(Relocation { offset, symbol });
                Ok(())
            }
            _ => Err(unknown()),
        }
    }

    /// Where the address of a function is.
    fn slot(&mut self, name: &str) -> Option<usize> {
        if let Some(&slot) = self.slots.get(name) {
            return Some(slot);
        }
        let symbol = Symbol::function(*self.functions.get(name)?);
        let slot = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 8]);
        self.relocations.push(Relocation { offset: u32::try_from(slot).ok()?, symbol });
        self.slots.insert(name.into(), slot);
        Some(slot)
    }

    fn write(&mut self, place: usize, value: i64, width: usize) -> Result<(), String> {
        if width == 4 && i32::try_from(value).is_err() {
            return Err("a distance does not fit".into());
        }
        let bytes = self.bytes.get_mut(place..place + width).ok_or("it refers from outside of its code")?;
        bytes.copy_from_slice(&value.to_le_bytes()[..width]);
        Ok(())
    }
}

struct ElfSymbol {
    name: String,
    section: usize,
    value: u64,
}

fn symbols(table: &Section<'_>, sections: &[Section<'_>]) -> Vec<ElfSymbol> {
    let names = sections.get(table.link).map_or(&[][..], |section| section.body);
    let symbol = |entry: &[u8]| ElfSymbol {
        name: text(names, u32::from_le_bytes(*entry.first_chunk().expect("24 bytes")) as usize),
        section: usize::from(u16::from_le_bytes([entry[6], entry[7]])),
        value: u64::from_le_bytes(*entry[8..].first_chunk().expect("24 bytes")),
    };
    table.body.chunks_exact(24).map(symbol).collect()
}

fn text(names: &[u8], start: usize) -> String {
    let name = names.get(start..).unwrap_or_default();
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn sections(file: &[u8]) -> Option<Vec<Section<'_>>> {
    let half = |at: usize| Some(u16::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    if file.get(..4)? != b"\x7fELF" {
        return None;
    }
    let (table, size, count) = (long(0x28)? as usize, usize::from(half(0x3a)?), usize::from(half(0x3c)?));
    let names = usize::from(half(0x3e)?);
    let mut sections = Vec::with_capacity(count);
    let mut name_places = Vec::with_capacity(count);
    for index in 0..count {
        let at = table.checked_add(index.checked_mul(size)?)?;
        let (kind, start, len) = (word(at + 4)?, long(at + 24)? as usize, long(at + 32)? as usize);
        // Sections without bytes in the file have type 8.
        let body = if kind == 8 { &[][..] } else { file.get(start..start.checked_add(len)?)? };
        name_places.push(word(at)? as usize);
        sections.push(Section {
            kind,
            flags: long(at + 8)?,
            body,
            align: long(at + 48)?,
            link: word(at + 40)? as usize,
            info: word(at + 44)? as usize,
            name: String::new(),
        });
    }
    let table = sections.get(names)?.body;
    for (section, place) in sections.iter_mut().zip(name_places) {
        section.name = text(table, place);
    }
    Some(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout with a function behind sixteen bytes of code.
    fn layout(functions: &HashMap<String, *const ()>) -> Layout<'_> {
        Layout { bytes: vec![0; 16], relocations: Vec::new(), slots: HashMap::new(), functions }
    }

    #[test]
    fn calls_go_through_one_address_for_each_function() {
        let function = crate::runtime::fault as *const ();
        let functions = HashMap::from([("fault".to_owned(), function)]);
        let mut layout = layout(&functions);
        for place in [2, 10] {
            layout.relocate(place, 41, "fault", None, -4).unwrap();
        }
        let slot = Relocation { offset: 16, symbol: Symbol::function(function) };
        assert_eq!(layout.relocations, [slot]);
        assert_eq!(layout.bytes[2..6], 10i32.to_le_bytes());
        assert_eq!(layout.bytes[10..14], 2i32.to_le_bytes());
    }

    #[test]
    fn what_the_code_does_not_have_is_refused() {
        let functions = HashMap::new();
        let mut layout = layout(&functions);
        assert!(layout.relocate(0, 41, "memset", None, -4).is_err());
        assert!(layout.relocate(0, CALL_32, "memset", None, -4).is_err());
        assert!(layout.relocate(14, RELATIVE_32, "", Some(0), 0).is_err());
    }

    #[test]
    fn files_that_are_cut_short_are_refused() {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(b"\x7fELF");
        file[0x28] = 60;
        file[0x3a] = 64;
        file[0x3c] = 1;
        for file in [&b""[..], b"\x7fELF", &file] {
            assert!(code(file, "warp", &HashMap::new()).is_err());
        }
    }
}
