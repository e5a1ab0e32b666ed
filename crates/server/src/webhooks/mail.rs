//! Mail: an event as a message in plain text, handed to the mail server that the operator names.
//!
//! A tenant chooses the recipient, so without these checks a tenant could have the provider's mail
//! server write to anyone. Webhooks of a tenant reach the domains that the operator allows;
//! webhooks of `/`, which only the operator and the provider make, reach all.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use axum::http::Uri;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::transport::smtp::{Error, SmtpTransport};
use lettre::{Address, Transport};
use serde_json::Value;
use sluice_api::client::CA_VARIABLE;
use sluice_api::tenant::TenantPath;
use sluice_api::webhook::Webhook;

use super::event;
use super::sender::{ANSWER_TIME_MAX, Outcome};

const SCHEME: &str = "mailto:";
/// Characters of an address (RFC 5321, section 4.5.3.1.3, without the angle brackets).
const ADDRESS_LENGTH_MAX: usize = 254;
/// Characters of a subject. The whole sentence is in the text.
const SUBJECT_LENGTH_MAX: usize = 120;
/// The ports of submission (RFC 8314, section 7.3; RFC 6409, section 3.1).
const PORT_TLS: u16 = 465;
const PORT_STARTTLS: u16 = 587;

/// The mail server and what is sent through it.
#[derive(Clone, Debug)]
pub struct MailConfig {
    /// `smtps://HOST[:PORT]`, or `smtp://HOST[:PORT]`, which is encrypted with STARTTLS unless the
    /// host is a loopback address.
    pub server: String,
    /// The sender of all mails, such as `Sluice <sluice@example.com>`.
    pub from: String,
    /// The name to sign in with; nothing is signed in to without.
    pub user: Option<String>,
    /// A file with the password of `user`.
    pub password_file: Option<PathBuf>,
    /// The domains to which webhooks of tenants may send. None of them may send mail if it is
    /// empty.
    pub domains: Vec<String>,
}

/// Sends mail.
pub(crate) struct Mailer {
    transport: SmtpTransport,
    from: Mailbox,
    domains: Vec<String>,
}

impl Mailer {
    /// Makes a mailer. Nothing is connected to yet. The error says which setting is wrong.
    pub(crate) fn new(config: &MailConfig) -> Result<Mailer, String> {
        let from = config.from.parse().map_err(|error| {
            format!("--mail-from {:?}: {error}; say an address such as sluice@example.com", config.from)
        })?;
        let mut transport = transport(&config.server).map_err(|why| {
            format!("--mail-server {}: {why}; say smtps://HOST or smtp://HOST", config.server)
        })?;
        if let Some(user) = &config.user {
            let password = config.password_file.as_deref().map(password).transpose()?;
            let password =
                password.ok_or("--mail-user needs --mail-password-file with the password of the user")?;
            transport = transport.credentials(Credentials::new(user.clone(), password));
        }
        let transport = transport.timeout(Some(ANSWER_TIME_MAX)).build();
        Ok(Mailer { transport, from, domains: config.domains.clone() })
    }

    /// Checks the address of a `mailto:` URL of a tenant's webhook.
    pub(crate) fn check(&self, url: &str, tenant: &TenantPath) -> Result<Address, String> {
        let address = address(url)?;
        let domain = address.domain();
        let is_allowed = self.domains.iter().any(|allowed| allowed.eq_ignore_ascii_case(domain));
        if tenant.is_root() || is_allowed {
            return Ok(address);
        }
        Err(format!(
            "webhooks of tenants may not send mail to {domain}; the operator of the server can allow it with \
             --mail-domain {domain}"
        ))
    }

    /// Hands an event to the mail server. The outcome is the server's reply code (RFC 5321, section
    /// 4.2), or why there is none.
    pub(super) fn send(&self, webhook: &Webhook, event_id: &str, body: &str) -> Outcome {
        let address = self.check(&webhook.url, &webhook.tenant)?;
        let message = self.message(webhook, address, event_id, body).map_err(|error| error.to_string())?;
        match self.transport.send(&message) {
            Ok(reply) => Ok(reply.code().into()),
            Err(error) => error.status().map(u16::from).ok_or_else(|| explained(&error)),
        }
    }

    fn message(
        &self,
        webhook: &Webhook,
        to: Address,
        event_id: &str,
        body: &str,
    ) -> Result<Message, lettre::error::Error> {
        let event: Value = serde_json::from_str(body).unwrap_or_default();
        let sentence = event::sentence(&event);
        // The id is the same for each attempt, so mail programs show a repeated event once.
        let id = format!("<{event_id}.{}@{}>", webhook.id, self.from.email.domain());
        // Out-of-office programs do not answer such mails (RFC 3834, section 5).
        let automatic =
            HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".into());
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(subject(&sentence))
            .message_id(Some(id))
            .raw_header(automatic)
            .body(text(webhook, &event, &sentence))
    }
}

/// Returns the address of a `mailto:` URL (RFC 6068) that has an address and nothing else.
fn address(url: &str) -> Result<Address, String> {
    let like = "an address such as mailto:ops@example.com";
    let address = url.strip_prefix(SCHEME).ok_or(like)?;
    if address.len() > ADDRESS_LENGTH_MAX || address.contains(['?', '%', ',', '"']) {
        return Err(like.into());
    }
    address.parse().map_err(|error| format!("{error}; {like}"))
}

pub(crate) fn is_mail(url: &str) -> bool {
    url.starts_with(SCHEME)
}

fn password(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn transport(server: &str) -> Result<lettre::transport::smtp::SmtpTransportBuilder, String> {
    let uri: Uri = server.parse().map_err(|error| format!("{error}"))?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("it names no host")?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let has_more = uri.path_and_query().is_some_and(|rest| rest.as_str() != "/");
    if has_more || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("it has more than a host and a port".into());
    }
    let (tls, port) = match uri.scheme_str() {
        Some("smtps") => (Tls::Wrapper(parameters(&host)?), PORT_TLS),
        Some("smtp") if is_loopback(&host) => (Tls::None, PORT_STARTTLS),
        Some("smtp") => (Tls::Required(parameters(&host)?), PORT_STARTTLS),
        _ => return Err("it is no URL of a mail server".into()),
    };
    let port = uri.port_u16().unwrap_or(port);
    Ok(SmtpTransport::builder_dangerous(host).port(port).tls(tls))
}

fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns whose certificates count: those from the authorities in the file that the variable
/// names, or else those that this system trusts.
fn parameters(host: &str) -> Result<TlsParameters, String> {
    let mut parameters = TlsParameters::builder(host.to_owned());
    if let Some(file) = std::env::var_os(CA_VARIABLE).filter(|file| !file.is_empty()) {
        let path = Path::new(&file);
        let pem =
            std::fs::read(path).map_err(|error| format!("{CA_VARIABLE} {}: {error}", path.display()))?;
        let certificate = Certificate::from_pem(&pem)
            .map_err(|error| format!("{CA_VARIABLE} {}: {error}", path.display()))?;
        parameters = parameters.certificate_store(CertificateStore::None).add_root_certificate(certificate);
    }
    parameters.build_rustls().map_err(|error| error.to_string())
}

/// Shortens a sentence to a subject in one line.
fn subject(sentence: &str) -> String {
    let line = sentence.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = line.take(SUBJECT_LENGTH_MAX + 1).collect();
    if line.chars().count() > SUBJECT_LENGTH_MAX {
        line = line.chars().take(SUBJECT_LENGTH_MAX - 1).chain(['…']).collect();
    }
    format!("Sluice: {line}")
}

/// Writes the sentence, what else is known of the event, and why the mail comes.
fn text(webhook: &Webhook, event: &Value, sentence: &str) -> String {
    let mut text = format!("{sentence}.\n\n");
    let known = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<14} {value}\n"));
    line("event", &known("type"));
    line("time", &known("timestamp"));
    for (name, value) in event["data"].as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            Value::String(value) => line(name, &value.replace('\n', " ")),
            other => line(name, &other.to_string()),
        }
    }
    let Webhook { id, tenant, .. } = webhook;
    text.push_str(&format!(
        "\n-- \nSent because of webhook {id} of {tenant}. `sluice webhook remove {id}` ends these mails.\n"
    ));
    text
}

/// Joins an error with its causes, which alone say what happened.
fn explained(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    format!("the mail server: {text}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> MailConfig {
        MailConfig {
            server: "smtp://127.0.0.1:25".into(),
            from: "Sluice <sluice@example.com>".into(),
            user: None,
            password_file: None,
            domains: vec!["example.com".into()],
        }
    }

    fn webhook(tenant: &str, url: &str) -> Webhook {
        serde_json::from_value(json!({
            "id": "wh_1", "tenant": tenant, "url": url, "format": "mail", "events": [], "name": "",
            "created_at_ms": 1, "discarded": 0,
        }))
        .unwrap()
    }

    #[test]
    fn tenants_write_to_allowed_domains_and_the_root_to_all() {
        let mailer = Mailer::new(&config()).unwrap();
        let (root, acme) = (TenantPath::root(), "acme".parse().unwrap());
        assert!(mailer.check("mailto:ada@EXAMPLE.com", &acme).is_ok());
        let refused = mailer.check("mailto:ada@example.com.evil.org", &acme).unwrap_err();
        assert!(refused.contains("--mail-domain example.com.evil.org"), "{refused}");
        assert!(mailer.check("mailto:ada@example.org", &root).is_ok());
        for url in [
            "mailto:",
            "mailto:ada",
            "mailto:a@example.com?bcc=b@example.org",
            "mailto:a@example.com,b@example.com",
            "ada@example.com",
        ] {
            assert!(mailer.check(url, &root).is_err(), "{url}");
        }
    }

    #[test]
    fn wrong_settings_are_refused_with_their_option() {
        let refused = |config: MailConfig| Mailer::new(&config).err().unwrap_or_default();
        for server in [
            "mail.example.com",
            "http://mail.example.com",
            "smtp://",
            "smtp://user:pw@mail.example.com",
            "smtps://h/x",
        ] {
            let why = refused(MailConfig { server: server.into(), ..config() });
            assert!(why.contains("--mail-server"), "{server}: {why}");
        }
        assert!(refused(MailConfig { from: "nobody".into(), ..config() }).contains("--mail-from"));
        let why = refused(MailConfig { user: Some("sluice".into()), ..config() });
        assert!(why.contains("--mail-password-file"), "{why}");
        assert_eq!(refused(MailConfig { server: "smtps://mail.example.com".into(), ..config() }), "");
    }

    #[test]
    fn names_in_a_mail_are_text_in_one_header() {
        let mailer = Mailer::new(&config()).unwrap();
        let body = json!({
            "type": "lease.started", "timestamp": "2026-11-27T00:00:00Z",
            "data": { "lease": 7, "tenant": "acme", "name": "a\r\nBcc: eve@example.org\r\n\r\nhi", "waited_ms": 9_000 },
        });
        let webhook = webhook("acme", "mailto:ada@example.com");
        let address = mailer.check(&webhook.url, &webhook.tenant).unwrap();
        let message = mailer.message(&webhook, address, "evt_1", &body.to_string()).unwrap();
        assert_eq!(message.envelope().to().len(), 1);
        let sent = String::from_utf8(message.formatted()).unwrap();
        let (head, text) = sent.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(head.contains("Message-ID: <evt_1.wh_1@example.com>"), "{head}");
        assert!(head.contains("Auto-Submitted: auto-generated"), "{head}");
        assert!(text.contains("waiting for 9 s") && text.contains("sluice webhook remove wh_1"), "{text}");
    }

    #[test]
    fn a_long_sentence_is_cut_in_the_subject() {
        let subject = subject(&"x".repeat(500));
        assert_eq!(subject.chars().count(), "Sluice: ".len() + SUBJECT_LENGTH_MAX);
        assert!(subject.ends_with('…'));
    }
}
