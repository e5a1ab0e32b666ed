//! The first bytes on every connection, both ways: who speaks, and in which version.
//!
//! ```text
//! client                              node
//!   | -- Hello: SLCE, version, purpose -> |    at most HELLO_SIZE_MAX bytes, under a deadline
//!   | <- Welcome: SLCE, version --------- |    always, so that either side can name both versions
//! ```
//!
//! Then a control connection carries `control` messages. The socket of a session goes to a worker:
//! the client offers address ranges by `SessionOpen`, the worker answers `SessionOpened`, and
//! commands follow. The socket on which a session is resumed goes to the worker that still lives:
//! it answers `SessionResumed`, and both streams continue (`resume`). On a far link a session
//! continues over several sockets at once: each says the same but for its number, and the answer is
//! on the first. A node that connects for a worker of its own goes to another node's worker in the
//! same way: that one answers `PeerReady` (`peer`). A client that is about to fork asks for a clone
//! of its session, which the daemon answers itself (`SessionCloned`); the child then resumes that.
//!
//! A connection may be cut while a session is being opened, and its client cannot know whether the
//! node has made the session. So it makes up a number for the opening ([`Once`]) and asks again
//! with that: such an attempt is answered by `SessionResumed` first, which counts what the worker
//! has of the client's stream, and then both streams continue from there and from the worker's
//! first byte, whether the session was made before or for this attempt.

use std::fmt;

use crate::{
    codec::{Decode, Encode, Reader, message},
    error::WireError,
};

/// Counts changes of the protocol.
pub const PROTOCOL: u16 = 22;
/// What this build speaks.
pub const VERSION: Version = Version { protocol: PROTOCOL, release: RELEASE };
/// The largest `Hello` with its length, in bytes.
pub const HELLO_SIZE_MAX: usize = 128;

const MAGIC: [u8; 4] = *b"SLCE";
const RELEASE: [u16; 3] = [
    number(env!("CARGO_PKG_VERSION_MAJOR")),
    number(env!("CARGO_PKG_VERSION_MINOR")),
    number(env!("CARGO_PKG_VERSION_PATCH")),
];

const fn number(digits: &str) -> u16 {
    let bytes = digits.as_bytes();
    let (mut value, mut index) = (0, 0);
    while index < bytes.len() {
        value = value * 10 + (bytes[index] - b'0') as u16;
        index += 1;
    }
    value
}

/// Protocol and release. Both sides must be the same: message numbers follow from the list of
/// functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub protocol: u16,
    pub release: [u16; 3],
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.release;
        write!(f, "{major}.{minor}.{patch} (protocol {})", self.protocol)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Leases and questions about the node.
    Control,
    /// CUDA work under a lease, which the token proves.
    Session { token: LeaseToken, once: Once },
    /// A session whose connection was cut continues.
    Resume(Resume),
    /// Copies into the memory of a session, from another session of its program.
    Peer(Peer),
    /// The client of a session is about to fork, and its child is to have a session like it.
    Clone(CloneOf),
}

/// Which session is cloned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CloneOf {
    pub session: u64,
    pub proof: CloneProof,
}

/// Into which session copies go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    pub session: u64,
    /// As its worker gave it to its client; good for one connection.
    pub token: PeerToken,
}

/// Which session continues, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    pub session: u64,
    /// The session's, as `SessionOpened` gave it.
    pub secret: SessionSecret,
    /// Counts the client's attempts: one that arrives after a later one is stale.
    pub attempt: u32,
    /// Bytes of the worker's stream that the client has received.
    pub received: u64,
    pub stripe: Stripe,
}

/// Which of the connections of an attempt this is: `number` of `count`, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    pub number: u8,
    pub count: u8,
}

impl Stripe {
    /// The only one.
    pub const ONLY: Stripe = Stripe { number: 0, count: 1 };
}

macro_rules! secret {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub [u8; 32]);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(secret)"))
            }
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode<'_> for $name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok($name(Decode::decode(reader)?))
            }
        }
    };
}

secret! {
    /// A secret that the node gave out with a lease.
    LeaseToken
}

secret! {
    /// What proves that a connection comes from the client of the session that it is for.
    PeerToken
}

secret! {
    /// What proves that a connection belongs to a session that has begun on another.
    SessionSecret
}

secret! {
    /// That the client of a session asks for its clone: the session's secret, or where a session
    /// does not outlive its connection and its client has none, the token of its lease.
    CloneProof
}

secret! {
    /// A number that a client makes up for something that it opens. No other client can guess it.
    OpeningNonce
}

message! {
    /// What is opened once, however often its client asks: after a cut it does not know whether its
    /// request was received.
    pub struct Once {
        nonce: OpeningNonce,
        /// Counts the client's attempts, from 0: one that arrives after a later one is stale.
        attempt: u32,
    }
}

impl Copy for Once {}
impl Eq for Once {}

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    pub purpose: Purpose,
    /// The client's process id, for people to read, and to learn whether it has ended.
    pub process: u32,
    /// Where that number means this process, by a number of its own: processes of the same space
    /// see the same processes. 0 if that is not known; what the connection holds then ends with it.
    pub process_space: u64,
}

message! {
    /// What differs between versions comes after this, so that any two versions can name each
    /// other.
    pub struct Opening { magic: [u8; 4], protocol: u16, release: [u16; 3] }
}

impl Opening {
    const OURS: Opening = Opening { magic: MAGIC, protocol: PROTOCOL, release: RELEASE };

    fn check(&self) -> Result<(), WireError> {
        if self.magic != MAGIC {
            return Err(WireError::NotSluice);
        }
        let theirs = Version { protocol: self.protocol, release: self.release };
        if theirs == VERSION { Ok(()) } else { Err(WireError::Version { theirs }) }
    }
}

impl Hello {
    /// The bytes to send: a 16-bit length and what it counts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        Opening::OURS.encode(&mut body);
        self.process.encode(&mut body);
        self.process_space.encode(&mut body);
        match &self.purpose {
            Purpose::Control => 0u8.encode(&mut body),
            Purpose::Session { token, once } => {
                1u8.encode(&mut body);
                token.encode(&mut body);
                once.encode(&mut body);
            }
            Purpose::Resume(Resume { session, secret, attempt, received, stripe }) => {
                2u8.encode(&mut body);
                session.encode(&mut body);
                secret.encode(&mut body);
                attempt.encode(&mut body);
                received.encode(&mut body);
                stripe.number.encode(&mut body);
                stripe.count.encode(&mut body);
            }
            Purpose::Peer(Peer { session, token }) => {
                3u8.encode(&mut body);
                session.encode(&mut body);
                token.encode(&mut body);
            }
            Purpose::Clone(CloneOf { session, proof }) => {
                4u8.encode(&mut body);
                session.encode(&mut body);
                proof.encode(&mut body);
            }
        }
        with_length(&body)
    }

    /// Reads a `Hello` from what has arrived: `None` while it is incomplete, else it and its size
    /// in bytes.
    ///
    /// A peer that speaks something else is refused after its first six bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Option<(Hello, usize)>, WireError> {
        let Some((body, size)) = body(bytes)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        Opening::decode(&mut reader)?.check()?;
        let process = u32::decode(&mut reader)?;
        let process_space = u64::decode(&mut reader)?;
        let purpose = match u8::decode(&mut reader)? {
            0 => Purpose::Control,
            1 => {
                let token = LeaseToken::decode(&mut reader)?;
                Purpose::Session { token, once: Once::decode(&mut reader)? }
            }
            2 => Purpose::Resume(Resume {
                session: u64::decode(&mut reader)?,
                secret: SessionSecret::decode(&mut reader)?,
                attempt: u32::decode(&mut reader)?,
                received: u64::decode(&mut reader)?,
                stripe: Stripe { number: u8::decode(&mut reader)?, count: u8::decode(&mut reader)? },
            }),
            3 => Purpose::Peer(Peer {
                session: u64::decode(&mut reader)?,
                token: PeerToken::decode(&mut reader)?,
            }),
            4 => Purpose::Clone(CloneOf {
                session: u64::decode(&mut reader)?,
                proof: CloneProof::decode(&mut reader)?,
            }),
            other => return Err(WireError::Value { what: "a purpose", value: other.into() }),
        };
        reader.end()?;
        Ok(Some((Hello { purpose, process, process_space }, size)))
    }
}

/// What a node answers to any `Hello`, also to one of another version.
pub struct Welcome;

impl Welcome {
    pub fn to_bytes() -> Vec<u8> {
        let mut body = Vec::new();
        Opening::OURS.encode(&mut body);
        with_length(&body)
    }

    /// Reads a `Welcome` from what has arrived: `None` while it is incomplete, else its size in
    /// bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let Some((body, size)) = body(bytes)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        Opening::decode(&mut reader)?.check()?;
        reader.end()?;
        Ok(Some(size))
    }
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + body.len());
    // Both messages have fixed, small sizes.
    (body.len() as u16).encode(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

/// The counted body and the size of the whole, once it is there.
fn body(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, WireError> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*length));
    let begins_right = rest.iter().zip(&MAGIC).all(|(theirs, ours)| theirs == ours);
    if length + 2 > HELLO_SIZE_MAX || !begins_right {
        return Err(WireError::NotSluice);
    }
    Ok(rest.get(..length).map(|body| (body, length + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: Once = Once { nonce: OpeningNonce([9; 32]), attempt: 3 };
    const HELLO: Hello = Hello {
        purpose: Purpose::Session { token: LeaseToken([9; 32]), once: ONCE },
        process: 4711,
        process_space: 5,
    };
    const AGAIN: Hello = Hello {
        purpose: Purpose::Resume(Resume {
            session: 6,
            secret: SessionSecret([9; 32]),
            attempt: 3,
            received: 1 << 20,
            stripe: Stripe { number: 2, count: 8 },
        }),
        ..HELLO
    };

    const PEER: Hello =
        Hello { purpose: Purpose::Peer(Peer { session: 6, token: PeerToken([9; 32]) }), ..HELLO };

    const CLONE: Hello =
        Hello { purpose: Purpose::Clone(CloneOf { session: 6, proof: CloneProof([9; 32]) }), ..HELLO };

    #[test]
    fn a_hello_is_complete_with_its_last_byte() {
        for hello in [HELLO, AGAIN, PEER, CLONE] {
            let bytes = hello.to_bytes();
            assert!(bytes.len() <= HELLO_SIZE_MAX);
            for cut in 0..bytes.len() {
                assert_eq!(Hello::from_bytes(&bytes[..cut]), Ok(None), "{cut} bytes");
            }
            assert_eq!(Hello::from_bytes(&bytes), Ok(Some((hello, bytes.len()))));
        }
        assert_eq!(Welcome::from_bytes(&Welcome::to_bytes()), Ok(Some(Welcome::to_bytes().len())));
        let mut longer = Welcome::to_bytes();
        longer[0] += 1;
        longer.push(0);
        assert_eq!(Welcome::from_bytes(&longer), Err(WireError::Trailing(1)));
    }

    #[test]
    fn another_version_is_refused_by_both_names() {
        let mut bytes = HELLO.to_bytes();
        bytes[6] = 99;
        let error = Hello::from_bytes(&bytes).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("(protocol 99)") && text.contains(&format!("(protocol {PROTOCOL})")), "{text}");
    }

    #[test]
    fn another_protocol_is_refused_early() {
        assert_eq!(Hello::from_bytes(b"GET / HTTP/1.1"), Err(WireError::NotSluice));
        assert_eq!(Welcome::from_bytes(b"SSH-2.0-OpenSSH"), Err(WireError::NotSluice));
        assert_eq!(Hello::from_bytes(&[10, 0, b'S', b'L', b'X']), Err(WireError::NotSluice));
    }

    #[test]
    fn secrets_stay_out_of_logs() {
        assert!(!format!("{HELLO:?}{AGAIN:?}{PEER:?}{CLONE:?}").contains('9'));
    }
}
