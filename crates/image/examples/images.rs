//! Lists the fat binaries anywhere in files (programs, shared libraries), and with
//! `--extract DIRECTORY` first, writes the PTX that the software GPU would take:
//! `cargo run -p sluice-image --features decompress --example images [--extract DIR] FILES`.

use std::path::PathBuf;
use std::time::Instant;

use sluice_image::{ComputeCapability, FatBinary, Image, ImageError, fatbin::CONTAINER_MAGIC};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let directory = args.next_if(|arg| arg == "--extract").and_then(|_| args.next()).map(PathBuf::from);
    for path in args {
        let bytes = std::fs::read(&path)?;
        let magic = CONTAINER_MAGIC.to_le_bytes();
        let (mut at, mut found) = (0, 0);
        while let Some(next) = bytes[at..].windows(4).position(|window| window == magic) {
            at += next;
            let Ok(fatbin) = FatBinary::parse(&bytes[at..]) else {
                at += 1;
                continue;
            };
            let names: Vec<_> =
                fatbin.entries.iter().map(|entry| format!("{entry} ({:?})", entry.compression)).collect();
            println!("{path} at {at:#x}: {} bytes: {}", fatbin.bytes.len(), names.join(", "));
            let start = Instant::now();
            match subset_text(&fatbin) {
                Ok((subset, text)) => {
                    println!(
                        "  {subset} bytes to send, {} bytes of PTX in {:?}",
                        text.len(),
                        start.elapsed()
                    );
                    if let Some(directory) = &directory {
                        let stem = PathBuf::from(&path)
                            .file_name()
                            .unwrap_or_default()
                            .to_string_lossy()
                            .into_owned();
                        std::fs::write(directory.join(format!("{stem}.{found}.ptx")), text)?;
                    }
                }
                Err(error) => println!("  {error}"),
            }
            found += 1;
            at += fatbin.bytes.len();
        }
    }
    Ok(())
}

/// What a client sends for this container, in bytes, and the text that a node reads from it.
fn subset_text(fatbin: &FatBinary<'_>) -> Result<(usize, Vec<u8>), ImageError> {
    let subset = fatbin.subset(ComputeCapability::SOFTWARE_GPU)?;
    let text = Image::parse(&subset)?.ptx(ComputeCapability::SOFTWARE_GPU)?.into_owned();
    Ok((subset.len(), text))
}
