//! TLS where the server listens. Hands are shaken beside each other, so that nobody waits for a slow client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use sluice_api::problem::{Kind, Problem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// A client says its part of the handshake within this time.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Handshakes at a time; who comes then waits in the socket's queue.
const HANDSHAKES_MAX: usize = 512;
/// A handshake's first byte (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// What is read of a request in plain text before it is left alone.
const PLAIN_TEXT_MAX: u64 = 64 << 10;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, Protected>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Protected>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

type Ready = (TlsStream<TcpStream>, SocketAddr);

/// A listener whose connections have shaken hands.
pub(crate) struct Protected {
    ready: mpsc::Receiver<Ready>,
    address: SocketAddr,
}

impl Protected {
    pub(crate) fn new(listener: TcpListener, config: Arc<ServerConfig>) -> io::Result<Protected> {
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(HANDSHAKES_MAX);
        // It ends with the receiver.
        tokio::spawn(accept(listener, TlsAcceptor::from(config), sender));
        Ok(Protected { ready, address })
    }
}

impl Listener for Protected {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Ready {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The other task goes on for as long as this receiver is there.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn accept(mut listener: TcpListener, acceptor: TlsAcceptor, ready: mpsc::Sender<Ready>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        // axum's, which waits where there is no descriptor left.
        let accepted = Listener::accept(&mut listener);
        let (socket, address) = tokio::select! {
            accepted = accepted => accepted,
            () = ready.closed() => return,
        };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            let _place = place;
            let shaken = tokio::time::timeout(HANDSHAKE_TIME_MAX, shake(socket, &acceptor)).await;
            if let Ok(Ok(Some(stream))) = shaken {
                let _ = ready.send((stream, address)).await;
            }
        });
    }
}

/// A failure has been told to the client as an alert; the log would only repeat what strangers write.
async fn shake(socket: TcpStream, acceptor: &TlsAcceptor) -> io::Result<Option<TlsStream<TcpStream>>> {
    let mut first = [0];
    if socket.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        send_elsewhere(socket).await?;
        return Ok(None);
    }
    acceptor.accept(socket).await.map(Some)
}

/// Answers a request in plain text: nothing else would tell a person what is wrong.
async fn send_elsewhere(mut socket: TcpStream) -> io::Result<()> {
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
