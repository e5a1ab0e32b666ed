//! Any bytes as an image: recognised, cut down, decompressed, its machine code looked through. As
//! they are (first byte 0), or as the entries of a container.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_image::cubin::Cubin;
use sluice_image::fatbin::CONTAINER_MAGIC;
use sluice_image::{ComputeCapability, Image};

/// What the fuzzer says of an entry: kind, compression and variant (1 byte each), architecture (1
/// byte), the size behind the compression (4 bytes), and the size of what is stored (2 bytes),
/// which follows.
const ENTRY: usize = 10;

/// A container with the header of each entry as `nvcc` writes it, but for what the fuzzer says.
fn container(mut script: &[u8]) -> Vec<u8> {
    let mut entries = Vec::new();
    while let Some((said, rest)) = script.split_first_chunk::<ENTRY>() {
        let [kind, compression, variant, architecture, s0, s1, s2, s3, low, high] = *said;
        let (stored, rest) = rest.split_at(rest.len().min(u16::from_le_bytes([low, high]).into()));
        script = rest;
        let padded = stored.len().next_multiple_of(8);
        // Bits 13 and 15 say LZ4 and Zstandard, 20 and 21 that the code is for one architecture or
        // its family.
        let flags = 0x11 | u64::from(compression & 5) << 13 | u64::from(variant & 3) << 20;
        let compressed = if compression & 5 == 0 { 0 } else { stored.len() as u32 };
        entries.extend(u16::from(kind).to_le_bytes());
        entries.extend(0x101_u16.to_le_bytes());
        entries.extend(80_u32.to_le_bytes());
        entries.extend((padded as u64).to_le_bytes());
        entries.extend(compressed.to_le_bytes());
        entries.extend([64, 0, 0, 0, 0, 0, 8, 0]);
        entries.extend(u32::from(architecture).to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(flags.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(u64::from(u32::from_le_bytes([s0, s1, s2, s3])).to_le_bytes());
        entries.extend([0; 16]);
        entries.extend(stored);
        entries.resize(entries.len() + padded - stored.len(), 0);
    }
    let mut image = CONTAINER_MAGIC.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((entries.len() as u64).to_le_bytes());
    image.extend(entries);
    image
}

fn look_through(bytes: &[u8]) {
    // Whether or not it is one.
    let _ = Cubin::parse(bytes);
    let Ok(image) = Image::parse(bytes) else { return };
    let device = ComputeCapability::SOFTWARE_GPU;
    let text = image.ptx(device);
    if let Image::FatBinary(fatbin) = image {
        // What a client sends reads like what it has.
        let subset = fatbin.subset(device);
        let from_subset = subset.as_ref().map(|subset| {
            Image::parse(subset).and_then(|image| image.ptx(device).map(|text| text.into_owned()))
        });
        if let Ok(from_subset) = from_subset {
            assert_eq!(from_subset, text.map(|text| text.into_owned()));
        }
        for entry in &fatbin.entries {
            if let Ok(contents) = entry.contents() {
                let _ = Cubin::parse(&contents);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| match bytes.split_first() {
    Some((0, image)) => look_through(image),
    Some((_, script)) => look_through(&container(script)),
    None => {}
});
