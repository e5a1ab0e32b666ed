//! ELF files: their size, which is all that a client has to know of machine code, and their
//! sections and symbols.

use crate::ImageError;

/// How an ELF file begins.
pub const MAGIC: &[u8] = b"\x7fELF";

/// Bytes of a 64-bit ELF header.
pub(crate) const HEADER_BYTES: usize = 64;

/// Where the tables of a file lie.
pub(crate) struct Tables {
    /// Offset and size in bytes of the section headers, and the size of one.
    pub(crate) sections: (u64, u64, u64),
    /// Offset and size in bytes of the program headers.
    pub(crate) programs: (u64, u64),
}

impl Tables {
    /// From a header of [`HEADER_BYTES`] bytes.
    pub(crate) fn read(header: &[u8]) -> Result<Tables, ImageError> {
        if header.len() < HEADER_BYTES {
            return Err(ImageError::Truncated("ELF header"));
        }
        // 64-bit, little endian.
        if !header.starts_with(MAGIC) || header[4] != 2 || header[5] != 1 {
            return Err(ImageError::Invalid("ELF header"));
        }
        let (section_bytes, sections) = (u64::from(u16_at(header, 0x3a)), u64::from(u16_at(header, 0x3c)));
        let (program_bytes, programs) = (u64::from(u16_at(header, 0x36)), u64::from(u16_at(header, 0x38)));
        if sections > 0 && section_bytes < 64 {
            return Err(ImageError::Invalid("ELF section header"));
        }
        Ok(Tables {
            sections: (u64_at(header, 0x28), sections * section_bytes, section_bytes),
            programs: (u64_at(header, 0x20), programs * program_bytes),
        })
    }

    /// Size of the file in bytes, given its section headers.
    pub(crate) fn file_bytes(&self, section_headers: &[u8]) -> Result<u64, ImageError> {
        const NOBITS: u32 = 8;
        let impossible = ImageError::Invalid("ELF section");
        let (offset, bytes, stride) = self.sections;
        let mut end = HEADER_BYTES as u64;
        for (offset, bytes) in [(offset, bytes), self.programs] {
            end = end.max(offset.checked_add(bytes).ok_or(impossible.clone())?);
        }
        for header in section_headers.chunks_exact(stride.max(64) as usize) {
            if u32_at(header, 4) != NOBITS {
                let section_end = u64_at(header, 0x18).checked_add(u64_at(header, 0x20));
                end = end.max(section_end.ok_or(impossible.clone())?);
            }
        }
        Ok(end)
    }
}

/// The size in bytes of the ELF file at the start of these bytes: where its last section or table
/// ends. It may be more than is there.
pub fn size(bytes: &[u8]) -> Result<u64, ImageError> {
    let tables = Tables::read(bytes)?;
    let (offset, length, _) = tables.sections;
    let truncated = ImageError::Truncated("ELF section headers");
    let start = usize::try_from(offset).map_err(|_| truncated.clone())?;
    let headers = bytes.get(start..).and_then(|rest| rest.get(..length as usize)).ok_or(truncated)?;
    tables.file_bytes(headers)
}

/// A symbol that is a variable, or a function (ELF-64 Object File Format, Symbol Table).
pub(crate) const STT_OBJECT: u8 = 1;
pub(crate) const STT_FUNC: u8 = 2;
/// Types of sections (ELF-64 Object File Format, Sections).
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;

/// A whole file, borrowed.
pub(crate) struct File<'a> {
    pub(crate) sections: Vec<Section<'a>>,
    pub(crate) symbols: Vec<Symbol<'a>>,
}

pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    kind: u32,
    /// In memory.
    pub(crate) size: u64,
    /// In the file; nothing where there is only a size.
    pub(crate) data: &'a [u8],
}

pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: u8,
    pub(crate) other: u8,
    pub(crate) section: u16,
    /// Offset in the section.
    pub(crate) value: u64,
    pub(crate) size: u64,
}

pub(crate) struct Relocation {
    pub(crate) offset: u64,
    pub(crate) kind: u32,
    /// Number of the symbol.
    pub(crate) symbol: u32,
    pub(crate) addend: i64,
}

impl<'a> File<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<File<'a>, ImageError> {
        let (start, length, stride) = Tables::read(bytes)?.sections;
        let headers = slice(bytes, start, length).ok_or(ImageError::Truncated("ELF section headers"))?;
        let headers: Vec<&[u8]> = headers.chunks_exact(stride.max(64) as usize).collect();
        let data = |header: &[u8]| match u32_at(header, 4) {
            SHT_NOBITS => Some(&[][..]),
            _ => slice(bytes, u64_at(header, 0x18), u64_at(header, 0x20)),
        };
        let truncated = || ImageError::Truncated("ELF section");
        let names = usize::from(u16_at(bytes, 0x3e));
        let names = headers.get(names).and_then(|header| data(header)).unwrap_or_default();
        let mut file = File { sections: Vec::new(), symbols: Vec::new() };
        for header in &headers {
            let (kind, data) = (u32_at(header, 4), data(header).ok_or_else(truncated)?);
            let name = text(names, u32_at(header, 0))?;
            file.sections.push(Section { name, kind, size: u64_at(header, 0x20), data });
        }
        let tables = headers.iter().zip(&file.sections).filter(|(_, section)| section.kind == SHT_SYMTAB);
        for (header, table) in tables {
            let strings = file.sections.get(u32_at(header, 0x28) as usize);
            let strings = strings.ok_or(ImageError::Invalid("ELF symbol table"))?.data;
            for symbol in table.data.chunks_exact(24) {
                file.symbols.push(Symbol {
                    name: text(strings, u32_at(symbol, 0))?,
                    kind: symbol[4] & 15,
                    other: symbol[5],
                    section: u16_at(symbol, 6),
                    value: u64_at(symbol, 8),
                    size: u64_at(symbol, 16),
                });
            }
        }
        Ok(file)
    }
}

/// The relocations of a section that holds some.
pub(crate) fn relocations(section: &Section<'_>) -> impl Iterator<Item = Relocation> {
    let with_addend = section.kind == SHT_RELA;
    section.data.chunks_exact(if with_addend { 24 } else { 16 }).map(move |entry| Relocation {
        offset: u64_at(entry, 0),
        kind: u32_at(entry, 8),
        symbol: u32_at(entry, 12),
        addend: if with_addend { u64_at(entry, 16) as i64 } else { 0 },
    })
}

fn slice(bytes: &[u8], offset: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
}

/// The string at an offset of a string table.
fn text(strings: &[u8], at: u32) -> Result<&str, ImageError> {
    let rest = strings.get(at as usize..).unwrap_or_default();
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).map_err(|_| ImageError::Invalid("ELF name"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
