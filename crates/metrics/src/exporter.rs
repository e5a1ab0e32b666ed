//! The listener that a daemon serves its metrics at.
//!
//! A scrape is one short request every few seconds, so each connection has a thread, and the node,
//! which starts no asynchronous runtime, serves it as the server does. The address speaks for the
//! operator only: beyond loopback the configuration has to demand a token, and nothing but
//! `GET /metrics` is answered.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use ring::digest::{SHA256, digest};
use rustls::{ServerConnection, StreamOwned};
use sluice_transport::tls::ServerIdentity;

use crate::Format;

/// Where a daemon serves its metrics, and to whom.
#[derive(Clone, Debug)]
pub struct ExporterConfig {
    /// `HOST:PORT`; port 0 takes a free one.
    pub address: String,
    /// The certificate to show; plain HTTP without.
    pub tls: Option<ServerIdentity>,
    /// What a scraper has to send as `Authorization: Bearer`; anyone who reaches the address may
    /// scrape without.
    pub token: Option<String>,
}

/// What is served.
pub trait Source: Send + Sync + 'static {
    /// Takes a snapshot of everything that is counted.
    fn registry(&self) -> Registry;
}

/// A listener on a thread of its own. It ends when it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    is_tls: bool,
    stopping: Arc<AtomicBool>,
}

/// The most connections at a time: a scraper needs one.
const CONNECTIONS_MAX: usize = 16;
/// A connection that takes longer, from accept to answer, is closed.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_SIZE_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Bytes that are read of what a client sends behind its request.
const REST_SIZE_MAX: u64 = 64 << 10;

struct Shared {
    config: ExporterConfig,
    source: Arc<dyn Source>,
    connections: AtomicUsize,
}

impl Exporter {
    pub fn start(config: ExporterConfig, source: Arc<dyn Source>) -> io::Result<Exporter> {
        let listener = TcpListener::bind(&config.address)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let exporter = Exporter {
            address: listener.local_addr()?,
            is_tls: config.tls.is_some(),
            stopping: Arc::clone(&stopping),
        };
        let shared = Arc::new(Shared { config, source, connections: AtomicUsize::new(0) });
        let accept = move || accept(&listener, &shared, &stopping);
        std::thread::Builder::new().name("metrics".into()).spawn(accept)?;
        Ok(exporter)
    }

    /// For the configuration of a scraper.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // The thread may be waiting for a connection: this is one.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, stopping: &AtomicBool) {
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok((socket, _)) = accepted else {
            // Most likely out of descriptors: without a pause this loop would spin.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        // Only this thread adds.
        if shared.connections.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            continue;
        }
        shared.connections.fetch_add(1, Ordering::AcqRel);
        let serving = Arc::clone(shared);
        let serve = move || {
            // An error is the client's: it has gone away, or does not speak TLS.
            let _ = serving.serve(socket);
            serving.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("scrape".into()).spawn(serve).is_err() {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Shared {
    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        let mut timed = Timed { socket: socket.try_clone()?, until: Instant::now() + REQUEST_TIME_MAX };
        match &self.config.tls {
            None => self.answer(&mut timed)?,
            Some(identity) => {
                let connection = ServerConnection::new(identity.for_https()).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, &mut timed);
                let answered = self.answer(&mut stream);
                stream.conn.send_close_notify();
                answered.and(stream.flush())?;
            }
        }
        socket.shutdown(Shutdown::Write)?;
        // A socket that is closed over unread bytes takes the answer back; the client hangs up
        // first.
        io::copy(&mut timed.take(REST_SIZE_MAX), &mut io::sink()).map(drop)
    }

    fn answer(&self, mut stream: impl Read + Write) -> io::Result<()> {
        let head = read_head(&mut stream)?;
        stream.write_all(self.respond(&head).as_bytes())?;
        stream.flush()
    }

    fn respond(&self, head: &[u8]) -> String {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        if !request.parse(head).is_ok_and(|status| status.is_complete()) {
            return plain("400 Bad Request", "this is not an HTTP request");
        }
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        if !self.is_allowed(header("authorization")) {
            return plain(
                "401 Unauthorized\r\nwww-authenticate: Bearer",
                "the header Authorization: Bearer TOKEN is missing or wrong; the file of --metrics-token-file holds the token",
            );
        }
        if request.path.map(|path| path.split('?').next().unwrap_or(path)) != Some("/metrics") {
            return plain("404 Not Found", "there is nothing here but /metrics");
        }
        if request.method != Some("GET") {
            return plain("405 Method Not Allowed\r\nallow: GET", "/metrics takes GET only");
        }
        let format = Format::accepted(header("accept"));
        match format.encode(&self.source.registry()) {
            Ok(page) => response("200 OK", format.content_type(), &page),
            Err(fmt::Error) => plain("500 Internal Server Error", "the metrics could not be written"),
        }
    }

    /// Compares digests, so that the time says nothing about how much of a token was right.
    fn is_allowed(&self, authorization: Option<&str>) -> bool {
        let Some(token) = &self.config.token else { return true };
        let said = authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        let of = |text: &str| digest(&SHA256, text.as_bytes());
        said.is_some_and(|said| of(said).as_ref() == of(token).as_ref())
    }
}

fn plain(status: &str, text: &str) -> String {
    response(status, "text/plain; charset=utf-8", &format!("{text}\n"))
}

fn response(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A request up to the empty line behind its headers.
fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD_SIZE_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read(&mut buffer)? {
            0 => break,
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(head)
}

/// A socket all of whose reads and writes together have a deadline.
struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    struct One;

    impl Source for One {
        fn registry(&self) -> Registry {
            let mut registry = Registry::default();
            let counter: Counter = Counter::default();
            counter.inc();
            registry.register("sluice_test", "A test", counter);
            registry
        }
    }

    fn start(token: Option<&str>) -> Exporter {
        let token = token.map(str::to_owned);
        let config = ExporterConfig { address: "127.0.0.1:0".into(), tls: None, token };
        Exporter::start(config, Arc::new(One)).unwrap()
    }

    fn ask(exporter: &Exporter, request: &str) -> String {
        let mut socket = TcpStream::connect(exporter.address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn only_metrics_are_served_and_each_in_the_format_that_is_asked_for() {
        let exporter = start(None);
        let check = |request: &str, status: &str, part: &str| {
            let answer = ask(&exporter, request);
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(part),
                "{request}: {answer}"
            );
        };
        check("GET /metrics HTTP/1.1\r\n\r\n", "200", "version=0.0.4");
        check("GET /metrics?name[]=a HTTP/1.1\r\n\r\n", "200", "sluice_test_total 1\n");
        check("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n", "200", "# EOF\n");
        check("GET / HTTP/1.1\r\n\r\n", "404", "/metrics");
        check("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405", "GET only");
        check("nonsense\r\n\r\n", "400", "not an HTTP request");
    }

    #[test]
    fn a_token_is_demanded_where_there_is_one() {
        let exporter = start(Some("a secret of sixteen"));
        for (header, status) in [
            ("", "401"),
            ("Authorization: Bearer another secret\r\n", "401"),
            ("Authorization: a secret of sixteen\r\n", "401"),
            ("authorization: Bearer a secret of sixteen\r\n", "200"),
        ] {
            let answer = ask(&exporter, &format!("GET /metrics HTTP/1.1\r\n{header}\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{header}: {answer}");
            assert_eq!(answer.contains("sluice_test"), status == "200");
        }
    }

    #[test]
    fn a_head_without_an_end_is_not_kept() {
        let mut endless = io::repeat(b'a');
        assert!(read_head(&mut endless).is_err());
    }

    #[test]
    fn an_exporter_that_is_dropped_frees_its_address() {
        let exporter = start(None);
        let address = exporter.address;
        drop(exporter);
        while TcpListener::bind(address).is_err() {
            std::thread::yield_now();
        }
    }
}
