//! Data for the client, and where they lie until they are sent.

use std::ptr::NonNull;

use crate::outbox::staging::Staged;

/// What a driver's callback leaves behind.
pub(crate) enum Push {
    /// Bytes of a copy for a place in the client's memory.
    Data { ticket: u64, offset: u64, bytes: Staged },
    /// A stream has come to a host function.
    Call { ticket: u64, status: i32 },
    /// Device code has printed this.
    Output(Vec<u8>),
    /// The program's user should know this.
    Notice(String),
    /// The client may use `change` more bytes of a device's memory without a request, or fewer.
    Allowance { device: u32, change: i64 },
}

/// Most bytes of text that wait for the client.
pub(super) const TEXT_MAX: usize = 8 << 20;

impl Push {
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Push::Output(text) => text.len(),
            Push::Data { .. } | Push::Call { .. } | Push::Notice(_) | Push::Allowance { .. } => 0,
        }
    }
}

/// What is sent without a copy (zero-copy send).
pub(super) enum Lent {
    Staged(Staged),
    Lying(Lying),
    /// A compressed frame, whose piece of the pool comes back when the client has
    /// it: the pool bounds what is kept.
    Packed(Vec<u8>, #[expect(dead_code, reason = "held, not read")] Staged),
    /// Bytes that are nowhere else.
    Text(Vec<u8>),
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match self {
            Lent::Staged(staged) => staged.bytes(),
            // SAFETY: a place and a length for the system. No byte is looked at through this: what
            // is protected or packed is never lent like this (`Writer::sends_lying`,
            // `Outbox::resume`). Device code may write there meanwhile, and the program may have
            // freed it, which is an error to the system.
            Lent::Lying(lying) => unsafe { std::slice::from_raw_parts(lying.start.as_ptr(), lying.length) },
            Lent::Packed(frame, _) => frame,
            Lent::Text(text) => text,
        }
    }
}

/// Bytes of device memory that is this process's. Until the client has them all, a thread of its
/// program waits for them, and its library lets no other free them; once it has, they are not sent
/// again.
pub(crate) struct Lying {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: device memory is any thread's.
unsafe impl Send for Lying {}
