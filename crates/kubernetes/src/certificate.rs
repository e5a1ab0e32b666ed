//! The webhook's certificate: made at each start, and made known to the API server.
//!
//! It is its own authority and is kept nowhere: a restart replaces it, and nothing has to be
//! renewed, shared or protected on disk.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::api::{Api, ApiError, Patch};

/// A certificate of the webhook's service, and its key.
pub(crate) struct Certificate {
    pub(crate) tls: ServerConfig,
    pub(crate) authority: Authority,
}

/// The text by which the API server knows the webhook: PEM in base64.
#[derive(Clone)]
pub(crate) struct Authority(String);

impl Certificate {
    /// Makes one for the host names by which the API server calls the webhook.
    pub(crate) fn make(hosts: Vec<String>) -> Result<Certificate> {
        let key = KeyPair::generate().context("a key for the webhook")?;
        let certificate = CertificateParams::new(hosts)
            .and_then(|params| params.self_signed(&key))
            .context("a certificate for the webhook")?;
        let authority = Authority(BASE64.encode(certificate.pem()));
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .context("the webhook's certificate")?;
        Ok(Certificate { tls, authority })
    }
}

impl Authority {
    /// Writes the authority into the webhook's configuration, unless it is there; the answer is
    /// whether it was written. It has to be repeated: applying the chart again takes it out.
    pub(crate) fn announce(&self, api: &Api, configuration: &str) -> Result<bool, ApiError> {
        let path =
            format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{configuration}");
        let now = api.get(&path)?;
        let webhooks = now["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_known = |webhook: &Value| webhook["clientConfig"]["caBundle"] == self.0.as_str();
        if webhooks.iter().all(is_known) {
            return Ok(false);
        }
        let named =
            |webhook: &Value| json!({ "name": webhook["name"], "clientConfig": { "caBundle": self.0 } });
        let webhooks: Vec<Value> = webhooks.iter().map(named).collect();
        api.patch(&path, Patch::StrategicMerge, &json!({ "webhooks": webhooks })).map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_certificate_of_its_own() {
        let make = || Certificate::make(vec!["webhook.sluice.svc".into()]).unwrap().authority.0;
        let pem = String::from_utf8(BASE64.decode(make()).unwrap()).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"), "{pem}");
        assert_ne!(make(), make());
    }
}
