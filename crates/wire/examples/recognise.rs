//! What recognised sequences leave of the commands in recordings (`sluice record`), and what they
//! cost, beside LZ4.
//!
//! `cargo run --release -p sluice-wire --example recognise -- FILE...`; the output is a table's
//! rows. A frame ends where the program waited for an answer, and after 64 KiB. LZ4 keeps its
//! window from frame to frame; its second figure is for commands whose sequences are left out, as
//! they are here.

use std::io::Write;
use std::time::Duration;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use sluice_wire::frame::HEADER_SIZE;
use sluice_wire::log::{Entry, LogDecoder};
use sluice_wire::sequences::{COMMAND_SIZE_MAX, Expander, Recogniser};
use sluice_wire::{FrameDecoder, Header};

type Batch = Vec<(Header, Vec<u8>)>;
type Failure = Box<dyn std::error::Error>;

const BATCH_BYTES: usize = 64 << 10;

fn main() -> Result<(), Failure> {
    println!(
        "| recording | commands, bytes each | left by recognition, CPU to tell, to expand | by LZ4 | by LZ4 without sequences |\n|---|---|---|---|---|"
    );
    for file in std::env::args().skip(1) {
        let batches = read(&file)?;
        let count: usize = batches.iter().map(Vec::len).sum();
        let plain: usize = batches.iter().flatten().map(|(_, payload)| HEADER_SIZE + payload.len()).sum();
        if count == 0 {
            continue;
        }
        let (told, tell) = cpu(|| tell(&batches))?;
        let (expanded, expand) = cpu(|| expand(&told))?;
        assert_eq!(expanded, batches.concat().len(), "{file}");
        let (lz4, lz4_time) = cpu(|| compress(&frames(&batches, true)?))?;
        let (bare, bare_time) = cpu(|| compress(&frames(&batches, false)?))?;
        let left = |bytes: usize| 100.0 * bytes as f64 / plain as f64;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        println!(
            "| {file} | {count}, {} | {:.1} %, {:.2} us, {:.2} us | {:.1} %, {:.2} us | {:.1} %, {:.2} us |",
            plain / count,
            left(told.len()),
            each(tell),
            each(expand),
            left(lz4),
            each(lz4_time),
            left(bare),
            each(bare_time),
        );
    }
    Ok(())
}

/// The commands that would be sent, up to each point at which they would be sent.
fn read(file: &str) -> Result<Vec<Batch>, Failure> {
    let mut decoder = LogDecoder::default();
    decoder.push(&std::fs::read(file)?)?;
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Batch::new(), 0);
    while let Some(entry) = decoder.next_entry()? {
        let is_answer = matches!(entry, Entry::Reply { .. });
        if let Entry::Command { header, payload } = entry
            && HEADER_SIZE + payload.len() <= COMMAND_SIZE_MAX
        {
            bytes += HEADER_SIZE + payload.len();
            batch.push((header, payload));
        }
        if is_answer || bytes >= BATCH_BYTES {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    batches.push(batch);
    Ok(batches)
}

fn tell(batches: &[Batch]) -> Result<Vec<u8>, Failure> {
    let (mut recogniser, mut out) = (Recogniser::new(), Vec::new());
    for batch in batches {
        for (header, payload) in batch {
            recogniser.write(*header, |out| out.extend_from_slice(payload))?;
            recogniser.add(*header, &mut out)?;
        }
        recogniser.end(&mut out)?;
    }
    Ok(out)
}

fn expand(told: &[u8]) -> Result<usize, Failure> {
    let (mut decoder, mut expander, mut count) = (FrameDecoder::new(), Expander::new(), 0);
    decoder.push(told);
    while let Some(frame) = decoder.next_frame()? {
        expander.begin(&frame);
        while expander.next_command()?.is_some() {
            count += 1;
        }
    }
    Ok(count)
}

/// Each batch as its frames.
fn frames(batches: &[Batch], with_sequences: bool) -> Result<Vec<Vec<u8>>, Failure> {
    let frames = |batch: &Batch| {
        let mut out = Vec::new();
        for (header, payload) in batch {
            let sequence = if with_sequences { header.sequence } else { 0 };
            Header { sequence, ..*header }.frame(&mut out, |out| out.extend_from_slice(payload))?;
        }
        Ok(out)
    };
    batches.iter().map(frames).collect()
}

fn compress(batches: &[Vec<u8>]) -> Result<usize, Failure> {
    let info = FrameInfo::new().block_mode(BlockMode::Linked).block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    for batch in batches {
        encoder.write_all(batch)?;
        encoder.flush()?;
    }
    Ok(encoder.get_ref().len())
}

/// CPU time of this thread: of other work on the machine it knows little.
fn cpu<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(T, Duration), Failure> {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes to a local.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let begin = now();
    let made = work()?;
    Ok((made, now() - begin))
}
