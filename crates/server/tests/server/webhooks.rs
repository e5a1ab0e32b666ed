use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use serde_json::{Value, json};
use sluice_api::Page;
use sluice_api::client::Client;
use sluice_api::problem::Kind;
use sluice_api::token::Role;
use sluice_api::webhook::{Delivery, DeliveryState, MadeWebhook, Webhook};

use crate::{
    PATIENCE, ScriptedNode, Server, ServerProcess, TENANTS, ask, insist, postgres, problem, request, settings,
};

/// A request as a receiver got it.
struct Received {
    headers: Vec<(String, String)>,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_else(|| panic!("no {name}"))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver of events: it answers each request with the next status, or with the last one again.
struct Receptor {
    url: String,
    received: Receiver<Received>,
}

impl Receptor {
    fn start(statuses: &'static [u16]) -> Receptor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/events?key=1", listener.local_addr().unwrap());
        let (sender, received) = channel();
        std::thread::spawn(move || Receptor::serve(&listener, statuses, &sender));
        Receptor { url, received }
    }

    fn serve(listener: &TcpListener, statuses: &[u16], sender: &Sender<Received>) {
        let all = statuses.iter().chain(std::iter::repeat(statuses.last().unwrap()));
        for (stream, status) in listener.incoming().zip(all) {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut headers = Vec::new();
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some((name, value)) = line.trim().split_once(": ") {
                    headers.push((name.to_ascii_lowercase(), value.to_owned()));
                }
                line.clear();
            }
            let length =
                headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let to = "Location: http://127.0.0.1:1/\r\n";
            let answer = format!("HTTP/1.1 {status} X\r\n{to}Content-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            let received = Received { headers, body: String::from_utf8(body).unwrap() };
            if sender.send(received).is_err() {
                return;
            }
        }
    }

    fn next(&self) -> Received {
        self.received.recv_timeout(PATIENCE).unwrap()
    }
}

/// A server that may send to this machine.
fn start(folder: &Path) -> (ServerProcess, Client) {
    let database = postgres::database_for(folder);
    let mut command = ServerProcess::command(folder, database.as_deref());
    command.args(["--webhook-allow", "127.0.0.0/8"]);
    let process = ServerProcess::spawn(&mut command);
    let admin = settings(folder).client();
    insist(|| admin.post_text::<Value>("/apply", "application/yaml", TENANTS));
    (process, admin)
}

fn add(admin: &Client, tenant: &str, url: &str, more: Value) -> MadeWebhook {
    let mut new = json!({ "tenant": tenant, "url": url });
    new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    admin.post("/webhooks", &new).unwrap()
}

/// Waits for the latest delivery of a webhook to be as wanted.
pub(crate) fn wait_for_delivery(admin: &Client, id: &str, wanted: impl Fn(&Delivery) -> bool) -> Delivery {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let page: Page<Delivery> = admin.get(&format!("/webhooks/{id}/deliveries")).unwrap();
        if let Some(delivery) = page.items.into_iter().find(|delivery| wanted(delivery)) {
            return delivery;
        }
        assert!(std::time::Instant::now() < deadline, "no such delivery");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn an_event_is_signed_and_sent_again_under_its_id_until_it_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, admin) = start(folder.path());
    let receptor = Receptor::start(&[500, 200]);
    let made = add(&admin, "acme", &receptor.url, json!({}));
    let _: Delivery = admin.post(&format!("/webhooks/{}/tests", made.webhook.id), &json!({})).unwrap();
    let first = receptor.next();
    let failed = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts == 1);
    assert_eq!((failed.state, failed.status), (DeliveryState::Pending, Some(500)));
    let seen: Webhook = admin.get(&format!("/webhooks/{}", made.webhook.id)).unwrap();
    assert!(seen.failing_since_ms.is_some());
    let second = receptor.next();
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    assert_eq!(first.body, second.body);
    let key = BASE64.decode(made.secret.strip_prefix("whsec_").unwrap()).unwrap();
    for received in [&first, &second] {
        let (id, at) = (received.header("webhook-id"), received.header("webhook-timestamp"));
        let signed = format!("{id}.{at}.{}", received.body);
        let tag = BASE64.decode(received.header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::verify(&key, signed.as_bytes(), &tag).unwrap();
    }
    let event = first.json();
    assert_eq!((&event["type"], &event["data"]["tenant"]), (&json!("webhook.test"), &json!("acme")));
    let done = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts == 2);
    assert_eq!((done.state, done.status, done.next_at_ms), (DeliveryState::Delivered, Some(200), None));
    let seen: Webhook = admin.get(&format!("/webhooks/{}", made.webhook.id)).unwrap();
    assert_eq!((seen.failing_since_ms, seen.disabled), (None, None));
    let bytes = std::fs::read(folder.path().join("data/sluice.db")).unwrap_or_default();
    let secret = &made.secret.as_bytes()[6..];
    assert!(!bytes.windows(secret.len()).any(|window| window == secret), "the secret is stored");
}

#[test]
fn what_was_not_delivered_is_sent_by_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let (process, admin) = start(folder.path());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let made = add(&admin, "/", &format!("http://{address}/"), json!({ "events": ["invoice.issued"] }));
    let new = json!({ "tenant": "acme", "from_ms": 0, "until_ms": 5 });
    let _: Value = admin.post("/invoices", &new).unwrap();
    let failed = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts >= 1);
    assert!(failed.error.is_some() && failed.status.is_none(), "{failed:?}");
    process.kill();

    let listener = TcpListener::bind(address).unwrap();
    let (sender, received) = channel();
    std::thread::spawn(move || Receptor::serve(&listener, &[204], &sender));
    let mut command = ServerProcess::command(folder.path(), postgres::database_for(folder.path()).as_deref());
    command.args(["--webhook-allow", "127.0.0.0/8"]);
    let _process = ServerProcess::spawn(&mut command);
    let got = received.recv_timeout(PATIENCE).unwrap();
    // Its port is another one, and is written down before it sends.
    let admin = settings(folder.path()).client();
    assert_eq!(got.header("webhook-id"), failed.id);
    let event = got.json();
    assert_eq!((&event["type"], &event["data"]["number"]), (&json!("invoice.issued"), &json!("1")));
    wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.state == DeliveryState::Delivered);
}

#[test]
fn each_webhook_gets_its_part_of_the_tree_and_the_events_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, admin) = start(folder.path());
    let [root, acme, chat] = [(); 3].map(|()| Receptor::start(&[200]));
    add(&admin, "/", &root.url, json!({ "events": ["gpu.fenced"] }));
    add(&admin, "acme", &acme.url, json!({ "events": ["lease.preempted", "gpu.fenced"] }));
    add(&admin, "/", &chat.url, json!({ "events": ["gpu.fenced"], "format": "slack" }));
    let mut node = ScriptedNode::join_at(&admin, "gpu<1>", 1);
    let new = sluice_api::token::NewToken {
        tenant: "acme".parse().unwrap(),
        role: Role::Member,
        name: "ada".into(),
        lifetime_s: 600,
        node: None,
    };
    let made: sluice_api::token::MadeToken = admin.post("/tokens", &new).unwrap();
    let lease = request(&admin.with_token(&made.secret), &ask(1_000_000));
    let lease = crate::wait_for_state(&admin, lease.id, sluice_api::lease::LeaseState::Granted);
    let lease: sluice_api::lease::Lease =
        admin.with_token(&made.secret).get(&format!("/leases/{}", lease.id)).unwrap();
    node.claim(&lease);
    let fence = json!({ "gpus": [{ "node": "gpu<1>", "gpu": 0 }], "why": "smoke & fire" });
    let _: Value = admin.post("/gpus/fences", &fence).unwrap();
    let fenced = root.next().json();
    assert_eq!(fenced["type"], "gpu.fenced");
    let text = chat.next().json()["text"].as_str().unwrap().to_owned();
    assert!(text.contains("gpu&lt;1&gt;") && text.contains("smoke &amp; fire"), "{text}");
    let preempted = acme.next().json();
    assert_eq!(
        (&preempted["type"], &preempted["data"]["lease"]),
        (&json!("lease.preempted"), &json!(lease.id))
    );
    assert_eq!(preempted["data"]["user"], "ada");
    assert!(root.received.try_recv().is_err(), "it wanted one event");
}

#[test]
fn addresses_inside_are_refused_and_redirects_not_followed() {
    let (_folder, server) = Server::with_tenants();
    for url in [
        "http://127.0.0.1:1/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/",
        "ftp://x/",
    ] {
        let refused =
            problem(server.admin.post::<Value>("/webhooks", &json!({ "tenant": "acme", "url": url })));
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some("url")), "{url}: {refused:?}");
    }
    // A name is checked when it has been resolved.
    let made = add(&server.admin, "acme", "https://localhost/", json!({}));
    let _: Delivery = server.admin.post(&format!("/webhooks/{}/tests", made.webhook.id), &json!({})).unwrap();
    let refused = wait_for_delivery(&server.admin, &made.webhook.id, |delivery| delivery.attempts == 1);
    assert!(refused.error.unwrap().contains("not an address on the public Internet"));

    let folder = tempfile::tempdir().unwrap();
    let (_process, admin) = start(folder.path());
    let receptor = Receptor::start(&[302]);
    let made = add(&admin, "acme", &receptor.url, json!({}));
    let _: Delivery = admin.post(&format!("/webhooks/{}/tests", made.webhook.id), &json!({})).unwrap();
    let redirected = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts == 1);
    assert_eq!((redirected.state, redirected.status), (DeliveryState::Pending, Some(302)));
}

#[test]
fn a_receiver_that_is_gone_disables_its_webhook_until_somebody_enables_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_process, admin) = start(folder.path());
    let receptor = Receptor::start(&[410, 200]);
    let made = add(&admin, "acme", &receptor.url, json!({ "name": "old" }));
    let (path, id) = (format!("/webhooks/{}", made.webhook.id), &made.webhook.id);
    let _: Delivery = admin.post(&format!("{path}/tests"), &json!({})).unwrap();
    wait_for_delivery(&admin, id, |delivery| delivery.attempts == 1);
    let disabled: Webhook = admin.get(&path).unwrap();
    assert!(disabled.disabled.unwrap().contains("410"));
    assert!(problem(admin.post::<Value>(&format!("{path}/tests"), &json!({}))).is(Kind::Conflict));
    let enabled: Webhook = admin.post(&format!("{path}/enable"), &json!({})).unwrap();
    assert_eq!(enabled.disabled, None);
    wait_for_delivery(&admin, id, |delivery| delivery.state == DeliveryState::Delivered);
    let entries: Vec<Value> = admin.list("/audit").unwrap();
    let actions = entries.iter().filter_map(|entry| entry["action"].as_str());
    let of_webhooks: Vec<&str> = actions.filter(|action| action.starts_with("webhook.")).collect();
    assert_eq!(of_webhooks, ["webhook.made", "webhook.tested", "webhook.disabled", "webhook.enabled"]);
    assert!(
        entries.iter().all(|entry| !entry["detail"].as_str().unwrap().contains("key=1")),
        "URLs are secrets"
    );
    let _: Webhook = admin.delete(&path).unwrap();
    assert_eq!(problem(admin.get::<Value>(&path)).status, 404);
}
