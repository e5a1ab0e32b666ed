//! The node's side: its certificate, and whose clients it takes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{Connection, ServerConfig, ServerConnection};
use sluice_wire::address::Fingerprint;

use super::authorities::Authorities;
use super::follow::{FileLog, follow};
use super::handshake::{crypto, keys, shake};
use super::shown::{Resolved, Shown};
use super::{Keys, PROTOCOL, TlsError};
use crate::socket::Socket;

/// A certificate with its key, as a node shows it, and the authorities of its clients. Clones show
/// the same one, also after it was renewed.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
    clients: Option<Arc<Authorities>>,
}

impl ServerIdentity {
    /// From PEM files. With `clients`, the authorities of clients' certificates, a client may show
    /// one; who has shown none is recognised by [`crate::Stream::accept_tls`].
    pub fn load(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<ServerIdentity, String> {
        let shown = Arc::new(Shown::load(certificate, key)?);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", certificate.display());
        let versions = ServerConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(&error))?;
        let clients = clients.map(Authorities::load).transpose()?.map(Arc::new);
        let checking = match &clients {
            None => versions.with_no_client_auth(),
            Some(clients) => {
                versions.with_client_cert_verifier(Arc::clone(clients) as Arc<dyn ClientCertVerifier>)
            }
        };
        let mut config = checking.with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Nothing of a connection is of use to another.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.enable_secret_extraction = true;
        Ok(ServerIdentity { config: Arc::new(config), shown, clients })
    }

    /// Shows another certificate, and asks clients for those of other authorities, once the files
    /// hold them, and logs that. Files that are of no use are logged, and what was there before
    /// stays in use. It ends with the last clone.
    pub fn follow_files(&self, log: FileLog) -> io::Result<()> {
        follow(&self.shown, log)?;
        self.clients.iter().try_for_each(|clients| follow(clients, log))
    }

    /// For a server of HTTP, whose connections rustls itself protects.
    pub fn for_https(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.enable_secret_extraction = false;
        Arc::new(config)
    }

    #[cfg(test)]
    pub(super) fn shown(&self) -> &Shown {
        &self.shown
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> &Authorities {
        self.clients.as_ref().expect("it asks clients")
    }

    /// The certificate that is shown now, in DER.
    pub fn certificate(&self) -> Vec<u8> {
        self.shown.certificate()
    }

    /// Of the certificate that is shown now.
    pub fn fingerprint(&self) -> Fingerprint {
        self.shown.fingerprint()
    }
}

/// Shakes hands with a client. True if it may ask for leases: it has shown a good certificate, or
/// none is wanted. The fingerprint is of what it was shown.
pub(crate) fn accept(
    socket: &Socket,
    identity: &ServerIdentity,
    deadline: Instant,
) -> io::Result<(Keys, bool, Fingerprint)> {
    let resolved = Arc::new(Resolved::new(Arc::clone(&identity.shown)));
    let mut config = ServerConfig::clone(&identity.config);
    config.cert_resolver = Arc::clone(&resolved) as Arc<dyn ResolvesServerCert>;
    let connection = ServerConnection::new(Arc::new(config));
    let mut connection =
        Connection::Server(connection.map_err(|error| super::io(TlsError::Handshake(error)))?);
    shake(&mut connection, socket, deadline)?;
    let is_certified = connection.peer_certificates().is_some_and(|chain| !chain.is_empty());
    let shown = resolved.fingerprint().ok_or_else(|| io::Error::other("no certificate was shown"))?;
    Ok((keys(connection)?, is_certified || identity.clients.is_none(), shown))
}
