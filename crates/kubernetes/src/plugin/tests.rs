//! The plugin with a kubelet that is made here, and with a server that comes and goes.

use std::sync::mpsc;

use tokio::net::TcpListener;

use super::services::device_plugin_client::DevicePluginClient;
use super::services::registration_server::{Registration, RegistrationServer};
use super::*;
use crate::plugin::messages::ContainerAllocateRequest;

/// Catches a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kubelet's registration, which reports each request.
struct Kubelet(mpsc::Sender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Answer<Empty> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::invalid_argument("an unknown version"));
        }
        self.0.send(request).map_err(|_| Status::internal("the test is over"))?;
        Ok(Response::new(Empty {}))
    }
}

/// Starts as a kubelet does: it empties the folder, and listens anew.
fn start_kubelet(folder: &Path) -> (tokio::task::JoinHandle<()>, mpsc::Receiver<RegisterRequest>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    let listener = UnixListener::bind(folder.join(KUBELET_SOCKET)).unwrap();
    let (sender, requests) = mpsc::channel();
    let served = Server::builder()
        .add_service(RegistrationServer::new(Kubelet(sender)))
        .serve_with_incoming(UnixListenerStream::new(listener));
    (tokio::spawn(async { served.await.unwrap() }), requests)
}

async fn registered(requests: mpsc::Receiver<RegisterRequest>) -> RegisterRequest {
    tokio::task::spawn_blocking(move || requests.recv_timeout(PATIENCE).unwrap()).await.unwrap()
}

async fn plugin_at(folder: &Path) -> DevicePluginClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", folder.join(OWN_SOCKET).display())).unwrap();
    DevicePluginClient::new(endpoint.connect().await.unwrap())
}

fn run_plugin(folder: &Path, server: &str) -> tokio::task::JoinHandle<()> {
    let arguments = PluginArguments { server: server.into(), slots: 3, folder: folder.into() };
    tokio::spawn(async move {
        let Err(error) = run(arguments).await;
        panic!("{error:#}");
    })
}

fn request(ids: &[&str]) -> AllocateRequest {
    let devices_ids = ids.iter().map(ToString::to_string).collect();
    AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] }
}

/// A server that says that it is well, at an address.
async fn serve_health(listener: TcpListener) {
    let app = axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" }));
    let app = Server::builder().accept_http1(true).add_routes(tonic::service::Routes::from(app));
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    app.serve_with_incoming(incoming).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_learns_the_slots_and_their_health() {
    let folder = tempfile::tempdir().unwrap();
    let (_kubelet, requests) = start_kubelet(folder.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let plugin = run_plugin(folder.path(), &format!("http://{address}"));
    let asked = registered(requests).await;
    assert_eq!((asked.endpoint.as_str(), asked.resource_name.as_str()), (OWN_SOCKET, "sluice.dev/gpu"));

    let mut client = plugin_at(folder.path()).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let health = |list: ListAndWatchResponse| {
        assert_eq!(list.devices.len(), 3);
        list.devices[2].health.clone()
    };
    assert_eq!(health(lists.message().await.unwrap().unwrap()), UNHEALTHY, "no server listens");
    let server = tokio::spawn(serve_health(TcpListener::bind(address).await.unwrap()));
    assert_eq!(health(lists.message().await.unwrap().unwrap()), HEALTHY);
    server.abort();
    let _ = server.await;
    assert_eq!(health(lists.message().await.unwrap().unwrap()), UNHEALTHY);
    plugin.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_starts_again_is_told_again() {
    let folder = tempfile::tempdir().unwrap();
    // The plugin may be there before the kubelet.
    let plugin = run_plugin(folder.path(), "http://127.0.0.1:1");
    for _ in 0..3 {
        let (kubelet, requests) = start_kubelet(folder.path());
        registered(requests).await;
        plugin_at(folder.path()).await.allocate(request(&["slot-0"])).await.unwrap();
        kubelet.abort();
        let _ = kubelet.await;
    }
    plugin.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_slots_of_this_machine_are_allocated() {
    let folder = tempfile::tempdir().unwrap();
    let (_kubelet, requests) = start_kubelet(folder.path());
    let plugin = run_plugin(folder.path(), "http://127.0.0.1:1");
    registered(requests).await;
    let mut client = plugin_at(folder.path()).await;
    let answer = client.allocate(request(&["slot-0", "slot-2"])).await.unwrap().into_inner();
    assert_eq!(answer.container_responses.len(), 1);
    for id in ["slot-3", "gpu-0", "slot-"] {
        let status = client.allocate(request(&[id])).await.unwrap_err();
        assert!(status.code() == tonic::Code::NotFound && status.message().contains(id), "{status}");
    }
    plugin.abort();
}
