//! A server of a simulation: the real one, on a runtime of its own whose clock stands still until
//! it is made to continue.
//!
//! Each has one thread's worth of work at a time and is run until it waits for nothing but time, so
//! that what happens depends on what it is given alone. Dropping the runtime is the crash: every
//! task stops where it stands.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use sluice_api::grant::Signer;
use sluice_api::problem::{Kind, Problem};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tower::ServiceExt;

use super::network::Party;
use crate::config;
use crate::fleet::Patience;
use crate::http::{LeaderClient, Limits, router};
use crate::leader::Candidate;
use crate::server::{Server, Surroundings};
use crate::store::Store;
use crate::store::faults::Faults;

/// When every simulation begins, in milliseconds since 1970.
pub(super) const BEGIN_MS: u64 = 1_800_000_000_000;
pub(super) const GRACE_MS: u64 = 5_000;
/// As the one that hands requests on in production.
const FORWARD_TIME_MAX: Duration = Duration::from_secs(30);

/// True time, in milliseconds since the beginning, and how far a replica's clock is off.
#[derive(Clone, Debug, Default)]
pub(super) struct Time {
    pub(super) now_ms: Arc<AtomicU64>,
    pub(super) off_ms: Arc<AtomicI64>,
}

impl Time {
    /// Returns a separate clock that shows this time.
    pub(super) fn another(&self) -> Time {
        Time { now_ms: Arc::clone(&self.now_ms), off_ms: Arc::default() }
    }

    pub(super) fn wall_ms(&self) -> u64 {
        let now_ms = BEGIN_MS + self.now_ms.load(Ordering::Relaxed);
        now_ms.saturating_add_signed(self.off_ms.load(Ordering::Relaxed))
    }
}

/// What a server asks the one that it takes for the leader.
pub(super) struct Forward {
    pub(super) url: String,
    pub(super) request: Request<Bytes>,
    pub(super) reply: oneshot::Sender<Response>,
}

pub(super) struct Answer {
    pub(super) exchange: u64,
    pub(super) to: Party,
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// What a server has said since it was asked last.
#[derive(Default)]
struct Said {
    answers: Vec<Answer>,
    forwards: Vec<Forward>,
}

pub(super) struct Replica {
    runtime: Option<Runtime>,
    idle: Arc<Idle>,
    app: Router,
    pub(super) server: Arc<Server>,
    said: Arc<Mutex<Said>>,
    /// Keeps the runtime's clock from advancing by itself.
    _stopped_clock: mpsc::Sender<()>,
}

/// Finds out when a runtime waits for nothing but time.
#[derive(Default)]
struct Idle(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    store: Option<Store>,
    reached: bool,
    waker: Option<Waker>,
}

impl Idle {
    /// No task can continue; if no statement is under way either, nothing will.
    fn parks(&self) {
        let mut waiting = self.0.lock().unwrap();
        if waiting.store.as_ref().is_some_and(Store::rests)
            && let Some(waker) = waiting.waker.take()
        {
            waiting.reached = true;
            waker.wake();
        }
    }

    async fn reached(&self) {
        std::future::poll_fn(|context| {
            let mut waiting = self.0.lock().unwrap();
            if std::mem::take(&mut waiting.reached) {
                return Poll::Ready(());
            }
            waiting.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Puts what is asked where the network finds it.
struct ToOthers(Arc<Mutex<Said>>);

impl LeaderClient for ToOthers {
    fn ask<'a>(
        &'a self,
        leader: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response, Problem>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.0.lock().unwrap().forwards.push(Forward { url: leader.into(), request, reply });
            match tokio::time::timeout(FORWARD_TIME_MAX, answer).await {
                Ok(Ok(response)) => Ok(response),
                _ => Err(Problem::new(Kind::Unavailable, "the leader did not answer")),
            }
        })
    }
}

impl Replica {
    /// Starts as `sluice server` does; none if it finds no database.
    pub(super) fn start(
        name: &str,
        folder: &Path,
        database: &Path,
        time: Time,
        faults: Arc<Faults>,
    ) -> Option<Replica> {
        faults.forget();
        let idle = Arc::new(Idle::default());
        let parked = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            // What another thread wakes, which is the database's only, comes after all that can go
            // on without.
            .global_queue_interval(u32::MAX)
            .on_thread_park(move || parked.parks())
            .build()
            .unwrap();
        let (stopped_clock, ends) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || ends.recv());
        let said = Arc::new(Mutex::new(Said::default()));
        let link = Box::new(ToOthers(Arc::clone(&said)));
        let url = url(name);
        let started = runtime.block_on(async {
            let store = Store::simulated(database, faults).await?;
            let signer = Signer::new([7; 32]);
            store.agree_on_grant_key(&signer.verifier().to_text()).await?;
            idle.0.lock().unwrap().store = Some(store.clone());
            let surroundings = Surroundings { clock: Box::new(move || time.wall_ms()), link };
            let patience = Patience { grace_ms: GRACE_MS, quiet_ms: 10_000 };
            let server = Arc::new(Server::open(store, signer, patience, surroundings).await?);
            let candidate = Candidate { holder: name.into(), url: url.clone(), alone: false };
            config::work(&server, candidate, folder.to_owned(), url).await?;
            Ok::<_, config::ServeError>(server)
        });
        match started {
            Ok(server) => {
                let app = router(Arc::clone(&server), Limits::new(0, 0));
                let runtime = Some(runtime);
                Some(Replica { runtime, idle, app, server, said, _stopped_clock: stopped_clock })
            }
            Err(_) => {
                drop(stopped_clock);
                runtime.shutdown_background();
                None
            }
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it runs until it is dropped")
    }

    /// Hands it a request; what it answers is in [`Replica::take_said`] some time.
    pub(super) fn ask(&self, exchange: u64, from: Party, request: Request<Bytes>) {
        let (app, said) = (self.app.clone(), Arc::clone(&self.said));
        self.runtime().spawn(async move {
            let Ok(response) = app.oneshot(request.map(Body::from)).await;
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
            said.lock().unwrap().answers.push(Answer { exchange, to: from, status, body });
        });
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(task);
    }

    /// Lets it work until it waits for nothing but time and messages.
    pub(super) fn settle(&self) {
        self.runtime().block_on(self.idle.reached());
    }

    pub(super) fn pass(&self, time: Duration) {
        self.runtime().block_on(async {
            tokio::time::advance(time).await;
            self.idle.reached().await;
        });
    }

    pub(super) fn take_said(&self) -> (Vec<Answer>, Vec<Forward>) {
        let mut said = std::mem::take(&mut *self.said.lock().unwrap());
        // Tokio wakes those who wait for one thing in an order that it draws.
        said.answers.sort_by_key(|answer| answer.exchange);
        said.forwards.sort_by_cached_key(|forward| {
            let request = &forward.request;
            (request.uri().to_string(), request.method().to_string(), request.body().clone())
        });
        (said.answers, said.forwards)
    }

    pub(super) fn leads(&self) -> bool {
        self.server.fence().is_some()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where other servers reach the one of this name.
pub(super) fn url(name: &str) -> String {
    format!("http://{name}:7580")
}
