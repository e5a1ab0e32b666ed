//! Signatures as of Standard Webhooks 1.0: `v1`, an HMAC with SHA-256.
//!
//! The secret of a webhook follows from the key that grants are signed with, so it is known to all
//! servers of a database and stored nowhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use sluice_api::grant::Signer;
use sluice_api::webhook::Webhook;

const PURPOSE: &str = "sluice 2026-11 secrets of webhooks";
const PREFIX: &str = "whsec_";

/// Returns the secret as the receiver gets it.
pub(crate) fn secret(signer: &Signer, webhook: &Webhook) -> String {
    format!("{PREFIX}{}", BASE64.encode(key(signer, webhook)))
}

fn key(signer: &Signer, webhook: &Webhook) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(&signer.derive(PURPOSE));
    // Ids are random. The time makes sure that a restored backup does not bring an old secret back.
    hasher.update(&webhook.created_at_ms.to_le_bytes());
    hasher.update(webhook.id.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Returns the value of the header `webhook-signature`.
pub(super) fn sign(signer: &Signer, webhook: &Webhook, id: &str, timestamp_s: u64, body: &str) -> String {
    signature(&key(signer, webhook), id, timestamp_s, body)
}

fn signature(key: &[u8], id: &str, timestamp_s: u64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, format!("{id}.{timestamp_s}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (standard-webhooks, spec/standard-webhooks.md and the tests
    /// of its libraries).
    #[test]
    fn a_signature_is_as_the_specification_says() {
        let key = BASE64.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, timestamp_s, body) =
            ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signature(&key, id, timestamp_s, body), expected);
    }

    #[test]
    fn each_webhook_has_a_secret_of_its_own() {
        let webhook = |id: &str| -> Webhook {
            serde_json::from_value(serde_json::json!({
                "id": id, "tenant": "acme", "url": "", "format": "json", "events": [], "name": "", "created_at_ms": 1,
                "discarded": 0,
            }))
            .unwrap()
        };
        let signer = Signer::new([7; 32]);
        let first = secret(&signer, &webhook("a"));
        assert!(first.starts_with(PREFIX));
        assert_ne!(first, secret(&signer, &webhook("b")));
        assert_ne!(first, secret(&Signer::new([8; 32]), &webhook("a")));
    }
}
