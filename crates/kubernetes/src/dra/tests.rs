//! The driver with a kubelet that is made here, with `tests/kubernetes/api_server.py`, and with a
//! stand-in for Sluice's server that grants leases while one GPU has room. A script takes the place
//! of `sluice hold`, which the end-to-end tests run as it is.

pub(crate) mod stand_ins;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use super::devices::Publisher;
use super::messages::{ClaimName, PreparedDevice};
use super::services::d_r_a_plugin_client::DRAPluginClient;
use super::services::registration_client::RegistrationClient;
use super::*;
use stand_ins::Cluster;

fn name(claim: &str) -> ClaimName {
    ClaimName { namespace: "red".into(), uid: format!("uid-{claim}"), name: claim.into() }
}

async fn connect(socket: &Path) -> Channel {
    connect_to(Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap()).await
}

/// Connects as a kubelet does to a socket in its folder of plugins: the authority of its requests
/// is the socket's path, encoded as by `encodeAuthority` of grpc-go.
async fn connect_to_plugin(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let encoded = |byte: u8| match byte {
        b'-' | b'_' | b'.' | b'@' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let authority: String = socket.to_str().unwrap().bytes().map(encoded).collect();
    connect_to(endpoint.origin(format!("http://{authority}").parse().unwrap())).await
}

async fn connect_to(endpoint: Endpoint) -> Channel {
    loop {
        match endpoint.connect().await {
            Ok(channel) => return channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_finds_the_driver_and_claims_are_prepared_once() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let registry = tempfile::tempdir().unwrap();
    let (driver, folder) = (cluster.driver(), cluster.folder());
    let registry_path = registry.path().to_owned();
    let served =
        tokio::spawn(async move { serve(driver, &folder, &registry_path).await.unwrap_err().to_string() });

    let mut registrar =
        RegistrationClient::new(connect_to_plugin(&registry.path().join("gpu.sluice.dev@reg.sock")).await);
    let info = registrar.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("DRAPlugin", "gpu.sluice.dev"));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
    registrar.notify_registration_status(registered).await.unwrap();
    let mut kubelet = DRAPluginClient::new(connect(Path::new(&info.endpoint)).await);

    let cluster = Arc::new(cluster);
    let made = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || made.make_claim("quarter", "25")).await.unwrap();
    // Two pods share the claim, and the kubelet asks for each, and twice for both.
    let claims = vec![name("quarter"), name("missing")];
    let mut answers = Vec::new();
    for _ in 0..3 {
        let request = PrepareRequest { claims: claims.clone() };
        answers.push(kubelet.node_prepare_resources(request).await.unwrap().into_inner().claims);
    }
    let first = &answers[0]["uid-quarter"];
    assert_eq!(first.error, "");
    assert_eq!(first.devices[0].cdi_device_ids, ["gpu.sluice.dev/claim=uid-quarter"]);
    assert_eq!(first.devices[0].share_id.as_deref(), Some("s"));
    assert!(answers[0]["uid-missing"].error.contains("not found"), "{answers:?}");
    assert!(answers.iter().all(|answer| answer["uid-quarter"] == *first), "{answers:?}");
    assert_eq!(cluster.server.open_leases().len(), 1);

    for _ in 0..2 {
        let request = UnprepareRequest { claims: claims.clone() };
        let answer = kubelet.node_unprepare_resources(request).await.unwrap().into_inner().claims;
        assert!(answer.len() == 2 && answer.values().all(|claim| claim.error.is_empty()), "{answer:?}");
    }
    assert!(cluster.server.open_leases().is_empty());

    let refused = RegistrationStatus { plugin_registered: false, error: "an unknown version".into() };
    registrar.notify_registration_status(refused).await.unwrap();
    assert!(served.await.unwrap().contains("an unknown version"));
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claims_of_a_pod_are_prepared_at_the_same_time() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    // Each holder waits until that of the other claim has started.
    let hold = "#!/bin/sh\nhere=$(dirname \"$0\")\ntouch \"$here/started-$$\"\n\
                until [ \"$(ls \"$here\" | grep -c started-)\" = 2 ]; do sleep 0.01; done\n\
                echo session > \"$5.new\"\nmv \"$5.new\" \"$5\"\nexec sleep 600\n";
    fs::write(cluster.holder(), hold).unwrap();
    let plugin = Plugin(cluster.driver());
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.make_claim("a", "25");
        cluster.make_claim("b", "25");
        cluster
    })
    .await
    .unwrap();
    let request = PrepareRequest { claims: vec![name("a"), name("b")] };
    use services::d_r_a_plugin_server::DRAPlugin;
    let prepared = plugin.node_prepare_resources(Request::new(request)).await.unwrap().into_inner().claims;
    assert!(prepared.len() == 2 && prepared.values().all(|claim| claim.error.is_empty()), "{prepared:?}");
    tokio::task::spawn_blocking(move || drop((plugin, cluster))).await.unwrap();
}

#[test]
fn a_prepared_claim_has_a_device_and_its_status_names_the_lease() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    let driver = cluster.driver();
    driver.prepare(&name("quarter")).unwrap();
    let device = cluster.device("quarter").unwrap();
    let edits = &device["devices"][0]["containerEdits"];
    let mounted: Vec<&Value> =
        edits["mounts"].as_array().unwrap().iter().map(|mount| &mount["containerPath"]).collect();
    assert_eq!(mounted, ["/opt/sluice", "/run/sluice"]);
    assert!(
        edits["env"].as_array().unwrap().contains(&json!("SLUICE_SESSION=@/run/sluice/session")),
        "{edits}"
    );
    // The key of the lease is where no container sees it.
    let session = edits["mounts"][1]["hostPath"].as_str().unwrap();
    assert_eq!(fs::read_dir(session).unwrap().count(), 1, "only the session file is mounted");
    let status = &cluster.claim("quarter")["status"]["devices"][0];
    assert_eq!((&status["data"]["lease"], &status["conditions"][0]["status"]), (&json!(1), &json!("True")));
    assert_eq!(status["shareID"], "s");
    driver.unprepare("uid-quarter").unwrap();
    assert!(cluster.device("quarter").is_none() && !cluster.folder().join("claims/uid-quarter").exists());
}

#[test]
fn a_claim_without_room_waits_with_the_servers_reason() {
    let cluster = Cluster::start();
    for (claim, percent) in [("a", "25"), ("b", "50"), ("c", "50")] {
        cluster.make_claim(claim, percent);
    }
    let driver = cluster.driver();
    driver.prepare(&name("a")).unwrap();
    driver.prepare(&name("b")).unwrap();
    for _ in 0..2 {
        let why = driver.prepare(&name("c")).unwrap_err();
        assert!(why.contains("no GPU has room for it"), "{why}");
    }
    assert_eq!(cluster.server.open_leases().len(), 3, "the claim that waits keeps its place");
    let asked = cluster.server.asked(3);
    driver.tend();
    assert!(cluster.server.asked(3) > asked, "a lease that nothing asks for leaves the queue");
    driver.unprepare("uid-b").unwrap();
    driver.prepare(&name("c")).unwrap();
    assert_eq!(cluster.server.open_leases(), [1, 3]);
}

#[test]
fn a_driver_that_starts_again_holds_the_leases_again() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    let before: Vec<PreparedDevice> = cluster.driver().prepare(&name("quarter")).unwrap();
    // What nothing can be made of stops nothing.
    fs::create_dir_all(cluster.folder().join("claims/broken/session")).unwrap();
    fs::write(cluster.folder().join("claims/no uid"), "x").unwrap();
    let driver = cluster.driver();
    driver.take_up();
    assert!(driver.has_holder("uid-quarter"));
    // The machine has started again: its folder of CDI devices is empty.
    fs::remove_dir_all(cluster.cdi()).unwrap();
    assert_eq!(driver.prepare(&name("quarter")).unwrap(), before);
    assert!(cluster.device("quarter").is_some());
    assert_eq!(cluster.server.open_leases(), [1]);
    driver.tend();
    assert_eq!(cluster.server.open_leases(), [1], "a claim in use stays");
}

#[test]
fn a_claim_that_is_allocated_anew_gets_another_lease() {
    let cluster = Cluster::start();
    cluster.make_claim("all", "100");
    cluster.make_claim("named", "50");
    let driver = cluster.driver();
    driver.prepare(&name("named")).unwrap();
    driver.unprepare("uid-named").unwrap();
    cluster.allocate("named", "25");
    driver.prepare(&name("named")).unwrap();
    assert_eq!(cluster.server.open_leases(), [2]);
    // A lease that waits does not stay in the queue for what the claim does not ask for any more.
    driver.prepare(&name("all")).unwrap_err();
    assert_eq!(cluster.server.open_leases(), [2, 3]);
    cluster.allocate("all", "75");
    driver.prepare(&name("all")).unwrap();
    assert_eq!(cluster.server.open_leases(), [2, 4]);
}

#[test]
fn a_holder_that_did_not_start_is_started_with_the_next_look() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    cluster.driver().prepare(&name("quarter")).unwrap();
    let away = cluster.holder().with_extension("away");
    fs::rename(cluster.holder(), &away).unwrap();
    let driver = cluster.driver();
    driver.take_up();
    driver.tend();
    assert!(!driver.has_holder("uid-quarter"));
    fs::rename(&away, cluster.holder()).unwrap();
    driver.tend();
    assert!(driver.has_holder("uid-quarter"));
    assert_eq!(cluster.server.open_leases(), [1]);
}

#[test]
fn a_claim_that_is_prepared_while_it_is_unprepared_is_held_or_gone() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    let driver = cluster.driver();
    for _ in 0..10 {
        driver.prepare(&name("quarter")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| driver.unprepare("uid-quarter").unwrap());
            scope.spawn(|| driver.prepare(&name("quarter")).unwrap());
            scope.spawn(|| driver.tend());
        });
        let (device, leases) = (cluster.device("quarter"), cluster.server.open_leases());
        let is_held = driver.has_holder("uid-quarter");
        assert!(device.is_some() == is_held && leases.len() == usize::from(is_held), "{device:?} {leases:?}");
    }
}

#[test]
fn a_claim_is_prepared_once_its_holder_has_said_so() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    cluster.driver().prepare(&name("quarter")).unwrap();
    cluster.server.set_state(1, "running");
    // The session is there, and the node does not know it any more.
    fs::write(cluster.holder(), "#!/bin/sh\nexit 3\n").unwrap();
    let why = cluster.driver().prepare(&name("quarter")).unwrap_err();
    assert!(why.contains("ended with exit status: 3"), "{why}");
}

#[test]
fn the_session_of_an_earlier_attempt_is_of_no_use() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    let driver = cluster.driver();
    driver.prepare(&name("quarter")).unwrap();
    let session = cluster.folder().join("claims/uid-quarter/session/session");
    fs::write(&session, "of the first attempt").unwrap();
    cluster.server.queue_again(1);
    driver.kill_holder("uid-quarter");
    driver.tend();
    assert!(!driver.has_holder("uid-quarter"), "the attempt is over");
    driver.prepare(&name("quarter")).unwrap();
    assert_eq!(fs::read_to_string(&session).unwrap(), "session\n");
    driver.kill_holder("uid-quarter");
    driver.tend();
    assert!(driver.has_holder("uid-quarter"), "another attempt of the same lease");
    assert_eq!(cluster.server.open_leases(), [1]);
}

#[test]
fn claims_that_no_pod_has_any_more_end() {
    let cluster = Cluster::start();
    for claim in ["deleted", "unused", "replaced", "kept"] {
        cluster.make_claim(claim, "25");
        cluster.driver().prepare(&name(claim)).unwrap();
    }
    // The driver was away meanwhile, and the kubelet does not know of these pods.
    cluster.delete_claim("deleted");
    cluster.release_claim("unused");
    cluster.delete_claim("replaced");
    cluster.make_claim_with_uid("replaced", "25", "uid-another");
    let driver = cluster.driver();
    driver.take_up();
    driver.tend();
    assert_eq!(cluster.server.open_leases(), [1, 4], "one answer is not enough for a lease's end");
    driver.tend();
    assert_eq!(cluster.server.open_leases(), [4]);
    // A request that comes late takes nothing.
    for (claim, part) in [("deleted", "not found"), ("replaced", "another claim")] {
        let why = driver.prepare(&name(claim)).unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(cluster.server.open_leases(), [4]);
    assert!(driver.unprepare("../x").unwrap_err().contains("no uid"));
}

#[test]
fn a_claim_of_another_machine_is_refused() {
    let cluster = Cluster::start();
    cluster.make_claim("shared", "25");
    cluster.driver().prepare(&name("shared")).unwrap();
    cluster.server.set_state(1, "running");
    let other = cluster.another_machine();
    let why = other.prepare(&name("shared")).unwrap_err();
    assert!(why.contains("another machine") && cluster.server.open_leases() == [1], "{why}");
}

#[test]
fn a_lease_that_is_over_is_reported_in_the_claim() {
    let cluster = Cluster::start();
    cluster.make_claim("quarter", "25");
    let driver = cluster.driver();
    driver.prepare(&name("quarter")).unwrap();
    driver.kill_holder("uid-quarter");
    driver.tend();
    assert!(driver.has_holder("uid-quarter"), "the lease is there, and only its holder was not");
    cluster.server.set_state(1, "ended");
    driver.kill_holder("uid-quarter");
    driver.tend();
    let status = &cluster.claim("quarter")["status"]["devices"][0]["conditions"][0];
    assert_eq!((&status["status"], &status["message"]), (&json!("False"), &json!("no GPU has room for it")));
    // The kubelet may ask again: the claim gets another lease.
    driver.prepare(&name("quarter")).unwrap();
    assert_eq!(cluster.server.open_leases(), [2]);
}

#[test]
fn slices_change_with_gpus_and_not_with_leases() {
    let cluster = Cluster::start();
    let publisher = Publisher { api: cluster.api(), client: cluster.client(), machines: Vec::new() };
    let generation = |slices: &[Value]| slices[0]["spec"]["pool"]["generation"].as_u64().unwrap();
    let published = || {
        publisher.publish().unwrap();
        cluster.slices()
    };
    let first = published();
    assert_eq!((first.len(), generation(&first)), (1, 1));
    assert_eq!(first[0]["spec"]["allNodes"], true);
    assert_eq!(first[0]["spec"]["devices"][0]["name"], "gpu-1-0");
    assert_eq!(first[0]["metadata"]["ownerReferences"][0]["kind"], "DeviceClass");
    cluster.make_claim("quarter", "25");
    cluster.driver().prepare(&name("quarter")).unwrap();
    assert_eq!(published(), first, "a lease changes no slice");

    cluster.server.set_gpus(130);
    let many = published();
    assert_eq!((many.len(), generation(&many)), (3, 2));
    let devices = |slices: &[Value]| -> usize {
        slices.iter().map(|slice| slice["spec"]["devices"].as_array().unwrap().len()).sum()
    };
    assert_eq!(devices(&many), 130);
    assert!(many.iter().all(|slice| slice["spec"]["pool"]["resourceSliceCount"] == 3), "{many:?}");
    cluster.server.set_gpus(0);
    let none = published();
    assert_eq!((none.len(), devices(&none), generation(&none)), (1, 0, 3));

    let machines = vec![("sluice".to_owned(), "yes".to_owned())];
    let selective = Publisher { machines, ..publisher };
    selective.publish().unwrap();
    let spec = &cluster.slices()[0]["spec"];
    let selector = &spec["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"];
    assert_eq!(*selector, json!([{ "key": "sluice", "operator": "In", "values": ["yes"] }]));
    assert!(spec.get("allNodes").is_none(), "the API server refuses both: {spec}");
    Publisher { machines: Vec::new(), ..selective }.publish().unwrap();
    let spec = &cluster.slices()[0]["spec"];
    assert!(spec["allNodes"] == true && spec.get("nodeSelector").is_none(), "{spec}");
}
