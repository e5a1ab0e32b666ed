//! Containers made here, entry by entry: what is chosen from them, what is read, what is refused.

use std::ffi::c_void;
use std::ptr;

use proptest::prelude::*;
use sluice_image::fatbin::CONTAINER_MAGIC;
use sluice_image::pointer::{Linked, Located, WRAPPER_MAGIC, locate};
use sluice_image::{Compression, ComputeCapability, EntryKind, FatBinary, Image, ImageError};

const DEVICE: ComputeCapability = ComputeCapability::SOFTWARE_GPU;
const TEXT: &[u8] = b".version 8.0\n.target sm_80\n.address_size 64\n// a line that is here to be compressed, compressed, compressed\n";

const SPECIFIC: u64 = 0x10_0000;
const FAMILY: u64 = 0x20_0000;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

/// The fields of an entry's header that matter; the rest is as `nvcc` writes it.
struct Fields {
    kind: u16,
    sm: u32,
    flags: u64,
    compressed: u32,
    decompressed: u64,
}

fn entry(fields: &Fields, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let padded = payload.len().next_multiple_of(8);
    bytes.extend(fields.kind.to_le_bytes());
    bytes.extend(0x101u16.to_le_bytes());
    bytes.extend(80u32.to_le_bytes());
    bytes.extend((padded as u64).to_le_bytes());
    bytes.extend(fields.compressed.to_le_bytes());
    bytes.extend(64u32.to_le_bytes());
    bytes.extend([0, 0, 8, 0]);
    bytes.extend(fields.sm.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend((fields.flags | 0x11).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(fields.decompressed.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(payload);
    bytes.resize(80 + padded, 0);
    bytes
}

/// PTX as it is.
fn plain(sm: u32, variant: u64) -> Vec<u8> {
    let mut text = TEXT.to_vec();
    text.push(0);
    entry(&Fields { kind: 1, sm, flags: variant, compressed: 0, decompressed: 0 }, &text)
}

fn compressed(sm: u32, flags: u64, payload: &[u8], decompressed: u64) -> Vec<u8> {
    entry(&Fields { kind: 1, sm, flags, compressed: payload.len() as u32, decompressed }, payload)
}

fn zstd(contents: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(contents, ruzstd::encoding::CompressionLevel::Fastest)
}

fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    let mut bytes = CONTAINER_MAGIC.to_le_bytes().to_vec();
    bytes.extend(1u16.to_le_bytes());
    bytes.extend(16u16.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend(entries);
    bytes
}

/// An ELF file with one section of 5 bytes at its end, and 3 more bytes that do not belong to it.
fn elf() -> (Vec<u8>, usize) {
    let mut bytes = vec![0; 64 + 2 * 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[0x28] = 64; // the section headers' offset
    bytes[0x3a] = 64; // the size of one
    bytes[0x3c] = 2; // their number
    bytes[64 + 0x18] = 192; // the first section's offset
    bytes[64 + 0x20] = 5; // and size
    bytes[128 + 4] = 8; // the second has no bytes in the file,
    bytes[128 + 0x20..128 + 0x28].fill(0x7f); // whatever its size
    bytes.extend(b"12345");
    let size = bytes.len();
    bytes.extend(b"...");
    (bytes, size)
}

#[test]
fn the_highest_eligible_ptx_is_chosen() {
    let chosen = |entries: &[(u32, u64)], device: ComputeCapability| {
        let bytes = container(&entries.iter().map(|&(sm, variant)| plain(sm, variant)).collect::<Vec<_>>());
        let fatbin = FatBinary::parse(&bytes).expect("a container");
        fatbin.choose_ptx(device).map(|entry| entry.to_string()).map_err(|error| error.to_string())
    };
    let compute = |name: &str| Ok(name.to_string());
    assert_eq!(chosen(&[(75, 0), (90, 0), (80, 0)], DEVICE), compute("compute_90"));
    assert_eq!(chosen(&[(75, 0), (130, 0)], DEVICE), compute("compute_75"));
    assert_eq!(chosen(&[(75, 0), (90, SPECIFIC), (100, FAMILY)], DEVICE), compute("compute_75"));
    assert_eq!(chosen(&[(75, 0), (120, FAMILY)], DEVICE), compute("compute_120f"));
    assert_eq!(chosen(&[(120, SPECIFIC), (120, 0), (120, FAMILY)], DEVICE), compute("compute_120"));
    assert_eq!(chosen(&[(100, FAMILY)], ComputeCapability::from_sm(103)), compute("compute_100f"));
    assert_eq!(
        chosen(&[(90, SPECIFIC), (130, 0)], DEVICE),
        Err("compute capability 12.0 can run none of the image's entries (compute_90a, compute_130)"
            .to_string())
    );
    assert!(chosen(&[], DEVICE).is_err());
}

#[test]
fn entries_are_read_through_their_compression() {
    let mut padded = TEXT.to_vec();
    padded.push(0);
    let size = padded.len() as u64;
    let entries = [
        plain(80, 0),
        compressed(80, LZ4, &lz4_flex::block::compress(&padded), size),
        compressed(80, ZSTD, &zstd(&padded), size),
    ];
    for (entry, compression) in entries.iter().zip([Compression::None, Compression::Lz4, Compression::Zstd]) {
        let bytes = container(std::slice::from_ref(entry));
        let fatbin = FatBinary::parse(&bytes).expect("a container");
        assert_eq!(fatbin.entries[0].compression, compression);
        assert_eq!(Image::parse(&bytes).and_then(|image| image.ptx(DEVICE)).as_deref(), Ok(TEXT));
    }
}

#[test]
fn a_subset_holds_the_chosen_entry_as_it_was() {
    let code = entry(&Fields { kind: 2, sm: 120, flags: 0, compressed: 0, decompressed: 0 }, &[7; 5000]);
    let text = compressed(90, ZSTD, &zstd(TEXT), TEXT.len() as u64);
    let bytes = container(&[plain(75, 0), code, text.clone()]);
    let fatbin = FatBinary::parse(&bytes).expect("a container");
    assert_eq!(fatbin.entries[1].kind, EntryKind::Elf);
    let subset = fatbin.subset(DEVICE).expect("a subset");
    assert_eq!(subset, container(&[text]));
    assert_eq!(Image::parse(&subset).and_then(|image| image.ptx(DEVICE)).as_deref(), Ok(TEXT));
}

#[test]
fn decompression_stays_within_what_is_declared() {
    let contents = |entry: Vec<u8>| {
        let bytes = container(&[entry]);
        let fatbin = FatBinary::parse(&bytes).expect("a container");
        fatbin.entries[0].contents().map(|contents| contents.len())
    };
    let zeros = vec![b' '; 1 << 20];
    assert!(matches!(contents(compressed(80, ZSTD, &zstd(&zeros), 100)), Err(ImageError::Decompress(_))));
    assert!(matches!(
        contents(compressed(80, LZ4, &lz4_flex::block::compress(&zeros), 100)),
        Err(ImageError::Decompress(_))
    ));
    assert!(matches!(contents(compressed(80, LZ4, &[0], 1 << 29)), Err(ImageError::Decompress(_))));
    assert_eq!(contents(compressed(80, LZ4, &[0], (1 << 29) + 1)), Err(ImageError::TooLarge((1 << 29) + 1)));
    assert_eq!(contents(compressed(80, ZSTD, &[0], u64::MAX)), Err(ImageError::TooLarge(u64::MAX)));
    assert!(matches!(contents(compressed(80, ZSTD, b"not zstd", 8)), Err(ImageError::Decompress(_))));
    let unknown = compressed(80, LZ4 | ZSTD, TEXT, 8);
    assert!(matches!(contents(unknown), Err(ImageError::UnknownCompression(_))));
}

#[test]
fn truncated_containers_are_refused() {
    let bytes = container(&[plain(80, 0)]);
    for length in 0..bytes.len() {
        assert!(Image::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
    assert!(Image::parse(&[&bytes[..], b"and what follows"].concat()).is_ok());
}

#[test]
fn machine_code_alone_says_so() {
    let (bytes, size) = elf();
    let image = Image::parse(&bytes).expect("an image");
    assert!(matches!(image, Image::Elf(elf) if elf.len() == size));
    assert!(matches!(image.ptx(DEVICE), Err(ImageError::NoEligiblePtx { .. })));
    assert!(Image::parse(&bytes[..size - 1]).is_err());
}

/// As `nvcc` lays it out.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
    list: *const *const c_void,
}

#[test]
fn a_pointer_leads_to_whole_images() {
    let fatbin = container(&[plain(80, 0)]);
    let (elf, elf_bytes) = elf();
    let text = [TEXT, b"\0not this"].concat();
    let list = [fatbin.as_ptr().cast(), text.as_ptr().cast(), ptr::null::<c_void>()];
    let wrapper =
        |version, list| Wrapper { magic: WRAPPER_MAGIC, version, data: fatbin.as_ptr().cast(), list };
    let (single, unlinked, linked) =
        (wrapper(1, ptr::null()), wrapper(2, &raw const list[2]), wrapper(2, list.as_ptr()));
    let located = |pointer: *const c_void| {
        // SAFETY: each pointer of this test is to a whole image that lives as long as the test, or
        // null.
        unsafe { locate(pointer) }
    };
    let alone = |image| Ok(Located { image, parts: Vec::new() });

    assert_eq!(located(fatbin.as_ptr().cast()), alone(&fatbin));
    assert_eq!(located(text.as_ptr().cast()), alone(TEXT));
    assert_eq!(located(elf.as_ptr().cast()), alone(&elf[..elf_bytes]));
    assert_eq!(located((&raw const single).cast()), alone(&fatbin));
    assert_eq!(located((&raw const unlinked).cast()), alone(&fatbin));
    let parts = vec![&fatbin[..], TEXT];
    assert_eq!(located((&raw const linked).cast()), Ok(Located { image: &fatbin, parts }));
    assert_eq!(located(ptr::null()), Err(ImageError::NullPointer));
    assert_eq!(located(c"no".as_ptr().cast()), Err(ImageError::Unrecognized));
}

/// Everything that is done with bytes from a stranger.
fn read(bytes: &[u8]) {
    if let Ok(image) = Image::parse(bytes) {
        let _ = image.ptx(DEVICE);
        if let Image::FatBinary(fatbin) = image {
            let _ = fatbin.subset(DEVICE);
            fatbin.entries.iter().for_each(|entry| drop(entry.contents()));
        }
    }
}

#[test]
fn containers_one_behind_the_other_are_the_parts_of_a_program() {
    let [first, second] = [75, 80].map(|sm| container(&[plain(sm, 0)]));
    let bytes = [&first[..], &second, b"\0"].concat();
    let parts = FatBinary::parse_all(&bytes).expect("containers");
    let parts_bytes: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
    assert_eq!(parts_bytes, [&first[..], &second]);
    let linked = Linked::new(&parts);
    // SAFETY: the record and the containers that it names are whole, and outlive what is found.
    let located = unsafe { locate(linked.image()) }.expect("an image");
    assert_eq!(located, Located { image: &first, parts: vec![&first, &second] });
    // A second one that is cut is an error, and no end.
    let cut = bytes.len() - 9;
    assert!(FatBinary::parse_all(&bytes[..cut]).is_err());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in 0..3usize) {
        let magics = [CONTAINER_MAGIC.to_le_bytes().to_vec(), b"\x7fELF\x02\x01".to_vec(), Vec::new()];
        read(&[&magics[magic][..], &bytes].concat());
    }

    #[test]
    fn mutated_containers_never_panic(edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let text = [TEXT, b"\0"].concat();
        let size = text.len() as u64;
        let mut bytes = container(&[
            plain(75, 0),
            compressed(80, LZ4, &lz4_flex::block::compress(&text), size),
            compressed(90, ZSTD, &zstd(&text), size),
        ]);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read(&bytes);
    }

    #[test]
    fn mutated_machine_code_never_panics(edits in proptest::collection::vec((0..192usize, any::<u8>()), 1..6)) {
        let (mut bytes, _) = elf();
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        read(&bytes);
    }
}
