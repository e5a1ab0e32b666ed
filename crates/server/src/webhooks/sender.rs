//! Sends deliveries whose time has come, on the server that leads.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::client::Web;
use sluice_api::problem::Problem;
use sluice_api::webhook::{Delivery, DeliveryState, Webhook, WebhookFormat};
use tokio::task::JoinSet;

use super::{event, signature};
use crate::server::{Server, unwell};
use crate::store::{DueDelivery, Write};

/// An answer has to come within this time.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The queue is looked at this often, and when an event is added.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Webhooks to which events are sent at the same time.
const CONCURRENT_MAX: usize = 16;
/// Deliveries to one webhook before others get their turn.
const IN_A_ROW_MAX: u32 = 20;
/// The pause after the first failed attempt. Each further one is three times as long.
const PAUSE_MS: u64 = 5_000;
const PAUSE_FACTOR: u64 = 3;
const PAUSE_MS_MAX: u64 = 6 * 3_600_000;
/// Pauses vary by up to this part, so that a receiver that comes back is not asked by all at once.
const JITTER: u64 = 5;
/// Attempts at one delivery, over about 24 hours.
const ATTEMPTS_MAX: u32 = 12;
/// A webhook whose deliveries have all failed for this long is disabled.
const FAILING_MS_MAX: u64 = 24 * 3_600_000;
/// Deliveries that are over are kept for this long.
const KEPT_MS: u64 = 7 * 24 * 3_600_000;
/// Old deliveries are deleted this often.
const FORGET_EVERY_MS: u64 = 3_600_000;

/// What became of an attempt: the status of the answer, or why there was none.
pub(super) type Outcome = Result<u16, String>;

impl Server {
    /// Sends events to webhooks while this server leads. It never returns.
    pub(crate) async fn send_events(self: Arc<Server>) {
        let mut sending = JoinSet::new();
        let mut busy = HashSet::new();
        let mut forgot_at_ms = 0;
        loop {
            tokio::select! {
                () = self.outgoing.news.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                Some(ended) = sending.join_next() => {
                    match ended {
                        Ok(webhook) => _ = busy.remove::<String>(&webhook),
                        // It is not known whose it was. An event that is sent twice has one id.
                        Err(_) => busy.clear(),
                    }
                }
            }
            if self.fence().is_none() || self.disk.is_full() {
                continue;
            }
            let now_ms = self.now_ms();
            if now_ms.abs_diff(forgot_at_ms) >= FORGET_EVERY_MS {
                forgot_at_ms = now_ms;
                self.forget_deliveries(now_ms).await;
            }
            let limit = (CONCURRENT_MAX + busy.len()) as u32;
            let due = match self.store.due_webhooks(now_ms, limit).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!("webhooks: {error}");
                    continue;
                }
            };
            for webhook in due {
                if sending.len() >= CONCURRENT_MAX || !busy.insert(webhook.clone()) {
                    continue;
                }
                let server = Arc::clone(&self);
                sending.spawn(async move {
                    if let Err(problem) = server.send_to(&webhook).await {
                        tracing::warn!(%webhook, "webhook {webhook}: {problem}");
                    }
                    webhook
                });
            }
        }
    }

    async fn forget_deliveries(&self, now_ms: u64) {
        let Ok(mut change) = self.change().await else { return };
        if change.books().webhooks.is_empty() {
            return change.leave();
        }
        change.write(Write::ForgetDeliveries { before_ms: now_ms.saturating_sub(KEPT_MS) });
        if let Err(problem) = change.commit().await {
            tracing::warn!("old deliveries of webhooks are still there: {problem}");
        }
    }

    /// Sends what is due to one webhook, up to the first failure.
    async fn send_to(&self, id: &str) -> Result<(), Problem> {
        let due = self.store.due_deliveries(id, self.now_ms(), IN_A_ROW_MAX).await.map_err(unwell)?;
        for due in due {
            let webhook = self.read(|books, _| books.webhooks.get(id).cloned()).await?;
            // It was removed meanwhile, and its deliveries with it.
            let Some(webhook) = webhook else { return Ok(()) };
            let outcome = match &webhook.disabled {
                Some(_) => Err("the webhook is disabled".to_owned()),
                None => self.attempt(&webhook, &due).await,
            };
            let succeeded = is_success(&outcome);
            self.record(id, due.delivery, outcome).await?;
            if !succeeded {
                return Ok(());
            }
        }
        self.outgoing.news.notify_one();
        Ok(())
    }

    async fn attempt(&self, webhook: &Webhook, due: &DueDelivery) -> Outcome {
        match webhook.format {
            WebhookFormat::Mail => self.mail(webhook, due).await,
            WebhookFormat::Json | WebhookFormat::Slack => self.post(webhook, due).await,
        }
    }

    async fn mail(&self, webhook: &Webhook, due: &DueDelivery) -> Outcome {
        let mailer = Arc::clone(self.outgoing.mailer()?);
        let (webhook, event, body) = (webhook.clone(), due.delivery.id.clone(), due.body.clone());
        let sent = tokio::task::spawn_blocking(move || mailer.send(&webhook, &event, &body)).await;
        sent.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn post(&self, webhook: &Webhook, due: &DueDelivery) -> Outcome {
        let body = event::formatted(&due.body, webhook.format);
        let timestamp_s = self.now_ms() / 1000;
        let signature = signature::sign(&self.signer, webhook, &due.delivery.id, timestamp_s, &body);
        let request = axum::http::Request::post(&webhook.url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("Sluice/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &due.delivery.id)
            .header("webhook-timestamp", timestamp_s.to_string())
            .header("webhook-signature", signature)
            .body(body.into_bytes())
            .map_err(|error| error.to_string())?;
        let web: Web = self.outgoing.web.clone()?;
        let sent = tokio::task::spawn_blocking(move || web.status_of(request)).await;
        sent.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Writes what became of an attempt, and what follows for the webhook.
    async fn record(&self, id: &str, delivery: Delivery, outcome: Outcome) -> Result<(), Problem> {
        let mut change = self.change().await?;
        let now_ms = change.now_ms;
        let Some(webhook) = change.books().webhooks.get(id).cloned() else {
            change.leave();
            return Ok(());
        };
        let after = after_attempt(delivery, &outcome, now_ms, fastrand::u64(..));
        let state = webhook_after(&webhook, &outcome, now_ms);
        if state.disabled.is_some() && webhook.disabled.is_none() {
            tracing::warn!(webhook = %id, tenant = %webhook.tenant, "webhook {id} of {} is disabled", webhook.tenant);
            let detail = serde_json::json!({ "tenant": state.tenant, "why": state.disabled });
            change.audit(&crate::auth::Principal::server(), "webhook.disabled", id, detail);
        }
        if state != webhook {
            change.set_webhook(state);
        }
        change.write(Write::Delivery(Box::new(after)));
        change.commit().await
    }
}

fn is_success(outcome: &Outcome) -> bool {
    outcome.as_ref().is_ok_and(|status| (200..300).contains(status))
}

/// Returns a delivery as it is after an attempt. `random` decides about the jitter.
fn after_attempt(delivery: Delivery, outcome: &Outcome, now_ms: u64, random: u64) -> Delivery {
    let attempts = delivery.attempts + 1;
    let (status, error) = match outcome {
        Ok(status) if is_success(outcome) => (Some(*status), None),
        Ok(status) => (Some(*status), Some(format!("the receiver answered with status {status}"))),
        Err(why) => (None, Some(why.clone())),
    };
    let state = match () {
        () if is_success(outcome) => DeliveryState::Delivered,
        () if attempts >= ATTEMPTS_MAX => DeliveryState::Failed,
        () => DeliveryState::Pending,
    };
    let next_at_ms = (state == DeliveryState::Pending).then(|| now_ms + pause_ms(attempts, random));
    Delivery { state, attempts, next_at_ms, last_at_ms: Some(now_ms), status, error, ..delivery }
}

/// Returns the pause after a number of failed attempts.
fn pause_ms(attempts: u32, random: u64) -> u64 {
    let factor = PAUSE_FACTOR.saturating_pow(attempts.saturating_sub(1));
    let pause_ms = PAUSE_MS.saturating_mul(factor).min(PAUSE_MS_MAX);
    let spread = pause_ms / JITTER;
    pause_ms - spread + random % (2 * spread + 1)
}

/// Returns a webhook as it is after an attempt: a success ends a time of failures, and a long time
/// of failures disables it, as does the status 410 (Standard Webhooks, "Operational
/// considerations").
fn webhook_after(webhook: &Webhook, outcome: &Outcome, now_ms: u64) -> Webhook {
    if webhook.disabled.is_some() {
        return webhook.clone();
    }
    if is_success(outcome) {
        return Webhook { failing_since_ms: None, ..webhook.clone() };
    }
    let since_ms = webhook.failing_since_ms.unwrap_or(now_ms);
    let disabled = match outcome {
        Ok(410) => Some("the receiver answered with status 410: it wants no more events".to_owned()),
        _ if now_ms.saturating_sub(since_ms) < FAILING_MS_MAX => None,
        Ok(status) => {
            Some(format!("nothing could be delivered for 24 hours; the last answer was status {status}"))
        }
        Err(why) => Some(format!("nothing could be delivered for 24 hours; the last reason was: {why}")),
    };
    Webhook { failing_since_ms: Some(since_ms), disabled, ..webhook.clone() }
}

#[cfg(test)]
mod tests {
    use sluice_api::webhook::EventKind;

    use super::*;

    fn delivery(attempts: u32) -> Delivery {
        Delivery {
            webhook: "wh".into(),
            id: "evt".into(),
            event: EventKind::WebhookTest,
            created_at_ms: 0,
            state: DeliveryState::Pending,
            attempts,
            next_at_ms: Some(0),
            last_at_ms: None,
            status: None,
            error: None,
        }
    }

    fn webhook() -> Webhook {
        serde_json::from_value(serde_json::json!({
            "id": "wh", "tenant": "acme", "url": "", "format": "json", "events": [], "name": "", "created_at_ms": 1,
            "discarded": 0,
        }))
        .unwrap()
    }

    #[test]
    fn pauses_grow_and_vary_and_end() {
        let mut total_ms = 0;
        for attempts in 1..ATTEMPTS_MAX {
            let [least, most] = [0, 2 * PAUSE_MS_MAX].map(|random| {
                let spread = pause_ms(attempts, 0) / (JITTER - 1);
                pause_ms(attempts, random.min(2 * spread))
            });
            assert!(least < most, "{attempts}");
            assert!(least >= pause_ms(attempts - 1, 0), "{attempts}");
            total_ms += least;
        }
        assert!((12 * 3_600_000..48 * 3_600_000).contains(&total_ms), "{total_ms}");
        assert!(pause_ms(u32::MAX, u64::MAX) <= PAUSE_MS_MAX + PAUSE_MS_MAX / JITTER);
    }

    #[test]
    fn a_delivery_is_tried_again_until_it_succeeds_or_has_failed_too_often() {
        let again = after_attempt(delivery(0), &Ok(500), 1_000, 0);
        assert_eq!((again.state, again.attempts, again.status), (DeliveryState::Pending, 1, Some(500)));
        assert!(again.next_at_ms.unwrap() > 1_000 && again.error.is_some());
        let done = after_attempt(again, &Ok(204), 9_000, 0);
        assert_eq!((done.state, done.attempts, done.next_at_ms), (DeliveryState::Delivered, 2, None));
        assert_eq!(done.error, None);
        let redirect = after_attempt(delivery(0), &Ok(302), 0, 0);
        assert_eq!(redirect.state, DeliveryState::Pending, "redirects are not followed");
        let last = after_attempt(delivery(ATTEMPTS_MAX - 1), &Err("refused".into()), 0, 0);
        assert_eq!((last.state, last.error.as_deref()), (DeliveryState::Failed, Some("refused")));
    }

    #[test]
    fn a_webhook_that_fails_for_a_day_is_disabled_with_the_reason() {
        let failing = webhook_after(&webhook(), &Ok(500), 1_000);
        assert_eq!((failing.failing_since_ms, &failing.disabled), (Some(1_000), &None));
        let later = 1_000 + FAILING_MS_MAX;
        assert_eq!(webhook_after(&failing, &Ok(200), later).failing_since_ms, None);
        let still = webhook_after(&failing, &Ok(500), later - 1);
        assert_eq!(still.disabled, None);
        assert!(webhook_after(&failing, &Ok(503), later).disabled.unwrap().contains("status 503"));
        assert!(webhook_after(&failing, &Err("timeout".into()), later).disabled.unwrap().contains("timeout"));
        assert!(webhook_after(&webhook(), &Ok(410), 0).disabled.is_some(), "at once");
    }
}
