//! Where a node listens.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_transport::Stream;
use sluice_transport::tls::ServerIdentity;
use sluice_wire::address::Endpoint;

use super::NodeError;
use crate::config::Listen;
use crate::connection::Door;
use crate::registry;
use crate::upgrade::{Passed, Passing, Received, RestoreError};

#[derive(Debug)]
pub(super) enum Listener {
    Tcp {
        listener: TcpListener,
        tls: Option<ServerIdentity>,
    },
    Unix {
        listener: UnixListener,
        path: PathBuf,
    },
    /// For programs of this machine that have a lease.
    Nearby(UnixListener),
}

impl Listener {
    pub(super) fn bind(listen: &Listen, identity: Option<&ServerIdentity>) -> Result<Listener, NodeError> {
        let (address, tls) = match listen {
            Listen::Unix(path) => return bind_unix(path),
            Listen::Tcp(address) => (address, None),
            Listen::Tls(address) => {
                let identity = identity.ok_or_else(|| NodeError::NoCertificate(address.clone()))?;
                (address, Some(identity.clone()))
            }
        };
        match bind_tcp(address) {
            Ok(listener) => Ok(Listener::Tcp { listener, tls }),
            Err(source) => Err(NodeError::Listen { address: address.clone(), source }),
        }
    }

    /// The address that clients get, if they get one.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        Some(match self {
            Listener::Tcp { listener, tls } => {
                let address = listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
                match tls {
                    Some(tls) => Endpoint::Tls { address, fingerprint: Some(tls.fingerprint()) },
                    None => Endpoint::Tcp(address),
                }
            }
            Listener::Unix { path, .. } => Endpoint::Unix(path.clone()),
            Listener::Nearby(_) => return None,
        })
    }

    /// What it shows those who connect.
    pub(super) fn identity(&self) -> Option<&ServerIdentity> {
        match self {
            Listener::Tcp { tls, .. } => tls.as_ref(),
            Listener::Unix { .. } | Listener::Nearby(_) => None,
        }
    }

    pub(super) fn door(&self) -> Door {
        match self {
            Listener::Tcp { tls: Some(identity), .. } => Door::Tls(identity.clone()),
            Listener::Tcp { tls: None, .. } | Listener::Unix { .. } => Door::Plain,
            Listener::Nearby(_) => Door::Sessions,
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp { listener, .. } => listener.as_fd(),
            Listener::Unix { listener, .. } | Listener::Nearby(listener) => listener.as_fd(),
        }
    }

    pub(super) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp { listener, .. } => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                sluice_transport::notice_dead_peer(stream.as_fd())?;
                Ok((OwnedFd::from(stream).into(), peer.to_string()))
            }
            Listener::Unix { listener, .. } | Listener::Nearby(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let peer = local_peer(&stream);
                Ok((stream.into(), peer))
            }
        }
    }
}

/// A listener, for the next program of this daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedListener {
    /// As the settings say it; nothing for the socket of this machine's programs.
    pub(crate) asked: Option<String>,
    socket: Passed,
}

/// How a state names a place to listen at.
pub(crate) fn name_of(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => format!("tcp {address}"),
        Listen::Tls(address) => format!("tls {address}"),
        Listen::Unix(path) => format!("unix {}", path.display()),
    }
}

impl Listener {
    /// `asked` is what the settings say.
    pub(super) fn save(&self, asked: Option<&Listen>, passing: &mut Passing) -> SavedListener {
        SavedListener { asked: asked.map(name_of), socket: passing.pass(self.as_fd()) }
    }
}

impl SavedListener {
    /// `asked` is what the settings say, which is what they said before.
    pub(super) fn restored(
        self,
        asked: Option<&Listen>,
        identity: Option<&ServerIdentity>,
        received: &mut Received,
    ) -> Result<Listener, RestoreError> {
        let socket = received.take(self.socket)?;
        Ok(match asked {
            Some(Listen::Tcp(_)) => Listener::Tcp { listener: socket.into(), tls: None },
            Some(Listen::Tls(_)) => Listener::Tcp { listener: socket.into(), tls: identity.cloned() },
            Some(Listen::Unix(path)) => Listener::Unix { listener: socket.into(), path: path.clone() },
            None => Listener::Nearby(socket.into()),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: &str) -> io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let listener = TcpListener::bind(addresses.as_slice())?;
    lengthen_queue(listener.as_fd())?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connections that wait to be accepted, at most; the system may allow fewer
/// (`net.core.somaxconn`). One beyond them is tried again by its client's system after a second.
const QUEUE: libc::c_int = 4096;

/// The standard library has 128 wait, which a burst fills.
fn lengthen_queue(listener: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: sets the length of the queue of a socket that listens already.
    match unsafe { libc::listen(listener.as_raw_fd(), QUEUE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket file at which no process answers is what a killed node left behind.
fn bind_unix(path: &Path) -> Result<Listener, NodeError> {
    let failed = |source| NodeError::Listen { address: format!("unix:{}", path.display()), source };
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(NodeError::InUse(path.to_owned()));
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let listener = sluice_transport::unix_address(path)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Listener::Unix { listener, path: path.to_owned() })
}

/// Binds a name that no other node has and no file system: who may come in has the token of a
/// lease. With it comes where that is.
pub(super) fn bind_nearby() -> io::Result<(Listener, String)> {
    let name: String = registry::random().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name = sluice_transport::node_socket(&name);
    let listener = UnixListener::bind_addr(&sluice_transport::unix_address(Path::new(&name))?)?;
    listener.set_nonblocking(true)?;
    Ok((Listener::Nearby(listener), name))
}

/// `pid 1234`, as the kernel vouches for it.
fn local_peer(stream: &UnixStream) -> String {
    sluice_transport::peer_of(stream).map_or_else(|_| "local".into(), |peer| format!("pid {}", peer.pid))
}
