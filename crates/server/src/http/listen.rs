//! Connections: accepted, secured with TLS where the server has a certificate, and served.
//!
//! Each connection has a task and a place ([`super::places`]). Each step has a time limit: the TLS
//! handshake and the first request are within [`REQUEST_TIME_MAX`], a further request of an
//! authenticated connection within [`IDLE_TIME_MAX`], and a client has to take something of an
//! answer within [`WRITE_TIME_MAX`].

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use sluice_api::problem::{Kind, Problem};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

use super::places::{ConnectionSlot, Places};

/// A client that keeps its connection sends the whole header of its next request within this time.
/// It is longer than clients commonly keep an idle connection.
const IDLE_TIME_MAX: Duration = Duration::from_secs(75);
/// A client that takes nothing of an answer for this long is cut off.
const WRITE_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of a request's header.
const HEADER_SIZE_MAX: usize = 64 << 10;
/// Where no connection can be accepted, most likely for want of a descriptor, this passes until the
/// next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A handshake's first byte (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// Bytes that are read of a request in plain text before it is answered.
const PLAIN_TEXT_MAX: u64 = 64 << 10;

/// Connections that wait to be accepted, at most; the system may allow fewer
/// (`net.core.somaxconn`). The system of a client beyond them tries again after a second.
const QUEUE_LENGTH: u32 = 4096;

/// Listens at an address, such as `localhost:443`: at the first of those that it stands for where
/// that is possible.
pub(crate) async fn bind(address: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(QUEUE_LENGTH)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) place: Arc<ConnectionSlot>,
    /// Whether this server speaks TLS with it.
    pub(super) encrypted: bool,
}

/// Serves connections until it is dropped; connections that have been accepted continue in their
/// tasks.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    places: Arc<Places>,
    app: Router,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    loop {
        match listener.accept().await {
            Ok((socket, address)) => {
                let place = Arc::new(places.admit(address.ip()));
                let peer = Peer { address, place, encrypted: acceptor.is_some() };
                tokio::spawn(live(socket, acceptor.clone(), app.clone(), peer));
            }
            // The connection was lost before it was accepted.
            Err(error) if is_of_connection(&error) => {}
            Err(_) => {
                places.evict_one();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The life of one connection.
async fn live(socket: TcpStream, acceptor: Option<TlsAcceptor>, app: Router, peer: Peer) {
    let place = Arc::clone(&peer.place);
    // Answers are small, and each is written as a whole. Where the option is refused they are
    // later.
    let _ = socket.set_nodelay(true);
    let served = async {
        let mut first = [0];
        // A client that closes or fails before its first byte has nothing to be served.
        if !matches!(socket.peek(&mut first).await, Ok(1)) {
            return;
        }
        place.speaks();
        match acceptor {
            None => serve_http(socket, app, peer).await,
            // The client has been notified of a failure by an alert; the log would only repeat what
            // unauthenticated clients send.
            Some(acceptor) => {
                if let Ok(Some(stream)) = handshake(socket, first[0], &acceptor).await {
                    serve_http(stream, app, peer).await;
                }
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = place.is_lost() => {}
    }
}

async fn serve_http(stream: impl AsyncRead + AsyncWrite + Send + 'static, app: Router, peer: Peer) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIME_MAX));
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (app, peer) = (app.clone(), peer.clone());
        async move {
            let _request = peer.place.begin_request();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            app.oneshot(request).await.map_err(|never: Infallible| never)
        }
    });
    // A connection that breaks off has no client left to notify.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIME_MAX)
        .max_buf_size(HEADER_SIZE_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .await;
}

/// Secures a connection whose first byte, unread, is `first`; none where that is no handshake.
async fn handshake(
    socket: TcpStream,
    first: u8,
    acceptor: &TlsAcceptor,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    if first != HANDSHAKE {
        answer_plain_text(socket).await?;
        return Ok(None);
    }
    acceptor.accept(socket).await.map(Some)
}

/// Answers a request in plain text: nothing else would tell a person what is wrong.
async fn answer_plain_text(mut socket: TcpStream) -> io::Result<()> {
    let detail = "this server speaks TLS: its URL begins with https://, as it prints it when it starts";
    let problem = serde_json::to_string(&Problem::new(Kind::Malformed, detail))?;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{problem}",
        problem.len()
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await?;
    // A socket that is closed over unread bytes takes the answer back.
    tokio::io::copy(&mut socket.take(PLAIN_TEXT_MAX), &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::task::JoinHandle;

    use super::*;

    async fn start(tls: Option<Arc<ServerConfig>>) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(async || "here"));
        (address, tokio::spawn(serve(listener, tls, Places::of_files(32), app)))
    }

    fn certificate() -> Arc<ServerConfig> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).unwrap())
    }

    async fn ask(address: SocketAddr) -> String {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_whole_request_is_closed_with_and_without_tls() {
        for tls in [None, Some(certificate())] {
            let (address, _server) = start(tls).await;
            for beginning in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: h\r\n", "\x16\x03\x01"] {
                let mut socket = TcpStream::connect(address).await.unwrap();
                socket.write_all(beginning.as_bytes()).await.unwrap();
                // An alert of TLS may come first, and what was not read resets the connection.
                let _ = socket.read_to_end(&mut Vec::new()).await;
            }
        }
    }

    #[tokio::test]
    async fn a_request_is_answered_however_many_connections_say_nothing() {
        let (address, _server) = start(None).await;
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = ask(address).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
        let mut open = 0;
        for socket in &mut silent {
            open += usize::from(
                socket.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            );
        }
        assert!(open <= 8, "{open} of at most 8 stay");
    }
}
