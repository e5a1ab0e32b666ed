//! `sluice top`: GPUs and sessions, live, on a terminal.
//!
//! ```text
//!  source (a thread: asks a server or a node) ──▶ State ──▶ draw ──▶ terminal
//!                                                  ▲
//!                                                  └── keys
//! ```
//! The state is pure: readings and keys go in, a screen and wishes come out. A source that fails
//! leaves the last reading on the screen, and the screen says how old it is.

mod act;
mod draw;
mod source;
mod state;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::cli::TopArgs;
use crate::output::with_causes;
use crate::place::{EndSignals, Provider};
use act::Act;
use source::Source;
use state::{Reading, Session, State, Wish};

/// How long a key waits at most for a signal or a reading that came before it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the thread that asks has to do.
enum Order {
    Read,
    Act(Box<Session>, Act),
}

/// What it answers.
enum Answer {
    Reading(Result<Reading, String>),
    Done(Result<String, String>),
}

pub(crate) fn run(arguments: &TopArgs) -> Result<ExitCode> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top draws on a terminal, and this is none; `sluice gpus` and `sluice sessions` print once");
    }
    let source = match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Server(client) => Source::Server(client),
        Provider::Node(node) => Source::Node(node),
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE or SLUICE_SERVER"),
    };
    // Before the screen is taken: a server that cannot be reached at all is better reported in a
    // line.
    let first = source.read()?;
    let mut state = State::new(source.name());
    state.take(Ok(first));
    let stopping = stop_on_signals()?;
    let (orders, answers) = ask_in_background(source)?;
    // Puts the terminal back in order on a panic as well.
    let mut terminal = ratatui::try_init().context("the terminal cannot be drawn on")?;
    let shown =
        show(&mut terminal, &mut state, &orders, &answers, (arguments.interval.duration(), &stopping));
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    orders: &Sender<Order>,
    answers: &Receiver<Answer>,
    (interval, stopping): (Duration, &AtomicBool),
) -> Result<()> {
    let (mut asked, mut asking) = (std::time::Instant::now(), false);
    while !stopping.load(Ordering::Acquire) {
        terminal.draw(|frame| draw::draw(frame, state))?;
        if event::poll(LOOK_EVERY)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match state.key(key) {
                Some(Wish::Quit) => return Ok(()),
                Some(Wish::Act(session, act)) => _ = orders.send(Order::Act(session, act)),
                None => {}
            }
        }
        if !asking && asked.elapsed() >= interval {
            (asked, asking) = (std::time::Instant::now(), orders.send(Order::Read).is_ok());
        }
        for answer in answers.try_iter() {
            match answer {
                Answer::Reading(reading) => {
                    asking = false;
                    state.take(reading);
                }
                Answer::Done(said) => state.say(said),
            }
        }
    }
    Ok(())
}

/// A thread that asks, so that a server that takes its time holds no key up. It ends with the
/// sender of orders.
fn ask_in_background(source: Source) -> Result<(Sender<Order>, Receiver<Answer>)> {
    let (orders, ordered) = channel::<Order>();
    let (answer, answers) = channel();
    std::thread::Builder::new().name("top".into()).spawn(move || {
        for order in ordered {
            let said = |error: anyhow::Error| with_causes(&error);
            let answered = match order {
                Order::Read => Answer::Reading(source.read().map_err(said)),
                Order::Act(session, act) => Answer::Done(source.act(&session, &act).map_err(said)),
            };
            if answer.send(answered).is_err() {
                return;
            }
        }
    })?;
    Ok((orders, answers))
}

/// True once SIGINT or SIGTERM has come.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let signals = EndSignals::block(&[])?;
    let stopping = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stopping);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        told.store(true, Ordering::Release);
    })?;
    Ok(stopping)
}
