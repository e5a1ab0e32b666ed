//! What follows an alert.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sluice_training::Alert;

use super::Lease;
use crate::checkpoint;
use crate::cli::{Action, CheckpointArgs};
use crate::output::with_causes;
use crate::server::lists::now_ms;

/// How long the receiver of a webhook may take, and how often it is tried.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
/// Commands and webhooks at once.
const RUNNING_MAX: usize = 8;

/// Whether the watch continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Continue,
    End,
}

pub(super) struct Actions {
    actions: Vec<Action>,
    /// The ends of commands and webhooks that are under way, each in a thread of its own.
    running: Mutex<Vec<Running>>,
}

/// Its sender is dropped at its end.
type Running = Receiver<()>;

impl Actions {
    pub(super) fn new(actions: &[Action]) -> Actions {
        Actions { actions: actions.to_vec(), running: Mutex::default() }
    }

    /// Does all of them, in their order. One that fails is reported, and the next one follows.
    pub(super) fn act(&self, alert: &Alert, lease: Option<&Lease>) -> Then {
        let mut then = Then::Continue;
        for action in &self.actions {
            match action {
                Action::Exec(command) => self.beside({
                    let (command, alert) = (command.clone(), alert.clone());
                    move || execute(&command, &alert)
                }),
                Action::Webhook(url) => self.beside({
                    let (url, body) = (url.clone(), json(alert).to_string());
                    move || post(&url, &body)
                }),
                Action::Checkpoint(folder) => report(take(folder, lease)),
                Action::End => then = Then::End,
            }
        }
        then
    }

    /// Waits for commands and webhooks, at most this long if a time is given; those that have not
    /// ended then continue by themselves.
    pub(super) fn finish(&self, most: Option<Duration>) {
        let until = most.map(|most| Instant::now() + most);
        for running in std::mem::take(&mut *self.lock()) {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if running.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                eprintln!("sluice: what an alert has started still runs; it is left to itself");
                return;
            }
        }
    }

    fn beside(&self, work: impl FnOnce() -> Result<()> + Send + 'static) {
        let mut running = self.lock();
        running.retain(|one| one.try_recv() == Err(TryRecvError::Empty));
        if running.len() >= RUNNING_MAX {
            return report(Err(anyhow::anyhow!(
                "nothing is started, since {RUNNING_MAX} earlier actions still run"
            )));
        }
        let (ends, end) = channel::<()>();
        let work = move || {
            report(work());
            drop(ends);
        };
        match std::thread::Builder::new().name("alert".into()).spawn(work) {
            Ok(_) => running.push(end),
            Err(error) => report(Err(error.into())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("sluice: after an alert: {}", with_causes(&error));
    }
}

fn execute(command: &str, alert: &Alert) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", command])
        .env("SLUICE_ALERT", &alert.message)
        .env("SLUICE_ALERT_RULE", &alert.rule)
        .env("SLUICE_ALERT_RUN", &alert.run)
        .env("SLUICE_ALERT_METRIC", &alert.metric)
        .env("SLUICE_ALERT_STEP", alert.step.to_string())
        .env("SLUICE_ALERT_VALUE", alert.value.to_string())
        .status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn post(url: &str, body: &str) -> Result<()> {
    let config = ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).max_redirects(0).build();
    let agent = ureq::Agent::new_with_config(config);
    let send = || agent.post(url).content_type("application/json").send(body);
    let mut last = send();
    for _ in 1..TRIES {
        if last.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        last = send();
    }
    match last {
        Ok(_) => Ok(()),
        Err(error) => anyhow::bail!("{url}: {error} ({TRIES} tries)"),
    }
}

fn take(folder: &std::path::Path, lease: Option<&Lease>) -> Result<()> {
    let Some(lease) = lease else {
        anyhow::bail!(
            "checkpoint: the program has no lease of a single node without a server, so it continues; see `sluice checkpoint`"
        )
    };
    checkpoint::run(&CheckpointArgs {
        every: None,
        number: lease.number,
        folder: folder.to_owned(),
        stop: true,
        key_file: None,
        if_lost: None,
        node: Some(lease.node.to_string()),
    })
    .map(drop)
}

/// An alert as webhooks and `-o json` have it. A value that is no number is null.
pub(super) fn json(alert: &Alert) -> serde_json::Value {
    serde_json::json!({
        "type": "training.alert",
        "time_ms": now_ms(),
        "rule": alert.rule,
        "run": alert.run,
        "metric": alert.metric,
        "step": alert.step,
        "value": alert.value,
        "message": alert.message,
    })
}
