//! Decompression that cannot be made to fill memory: no more is taken than the entry declares, and
//! it cannot declare more than the limit.

use std::io::Read;

use crate::{DECOMPRESSED_BYTES_MAX, ImageError};

/// A block of LZ4 says 255 bytes with one byte at best.
const LZ4_RATIO_MAX: u64 = 255;

pub(crate) fn lz4(payload: &[u8], declared_bytes: u64) -> Result<Vec<u8>, ImageError> {
    let declared = checked_size(declared_bytes)?;
    if declared_bytes > (payload.len() as u64 + 1) * LZ4_RATIO_MAX {
        return Err(ImageError::Decompress(format!("{} bytes cannot hold {declared_bytes}", payload.len())));
    }
    lz4_flex::block::decompress(payload, declared).map_err(|error| ImageError::Decompress(error.to_string()))
}

pub(crate) fn zstd(payload: &[u8], declared_bytes: u64) -> Result<Vec<u8>, ImageError> {
    let declared = checked_size(declared_bytes)?;
    let failed = |error: &dyn std::fmt::Display| ImageError::Decompress(error.to_string());
    let decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| failed(&error))?;
    // Grows with what comes, not with what is promised.
    let mut contents = Vec::new();
    decoder.take(declared_bytes + 1).read_to_end(&mut contents).map_err(|error| failed(&error))?;
    if contents.len() > declared {
        return Err(ImageError::Decompress(format!("more than the {declared} bytes it declares")));
    }
    Ok(contents)
}

fn checked_size(declared_bytes: u64) -> Result<usize, ImageError> {
    if declared_bytes > DECOMPRESSED_BYTES_MAX {
        return Err(ImageError::TooLarge(declared_bytes));
    }
    usize::try_from(declared_bytes).map_err(|_| ImageError::TooLarge(declared_bytes))
}
