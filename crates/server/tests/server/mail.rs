//! Webhooks that send mail, through a mail server of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};
use sluice_api::client::Client;
use sluice_api::token::Role;
use sluice_api::webhook::{Delivery, DeliveryState, MadeWebhook, WebhookFormat};
use sluice_transport::tls::ServerIdentity;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::webhooks::wait_for_delivery;
use crate::{PATIENCE, ServerProcess, TENANTS, insist, postgres, problem, settings};

/// A mail as the mail server took it, or refused it.
struct Mail {
    from: String,
    to: String,
    text: String,
}

/// A mail server: it answers each `RCPT` with the next reply code, or with the last one again.
struct MailServer {
    address: String,
    mails: Receiver<Mail>,
}

impl MailServer {
    fn start(replies: &'static [u16], tls: Option<Arc<ServerConfig>>) -> MailServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, mails) = channel();
        std::thread::spawn(move || {
            let mut replies = replies.iter().chain(std::iter::repeat(replies.last().unwrap()));
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let mut next = || *replies.next().unwrap();
                match &tls {
                    None => talk(stream, &mut next, &sender),
                    Some(config) => {
                        let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                        talk(StreamOwned::new(connection, stream), &mut next, &sender);
                    }
                }
            }
        });
        MailServer { address, mails }
    }

    fn next(&self) -> Mail {
        self.mails.recv_timeout(PATIENCE).unwrap()
    }
}

/// Takes one connection to its end (RFC 5321, appendix D.1).
fn talk(stream: impl Read + Write, reply: &mut dyn FnMut() -> u16, mails: &Sender<Mail>) {
    let mut stream = BufReader::new(stream);
    let (mut from, mut to) = (String::new(), String::new());
    let say = |stream: &mut BufReader<_>, text: &str| {
        let stream: &mut dyn Write = BufReader::get_mut(stream);
        stream.write_all(format!("{text}\r\n").as_bytes()).and_then(|()| stream.flush())
    };
    if say(&mut stream, "220 test ESMTP").is_err() {
        return;
    }
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|length| length > 0) {
        let command = line.trim().to_owned();
        line.clear();
        let answer = match command.get(..4).unwrap_or_default() {
            "EHLO" => "250 test".to_owned(),
            "MAIL" => {
                from = command;
                "250 ok".to_owned()
            }
            "RCPT" => {
                to = command;
                let code = reply();
                if code != 250 {
                    let refused = Mail { from: from.clone(), to: to.clone(), text: String::new() };
                    mails.send(refused).unwrap();
                }
                format!("{code} said the test")
            }
            "DATA" => {
                say(&mut stream, "354 go on").unwrap();
                let mut text = String::new();
                while !text.ends_with("\r\n.\r\n") {
                    assert!(stream.read_line(&mut text).unwrap() > 0, "it ends within a mail");
                }
                mails.send(Mail { from: from.clone(), to: to.clone(), text }).unwrap();
                "250 taken".to_owned()
            }
            "QUIT" => {
                let _ = say(&mut stream, "221 bye");
                return;
            }
            _ => "502 not here".to_owned(),
        };
        if say(&mut stream, &answer).is_err() {
            return;
        }
    }
}

/// A server that sends mail by this mail server.
fn start(folder: &Path, mail_server: &str, authority: Option<&Path>) -> (ServerProcess, Client) {
    let mut command = ServerProcess::command(folder, postgres::database_for(folder).as_deref());
    command.args(["--mail-server", mail_server, "--mail-from", "Sluice <sluice@example.com>"]);
    command.args(["--mail-domain", "example.com"]);
    if let Some(file) = authority {
        command.env("SLUICE_TLS_CA", file);
    }
    let process = ServerProcess::spawn(&mut command);
    let admin = settings(folder).client();
    insist(|| admin.post_text::<Value>("/apply", "application/yaml", TENANTS));
    (process, admin)
}

fn add(admin: &Client, tenant: &str, url: &str) -> MadeWebhook {
    admin.post("/webhooks", &json!({ "tenant": tenant, "url": url })).unwrap()
}

fn test(admin: &Client, made: &MadeWebhook) {
    let _: Delivery = admin.post(&format!("/webhooks/{}/tests", made.webhook.id), &json!({})).unwrap();
}

#[test]
fn an_event_is_mailed_and_mailed_again_under_its_id_until_it_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mail_server = MailServer::start(&[451, 250], None);
    let (_process, admin) = start(folder.path(), &format!("smtp://{}", mail_server.address), None);
    let made = add(&admin, "acme", "mailto:ada@example.com");
    assert_eq!(made.webhook.format, WebhookFormat::Mail);
    test(&admin, &made);
    let refused = mail_server.next();
    assert_eq!(refused.to, "RCPT TO:<ada@example.com>");
    let failed = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts == 1);
    assert_eq!((failed.state, failed.status), (DeliveryState::Pending, Some(451)));

    let mail = mail_server.next();
    assert_eq!(mail.from, "MAIL FROM:<sluice@example.com>");
    let (head, body) = mail.text.split_once("\r\n\r\n").unwrap();
    for line in [
        "From: Sluice <sluice@example.com>",
        "To: ada@example.com",
        "Subject: Sluice: This is a test of a webhook of Sluice",
        &format!("Message-ID: <{}.{}@example.com>", failed.id, made.webhook.id),
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in\n{head}");
    }
    assert!(body.contains("webhook.test") && body.contains("acme"), "{body}");
    let done = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.attempts == 2);
    assert_eq!((done.state, done.status), (DeliveryState::Delivered, Some(250)));
}

#[test]
fn mail_goes_by_tls_to_a_server_whose_authority_is_trusted_and_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) =
        (file("cert.pem", own.cert.pem()), file("key.pem", own.signing_key.serialize_pem()));
    let other = file("other.pem", other.cert.pem());
    let tls = ServerIdentity::load(&certificate, &key, None).unwrap().for_https();
    let mail_server = MailServer::start(&[250], Some(tls));
    let url = format!("smtps://{}", mail_server.address);

    let (_process, admin) = start(folder.path(), &url, Some(&certificate));
    let made = add(&admin, "/", "mailto:ops@example.org");
    test(&admin, &made);
    assert!(mail_server.next().to.contains("ops@example.org"));
    wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.state == DeliveryState::Delivered);

    let elsewhere = tempfile::tempdir().unwrap();
    let (_process, admin) = start(elsewhere.path(), &url, Some(&other));
    let made = add(&admin, "/", "mailto:ops@example.org");
    test(&admin, &made);
    let failed = wait_for_delivery(&admin, &made.webhook.id, |delivery| delivery.error.is_some());
    assert!(failed.status.is_none() && failed.error.unwrap().contains("certificate"), "no TLS");
}

#[test]
fn addresses_outside_the_named_domains_are_for_the_operator_only() {
    let folder = tempfile::tempdir().unwrap();
    let (process, admin) = start(folder.path(), "smtp://127.0.0.1:1", None);
    let new = json!({ "tenant": "acme", "url": "mailto:eve@example.org" });
    let refused = problem(admin.post::<Value>("/webhooks", &new));
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("url")), "{refused:?}");
    assert!(refused.detail.contains("--mail-domain example.org"), "{refused:?}");
    for (url, format, field) in [
        ("mailto:nobody", "mail", "url"),
        ("mailto:ada@example.com", "slack", "format"),
        ("https://hooks.example.com/", "mail", "format"),
    ] {
        let new = json!({ "tenant": "acme", "url": url, "format": format });
        let refused = problem(admin.post::<Value>("/webhooks", &new));
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some(field)), "{url}: {refused:?}");
    }
    process.kill();

    let folder = tempfile::tempdir().unwrap();
    let server = crate::Server::start(folder.path());
    let new = json!({ "tenant": "/", "url": "mailto:ops@example.com" });
    let refused = problem(server.admin.post::<Value>("/webhooks", &new));
    assert!(refused.detail.contains("--mail-server"), "{refused:?}");
    let provider = server.token("/", Role::Provider);
    assert!(problem(provider.post::<Value>("/webhooks", &new)).detail.contains("--mail-server"));
}
