//! Whose certificates clients may show: those of the authorities in a file, read again when it
//! changes ([`super::follow`]).
//!
//! A client is asked at its handshake. Who has come in stays in when its authority goes: a session
//! that is to end is ended by its lease.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::client::roots;
use super::follow::{Files, Stamp};
use super::handshake::crypto;

/// The authorities of a file.
#[derive(Debug)]
pub(super) struct Authorities {
    file: PathBuf,
    /// The file before it was read at the start.
    loaded: Stamp,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authorities {
    pub(super) fn load(file: &Path) -> Result<Authorities, String> {
        let loaded = Stamp::of(&[file]);
        Ok(Authorities { file: file.into(), loaded, current: RwLock::new(read(file)?) })
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).verifier)
    }
}

fn read(file: &Path) -> Result<Current, String> {
    let roots = Arc::new(roots(file)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), crypto())
        .allow_unauthenticated()
        .build()
        .map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Current { roots, verifier })
}

impl Files for Authorities {
    fn loaded(&self) -> Stamp {
        self.loaded.clone()
    }

    fn stamp(&self) -> Stamp {
        Stamp::of(&[&self.file])
    }

    fn reload(&self) -> Result<bool, String> {
        let new = read(&self.file)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = current.roots.roots != new.roots.roots;
        *current = new;
        Ok(is_other)
    }

    fn news(&self) -> String {
        format!("{} names other authorities of clients, asked for from now on", self.file.display())
    }

    fn kept(&self) -> &'static str {
        "The authorities of clients that were there stay in use"
    }
}

impl ClientCertVerifier for Authorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None are named: they may change, and a client has one certificate to show or none.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}
