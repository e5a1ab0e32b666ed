//! Sizes of ELF files, which is all that has to be known of machine code.

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

/// The size in bytes of the ELF file at the start of these bytes: where its last section or table ends. It may be more than is there.
pub fn size(bytes: &[u8]) -> Result<u64, ImageError> {
    let tables = Tables::read(bytes)?;
    let (offset, length, _) = tables.sections;
    let truncated = ImageError::Truncated("ELF section headers");
    let start = usize::try_from(offset).map_err(|_| truncated.clone())?;
    let headers = bytes.get(start..).and_then(|rest| rest.get(..length as usize)).ok_or(truncated)?;
    tables.file_bytes(headers)
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
