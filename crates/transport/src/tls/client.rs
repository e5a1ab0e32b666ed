//! The side that connects: which node it takes for the right one, and who it says it is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use sluice_wire::address::Fingerprint;

use super::handshake::{crypto, keys, shake};
use super::shown::name_of;
use super::{Keys, PROTOCOL, TlsError, fingerprint_of};
use crate::opening::is_end;
use crate::socket::Socket;

/// What makes a node the right one.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Its certificate is this very one, whatever it says.
    Fingerprint(Fingerprint),
    /// One of these authorities has issued its certificate, for the name that it was reached by.
    Authorities(Arc<RootCertStore>),
}

impl Trust {
    /// The authorities in a PEM file.
    pub fn authorities(file: &Path) -> Result<Trust, String> {
        Ok(Trust::Authorities(Arc::new(roots(file)?)))
    }
}

/// A certificate by which a client shows who it is.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The certificates of a PEM file, for others to be checked by.
pub(super) fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(roots)
}

/// The certificates of a PEM file; at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|error| named(&error))?.collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(named(&"there is no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(named(&error)),
    }
}

pub(super) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Shakes hands with a node that was reached by `host`.
pub(crate) fn connect(
    socket: &Socket,
    host: &str,
    trust: &Trust,
    identity: Option<&ClientIdentity>,
    deadline: Instant,
) -> io::Result<(Keys, Fingerprint)> {
    let (mut config, pinned) = config(trust, identity)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.enable_secret_extraction = true;
    let name = name(host, pinned.as_deref())?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(failed)?;
    let mut connection = Connection::Client(connection);
    shake(&mut connection, socket, deadline).map_err(|error| match is_end(&error) {
        // A disconnect, or a peer that does not use TLS: the kind stays, by which it is tried
        // again.
        true => io::Error::new(error.kind(), TlsError::Ended),
        false => explained(error, pinned.as_deref()),
    })?;
    let certificate = connection.peer_certificates().and_then(|chain| chain.first());
    let fingerprint = fingerprint_of(certificate.map_or(&[], |certificate| certificate.as_ref()));
    Ok((keys(connection)?, fingerprint))
}

/// A connection of HTTP, which rustls itself protects, and what explains its failures.
#[derive(Debug)]
pub struct Https {
    pub connection: ClientConnection,
    pinned: Option<Arc<Pinned>>,
}

impl Https {
    /// To a server that was reached by `host`.
    pub fn new(host: &str, trust: &Trust) -> io::Result<Https> {
        let (config, pinned) = config(trust, None)?;
        let name = name(host, pinned.as_deref())?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(failed)?;
        Ok(Https { connection, pinned })
    }

    /// Shakes hands over a byte stream.
    pub fn shake(&mut self, stream: &mut (impl io::Read + io::Write)) -> io::Result<()> {
        while self.connection.is_handshaking() {
            self.connection.complete_io(stream).map_err(|error| self.explained(error))?;
        }
        Ok(())
    }

    fn explained(&self, error: io::Error) -> io::Error {
        let error = match error.downcast::<rustls::Error>() {
            Ok(rustls::Error::InvalidMessage(_)) => super::io(TlsError::NoTls),
            Ok(error) => super::io(TlsError::Handshake(error)),
            // What a server says to TLS where it expects plain text: nothing.
            Err(error) if is_end(&error) => super::io(TlsError::NoTls),
            Err(error) => error,
        };
        explained(error, self.pinned.as_deref())
    }
}

/// What is checked, and what is shown. For one connection: what came is kept in the answer's second
/// part.
fn config(
    trust: &Trust,
    identity: Option<&ClientIdentity>,
) -> io::Result<(ClientConfig, Option<Arc<Pinned>>)> {
    let crypto = crypto();
    let versions = ClientConfig::builder_with_provider(Arc::clone(&crypto))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?;
    let (checking, pinned) = match trust {
        Trust::Fingerprint(expected) => {
            let pinned = Arc::new(Pinned { expected: *expected, found: OnceLock::new(), crypto });
            let verifier = Arc::clone(&pinned) as Arc<dyn ServerCertVerifier>;
            (versions.dangerous().with_custom_certificate_verifier(verifier), Some(pinned))
        }
        Trust::Authorities(roots) => (versions.with_root_certificates(Arc::clone(roots)), None),
    };
    let mut config = match identity {
        None => checking.with_no_client_auth(),
        Some(ClientIdentity { certificate, key }) => {
            let loaded = certificates(certificate).and_then(|chain| Ok((chain, private_key(key)?)));
            let (chain, key) = loaded.map_err(io::Error::other)?;
            checking.with_client_auth_cert(chain, key).map_err(failed)?
        }
    };
    config.resumption = Resumption::disabled();
    Ok((config, pinned))
}

/// By which the other side's certificate is checked, or by which it knows which one is wanted.
fn name(host: &str, pinned: Option<&Pinned>) -> io::Result<ServerName<'static>> {
    let name = match pinned {
        Some(pinned) => name_of(pinned.expected),
        None => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
    };
    ServerName::try_from(name)
        .map_err(|_| io::Error::other(format!("{host:?} is no name that a certificate could hold")))
}

fn failed(error: rustls::Error) -> io::Error {
    super::io(TlsError::Handshake(error))
}

/// Says what was wrong with the certificate, if that is what was wrong.
fn explained(error: io::Error, pinned: Option<&Pinned>) -> io::Error {
    let found = pinned.and_then(|pinned| Some((pinned.found.get()?, pinned.expected)));
    match (error.downcast::<TlsError>(), found) {
        (Ok(TlsError::Handshake(rustls::Error::InvalidCertificate(_))), Some((found, expected)))
            if *found != expected =>
        {
            super::io(TlsError::Fingerprint { found: *found, expected })
        }
        (Ok(TlsError::Handshake(rustls::Error::InvalidCertificate(error))), _) => {
            super::io(TlsError::Certificate(error))
        }
        (Ok(TlsError::PlainText), _) => super::io(TlsError::NoTls),
        (Ok(other), _) => super::io(other),
        (Err(error), _) => error,
    }
}

/// Takes one certificate and no other.
#[derive(Debug)]
struct Pinned {
    expected: Fingerprint,
    /// That of the certificate which came.
    found: OnceLock<Fingerprint>,
    crypto: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = *self.found.get_or_init(|| fingerprint_of(certificate));
        if found == self.expected {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.crypto.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}
