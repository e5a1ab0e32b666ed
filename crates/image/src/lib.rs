//! Code images: what a program hands to `cuModuleLoadData`, `cuLibraryLoadData` and
//! `cuLinkAddData`.
//!
//! An image is PTX text, an ELF file (machine code for one architecture), or a fat binary: a
//! container of both for several architectures, its entries usually compressed. A client finds the
//! image at a pointer ([`mod@pointer`]), names it by its [`ImageHash`] and sends it; for a software
//! GPU, which can run PTX alone, it sends the one entry that is eligible ([`FatBinary::subset`]),
//! still compressed. What runs it reads the text (`Image::ptx`, feature `decompress`).
//!
//! There is no public specification of the container. What is here was found out by looking at what
//! `nvcc` and `fatbinary` write for known options; each fact stands at its constant in [`fatbin`].

pub mod cubin;
#[cfg(feature = "decompress")]
mod decompress;
pub mod elf;
pub mod fatbin;
pub mod pointer;

use std::fmt;

pub use fatbin::{Architecture, Compression, Entry, EntryKind, FatBinary, Variant};

/// What an entry or image may decompress to, in bytes. The largest in CUDA's own libraries are near
/// 100 MiB.
pub const DECOMPRESSED_BYTES_MAX: u64 = 512 << 20;

/// A code image, whose kind follows from how it begins.
#[derive(Clone, Debug)]
pub enum Image<'a> {
    /// PTX text, without the NUL that ends it.
    Ptx(&'a [u8]),
    /// Machine code.
    Elf(&'a [u8]),
    FatBinary(FatBinary<'a>),
}

/// Why an image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("not a code image: neither PTX text, nor an ELF file, nor a fat binary")]
    Unrecognized,
    #[error("a null pointer where an image should be")]
    NullPointer,
    #[error("the image ends before its {0}")]
    Truncated(&'static str),
    #[error("the image has an impossible {0}")]
    Invalid(&'static str),
    #[error("compute capability {capability} can run none of the image's entries ({available})")]
    NoEligiblePtx { capability: ComputeCapability, available: String },
    #[error("an entry's compression is unknown (flags {0:#x})")]
    UnknownCompression(u64),
    #[error("an entry says that it decompresses to {0} bytes, more than is allowed")]
    TooLarge(u64),
    #[error("an entry does not decompress: {0}")]
    Decompress(String),
}

/// A compute capability: 12.0, 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

impl ComputeCapability {
    /// What the software GPU reports.
    pub const SOFTWARE_GPU: ComputeCapability = ComputeCapability { major: 12, minor: 0 };

    /// From the number in `sm_90`.
    pub fn from_sm(number: u32) -> ComputeCapability {
        ComputeCapability { major: number / 10, minor: number % 10 }
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl<'a> Image<'a> {
    /// Recognises an image. The bytes may continue after its end.
    pub fn parse(bytes: &'a [u8]) -> Result<Image<'a>, ImageError> {
        if bytes.starts_with(&fatbin::CONTAINER_MAGIC.to_le_bytes()) {
            return FatBinary::parse(bytes).map(Image::FatBinary);
        }
        if bytes.starts_with(elf::MAGIC) {
            let size =
                usize::try_from(elf::size(bytes)?).map_err(|_| ImageError::Truncated("last section"))?;
            return bytes.get(..size).map(Image::Elf).ok_or(ImageError::Truncated("last section"));
        }
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        let text = &bytes[..end];
        if looks_like_ptx(text) { Ok(Image::Ptx(text)) } else { Err(ImageError::Unrecognized) }
    }

    /// The PTX that a device of this capability would compile: the text itself, or the best
    /// entry's.
    #[cfg(feature = "decompress")]
    pub fn ptx(&self, capability: ComputeCapability) -> Result<std::borrow::Cow<'a, [u8]>, ImageError> {
        match self {
            Image::Ptx(text) => Ok(std::borrow::Cow::Borrowed(*text)),
            Image::Elf(_) => {
                Err(ImageError::NoEligiblePtx { capability, available: "machine code only".to_string() })
            }
            Image::FatBinary(fatbin) => fatbin.choose_ptx(capability)?.contents(),
        }
    }
}

/// Whether a text's first word, after blanks and comments, is a directive.
fn looks_like_ptx(mut text: &[u8]) -> bool {
    loop {
        text = text.trim_ascii_start();
        let comment_end: &[u8] = match text {
            [b'/', b'/', ..] => b"\n",
            [b'/', b'*', ..] => b"*/",
            [b'.', b'a'..=b'z', ..] => return true,
            _ => return false,
        };
        match text[2..].windows(comment_end.len()).position(|window| window == comment_end) {
            Some(end) => text = &text[2 + end + comment_end.len()..],
            None => return false,
        }
    }
}

/// The name of an image by its content: what a node caches it under.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageHash(pub [u8; 32]);

impl ImageHash {
    /// BLAKE3 of the bytes.
    pub fn of(bytes: &[u8]) -> ImageHash {
        ImageHash(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for ImageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_begins_with_a_directive() {
        for text in [".version 8.0", "\n\t// by hand\n/* twice */ .version 7.0\n\0rest"] {
            assert!(matches!(Image::parse(text.as_bytes()), Ok(Image::Ptx(_))), "{text}");
        }
        for text in ["", "\0", "version", "// only a comment", "/*/", "// .version\0\n.version"] {
            assert_eq!(Image::parse(text.as_bytes()).err(), Some(ImageError::Unrecognized), "{text}");
        }
    }

    #[test]
    fn hashes_are_printed_in_hex() {
        let hash = ImageHash::of(b"");
        assert_eq!(hash.to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }
}
