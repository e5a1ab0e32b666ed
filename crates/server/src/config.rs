//! The settings of a server, its data folder, and its life.
//!
//! The data folder, which only its user can enter, holds
//! - `sluice.db`: everything that is counted, unless a database is named;
//! - `grant.key`: the 32 secret bytes that grants are signed with;
//! - `admin.json`: the server's URL and a token of role `platform`, for `sluice` on the same
//!   machine;
//! - `node.json`: the same with a token of role `node`, for the node of `sluice up`.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluice_api::client::{ADMIN_FILE, NODE_FILE, ServerUrl, Settings, SettingsError};
use sluice_api::grant::Signer;
use sluice_api::problem::Kind;
use sluice_api::tenant::TenantPath;
use sluice_api::token;
use sluice_metrics::{Exporter, ExporterConfig};
use sluice_transport::tls::{FileLog, ServerIdentity};
use sluice_wire::address::Fingerprint;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::auth::{self, Principal};
use crate::fleet::Patience;
use crate::http;
use crate::leader::{Candidate, Role};
use crate::metrics::ServerMetrics;
use crate::server::{Server, Surroundings};
use crate::store::{Database, Store, StoreError, Write};
use crate::traces::Traces;
use crate::webhooks::{MailConfig, Mailer, Outgoing};

pub(crate) const DATABASE_FILE: &str = "sluice.db";
pub(crate) const GRANT_KEY_FILE: &str = "grant.key";

/// How long a preempted program may continue unless said, in seconds.
pub const GRACE_S: u32 = 10;
/// For how long a GPU whose fault passes by itself has to be without it unless said, in seconds.
pub const GPU_QUIET_S: u32 = 300;

#[derive(Clone, Debug)]
pub struct Config {
    /// `HOST:PORT`; port 0 takes a free one.
    pub listen: String,
    /// It speaks plain text without.
    pub tls: Option<Certificate>,
    pub folder: PathBuf,
    /// SQLite in the data folder unless said.
    pub database: Option<Database>,
    /// At which other servers of the same database reach this one; where it listens unless said.
    pub advertise: Option<String>,
    /// That one token may make, 0 for any number.
    pub requests_per_s: u32,
    /// Without a valid token, from one address; 0 for any number.
    pub failures_per_s: u32,
    /// How long a preempted program may continue, in milliseconds.
    pub grace_ms: u64,
    /// A GPU whose fault passes by itself is used again after this time without it, in
    /// milliseconds.
    pub quiet_ms: u64,
    /// What tenants have used lowers their part of what others leave, and use of this
    /// time ago, in milliseconds, counts half; none of it counts without.
    pub half_life_ms: Option<u64>,
    /// A node that has had no lease for this time, in milliseconds, is an event, for what scales
    /// nodes; none is without.
    pub node_idle_ms: Option<u64>,
    /// Networks beside the public Internet to which webhooks may connect.
    pub webhook_allow: Vec<ipnet::IpNet>,
    /// The mail server for webhooks with `mailto:` URLs, which are refused without.
    pub mail: Option<MailConfig>,
    /// The collector to which traces of leases are sent by OTLP over HTTP; none are sent without.
    pub otlp: Option<String>,
    /// Where to serve metrics beside the API, which serves them to operators; nowhere unless said.
    pub metrics: Option<ExporterConfig>,
}

/// For TLS, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// Why a server does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Setting(String),
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: is no key of 32 bytes", .0.display())]
    Key(PathBuf),
    #[error(
        "{}: the database is {state}, though this data folder has been used: its grant.key is there. Nothing was changed. Put the \
         database back, or restore a backup into another folder (`sluice restore --data NEW_FOLDER BACKUP`). To begin anew without \
         what was counted, start on another folder, or move this one's files away",
        .path.display()
    )]
    DatabaseLost { path: PathBuf, state: &'static str },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    #[error("the first tokens could not be made: {0}")]
    Tokens(sluice_api::problem::Problem),
}

/// Serves until SIGINT or SIGTERM. Says `listening on URL` on standard output when it is ready.
pub fn serve(config: &Config) -> Result<(), ServeError> {
    let running = Running::start(config)?;
    println!("listening on {}", running.url());
    if let Some(url) = running.metrics_url() {
        tracing::info!("metrics at {url}");
    }
    if let Some(serving) = &running.serving {
        serving.runtime.block_on(until_told_to());
    }
    running.stop()
}

/// A server on threads of its own; one that is dropped ends as [`Running::stop`] ends it, if that
/// does not take long.
#[derive(Debug)]
pub struct Running {
    url: String,
    metrics_url: Option<String>,
    /// Until it is stopped.
    serving: Option<Serving>,
}

#[derive(Debug)]
struct Serving {
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
}

/// Dropping a server waits for it this long at most.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// How long a server that stops waits to say so in the database, and for requests in progress to
/// give it back.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

impl Running {
    /// Returns once it answers.
    pub fn start(config: &Config) -> Result<Running, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let ready = runtime.block_on(Ready::open(config))?;
        let (url, metrics_url) = (ready.url.clone(), ready.metrics.as_ref().map(Exporter::url));
        let (stop, stopped) = oneshot::channel();
        let served = runtime.spawn(async move { ready.serve(stopped).await });
        Ok(Running { url, metrics_url, serving: Some(Serving { runtime, stop, served }) })
    }

    /// As programs on this machine reach it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where its metrics are served beside the API, if they are.
    pub fn metrics_url(&self) -> Option<&str> {
        self.metrics_url.as_deref()
    }

    /// Ends it in good order: another server of its database may lead at once.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.serving.take().map_or(Ok(()), |serving| serving.end(Duration::MAX))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.serving.take().map(|serving| serving.end(DROP_PATIENCE)) {
            tracing::warn!("{error}");
        }
    }
}

impl Serving {
    fn end(self, patience: Duration) -> Result<(), ServeError> {
        drop(self.stop);
        let ended = async { tokio::time::timeout(patience, self.served).await };
        let result = match self.runtime.block_on(ended) {
            Ok(served) => served.unwrap_or_else(|lost| Err(io::Error::from(lost).into())),
            Err(late) => Err(io::Error::from(late).into()),
        };
        // What others have yet to answer, such as an identity provider, is not waited for.
        self.runtime.shutdown_background();
        result
    }
}

/// A server that listens, with its state loaded.
struct Ready {
    server: Arc<Server>,
    listener: TcpListener,
    identity: Option<ServerIdentity>,
    url: String,
    tasks: Vec<JoinHandle<()>>,
    limits: http::Limits,
    /// Names this process in the database.
    holder: String,
    metrics: Option<Exporter>,
    _alone: Option<fs::File>,
}

impl Ready {
    async fn open(config: &Config) -> Result<Ready, ServeError> {
        let identity = config.tls.as_ref().map(identity).transpose()?;
        let mailer = config.mail.as_ref().map(Mailer::new).transpose().map_err(ServeError::Setting)?;
        let traces = config.otlp.as_deref().map(Traces::to).transpose().map_err(ServeError::Setting)?;
        let fingerprint = identity.as_ref().map(ServerIdentity::fingerprint);
        let failed = |source| ServeError::Listen { address: config.listen.clone(), source };
        let listener = http::bind(&config.listen).await.map_err(failed)?;
        let own_url = url(listener.local_addr()?, fingerprint);
        private_folder(&config.folder)?;
        let database = config.database.clone();
        let database = database.unwrap_or_else(|| Database::Sqlite(config.folder.join(DATABASE_FILE)));
        let alone = alone(&database)?;
        let key_file = config.folder.join(GRANT_KEY_FILE);
        check_not_lost(&database, &key_file)?;
        let store = Store::open(&database).await?;
        // After the database: a key without one says that the database was lost.
        let signer = Signer::new(key(&key_file)?);
        store.agree_on_grant_key(&signer.verifier().to_text()).await?;
        let patience = Patience { grace_ms: config.grace_ms, quiet_ms: config.quiet_ms };
        let mut server = Server::open(store, signer, patience, Surroundings::default()).await?;
        server.half_life_ms = config.half_life_ms;
        server.node_idle_ms = config.node_idle_ms;
        server.outgoing = Outgoing::new(config.webhook_allow.clone(), mailer);
        server.traces = traces;
        let server = Arc::new(server);
        let candidate = Candidate {
            holder: holder(&config.folder)?,
            url: config.advertise.clone().unwrap_or_else(|| own_url.clone()),
            alone: matches!(database, Database::Sqlite(_)),
        };
        let holder = candidate.holder.clone();
        let _ = server.holder.set(holder.clone());
        let tasks = work(&server, candidate, config.folder.clone(), own_url.clone()).await?;
        let limits = http::Limits::new(config.requests_per_s, config.failures_per_s);
        identity.iter().for_each(|identity| _ = server.certificate.set(identity.clone()));
        let metrics = config.metrics.clone().map(|exporter| {
            let address = exporter.address.clone();
            let source = Arc::new(ServerMetrics::new(Arc::clone(&server)));
            Exporter::start(exporter, source).map_err(|source| ServeError::Listen { address, source })
        });
        let metrics = metrics.transpose()?;
        Ok(Ready { server, listener, identity, url: own_url, holder, tasks, limits, metrics, _alone: alone })
    }

    /// Until `stopped` says something, or its sender is gone.
    async fn serve(self, stopped: oneshot::Receiver<()>) -> Result<(), ServeError> {
        let Ready { server, listener, identity, holder, tasks, limits, metrics: _metrics, _alone, .. } = self;
        let app = http::router(Arc::clone(&server), limits);
        let tls = identity.map(|identity| identity.for_https());
        let places = http::Places::of_files(sluice_transport::raise_descriptor_limit());
        tokio::select! {
            () = http::serve(listener, tls, places, app) => {}
            _ = stopped => {}
        }
        tasks.into_iter().for_each(|task| task.abort());
        if let Some(fence) = server.fence() {
            match server.store.resign(fence).await {
                // Another server waits a moment longer.
                Err(error @ StoreError::DiskFull(_)) => tracing::warn!("{error}"),
                resigned => resigned?,
            }
        }
        // What it leaves behind otherwise counts as silent, and is forgotten after a while.
        let until = tokio::time::Instant::now() + CLOSE_PATIENCE;
        let _ = tokio::time::timeout_at(until, server.store.say_gone(&holder)).await;
        // What is lost of this is the last minute.
        let _ = tokio::time::timeout_at(until, server.write_noted()).await;
        // Its last writes are in the file, and the file is free, when this returns: it may be
        // copied or replaced.
        if tokio::time::timeout_at(until, server.store.close()).await.is_err() {
            tracing::warn!("the database was still in use after {} s", CLOSE_PATIENCE.as_secs());
        }
        Ok(())
    }
}

/// What a server does besides answering. If the lead is free it leads when this returns.
pub(crate) async fn work(
    server: &Arc<Server>,
    candidate: Candidate,
    folder: PathBuf,
    url: String,
) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let of = || Arc::clone(server);
    let (writer, scheduler, treasurer, sender, sizer, clerk) = (of(), of(), of(), of(), of(), of());
    let mut tasks = vec![
        tokio::spawn(async move { writer.write_down().await }),
        tokio::spawn(async move { scheduler.schedule().await }),
        tokio::spawn(async move { treasurer.follow_budgets().await }),
        tokio::spawn(sender.send_events()),
        tokio::spawn(async move { sizer.follow_programs().await }),
        tokio::spawn(async move { clerk.write_last_uses().await }),
    ];
    match server.follow(&candidate).await {
        // It leads when there is room; what is there can be read.
        Err(error @ StoreError::DiskFull(_)) => server.disk.note::<()>(&Err(error)),
        followed => followed?,
    }
    if server.fence().is_some() {
        match keep_tokens(server, &folder, &url).await {
            Err(ServeError::Tokens(problem)) if problem.is(Kind::DiskFull) => {}
            kept => kept?,
        }
    }
    let (member, keeper) = (of(), of());
    tasks.push(tokio::spawn(async move { member.take_part(&candidate).await }));
    tasks.push(tokio::spawn(async move {
        let mut role = keeper.role.subscribe();
        while role.wait_for(|role| matches!(role, Role::Leader(_))).await.is_ok() {
            if let Err(error) = keep_tokens(&keeper, &folder, &url).await {
                tracing::warn!("{error}");
                tokio::time::sleep(KEEP_TOKENS_AGAIN).await;
                continue;
            }
            if role.wait_for(|role| !matches!(role, Role::Leader(_))).await.is_err() {
                return;
            }
        }
    }));
    Ok(tasks)
}

/// A database in a file is one server's; the file beside it is locked for as long as the answer
/// lives.
pub(crate) fn alone(database: &Database) -> Result<Option<fs::File>, ServeError> {
    let Database::Sqlite(path) = database else { return Ok(None) };
    let path = path.with_extension("lock");
    let failed = |source| ServeError::File { path: path.clone(), source };
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        Err(fs::TryLockError::WouldBlock) => {
            let why =
                "another server uses this database; several servers share one with --database postgres://...";
            Err(failed(io::Error::other(why)))
        }
    }
}

/// How a file of SQLite's begins (Database File Format, "Magic Header String").
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// The first bytes of a file, fewer where it has fewer.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(SQLITE.len() as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Refuses to make a new database in the place of one that was there: who begins to serve without
/// what was counted loses it for good.
fn check_not_lost(database: &Database, key_file: &Path) -> Result<(), ServeError> {
    let Database::Sqlite(path) = database else { return Ok(()) };
    let state = match head(path) {
        Ok(head) if head == *SQLITE => return Ok(()),
        Ok(head) if head.is_empty() => "empty",
        Ok(_) => "none of SQLite's, or damaged",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "missing",
        Err(source) => return Err(ServeError::File { path: path.clone(), source }),
    };
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    let was_used = key_file.exists() || fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    if was_used { Err(ServeError::DatabaseLost { path: path.clone(), state }) } else { Ok(()) }
}

/// What it shows to clients.
fn identity(certificate: &Certificate) -> Result<ServerIdentity, ServeError> {
    let identity = ServerIdentity::load(&certificate.chain, &certificate.key, None);
    let identity = identity.map_err(ServeError::Certificate)?;
    identity.follow_files(FileLog {
        changed: |text| tracing::info!("{text}"),
        failed: |text| tracing::warn!("{text}"),
    })?;
    Ok(identity)
}

/// Names this process among all that use the database, also among containers that look alike.
fn holder(folder: &Path) -> Result<String, ServeError> {
    let number = u64::from_le_bytes(auth::random::<8>()?);
    Ok(format!("{} of {} ({number:016x})", std::process::id(), folder.display()))
}

/// As programs on this machine reach it.
fn url(address: SocketAddr, fingerprint: Option<Fingerprint>) -> String {
    let scheme = if fingerprint.is_some() { "https" } else { "http" };
    let base = match address {
        _ if !address.ip().is_unspecified() => format!("{scheme}://{address}"),
        SocketAddr::V4(_) => format!("{scheme}://127.0.0.1:{}", address.port()),
        SocketAddr::V6(_) => format!("{scheme}://[::1]:{}", address.port()),
    };
    ServerUrl { base, fingerprint }.to_string()
}

/// The folder is made for its user alone; one that others can enter is refused.
pub(crate) fn private_folder(folder: &Path) -> Result<(), ServeError> {
    let failed = |source| ServeError::File { path: folder.into(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let mode = fs::metadata(folder).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let why = "others can enter it, and it holds keys; chmod 700";
        return Err(failed(io::Error::other(why)));
    }
    Ok(())
}

/// The key of the folder, made the first time.
fn key(path: &Path) -> Result<[u8; 32], ServeError> {
    let failed = |source| ServeError::File { path: path.into(), source };
    match fs::read(path) {
        Ok(bytes) => bytes.try_into().map_err(|_| ServeError::Key(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes = auth::random::<32>()?;
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
            file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
            Ok(bytes)
        }
        Err(error) => Err(failed(error)),
    }
}

/// If the files of tokens could not be kept, this is tried again after this time.
const KEEP_TOKENS_AGAIN: Duration = Duration::from_secs(60);

/// Writes the files with the tokens of the administrator and of the node of `sluice up`. Tokens
/// that hold stay; their files follow the server's address, as far as there is room on the disk.
async fn keep_tokens(server: &Server, folder: &Path, url: &str) -> Result<(), ServeError> {
    const LIFETIME_MS: u64 = 366 * 24 * 3_600_000;
    let own =
        [(ADMIN_FILE, token::Role::Platform, "administrator"), (NODE_FILE, token::Role::Node, "own node")];
    for (file, role, whose) in own {
        let path = folder.join(file);
        let known = match Settings::read(&path) {
            Err(SettingsError::Damaged { path, cause }) => {
                tracing::warn!("{}: it was damaged ({cause}), and gets a new token now", path.display());
                None
            }
            known => known?,
        };
        let known = match known {
            Some(known) if auth::recognise(server, &known.token, server.now_ms()).await.is_ok() => {
                Some(known)
            }
            _ => None,
        };
        let token = match &known {
            Some(known) if known.server == url => continue,
            Some(known) => known.token.clone(),
            None => {
                let name = format!("{whose}, kept in {file}");
                let (stored, secret) =
                    auth::make(TenantPath::root(), role, name, None, LIFETIME_MS, server.now_ms())?;
                let mut change = server.change().await.map_err(ServeError::Tokens)?;
                let token = stored.token.clone();
                change.audit(&Principal::server(), "token.made", &token.id, serde_json::json!(token));
                change.write(Write::Token(stored));
                change.commit().await.map_err(ServeError::Tokens)?;
                secret
            }
        };
        let settings = Settings { server: url.into(), token, login: None };
        match settings.write(&path) {
            // Nothing is lost but the way to the server, which it says where it is started.
            Err(error) if known.is_some() => {
                tracing::warn!("{error}; the file does not say that this server is at {url} now");
            }
            written => written?,
        }
    }
    Ok(())
}

async fn until_told_to() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(test)]
mod tests;
