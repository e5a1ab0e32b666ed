//! A session's log as a file: what the client sent, and what came back, in the order in which the
//! client knew of both.
//!
//! ```text
//!  0          8         10         12
//!  +----------+---------+----------+----------------------+--------
//!  | SLUICELG | version | protocol | SessionOpened, framed| frames
//!  +----------+---------+----------+----------------------+--------
//! ```
//!
//! Commands are the client's own frames. Of an answer's fields the log holds a [`Digest`]: short
//! ones whole, of long ones a hash of each block; and of data the hashes, since another node may
//! send them in other pieces. A session ends whenever its program does, so a log that ends between
//! two frames is whole.

use std::fmt;

use crate::codec::{Decode, Encode, Reader, decode, message};
use crate::command::{CommandRefused, HostCall, HostWrite, Op, ReplyHead, Sticky};
use crate::control::{Control, SessionOpened};
use crate::error::WireError;
use crate::frame::{Frame, FrameDecoder, Header, Kind};
use crate::handshake::PROTOCOL;

const MAGIC: [u8; 8] = *b"SLUICELG";
/// Counts changes of this format.
const VERSION: u16 = 1;
/// Bytes before the first frame.
const FILE_HEADER_SIZE: usize = 12;
/// Up to this many bytes are kept as they are.
const WHOLE_MAX: usize = 256;
/// More are hashed by blocks of this many bytes. So are data, whose pieces end at multiples of it
/// or where all data end.
pub const BLOCK: usize = 4096;

/// Why a file is no log; the text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    #[error("it is no recording; `sluice record -o FILE -- CMD` makes one")]
    Foreign,
    #[error(
        "it is a recording of version {version} and protocol {protocol}, and this release replays version {VERSION} and \
         protocol {PROTOCOL}; replay it with the release that made it"
    )]
    Version { version: u16, protocol: u16 },
    #[error("it ends within its frame {frame}: the rest of the file is missing")]
    Truncated { frame: u64 },
    #[error("its frame {frame} makes no sense: {error}")]
    Frame { frame: u64, error: WireError },
}

message! {
    /// What tells bytes from others.
    pub struct Digest {
        /// How many they are.
        bytes: u64,
        /// All of them, if they are few.
        whole: Vec<u8>,
        /// If they are many, a hash of each block.
        blocks: Vec<u64>,
    }
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        let is_short = bytes.len() <= WHOLE_MAX;
        Digest {
            bytes: bytes.len() as u64,
            whole: if is_short { bytes.to_vec() } else { Vec::new() },
            blocks: if is_short { Vec::new() } else { block_hashes(bytes) },
        }
    }

    /// Where the other's bytes differ from these, for people to read; `None` if they are the same.
    pub fn difference(&self, other: &Digest) -> Option<String> {
        if self == other {
            return None;
        }
        if self.bytes != other.bytes {
            return Some(format!("{} bytes, recorded were {}", other.bytes, self.bytes));
        }
        if let Some(at) = first_difference(&self.whole, &other.whole) {
            let [was, is] = [&self.whole, &other.whole].map(|bytes| hex(&bytes[at..]));
            return Some(format!("from byte {at} of {} on {is}, recorded was {was}", self.bytes));
        }
        let at = first_difference(&self.blocks, &other.blocks).unwrap_or(0) * BLOCK;
        let count = self.blocks.iter().zip(&other.blocks).filter(|(a, b)| a != b).count();
        Some(format!("{count} blocks of {BLOCK} bytes, the first at byte {at} of {}", self.bytes))
    }
}

/// The hash of each block.
pub fn block_hashes(bytes: &[u8]) -> Vec<u64> {
    let hash = |block: &[u8]| {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = *blake3::hash(block).as_bytes();
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    };
    bytes.chunks(BLOCK).map(hash).collect()
}

fn first_difference<T: PartialEq>(a: &[T], b: &[T]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

/// The first few bytes.
fn hex(bytes: &[u8]) -> impl fmt::Display {
    let digits = bytes.iter().take(16).map(|byte| format!("{byte:02x}"));
    let more = if bytes.len() > 16 { "..." } else { "" };
    digits.collect::<String>() + more
}

message! {
    /// What is kept of a `HostWrite`.
    pub struct Piece { ticket: u64, offset: u64, blocks: Vec<u64> }
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// The first one: the session as it was.
    Opened(SessionOpened),
    /// Sent by the client.
    Command { header: Header, payload: Vec<u8> },
    /// The answer to a command: a `CUresult`, and what the fields were.
    Reply { header: Header, result: i32, fields: Digest },
    /// Data for the host memory that a ticket stands for: the hash of each block.
    Data { ticket: u64, offset: u64, blocks: Vec<u64> },
    /// A host function's turn.
    HostCall { ticket: u64 },
    /// A queued command failed, and the session with it.
    Sticky { result: i32, op: u16 },
    /// A queued command was refused.
    Refused { header: Header, result: i32 },
    /// Device code printed this.
    Output(Vec<u8>),
}

/// The beginning of a log. What lets a client continue the session stays out of it, and so does
/// what the session alone may use.
pub fn begin(opened: &SessionOpened, out: &mut Vec<u8>) -> Result<(), WireError> {
    out.extend_from_slice(&MAGIC);
    VERSION.encode(out);
    PROTOCOL.encode(out);
    Control::from(SessionOpened { resume: None, allowances: Vec::new(), ..opened.clone() }).frame(out)
}

/// Appends what has come, if it belongs into a log. The client's own frames are appended as they
/// are.
pub fn came(frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<(), WireError> {
    let header = frame.header;
    match header.kind {
        Kind::Reply => {
            let mut reader = Reader::new(frame.payload);
            let ReplyHead { result } = Decode::decode(&mut reader)?;
            header.frame(out, |out| {
                result.encode(out);
                Digest::of(&frame.payload[size_of::<i32>()..]).encode(out);
            })
        }
        Kind::HostWrite => {
            let HostWrite { ticket, offset, bytes } = decode(frame.payload)?;
            header.frame(out, |out| Piece { ticket, offset, blocks: block_hashes(bytes) }.encode(out))
        }
        Kind::HostCall | Kind::Sticky | Kind::CommandRefused | Kind::Output => {
            header.frame(out, |out| out.extend_from_slice(frame.payload))
        }
        Kind::Command
        | Kind::Commands
        | Kind::Control
        | Kind::Received
        | Kind::Packed
        | Kind::Notice
        | Kind::Allowance => Ok(()),
    }
}

/// Makes entries of a file's bytes, which arrive in any pieces.
#[derive(Debug, Default)]
pub struct LogDecoder {
    /// Of the file's header, until that is whole.
    header: Vec<u8>,
    frames: FrameDecoder,
    /// Entries given out.
    count: u64,
}

impl LogDecoder {
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let (header, rest) = bytes.split_at(bytes.len().min(FILE_HEADER_SIZE - self.header.len()));
        self.header.extend_from_slice(header);
        check_header(&self.header)?;
        self.frames.push(rest);
        Ok(())
    }

    /// The next entry, once it is whole.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, LogError> {
        let frame = self.count;
        let wrong = |error| LogError::Frame { frame, error };
        let Some(next) = self.frames.next_frame().map_err(wrong)? else { return Ok(None) };
        let entry = entry(&next, frame == 0).map_err(wrong)?;
        self.count += 1;
        Ok(Some(entry))
    }

    /// Whether the file may end here.
    pub fn end(&self) -> Result<(), LogError> {
        match () {
            () if self.header.len() < FILE_HEADER_SIZE => Err(LogError::Foreign),
            () if self.count == 0 || !self.frames.is_between_frames() => {
                Err(LogError::Truncated { frame: self.count })
            }
            () => Ok(()),
        }
    }
}

/// Checks as much of the file's header as is there.
fn check_header(header: &[u8]) -> Result<(), LogError> {
    if !header.iter().zip(&MAGIC).all(|(theirs, ours)| theirs == ours) {
        return Err(LogError::Foreign);
    }
    if let [v0, v1, p0, p1] = header[header.len().min(MAGIC.len())..] {
        let (version, protocol) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([p0, p1]));
        if (version, protocol) != (VERSION, PROTOCOL) {
            return Err(LogError::Version { version, protocol });
        }
    }
    Ok(())
}

fn entry(frame: &Frame<'_>, is_first: bool) -> Result<Entry, WireError> {
    let header = frame.header;
    if is_first != (header.kind == Kind::Control) {
        return Err(WireError::FrameKind(header.kind as u8));
    }
    match header.kind {
        Kind::Control => match Control::decode(header.op, frame.payload)? {
            Control::SessionOpened(opened) => Ok(Entry::Opened(opened)),
            _ => Err(WireError::Value { what: "a log's first message", value: header.op.into() }),
        },
        Kind::Command if Op(header.op).target().is_none() => {
            Err(WireError::Value { what: "an operation", value: header.op.into() })
        }
        Kind::Command => Ok(Entry::Command { header, payload: frame.payload.to_vec() }),
        Kind::Reply => {
            let (result, fields) = decode(frame.payload)?;
            Ok(Entry::Reply { header, result, fields })
        }
        Kind::HostWrite => {
            let Piece { ticket, offset, blocks } = decode(frame.payload)?;
            Ok(Entry::Data { ticket, offset, blocks })
        }
        Kind::HostCall => Ok(Entry::HostCall { ticket: decode::<HostCall>(frame.payload)?.ticket }),
        Kind::Sticky => {
            let Sticky { result, op, .. } = decode(frame.payload)?;
            Ok(Entry::Sticky { result, op })
        }
        Kind::CommandRefused => {
            Ok(Entry::Refused { header, result: decode::<CommandRefused>(frame.payload)?.result })
        }
        Kind::Output => Ok(Entry::Output(frame.payload.to_vec())),
        Kind::Received | Kind::Commands | Kind::Packed | Kind::Notice | Kind::Allowance => {
            Err(WireError::FrameKind(header.kind as u8))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Command;
    use crate::commands::cuMemGetInfo_v2;
    use crate::handshake::SessionSecret;

    const PLACE: Header =
        Header { kind: Kind::Command, device: 0, op: cuMemGetInfo_v2::OP.0, lane: 1, sequence: 2 };

    fn opened() -> SessionOpened {
        let resume =
            Some(crate::control::ResumeTerms { secret: SessionSecret([7; 32]), linger_ms: 1, expands: true });
        SessionOpened {
            session: 4,
            range: Some((1 << 40, 1 << 30)),
            devices: Vec::new(),
            resume,
            allowances: vec![1 << 21],
        }
    }

    /// A log with one of each, and where its frames end.
    fn log() -> (Vec<u8>, Vec<usize>) {
        let mut log = Vec::new();
        begin(&opened(), &mut log).unwrap();
        let mut ends = vec![log.len()];
        let mut frame = |kind: Kind, payload: &[u8]| {
            let header = Header { kind, ..PLACE };
            match kind {
                Kind::Command => header.frame(&mut log, |out| out.extend_from_slice(payload)).unwrap(),
                _ => came(&Frame { header, payload }, &mut log).unwrap(),
            }
            ends.push(log.len());
        };
        let encoded = |message: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            message(&mut bytes);
            bytes
        };
        frame(Kind::Command, b"");
        frame(Kind::Reply, &encoded(&|out| (0_i32, [9_u8; 16]).encode(out)));
        let data = [3; 10_000];
        frame(
            Kind::HostWrite,
            &encoded(&|out| HostWrite { ticket: 5, offset: 4096, bytes: &data }.encode(out)),
        );
        frame(Kind::HostCall, &encoded(&|out| HostCall { ticket: 6, status: 0 }.encode(out)));
        frame(Kind::Sticky, &encoded(&|out| Sticky { result: 700, op: 3, text: "x".into() }.encode(out)));
        let refused = CommandRefused { result: 720, ticket: 0, captured: false };
        frame(Kind::CommandRefused, &encoded(&|out| refused.encode(out)));
        frame(Kind::Output, b"printed");
        (log, ends)
    }

    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Entry>, LogError> {
        let (mut decoder, mut entries) = (LogDecoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.push(piece)?;
            while let Some(entry) = decoder.next_entry()? {
                entries.push(entry);
            }
        }
        decoder.end().map(|()| entries)
    }

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let (log, _) = log();
        let expect = [
            Entry::Opened(SessionOpened { resume: None, allowances: Vec::new(), ..opened() }),
            Entry::Command { header: PLACE, payload: Vec::new() },
            Entry::Reply {
                header: Header { kind: Kind::Reply, ..PLACE },
                result: 0,
                fields: Digest::of(&[9; 16]),
            },
            Entry::Data { ticket: 5, offset: 4096, blocks: block_hashes(&[3; 10_000]) },
            Entry::HostCall { ticket: 6 },
            Entry::Sticky { result: 700, op: 3 },
            Entry::Refused { header: Header { kind: Kind::CommandRefused, ..PLACE }, result: 720 },
            Entry::Output(b"printed".to_vec()),
        ];
        for piece in [1, 7, log.len()] {
            assert_eq!(read(&log, piece).unwrap(), expect);
        }
        let secret = [7; 32];
        assert!(!log.windows(32).any(|bytes| bytes == secret), "the session's secret is in the file");
    }

    #[test]
    fn a_log_that_was_cut_is_noticed_unless_the_cut_is_between_frames() {
        let (log, ends) = log();
        for cut in 0..log.len() {
            let ended = read(&log[..cut], 64);
            match ends.iter().position(|&end| end == cut) {
                Some(frames) => assert_eq!(ended.unwrap().len(), frames + 1),
                None if cut < FILE_HEADER_SIZE => assert_eq!(ended, Err(LogError::Foreign)),
                None => assert!(matches!(ended, Err(LogError::Truncated { .. })), "{cut}: {ended:?}"),
            }
        }
    }

    #[test]
    fn other_files_are_told_apart() {
        assert_eq!(read(b"\x7fELF and so on", 64), Err(LogError::Foreign));
        let (mut log, _) = log();
        log[8] = 99;
        assert!(matches!(read(&log, 64), Err(LogError::Version { version: 99, .. })));
    }

    #[test]
    fn a_difference_is_named_by_its_place() {
        let check = |was: &[u8], is: &[u8], expect: Option<&str>| {
            assert_eq!(Digest::of(was).difference(&Digest::of(is)).as_deref(), expect);
        };
        check(&[1; 300], &[1; 300], None);
        check(&[1, 2, 3], &[1, 2, 3], None);
        check(&[1, 2, 3], &[1, 7, 3], Some("from byte 1 of 3 on 0703, recorded was 0203"));
        check(&[1; 3], &[1; 4], Some("4 bytes, recorded were 3"));
        let mut other = [1; 10_000];
        other[5000] = 2;
        check(&[1; 10_000], &other, Some("1 blocks of 4096 bytes, the first at byte 4096 of 10000"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0_usize..200) {
            let _ = read(&bytes, 64);
            // And behind a good beginning, too.
            let (mut log, _) = log();
            log.truncate(FILE_HEADER_SIZE + cut);
            log.extend_from_slice(&bytes);
            let _ = read(&log, 64);
        }

        #[test]
        fn a_changed_byte_is_read_or_refused(at in 0_usize..400, to in any::<u8>()) {
            let (mut log, _) = log();
            let at = at % log.len();
            log[at] = to;
            let _ = read(&log, 64);
        }
    }
}
