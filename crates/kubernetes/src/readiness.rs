//! Whether the API server asks this process: only then is the webhook ready.
//!
//! ```text
//!  certificate ──▶ webhook's configuration ──▶ API server reads it, some time later
//!  an event that is never made (a dry run) ──▶ API server ──▶ webhook: sees it, is ready
//! ```
//! A certificate that has been written may not be known yet, and the Service may not lead here yet.
//! An event that the API server shows to this process has come the whole way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::api::{Api, ApiError};
use crate::certificate::Authority;

/// The webhook's configuration is compared this often.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// The pause between two attempts to be asked.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// Attempts that fail before that is said.
const TRIES_QUIET: u32 = 20;
const NOT_ASKED: &str = "the API server does not ask the webhook: the webhook's configuration has to be the chart's, \
                         and the API server has to reach the webhook's Service";
/// The label of events that are made for this, which the webhook's configuration selects.
const PROBE: &str = "sluice.dev/probe";

/// Whether the API server has asked this process since its certificate was written last.
#[derive(Clone)]
pub(crate) struct Readiness {
    is_asked: Arc<AtomicBool>,
    /// Tells this process from an earlier one, which may still run.
    id: Arc<str>,
}

impl Readiness {
    pub(crate) fn new() -> Result<Readiness, rcgen::Error> {
        let random = blake3::hash(&KeyPair::generate()?.serialize_der()).to_hex();
        Ok(Readiness { is_asked: Arc::default(), id: random[..32].into() })
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Looks at an object that the API server shows to the webhook.
    pub(crate) fn see(&self, object: &Value) {
        let is_ours = object["metadata"]["labels"][PROBE] == *self.id;
        if is_ours && !self.is_asked.swap(true, Ordering::AcqRel) {
            eprintln!("sluice-kubernetes: the API server asks the webhook");
        }
    }

    /// Keeps the certificate in the webhook's configuration, and has the API server ask for an
    /// event in this namespace until it has shown it. Without a namespace the webhook counts as
    /// ready once its certificate is written.
    pub(crate) fn keep(
        &self,
        api: &Api,
        authority: &Authority,
        configuration: &str,
        namespace: Option<&str>,
    ) {
        let (mut said, mut tries) = (String::new(), 0);
        loop {
            let looked = self.look(api, authority, configuration, namespace);
            tries = if self.is_ready() { 0 } else { tries + 1 };
            let problem = match looked {
                Err(error) => error.to_string(),
                Ok(()) if tries > TRIES_QUIET => NOT_ASKED.to_owned(),
                Ok(()) => String::new(),
            };
            if problem != said && !problem.is_empty() {
                eprintln!("sluice-kubernetes: {problem}");
            }
            said = problem;
            std::thread::sleep(if self.is_ready() { ANNOUNCE_EVERY } else { TRY_EVERY });
        }
    }

    fn look(
        &self,
        api: &Api,
        authority: &Authority,
        configuration: &str,
        namespace: Option<&str>,
    ) -> Result<(), ApiError> {
        if authority.announce(api, configuration)? {
            self.is_asked.store(false, Ordering::Release);
        }
        match namespace {
            _ if self.is_ready() => Ok(()),
            Some(namespace) => self.ask_for_event(api, namespace),
            None => {
                self.is_asked.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    fn ask_for_event(&self, api: &Api, namespace: &str) -> Result<(), ApiError> {
        let event = json!({
            "metadata": { "name": "sluice-webhook", "namespace": namespace, "labels": { PROBE: *self.id } },
            "involvedObject": { "apiVersion": "v1", "kind": "Namespace", "name": namespace, "namespace": namespace },
            "reason": "SluiceProbe",
            "message": "Is the webhook asked?",
            "type": "Normal",
            "source": { "component": "sluice" },
        });
        api.post(&format!("/api/v1/namespaces/{namespace}/events?dryRun=All"), &event).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_once_it_is_shown_its_own_event() {
        let [readiness, other] = [Readiness::new().unwrap(), Readiness::new().unwrap()];
        let event = |of: &Readiness| json!({ "metadata": { "labels": { PROBE: *of.id } } });
        readiness.see(&json!({ "metadata": {} }));
        readiness.see(&event(&other));
        assert!(!readiness.is_ready());
        readiness.see(&event(&readiness));
        assert!(readiness.is_ready() && !other.is_ready());
    }
}
