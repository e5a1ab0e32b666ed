//! TLS 1.3 on a TCP socket.
//!
//! rustls shakes hands ([`client`], [`server`]) and checks certificates. What comes out are keys,
//! with which [`records`] protects the bytes from then on, and not rustls, for two reasons. Each
//! direction has a lock of its own, so a writer that waits for room never keeps the reader from
//! taking what the peer has to get rid of first. And the keys can be handed on with the socket: the
//! daemon knows the node's certificate, the worker only what protects its own session.
//!
//! ```text
//!  client                            daemon                      worker
//!    | <------ handshake (rustls) ----> |                           |
//!    | -- Hello, as a record ---------> |                           |
//!    | <- Welcome --------------------- | -- socket and `Keys` ---> |
//!    | <------------------------ records --------------------------> |
//! ```
//!
//! A session that resumes makes a new handshake: no tickets, no early data, nothing that could be
//! replayed.

mod authorities;
mod client;
mod follow;
mod handshake;
mod records;
mod server;
mod shown;

use std::fmt;

use rustls::CertificateError;
use sluice_wire::address::Fingerprint;

pub(crate) use client::connect;
pub use client::{ClientIdentity, Https, Trust};
pub use follow::FileLog;
pub use records::Keys;
pub(crate) use records::Records;
#[cfg(feature = "fuzz")]
pub use records::malformed;
pub use server::ServerIdentity;
pub(crate) use server::accept;

/// By which both sides know that the other speaks this protocol (ALPN, RFC 7301).
const PROTOCOL: &[u8] = b"sluice";

/// Why a handshake fails; it comes as the inner error of an [`std::io::Error`]. The text says the
/// way out.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(
        "what answers there does not speak TLS; where the network is trusted, plain-text:HOST:PORT says so"
    )]
    NoTls,
    #[error(
        "the connection has ended within the handshake of TLS; if it does so each time, what answers there may not speak TLS: \
         where the network is trusted, plain-text:HOST:PORT says so"
    )]
    Ended,
    #[error("it speaks plain text, and this node takes TLS only")]
    PlainText,
    #[error(
        "its certificate has the fingerprint {found} and not {expected}: it is another node, or has a new certificate. \
         `sluice node` prints the fingerprint behind the address"
    )]
    Fingerprint { found: Fingerprint, expected: Fingerprint },
    #[error("its certificate is not to be trusted: {}", reason(.0))]
    Certificate(CertificateError),
    #[error("the TLS handshake failed: {0}")]
    Handshake(rustls::Error),
}

impl TlsError {
    /// The one inside an error, if that is what it is.
    pub fn of(error: &std::io::Error) -> Option<&TlsError> {
        error.get_ref()?.downcast_ref()
    }

    /// Whether the connection was cut, which says nothing of who answers.
    pub fn is_cut(error: &std::io::Error) -> bool {
        matches!(TlsError::of(error), Some(TlsError::Ended))
    }

    /// Whether who answers has shown the certificate of another node. To try again is of no use
    /// then.
    pub fn is_another_node(error: &std::io::Error) -> bool {
        matches!(TlsError::of(error), Some(TlsError::Fingerprint { .. }))
    }
}

fn reason(error: &CertificateError) -> impl fmt::Display {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; give the node a new one (--tls-cert)".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name; name the node as its certificate does, or by its fingerprint".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "no authority in SLUICE_TLS_CA has issued it; add the authority, or name the node by its fingerprint"
                .to_owned()
        }
        other => format!("{other}; the node may be named by its fingerprint instead"),
    }
}

/// What the standard library wants an error to be.
fn io(error: TlsError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, error)
}

/// SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` shows it.
fn fingerprint_of(certificate: &[u8]) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, certificate).as_ref());
    Fingerprint(bytes)
}

#[cfg(test)]
mod tests;
