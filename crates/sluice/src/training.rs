//! `sluice watch`, and `sluice run --when`: metrics of training runs, and what follows an alert.

mod actions;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sluice_training::{Alert, Rule, Source, Watch};
use sluice_wire::address::Endpoint;
use tempfile::TempDir;

use crate::child::{self, NotStarted};
use crate::cli::{Action, Output, RunArgs, TrainingArgs, WatchArgs};
use crate::run::failed;
use actions::{Actions, Then};

/// How often files are read.
const EVERY: Duration = Duration::from_secs(1);
/// How long the end of a program waits for what alerts have started.
const FINISH_MAX: Duration = Duration::from_secs(30);
/// With `--once`: there is nothing to apply the rules to, or something could not be read.
const EXIT_NOT_JUDGED: u8 = 2;
/// The name of the only program of a run.
const PROGRAM: &str = "program";
/// Names the file to which a program under `sluice run --when` adds its metrics.
const VARIABLE: &str = "SLUICE_METRICS";

/// Watches until an action ends it; with `--once`, until all is read.
pub(crate) fn watch(arguments: &WatchArgs) -> Result<ExitCode> {
    let kept = arguments.actions.iter().find_map(|action| match action {
        Action::Checkpoint(folder) => Some(folder.display()),
        _ => None,
    });
    if let Some(folder) = kept {
        bail!(
            "checkpoint:{folder} is for `sluice run`, which knows the lease; here it is exec:'sluice checkpoint LEASE \
             {folder} --stop'"
        );
    }
    let following = Following::new(&arguments.paths, &arguments.rules);
    let actions = Actions::new(&arguments.actions);
    let code = if arguments.once {
        judge_once(following, &actions, arguments.output)?
    } else {
        watch_on(following, &actions, arguments.output)
    };
    actions.finish(None);
    Ok(code)
}

/// Judges the last values of all that is there.
fn judge_once(mut following: Following, actions: &Actions, output: Output) -> Result<ExitCode> {
    if following.rules.iter().any(Rule::is_about_silence) {
        bail!("--once: whether a metric is silent is seen only by a watch that continues");
    }
    following.look(true);
    let broken = following.watch.broken();
    for alert in &broken {
        print(alert, output);
        actions.act(alert, None);
    }
    Ok(match (following.has_failed, following.watch.followed()) {
        (false, 0) => {
            let files = following.sources.iter().map(Source::files).sum::<usize>();
            eprintln!("sluice: no metric of these rules was found, in {files} files with metrics");
            ExitCode::from(EXIT_NOT_JUDGED)
        }
        _ if !broken.is_empty() => ExitCode::FAILURE,
        (true, _) => ExitCode::from(EXIT_NOT_JUDGED),
        (false, _) => ExitCode::SUCCESS,
    })
}

fn watch_on(mut following: Following, actions: &Actions, output: Output) -> ExitCode {
    loop {
        for alert in following.look(false) {
            print(&alert, output);
            if actions.act(&alert, None) == Then::End {
                return ExitCode::FAILURE;
            }
        }
        std::thread::sleep(EVERY);
    }
}

fn print(alert: &Alert, output: Output) {
    match output {
        Output::Table => println!("{}", alert.message),
        Output::Json => println!("{}", actions::json(alert)),
    }
}

/// Sources and rules.
struct Following {
    rules: Vec<Rule>,
    sources: Vec<Source>,
    watch: Watch,
    began: Instant,
    /// What was there before the watch is history, whose silence is no trouble.
    is_history: bool,
    /// Something could not be read at the last look.
    has_failed: bool,
}

impl Following {
    /// Runs are named by their paths; of several sources, with the source before it.
    fn new(paths: &[PathBuf], rules: &[Rule]) -> Following {
        let label = |path: &PathBuf| if paths.len() > 1 { path.display().to_string() } else { String::new() };
        Following::of(paths.iter().map(|path| Source::new(path, &label(path))).collect(), rules)
    }

    fn of(sources: Vec<Source>, rules: &[Rule]) -> Following {
        let (rules, watch, began) = (rules.to_vec(), Watch::new(rules.to_vec()), Instant::now());
        Following { rules, sources, watch, began, is_history: true, has_failed: false }
    }

    /// The alerts of what has been written since the last look.
    fn look(&mut self, is_last: bool) -> Vec<Alert> {
        let mut alerts = Vec::new();
        self.has_failed = false;
        for source in &mut self.sources {
            loop {
                let polled = source.poll(is_last);
                polled.notices.iter().for_each(|notice| eprintln!("sluice: {notice}"));
                self.has_failed |= polled.has_failed;
                let now = (!self.is_history).then(|| self.began.elapsed());
                alerts.extend(polled.points.iter().flat_map(|point| self.watch.take(point, now)));
                if !polled.more {
                    break;
                }
            }
        }
        self.is_history = false;
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
    state: Arc<Mutex<State>>,
    /// Holds the files of the program's metrics.
    _folder: TempDir,
}

/// What the thread that watches knows of the program.
#[derive(Clone, Debug, Default)]
struct State {
    is_running: bool,
    lease: Option<Lease>,
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
        let TrainingArgs { rules, actions, paths } = &arguments.training;
        if rules.is_empty() {
            return Ok(Training { watched: None });
        }
        let keeps = actions.iter().any(|action| matches!(action, Action::Checkpoint(_)));
        if keeps && actions.contains(&Action::End) {
            return Err(failed("--then checkpoint: keeps the program and --then end ends it: choose one"));
        }
        let folder = tempfile::Builder::new().prefix("sluice-metrics-").tempdir();
        let folder = folder.map_err(|error| failed(format!("a folder for metrics: {error}")))?;
        set_variable(&folder.path().join(format!("{PROGRAM}.jsonl")));
        let mut sources = vec![Source::new(folder.path(), "")];
        sources.extend(paths.iter().map(|path| Source::new(path, &path.display().to_string())));
        let (following, actions) = (Following::of(sources, rules), Actions::new(actions));
        let (end, ended) = channel();
        let state = Arc::<Mutex<State>>::default();
        let seen = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || follow(following, &actions, &seen, &ended))
            .map_err(|error| failed(format!("a thread for metrics: {error}")))?;
        Ok(Training { watched: Some(Watched { end, thread, state, _folder: folder }) })
    }

    /// The program starts, under this lease if it has only one.
    pub(crate) fn starts(&self, lease: Option<Lease>) {
        self.set(State { is_running: true, lease });
    }

    /// The program waits for another place.
    pub(crate) fn rests(&self) {
        self.set(State::default());
    }

    fn set(&self, state: State) {
        if let Some(watched) = &self.watched {
            *watched.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
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

fn follow(mut following: Following, actions: &Actions, state: &Mutex<State>, ended: &Receiver<()>) {
    let mut is_asked = false;
    loop {
        let is_last = !matches!(ended.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout));
        let State { is_running, lease } = state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !is_running {
            following.watch.rested(following.began.elapsed());
        }
        for alert in following.look(is_last) {
            eprintln!("sluice: {}", alert.message);
            let then = actions.act(&alert, lease.as_ref());
            // Being asked twice may keep a program from saving its work.
            if then == Then::End && !is_last && !is_asked {
                is_asked = true;
                eprintln!("sluice: the program is asked to end");
                child::ask_to_end();
            }
        }
        if is_last {
            return actions.finish(Some(FINISH_MAX));
        }
    }
}

/// Where the program of a rank adds its metrics, where several run side by side.
pub(crate) fn variable_of(rank: usize) -> Option<(OsString, OsString)> {
    let folder = PathBuf::from(std::env::var_os(VARIABLE)?);
    Some((VARIABLE.into(), folder.with_file_name(format!("rank{rank}.jsonl")).into()))
}

fn set_variable(file: &Path) {
    // SAFETY: no node and no program is started yet, and no other thread reads the environment.
    unsafe { std::env::set_var(VARIABLE, file) };
}
