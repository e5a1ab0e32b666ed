//! How a server is reached: its URL, and how it is known by it.
//!
//! | URL | is |
//! |---|---|
//! | `http://HOST[:PORT]` | plain text, for loopback and networks that are trusted |
//! | `https://HOST[:PORT]` | TLS, certified by an authority in `SLUICE_TLS_CA` or of this system |
//! | `https://HOST[:PORT]/FINGERPRINT` | TLS, with this very certificate |

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CertificateError, ClientConnection, RootCertStore, StreamOwned};
use sluice_transport::tls::{Https, TlsError, Trust};
use sluice_wire::address::Fingerprint;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout,
    TcpConnector, Transport, TransportAdapter,
};

use super::settings::variable;

/// A PEM file with the authorities that certificates come from.
pub const CA_VARIABLE: &str = "SLUICE_TLS_CA";

/// A server's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// `http` or `https`, host and port: what paths are written behind.
    pub base: String,
    pub fingerprint: Option<Fingerprint>,
}

/// The text is no URL of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoUrl;

impl FromStr for ServerUrl {
    type Err = NoUrl;

    fn from_str(text: &str) -> Result<ServerUrl, NoUrl> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(NoUrl)?;
        let rest = rest.trim_end_matches('/');
        let (place, fingerprint) = match rest.split_once('/') {
            Some((place, digits)) if scheme == "https" => (place, Some(digits.parse().map_err(|_| NoUrl)?)),
            Some(_) => return Err(NoUrl),
            None => (rest, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if !["http", "https"].contains(&scheme) || place.is_empty() || !place.chars().all(plain) {
            return Err(NoUrl);
        }
        Ok(ServerUrl { base: format!("{scheme}://{place}"), fingerprint })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        self.fingerprint.map_or(Ok(()), |fingerprint| write!(f, "/{fingerprint}"))
    }
}

impl ServerUrl {
    /// What asks this server, and no other. The error says what is wrong with the authorities.
    pub fn agent(&self, config: ureq::config::Config) -> Result<ureq::Agent, String> {
        self.resolving_agent(config, DefaultResolver::default())
    }

    fn resolving_agent(
        &self,
        config: ureq::config::Config,
        resolver: impl Resolver,
    ) -> Result<ureq::Agent, String> {
        Ok(agent_that_trusts(config, self.trust()?, resolver))
    }

    /// Returns an agent that accepts certificates from the authorities in a PEM file only.
    pub fn agent_of_authorities(
        &self,
        config: ureq::config::Config,
        file: &Path,
    ) -> Result<ureq::Agent, String> {
        Ok(agent_that_trusts(config, Some(Trust::authorities(file)?), DefaultResolver::default()))
    }

    /// By which it is known; none for plain text.
    fn trust(&self) -> Result<Option<Trust>, String> {
        if !self.base.starts_with("https://") {
            return Ok(None);
        }
        let trust = match (self.fingerprint, variable(CA_VARIABLE)) {
            (Some(fingerprint), _) => Trust::Fingerprint(fingerprint),
            (None, Some(file)) => Trust::authorities(Path::new(&file))?,
            (None, None) => Trust::Authorities(Arc::new(of_the_system())),
        };
        Ok(Some(trust))
    }
}

fn agent_that_trusts(
    config: ureq::config::Config,
    trust: Option<Trust>,
    resolver: impl Resolver,
) -> ureq::Agent {
    let connector = ().chain(ConnectProxyConnector::default()).chain(TcpConnector::default());
    ureq::Agent::with_parts(config, connector.chain(Protecting(trust)), resolver)
}

/// Sends requests to the host of a URL: in plain text, or by TLS with a certificate from an
/// authority in `SLUICE_TLS_CA`, or one that this system trusts.
#[derive(Clone)]
pub struct Web(ureq::Agent);

/// The most bytes of an answer from a host that we did not choose.
const STRANGERS_ANSWER_MAX: u64 = 1 << 20;

impl Web {
    /// The error says what is wrong with the authorities.
    pub fn new() -> Result<Web, String> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            .max_redirects(0)
            .build();
        // The host of this URL is not asked: its scheme has certificates checked.
        let anybody = ServerUrl { base: "https://".into(), fingerprint: None };
        anybody.agent(config).map(Web)
    }

    /// Makes a client for URLs that others choose: it connects only to addresses that `check`
    /// accepts. A name is resolved once, and the connection goes to the address that was checked;
    /// no proxy stands between, no redirect is followed, and no connection is kept for later. The
    /// error says what is wrong with the authorities.
    pub fn guarded(check: Arc<dyn CheckAddress>, time_max: Duration) -> Result<Web, String> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(time_max))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .proxy(None)
            .build();
        let anybody = ServerUrl { base: "https://".into(), fingerprint: None };
        anybody.resolving_agent(config, Guarded { check, names: DefaultResolver::default() }).map(Web)
    }

    /// Sends a request and returns the status of the answer, whose body is not read. The error says
    /// why there is no answer.
    pub fn status_of(&self, request: ureq::http::Request<Vec<u8>>) -> Result<u16, String> {
        match self.0.run(request) {
            Ok(answer) => Ok(answer.status().as_u16()),
            Err(ureq::Error::Other(refused)) => Err(refused.to_string()),
            Err(error) => Err(explained(&error).unwrap_or_else(|| error.to_string())),
        }
    }

    pub fn ask(
        &self,
        request: ureq::http::Request<Vec<u8>>,
    ) -> Result<ureq::http::Response<Vec<u8>>, ureq::Error> {
        let (parts, mut body) = self.0.run(request)?.into_parts();
        let bytes = body.with_config().limit(STRANGERS_ANSWER_MAX).read_to_vec()?;
        Ok(ureq::http::Response::from_parts(parts, bytes))
    }
}

/// Decides whether a connection to an address is allowed.
pub trait CheckAddress: fmt::Debug + Send + Sync {
    /// The error says why the address is refused. `is_encrypted` is whether the URL says `https`.
    fn check(&self, address: IpAddr, is_encrypted: bool) -> Result<(), String>;
}

/// Resolves names to addresses that are allowed.
#[derive(Debug)]
struct Guarded {
    check: Arc<dyn CheckAddress>,
    names: DefaultResolver,
}

impl Resolver for Guarded {
    /// One address that is refused refuses the name: a name of a public address that is also one of
    /// a private address is an attempt to get past the check.
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.names.resolve(uri, config, timeout)?;
        let is_encrypted = uri.scheme_str() == Some("https");
        for address in addresses.iter() {
            self.check.check(address.ip(), is_encrypted).map_err(|why| ureq::Error::Other(why.into()))?;
        }
        Ok(addresses)
    }
}

/// The authorities that this system trusts. Those that cannot be read are left out.
fn of_the_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// What is wrong with the other side's TLS, if it is that, in words for who wrote the URL.
pub(super) fn explained(error: &ureq::Error) -> Option<String> {
    let ureq::Error::Io(error) = error else { return None };
    Some(match TlsError::of(error)? {
        TlsError::NoTls | TlsError::PlainText => {
            "what answers there does not speak TLS; http:// asks in plain text, where the network is trusted"
                .to_owned()
        }
        TlsError::Fingerprint { found, expected } => format!(
            "its certificate has the fingerprint {found} and not {expected}: it is another server, or has a new \
             certificate. A server prints the fingerprint at the end of its URL when it starts"
        ),
        TlsError::Certificate(CertificateError::UnknownIssuer) => format!(
            "no authority that is trusted has issued its certificate; name a file with its authority in {CA_VARIABLE}, \
             or write its fingerprint at the end of the URL"
        ),
        other => other.to_string(),
    })
}

/// Shakes hands where the URL says `https`.
#[derive(Debug)]
struct Protecting(Option<Trust>);

impl<In: Transport> Connector<In> for Protecting {
    type Out = Either<In, Protected>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let nobody = || io::Error::other("nothing says how the certificate is to be checked");
        let trust = self.0.as_ref().ok_or_else(nobody)?;
        let mut https = Https::new(details.uri.host().unwrap_or_default(), trust)?;
        let mut stream = TransportAdapter::new(transport.boxed(), Arc::clone(&details.current_time));
        stream.set_timeout(details.timeout);
        https.shake(&mut stream)?;
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Protected {
            buffers: LazyBuffers::new(input, output),
            stream: StreamOwned::new(https.connection, stream),
        })))
    }
}

/// A connection behind TLS.
struct Protected {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Protected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protected({:?})", self.stream.sock.inner())
    }
}

impl Transport for Protected {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        io::Write::write_all(&mut self.stream, &self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = io::Read::read(&mut self.stream, self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_server_and_may_name_its_certificate() {
        let digits = "ab".repeat(32);
        for text in
            ["http://control:7580", "https://control", "https://[::1]:7580", &format!("https://c:1/{digits}")]
        {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), text);
        }
        assert_eq!("https://c:1/".parse::<ServerUrl>().unwrap().to_string(), "https://c:1");
        let pinned: ServerUrl = format!("https://c:1/{digits}/").parse().unwrap();
        assert_eq!((pinned.base.as_str(), pinned.fingerprint.is_some()), ("https://c:1", true));
        let plain = format!("http://c/{digits}");
        for text in
            ["", "control:7580", "ftp://a", "https://", "https://a/b", "https://a@b", "http://a/b", &plain]
        {
            assert!(text.parse::<ServerUrl>().is_err(), "{text}");
        }
    }
}
