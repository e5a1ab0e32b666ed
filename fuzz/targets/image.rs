//! Any bytes as an image: recognised, cut down, decompressed, its machine code looked through.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_image::cubin::Cubin;
use sluice_image::{ComputeCapability, Image};

fuzz_target!(|bytes: &[u8]| {
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
    }
});
