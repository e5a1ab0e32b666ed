//! Stand-ins for the API server, for Sluice's server, and for `sluice hold`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use sluice_api::client::Client;
use tempfile::TempDir;

use super::super::prepared::Driver;
use crate::api::{Api, Patch};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/red/resourceclaims";
/// Writes the session file, and holds until it is killed.
const HOLD: &str =
    "#!/bin/sh\nmkdir -p \"$7\"\necho session > \"$5.new\"\nmv \"$5.new\" \"$5\"\nexec sleep 600\n";

/// A cluster of one machine, and the server that its driver asks.
pub(crate) struct Cluster {
    api_server: Child,
    api_url: String,
    pub(super) server: Server,
    files: TempDir,
    other_files: TempDir,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/kubernetes/api_server.py");
        let mut command = Command::new("python3");
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut api_server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(api_server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let api_url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        let (files, other_files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let authority = authority.self_signed(&key).unwrap();
        for (name, text) in [("authority", authority.pem().as_str()), ("token", "t"), ("hold", HOLD)] {
            fs::write(files.path().join(name), text).unwrap();
        }
        fs::set_permissions(files.path().join("hold"), fs::Permissions::from_mode(0o755)).unwrap();
        Cluster { api_server, api_url, server: Server::start(), files, other_files }
    }

    pub(crate) fn api(&self) -> Api {
        let file = |name: &str| self.files.path().join(name);
        Api::new(&self.api_url, &file("authority"), &file("token")).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.server.url, "t")
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.files.path().join("driver")
    }

    pub(super) fn cdi(&self) -> PathBuf {
        self.files.path().join("cdi")
    }

    /// A process of the driver. The one before is killed with its children, as with a container.
    pub(super) fn driver(&self) -> Arc<Driver> {
        self.driver_at(&self.files)
    }

    /// The driver of another machine of the cluster.
    pub(super) fn another_machine(&self) -> Arc<Driver> {
        self.driver_at(&self.other_files)
    }

    fn driver_at(&self, files: &TempDir) -> Arc<Driver> {
        let folder = files.path().join("driver");
        fs::create_dir_all(&folder).unwrap();
        Arc::new(Driver {
            api: self.api(),
            client: self.client(),
            server: self.server.url.clone(),
            cluster: "c".into(),
            tenants: Default::default(),
            ptx: false,
            folder,
            cdi: files.path().join("cdi"),
            sluice: self.files.path().join("hold"),
            grant_time_max: Duration::ZERO,
            entries: Default::default(),
        })
    }

    /// Makes a claim to which the scheduler has given a part of the first GPU.
    pub(super) fn make_claim(&self, name: &str, percent: &str) {
        self.make_claim_with_uid(name, percent, &format!("uid-{name}"));
    }

    pub(super) fn make_claim_with_uid(&self, name: &str, percent: &str, uid: &str) {
        let claim = json!({
            "metadata": { "name": name, "wantedUid": uid },
            "status": {
                "reservedFor": [{ "resource": "pods", "name": "p", "uid": "p" }],
                "allocation": { "devices": { "results": [{
                    "driver": "gpu.sluice.dev", "request": "gpu", "pool": "sluice", "device": "gpu-1-0",
                    "shareID": "s", "consumedCapacity": { "share": percent, "memory": "0" },
                }] } },
            },
        });
        self.api().post(CLAIMS, &claim).unwrap();
    }

    /// Has the scheduler give the claim another part of the GPU.
    pub(super) fn allocate(&self, name: &str, percent: &str) {
        let mut status = self.claim(name)["status"].clone();
        status["allocation"]["devices"]["results"][0]["consumedCapacity"]["share"] = percent.into();
        let change = json!({ "status": status });
        self.api().patch(&format!("{CLAIMS}/{name}"), Patch::Merge, &change).unwrap();
    }

    /// The program that stands for `sluice`.
    pub(super) fn holder(&self) -> PathBuf {
        self.files.path().join("hold")
    }

    /// Has all pods that use a claim end.
    pub(super) fn release_claim(&self, name: &str) {
        let change = json!({ "status": { "reservedFor": [] } });
        self.api().patch(&format!("{CLAIMS}/{name}"), Patch::Merge, &change).unwrap();
    }

    pub(super) fn delete_claim(&self, name: &str) {
        self.api().delete(&format!("{CLAIMS}/{name}")).unwrap();
    }

    pub(super) fn claim(&self, name: &str) -> Value {
        self.api().get(&format!("{CLAIMS}/{name}")).unwrap()
    }

    /// The CDI device of a claim, if it is there.
    pub(super) fn device(&self, claim: &str) -> Option<Value> {
        let text = fs::read_to_string(self.cdi().join(format!("sluice-uid-{claim}.json"))).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    pub(super) fn slices(&self) -> Vec<Value> {
        let list = self.api().get("/apis/resource.k8s.io/v1/resourceslices").unwrap();
        let mut slices = list["items"].as_array().unwrap().clone();
        slices.sort_by_key(|slice| slice["metadata"]["name"].to_string());
        slices
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.api_server.kill();
        let _ = self.api_server.wait();
    }
}

/// Leases by their number.
#[derive(Default)]
struct Ledger {
    leases: BTreeMap<u64, (Request, Value)>,
    /// How often each was asked for.
    asked: BTreeMap<u64, u32>,
    gpus: u32,
}

/// What a lease was asked for with.
struct Request {
    idempotency_key: String,
    body: Value,
}

/// Sluice's server, as far as the driver asks it.
pub(super) struct Server {
    url: String,
    ledger: Arc<Mutex<Ledger>>,
    _runtime: tokio::runtime::Runtime,
}

type Shared = State<Arc<Mutex<Ledger>>>;

impl Server {
    fn start() -> Server {
        let ledger = Arc::new(Mutex::new(Ledger { gpus: 1, ..Ledger::default() }));
        let api = Router::new()
            .route("/gpus", get(gpus))
            .route("/pools", get(|| async { Json(json!({ "items": [] })) }))
            .route("/leases", post(ask))
            .route("/leases/{id}", get(lease).delete(end))
            .with_state(Arc::clone(&ledger));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().nest("/api/v1", api);
        runtime.spawn(async { axum::serve(listener, app).await });
        Server { url, ledger, _runtime: runtime }
    }

    pub(super) fn open_leases(&self) -> Vec<u64> {
        let ledger = self.ledger.lock().unwrap();
        let open = ledger.leases.iter().filter(|(_, (_, lease))| lease["state"] != "ended");
        open.map(|(id, _)| *id).collect()
    }

    pub(super) fn asked(&self, lease: u64) -> u32 {
        self.ledger.lock().unwrap().asked.get(&lease).copied().unwrap_or(0)
    }

    pub(super) fn set_state(&self, lease: u64, state: &str) {
        self.ledger.lock().unwrap().leases.get_mut(&lease).unwrap().1["state"] = state.into();
    }

    /// Preempts a lease, which waits again.
    pub(super) fn queue_again(&self, lease: u64) {
        let mut ledger = self.ledger.lock().unwrap();
        let lease = &mut ledger.leases.get_mut(&lease).unwrap().1;
        lease["state"] = "queued".into();
        lease["attempt"] = (lease["attempt"].as_u64().unwrap() + 1).into();
    }

    pub(super) fn set_gpus(&self, gpus: u32) {
        self.ledger.lock().unwrap().gpus = gpus;
    }
}

async fn gpus(State(ledger): Shared) -> Json<Value> {
    let gpu =
        |index| serde_json::to_value(super::super::devices::tests::gpu("gpu-1", index, "A100")).unwrap();
    let gpus: Vec<Value> = (0..ledger.lock().unwrap().gpus).map(gpu).collect();
    Json(json!({ "items": gpus }))
}

async fn ask(
    State(ledger): Shared,
    headers: HeaderMap,
    Json(asked): Json<Value>,
) -> Result<Json<Value>, StatusCode> {
    let mut ledger = ledger.lock().unwrap();
    let key = headers["Idempotency-Key"].to_str().unwrap().to_owned();
    let known = ledger.leases.iter().find(|(_, (request, _))| request.idempotency_key == key);
    if known.is_some_and(|(_, (request, _))| request.body != asked) {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let id = known.map_or(ledger.leases.len() as u64 + 1, |(id, _)| *id);
    let lease = || {
        json!({
            "id": id, "tenant": "red", "name": asked["name"], "gpus": 1, "tasks": 1, "share_ppm": asked["share_ppm"],
            "memory": 0, "priority": 100, "tier": "standard", "preemptible": true, "state": "queued", "attempt": 1,
            "created_at_ms": 0, "revision": 1, "reason": "no GPU has room for it", "key": "k",
        })
    };
    let share = |lease: &Value| lease["share_ppm"].as_u64().unwrap();
    let holds = |lease: &Value| !["queued", "ended"].contains(&lease["state"].as_str().unwrap());
    let taken: u64 =
        ledger.leases.values().map(|(_, lease)| lease).filter(|lease| holds(lease)).map(share).sum();
    let asked = || Request { idempotency_key: key, body: asked.clone() };
    let (_, lease) = ledger.leases.entry(id).or_insert_with(|| (asked(), lease()));
    if lease["state"] == "queued" && taken + share(lease) <= 1_000_000 {
        lease["state"] = "granted".into();
    }
    Ok(Json(lease.clone()))
}

async fn lease(State(ledger): Shared, Path(id): Path<u64>) -> Json<Value> {
    let mut ledger = ledger.lock().unwrap();
    *ledger.asked.entry(id).or_default() += 1;
    Json(ledger.leases[&id].1.clone())
}

async fn end(State(ledger): Shared, Path(id): Path<u64>) -> Json<Value> {
    let mut ledger = ledger.lock().unwrap();
    let (_, lease) = ledger.leases.get_mut(&id).unwrap();
    lease["state"] = "ended".into();
    Json(lease.clone())
}
