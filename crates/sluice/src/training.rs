//! `sluice watch`, and `sluice run --when`: metrics of training runs, and what follows an alert.

mod actions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sluice_training::{Alert, Source, Watch};
use sluice_wire::address::Endpoint;
use tempfile::TempDir;

use crate::child::NotStarted;
use crate::cli::{Action, Output, RunArgs, WatchArgs};
use crate::run::failed;
use actions::{Actions, Then};

/// How often files are read.
const EVERY: Duration = Duration::from_secs(1);
/// With `--once`: there is nothing to apply the rules to.
const EXIT_NO_METRIC: u8 = 2;
/// Names the file to which a program under `sluice run --when` adds its metrics.
const VARIABLE: &str = "SLUICE_METRICS";

/// Watches until an action ends it; with `--once`, until all is read.
pub(crate) fn watch(arguments: &WatchArgs) -> Result<ExitCode> {
    if let Some(Action::Checkpoint(folder)) =
        arguments.actions.iter().find(|action| matches!(action, Action::Checkpoint(_)))
    {
        bail!(
            "checkpoint:{0} is for `sluice run`, which knows the lease; here it is exec:'sluice checkpoint LEASE {0} --stop'",
            folder.display()
        );
    }
    let mut following = Following::new(&arguments.paths, &arguments.rules);
    let actions = Actions::new(&arguments.actions);
    let mut is_broken = false;
    // Nothing is ever sent.
    let (_end, ended) = channel();
    loop {
        for alert in following.look() {
            is_broken = true;
            match arguments.output {
                Output::Table => println!("{}", alert.message),
                Output::Json => println!("{}", actions::json(&alert)),
            }
            if actions.act(&alert, None) == Then::End {
                actions.finish();
                return Ok(ExitCode::FAILURE);
            }
        }
        if arguments.once {
            actions.finish();
            if following.followed() == 0 {
                let files = following.files();
                eprintln!("sluice: no metric of these rules was found, in {files} files with metrics");
                return Ok(ExitCode::from(EXIT_NO_METRIC));
            }
            return Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        wait(&ended);
    }
}

/// Whether it is to end.
fn wait(ended: &Receiver<()>) -> bool {
    !matches!(ended.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout))
}

/// Sources and rules.
struct Following {
    sources: Vec<Source>,
    watch: Watch,
    began: Instant,
    /// The last thing that was wrong with each source.
    failures: Vec<String>,
}

impl Following {
    fn new(paths: &[PathBuf], rules: &[sluice_training::Rule]) -> Following {
        let sources: Vec<_> = paths.iter().map(|path| Source::new(path)).collect();
        let failures = vec![String::new(); sources.len()];
        Following { sources, watch: Watch::new(rules.to_vec()), began: Instant::now(), failures }
    }

    fn files(&self) -> usize {
        self.sources.iter().map(Source::files).sum()
    }

    fn followed(&self) -> usize {
        self.watch.followed()
    }

    /// The alerts of what has been written since the last look.
    fn look(&mut self) -> Vec<Alert> {
        let mut alerts = Vec::new();
        for (source, failure) in self.sources.iter_mut().zip(&mut self.failures) {
            loop {
                let polled = match source.poll() {
                    Ok(polled) => polled,
                    Err(error) => {
                        let error = error.to_string();
                        if *failure != error {
                            eprintln!("sluice: {error}");
                        }
                        *failure = error;
                        break;
                    }
                };
                polled.notices.iter().for_each(|notice| eprintln!("sluice: {notice}"));
                let now = self.began.elapsed();
                alerts.extend(polled.points.iter().flat_map(|point| self.watch.take(point, now)));
                if !polled.more {
                    break;
                }
            }
        }
        alerts.extend(self.watch.silence(self.began.elapsed()));
        alerts
    }
}

/// The metrics of the program of one `sluice run`.
pub(crate) struct Training {
    watched: Option<Watched>,
}

struct Watched {
    end: Sender<()>,
    thread: JoinHandle<()>,
    place: Arc<Mutex<Option<Lease>>>,
    /// Holds the file of the program's metrics.
    _folder: TempDir,
}

/// A lease of a node without a server.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) node: Endpoint,
    pub(crate) number: u64,
}

impl Training {
    /// Begins to watch. The program finds in the environment where its metrics go.
    pub(crate) fn begin(arguments: &RunArgs) -> Result<Training, NotStarted> {
        if arguments.training.rules.is_empty() {
            return Ok(Training { watched: None });
        }
        let folder = tempfile::Builder::new().prefix("sluice-metrics-").tempdir();
        let folder = folder.map_err(|error| failed(format!("a folder for metrics: {error}")))?;
        let file = folder.path().join("program.jsonl");
        std::fs::write(&file, "").map_err(|error| failed(format!("{}: {error}", file.display())))?;
        set_variable(&file);
        let mut paths = vec![file];
        paths.extend(arguments.training.paths.iter().cloned());
        let following = Following::new(&paths, &arguments.training.rules);
        let actions = Actions::new(&arguments.training.actions);
        let (end, ended) = channel();
        let place = Arc::new(Mutex::new(None));
        let lease = Arc::clone(&place);
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || follow(following, &actions, &lease, &ended))
            .map_err(|error| failed(format!("a thread for metrics: {error}")))?;
        Ok(Training { watched: Some(Watched { end, thread, place, _folder: folder }) })
    }

    /// The lease under which the program runs.
    pub(crate) fn runs_under(&self, lease: Option<Lease>) {
        if let Some(watched) = &self.watched {
            *watched.place.lock().unwrap_or_else(PoisonError::into_inner) = lease;
        }
    }

    /// Reads what the program wrote last.
    pub(crate) fn end(self) {
        if let Some(Watched { end, thread, .. }) = self.watched {
            drop(end);
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn follow(mut following: Following, actions: &Actions, lease: &Mutex<Option<Lease>>, ended: &Receiver<()>) {
    loop {
        let is_last = wait(ended);
        for alert in following.look() {
            eprintln!("sluice: {}", alert.message);
            let lease = lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if actions.act(&alert, lease.as_ref()) == Then::End && !is_last {
                eprintln!("sluice: the program is asked to end");
                // SAFETY: kill touches no memory; this process passes the signal on to the program.
                unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
            }
        }
        if is_last {
            return actions.finish();
        }
    }
}

fn set_variable(file: &Path) {
    // SAFETY: no node and no program is started yet, and no other thread reads the environment.
    unsafe { std::env::set_var(VARIABLE, file) };
}
