//! The fat binary container.
//!
//! ```text
//! container   u32 magic, u16 version, u16 header bytes, u64 bytes of all entries
//! entry       64 bytes or more of header:
//!              0  u16 kind        24  u16 minor version   40  u64 flags
//!              2  u16 version     26  u16 major version   48  u64 zero
//!              4  u32 header bytes 28 u32 architecture    56  u64 bytes once decompressed, or 0
//!              8  u64 payload bytes, padded
//!             16  u32 payload bytes as compressed, or 0
//!             then (not always) options, name; then the payload, padded with zeros
//! ```

use std::fmt;

use crate::pointer::LIST_ENTRIES_MAX;
use crate::{ComputeCapability, ImageError};

/// Begins a container.
pub const CONTAINER_MAGIC: u32 = 0xba55_ed50;

const CONTAINER_VERSION: u16 = 1;
pub(crate) const CONTAINER_HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 64;

/// The payload is compressed by LZ4 (a block without frame): `nvcc` up to 12.x.
const FLAG_LZ4: u64 = 0x2000;
/// The payload is compressed by zstd: `nvcc` from 13.0.
const FLAG_ZSTD: u64 = 0x8000;
/// For exactly one architecture: `compute_90a`.
const FLAG_SPECIFIC: u64 = 0x10_0000;
/// For the rest of a family: `compute_100f`.
const FLAG_FAMILY: u64 = 0x20_0000;

/// A container and its entries, borrowed.
#[derive(Clone, Debug)]
pub struct FatBinary<'a> {
    /// The whole container, nothing after it.
    pub bytes: &'a [u8],
    pub entries: Vec<Entry<'a>>,
}

/// One image of a container.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub kind: EntryKind,
    pub architecture: Architecture,
    pub compression: Compression,
    /// As stored; padding included where it is not compressed.
    pub payload: &'a [u8],
    /// Bytes once decompressed, as the entry says; 0 where it is not compressed.
    pub decompressed_bytes: u64,
    flags: u64,
    /// Header, payload and padding.
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Ptx,
    /// Machine code.
    Elf,
    /// LTO-IR and what else there may be.
    Other(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    Zstd,
    /// Flags that say it is compressed in a way we do not know.
    Unknown,
}

/// What an entry was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    pub capability: ComputeCapability,
    pub variant: Variant,
}

/// Where code for an architecture runs besides on that architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// `sm_90a`: nowhere.
    Specific,
    /// `sm_100f`: on later ones of the same major number.
    Family,
    /// `sm_90`: PTX on all later ones, machine code on later ones of the same major number.
    Portable,
}

impl Architecture {
    /// Whether machine code for this architecture runs on a device: on its own, and on later ones
    /// of the same major number unless it is for that one only.
    pub fn runs_machine_code_on(self, device: ComputeCapability) -> bool {
        match self.variant {
            Variant::Specific => self.capability == device,
            Variant::Family | Variant::Portable => {
                self.capability.major == device.major && self.capability <= device
            }
        }
    }

    /// Whether PTX for this architecture can be compiled for a device.
    pub fn runs_ptx_on(self, device: ComputeCapability) -> bool {
        match self.variant {
            Variant::Specific => self.capability == device,
            Variant::Family => self.capability.major == device.major && self.capability <= device,
            Variant::Portable => self.capability <= device,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.variant {
            Variant::Specific => "a",
            Variant::Family => "f",
            Variant::Portable => "",
        };
        write!(f, "{}{}{suffix}", self.capability.major, self.capability.minor)
    }
}

impl<'a> FatBinary<'a> {
    /// Reads a container at the start of the bytes, which may continue after it.
    pub fn parse(bytes: &'a [u8]) -> Result<FatBinary<'a>, ImageError> {
        let size = container_bytes(bytes)?;
        let bytes = bytes.get(..size).ok_or(ImageError::Truncated("last entry"))?;
        let mut rest = &bytes[usize::from(u16_at(bytes, 6)?)..];
        let mut entries = Vec::new();
        // Linkers pad what follows the last entry.
        while rest.iter().take(ENTRY_HEADER_BYTES).any(|&byte| byte != 0) {
            let entry = Entry::parse(rest)?;
            rest = &rest[entry.bytes.len()..];
            entries.push(entry);
        }
        Ok(FatBinary { bytes, entries })
    }

    /// The PTX entry that CUDA would compile for a device: the one for the highest architecture
    /// that the device can run, portable before family before specific where there are several.
    pub fn choose_ptx(&self, device: ComputeCapability) -> Result<&Entry<'a>, ImageError> {
        self.entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Ptx && entry.architecture.runs_ptx_on(device))
            .max_by_key(|entry| (entry.architecture.capability, entry.architecture.variant))
            .ok_or_else(|| ImageError::NoEligiblePtx { capability: device, available: self.summary() })
    }

    /// The machine code that CUDA would run on a device, if there is any: the one for the highest
    /// architecture.
    pub fn choose_machine_code(&self, device: ComputeCapability) -> Option<&Entry<'a>> {
        self.entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Elf && entry.architecture.runs_machine_code_on(device))
            .max_by_key(|entry| entry.architecture.capability)
    }

    /// A container with the entry of [`FatBinary::choose_ptx`] alone, as it is stored.
    pub fn subset(&self, device: ComputeCapability) -> Result<Vec<u8>, ImageError> {
        let entry = self.choose_ptx(device)?;
        let mut bytes = Vec::with_capacity(CONTAINER_HEADER_BYTES + entry.bytes.len());
        bytes.extend_from_slice(&CONTAINER_MAGIC.to_le_bytes());
        bytes.extend_from_slice(&CONTAINER_VERSION.to_le_bytes());
        bytes.extend_from_slice(&(CONTAINER_HEADER_BYTES as u16).to_le_bytes());
        bytes.extend_from_slice(&(entry.bytes.len() as u64).to_le_bytes());
        bytes.extend_from_slice(entry.bytes);
        Ok(bytes)
    }

    /// The containers that bytes begin with, one behind the other: what a program built as
    /// relocatable device code was linked from travels like that, each part as
    /// [`FatBinary::subset`] makes it. Bytes that continue with anything else end there.
    pub fn parse_all(bytes: &'a [u8]) -> Result<Vec<FatBinary<'a>>, ImageError> {
        let mut containers = vec![FatBinary::parse(bytes)?];
        let mut rest = &bytes[containers[0].bytes.len()..];
        while rest.starts_with(&CONTAINER_MAGIC.to_le_bytes()) {
            if containers.len() == LIST_ENTRIES_MAX {
                return Err(ImageError::Invalid("number of fat binaries"));
            }
            let next = FatBinary::parse(rest)?;
            rest = &rest[next.bytes.len()..];
            containers.push(next);
        }
        Ok(containers)
    }

    /// What there is, for a message: `sm_75, sm_90a, compute_90`.
    fn summary(&self) -> String {
        let names: Vec<String> = self.entries.iter().map(Entry::to_string).collect();
        if names.is_empty() { "nothing".to_string() } else { names.join(", ") }
    }
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Entry<'a>, ImageError> {
        if bytes.len() < ENTRY_HEADER_BYTES {
            return Err(ImageError::Truncated("entry header"));
        }
        let header_bytes = usize::try_from(u32_at(bytes, 4)?).unwrap_or(usize::MAX);
        if header_bytes < ENTRY_HEADER_BYTES {
            return Err(ImageError::Invalid("entry header"));
        }
        let padded_bytes = usize::try_from(u64_at(bytes, 8)?).unwrap_or(usize::MAX);
        let end = header_bytes.checked_add(padded_bytes).ok_or(ImageError::Invalid("entry size"))?;
        let whole = bytes.get(..end).ok_or(ImageError::Truncated("last entry"))?;
        let stored = &whole[header_bytes..];

        let flags = u64_at(bytes, 40)?;
        let compressed_bytes = u32_at(bytes, 16)? as usize;
        let compression = match (flags & (FLAG_LZ4 | FLAG_ZSTD), compressed_bytes) {
            (0, 0) => Compression::None,
            (FLAG_LZ4, _) => Compression::Lz4,
            (FLAG_ZSTD, _) => Compression::Zstd,
            _ => Compression::Unknown,
        };
        let payload = match compressed_bytes {
            0 => stored,
            _ => stored.get(..compressed_bytes).ok_or(ImageError::Invalid("compressed size"))?,
        };
        let variant = match flags & (FLAG_SPECIFIC | FLAG_FAMILY) {
            0 => Variant::Portable,
            FLAG_FAMILY => Variant::Family,
            _ => Variant::Specific,
        };
        Ok(Entry {
            kind: match u16_at(bytes, 0)? {
                1 => EntryKind::Ptx,
                2 => EntryKind::Elf,
                other => EntryKind::Other(other),
            },
            architecture: Architecture {
                capability: ComputeCapability::from_sm(u32_at(bytes, 28)?),
                variant,
            },
            compression,
            payload,
            decompressed_bytes: u64_at(bytes, 56)?,
            flags,
            bytes: whole,
        })
    }

    /// The payload as it was before compression; PTX without the zeros that end and pad it.
    #[cfg(feature = "decompress")]
    pub fn contents(&self) -> Result<std::borrow::Cow<'a, [u8]>, ImageError> {
        use crate::decompress;
        use std::borrow::Cow;

        let contents = match self.compression {
            Compression::None => Cow::Borrowed(self.payload),
            Compression::Lz4 => Cow::Owned(decompress::lz4(self.payload, self.decompressed_bytes)?),
            Compression::Zstd => Cow::Owned(decompress::zstd(self.payload, self.decompressed_bytes)?),
            Compression::Unknown => return Err(ImageError::UnknownCompression(self.flags)),
        };
        if self.kind != EntryKind::Ptx {
            return Ok(contents);
        }
        let end = contents.iter().position(|&byte| byte == 0).unwrap_or(contents.len());
        Ok(match contents {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..end]),
            Cow::Owned(mut bytes) => {
                bytes.truncate(end);
                Cow::Owned(bytes)
            }
        })
    }

    /// Compression and architecture flags as stored, for messages.
    pub fn flags(&self) -> u64 {
        self.flags
    }
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EntryKind::Ptx => write!(f, "compute_{}", self.architecture),
            EntryKind::Elf => write!(f, "sm_{}", self.architecture),
            EntryKind::Other(kind) => write!(f, "kind {kind} for {}", self.architecture),
        }
    }
}

/// The size in bytes of the container whose first 16 bytes these are, header included.
pub(crate) fn container_bytes(header: &[u8]) -> Result<usize, ImageError> {
    if u32_at(header, 0)? != CONTAINER_MAGIC || u16_at(header, 4)? != CONTAINER_VERSION {
        return Err(ImageError::Invalid("fat binary header"));
    }
    let header_bytes = usize::from(u16_at(header, 6)?);
    if header_bytes < CONTAINER_HEADER_BYTES {
        return Err(ImageError::Invalid("fat binary header"));
    }
    let entry_bytes = usize::try_from(u64_at(header, 8)?).unwrap_or(usize::MAX);
    header_bytes.checked_add(entry_bytes).ok_or(ImageError::Invalid("fat binary size"))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ImageError> {
    let field = bytes.get(at..at + N).and_then(|field| field.try_into().ok());
    field.ok_or(ImageError::Truncated("header"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, ImageError> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, ImageError> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, ImageError> {
    array_at(bytes, at).map(u64::from_le_bytes)
}
