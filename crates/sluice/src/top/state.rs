//! What is on the screen: readings, their history, the order, the filter, the selection, a
//! question. Pure.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::act::{Act, Answered, Question};

/// Readings that the history of a GPU or session holds.
pub(super) const HISTORY: usize = 60;
/// Lines that page keys move by.
const PAGE: usize = 10;
/// Characters of a filter.
const FILTER_MAX: usize = 40;

/// GPUs and sessions at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) gpus: Vec<Gpu>,
    pub(super) sessions: Vec<Session>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gpu {
    /// `NODE/INDEX`, or the index alone on a node.
    pub(super) name: String,
    pub(super) model: String,
    pub(super) busy_ppm: u32,
    pub(super) share_leased_ppm: u32,
    pub(super) memory: u64,
    pub(super) memory_used: u64,
    /// Degrees Celsius and watts, as far as a server knows them.
    pub(super) temperature_c: Option<u32>,
    pub(super) power_w: Option<u32>,
    /// Leases, or on a node sessions.
    pub(super) users: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Session {
    /// Of the node, empty where only one is asked.
    pub(super) node: String,
    pub(super) session: u64,
    pub(super) lease: u64,
    /// Empty on a node without a server.
    pub(super) tenant: String,
    pub(super) program: String,
    pub(super) gpu: u32,
    pub(super) share_ppm: u32,
    pub(super) memory: u64,
    pub(super) memory_used: u64,
    /// Of these bytes, those in host memory, and those that cannot leave the GPU.
    pub(super) memory_swapped: u64,
    pub(super) memory_pinned: u64,
    /// For how long its memory has been moved to host memory and back.
    pub(super) memory_moving_us: u64,
    /// It gets no GPU time until it is resumed.
    pub(super) suspended: bool,
    pub(super) kernels: u64,
    pub(super) busy_us: u64,
    pub(super) age_ms: u64,
    /// Where the program is: an address, or `pid N` on the node's own machine.
    pub(super) peer: String,
}

/// What sessions are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Busy,
    Memory,
    Age,
    Lease,
    Tenant,
    Program,
}

impl Order {
    const ALL: [Order; 6] =
        [Order::Busy, Order::Memory, Order::Age, Order::Lease, Order::Tenant, Order::Program];

    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Busy => "GPU time",
            Order::Memory => "memory",
            Order::Age => "age",
            Order::Lease => "lease",
            Order::Tenant => "tenant",
            Order::Program => "program",
        }
    }

    fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()]
    }
}

/// What a key asks of the surroundings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wish {
    Quit,
    Act(Box<Session>, Act),
}

type SessionKey = (String, u64);

/// What is known of a session from reading to reading.
#[derive(Clone, Debug, Default)]
struct Trace {
    busy_us: u64,
    age_ms: u64,
    /// Percent of a GPU's time, the latest last.
    history: VecDeque<u32>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Who is asked.
    pub(super) source: String,
    reading: Reading,
    gpu_history: BTreeMap<String, VecDeque<u32>>,
    traces: BTreeMap<SessionKey, Trace>,
    pub(super) order: Order,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Keys go to the filter.
    pub(super) filtering: bool,
    pub(super) paused: bool,
    selected: Option<SessionKey>,
    /// What is being asked before a session is changed.
    pub(super) asking: Option<Question>,
    /// What became of the last order.
    pub(super) said: Option<Result<String, String>>,
    /// Why the last reading failed, and when the one on the screen was taken.
    pub(super) failed: Option<String>,
    pub(super) taken: Instant,
}

impl State {
    pub(super) fn new(source: String) -> State {
        State {
            source,
            reading: Reading::default(),
            gpu_history: BTreeMap::new(),
            traces: BTreeMap::new(),
            order: Order::Busy,
            reversed: false,
            filter: String::new(),
            filtering: false,
            paused: false,
            selected: None,
            asking: None,
            said: None,
            failed: None,
            taken: Instant::now(),
        }
    }

    /// Takes a reading, or why there is none: what was on the screen stays then.
    pub(super) fn take(&mut self, reading: Result<Reading, String>) {
        let reading = match reading {
            Ok(_) if self.paused => return,
            Ok(reading) => reading,
            Err(why) => return self.failed = Some(why),
        };
        (self.failed, self.taken) = (None, Instant::now());
        let names: BTreeSet<&str> = reading.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        self.gpu_history.retain(|name, _| names.contains(name.as_str()));
        for gpu in &reading.gpus {
            let history = self.gpu_history.entry(gpu.name.clone()).or_default();
            remember(history, gpu.busy_ppm / 10_000);
        }
        let keys: BTreeSet<SessionKey> = reading.sessions.iter().map(key).collect();
        self.traces.retain(|of, _| keys.contains(of));
        for session in &reading.sessions {
            self.traces.entry(key(session)).or_default().follow(session);
        }
        self.reading = reading;
        if self.selected.as_ref().is_none_or(|selected| !keys.contains(selected)) {
            self.selected = self.sessions().first().map(|session| key(session));
        }
    }

    pub(super) fn say(&mut self, said: Result<String, String>) {
        self.said = Some(said);
    }

    pub(super) fn gpus(&self) -> &[Gpu] {
        &self.reading.gpus
    }

    /// Percent of the time in which a GPU was busy, the latest last.
    pub(super) fn gpu_history(&self, gpu: &Gpu) -> impl Iterator<Item = u32> + '_ {
        self.gpu_history.get(&gpu.name).into_iter().flatten().copied()
    }

    /// Percent of the time in which a session kept its GPUs busy, the latest last; one with several
    /// GPUs may have more than 100.
    pub(super) fn session_history(&self, session: &Session) -> impl Iterator<Item = u32> + '_ {
        self.traces.get(&key(session)).into_iter().flat_map(|trace| trace.history.iter().copied())
    }

    /// `None` until two readings say it.
    pub(super) fn busy_percent(&self, session: &Session) -> Option<u32> {
        self.traces.get(&key(session))?.history.back().copied()
    }

    pub(super) fn sessions_in_all(&self) -> usize {
        self.reading.sessions.len()
    }

    /// Those that pass the filter, in their order.
    pub(super) fn sessions(&self) -> Vec<&Session> {
        let wanted = self.filter.to_lowercase();
        let passes = |session: &&Session| {
            let Session { node, lease, tenant, program, gpu, .. } = session;
            wanted.is_empty()
                || format!("{tenant} {program} {node}/{gpu} {lease}").to_lowercase().contains(&wanted)
        };
        let mut sessions: Vec<&Session> = self.reading.sessions.iter().filter(passes).collect();
        sessions.sort_by(|one, other| {
            let order = self.compare(one, other);
            let order = if self.reversed { order.reverse() } else { order };
            order.then_with(|| key(one).cmp(&key(other)))
        });
        sessions
    }

    fn compare(&self, one: &Session, other: &Session) -> Ordering {
        match self.order {
            Order::Busy => self.busy_percent(other).cmp(&self.busy_percent(one)),
            Order::Memory => other.memory_used.cmp(&one.memory_used),
            Order::Age => other.age_ms.cmp(&one.age_ms),
            Order::Lease => one.lease.cmp(&other.lease),
            Order::Tenant => one.tenant.cmp(&other.tenant),
            Order::Program => one.program.cmp(&other.program),
        }
    }

    /// The place of the selection among [`State::sessions`].
    pub(super) fn selected(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.sessions().iter().position(|session| key(session) == *selected)
    }

    pub(super) fn key(&mut self, pressed: KeyEvent) -> Option<Wish> {
        if pressed.modifiers.contains(KeyModifiers::CONTROL) {
            return (pressed.code == KeyCode::Char('c')).then_some(Wish::Quit);
        }
        if let Some(question) = self.asking.take() {
            match question.key(pressed.code) {
                Answered::Do(session, act) => return Some(Wish::Act(session, act)),
                Answered::Ask(question) => self.asking = Some(*question),
                Answered::Nothing => {}
            }
            return None;
        }
        if self.filtering {
            self.edit_filter(pressed.code);
            return None;
        }
        self.said = None;
        match pressed.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.filtering = true,
            KeyCode::Char('k') => self.ask(|session| Question::confirm(session, Act::End)),
            KeyCode::Char('z') => self.ask(|session| {
                let act = if session.suspended { Act::Resume } else { Act::Suspend };
                Question::confirm(session, act)
            }),
            KeyCode::Char('e') => self.ask(Question::size),
            KeyCode::Up => self.select(|at| at.saturating_sub(1)),
            KeyCode::Down => self.select(|at| at + 1),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|at| at + PAGE),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            _ => {}
        }
        None
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => (self.filtering, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => {}
        }
    }

    fn ask(&mut self, question: impl Fn(Session) -> Question) {
        self.asking = self.selected_session().map(question);
    }

    fn selected_session(&self) -> Option<Session> {
        self.sessions().get(self.selected()?).map(|session| (*session).clone())
    }

    fn select(&mut self, to: impl Fn(usize) -> usize) {
        let sessions = self.sessions();
        let last = sessions.len().saturating_sub(1);
        let at = self.selected().map_or(0, |at| to(at).min(last));
        self.selected = sessions.get(at).map(|session| key(session));
    }
}

impl Trace {
    /// By the node's own clock: a server shows what the node's last report said, which may be the
    /// same as before.
    fn follow(&mut self, session: &Session) {
        let passed_ms = session.age_ms.saturating_sub(self.age_ms);
        if passed_ms > 0 && self.age_ms > 0 {
            let busy_us = session.busy_us.saturating_sub(self.busy_us);
            remember(&mut self.history, (busy_us / passed_ms / 10) as u32);
        }
        (self.busy_us, self.age_ms) = (session.busy_us, session.age_ms);
    }
}

fn key(session: &Session) -> SessionKey {
    (session.node.clone(), session.session)
}

fn remember(history: &mut VecDeque<u32>, value: u32) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, tenant: &str, memory_used: u64) -> Session {
        Session {
            session: number,
            lease: 10 + number,
            tenant: tenant.into(),
            program: format!("p{number}.py"),
            memory_used,
            age_ms: 1_000,
            ..Session::default()
        }
    }

    fn state(sessions: Vec<Session>) -> State {
        let mut state = State::new("a test".into());
        state.take(Ok(Reading { gpus: vec![], sessions }));
        state
    }

    fn press(state: &mut State, codes: &[KeyCode]) -> Option<Wish> {
        codes.iter().fold(None, |_, &code| state.key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn shown(state: &State) -> Vec<u64> {
        state.sessions().iter().map(|session| session.session).collect()
    }

    #[test]
    fn sessions_are_sorted_and_filtered() {
        let mut state = state(vec![session(1, "acme", 5), session(2, "globex", 9), session(3, "acme", 7)]);
        press(&mut state, &[KeyCode::Char('s')]);
        assert_eq!((state.order, shown(&state)), (Order::Memory, vec![2, 3, 1]));
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!(shown(&state), [1, 3, 2]);
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('A'), KeyCode::Char('c'), KeyCode::Enter]);
        assert_eq!(shown(&state), [1, 3]);
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Esc]);
        assert_eq!(shown(&state), [1, 3, 2], "keys of a filter are no commands, and Esc takes it back");
    }

    #[test]
    fn a_session_is_ended_after_a_yes_only() {
        let mut state = state(vec![session(1, "acme", 5), session(2, "acme", 4)]);
        press(&mut state, &[KeyCode::Down, KeyCode::Char('k')]);
        assert_eq!(state.asking.as_ref().map(|question| question.session.session), Some(2));
        for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc, KeyCode::Char('q')] {
            assert_eq!(press(&mut state, &[no]), None, "{no:?} is no yes");
            assert!(state.asking.is_none());
            press(&mut state, &[KeyCode::Char('k')]);
        }
        let wish = press(&mut state, &[KeyCode::Char('y')]);
        assert!(matches!(wish, Some(Wish::Act(session, Act::End)) if session.session == 2));
        assert_eq!(press(&mut state, &[KeyCode::Char('y')]), None, "one question, one answer");
    }

    #[test]
    fn one_key_suspends_a_session_and_resumes_it() {
        let mut state = state(vec![session(1, "acme", 5)]);
        let wish = press(&mut state, &[KeyCode::Char('z'), KeyCode::Char('y')]);
        assert!(matches!(wish, Some(Wish::Act(_, Act::Suspend))), "{wish:?}");
        let suspended = Session { suspended: true, ..session(1, "acme", 5) };
        state.take(Ok(Reading { gpus: vec![], sessions: vec![suspended] }));
        let wish = press(&mut state, &[KeyCode::Char('z'), KeyCode::Char('y')]);
        assert!(matches!(wish, Some(Wish::Act(_, Act::Resume))), "{wish:?}");
        assert_eq!(press(&mut state, &[KeyCode::Char('e'), KeyCode::Char('q'), KeyCode::Esc]), None);
        assert!(state.asking.is_none(), "keys of a size are no commands, and Esc takes it back");
    }

    #[test]
    fn the_question_is_about_the_session_that_was_selected_then() {
        let mut state = state(vec![session(1, "acme", 5)]);
        press(&mut state, &[KeyCode::Char('k')]);
        state.take(Ok(Reading { gpus: vec![], sessions: vec![session(2, "acme", 5)] }));
        let wish = press(&mut state, &[KeyCode::Char('y')]);
        assert!(matches!(wish, Some(Wish::Act(session, Act::End)) if session.session == 1));
    }

    #[test]
    fn the_selection_follows_its_session() {
        let mut state = state(vec![session(1, "a", 1), session(2, "b", 2), session(3, "c", 3)]);
        press(&mut state, &[KeyCode::End]);
        assert_eq!(state.selected(), Some(2));
        press(&mut state, &[KeyCode::Char('s'), KeyCode::Char('r')]);
        assert_eq!(state.selected_session().map(|session| session.session), Some(3), "in another order too");
        state.take(Ok(Reading { gpus: vec![], sessions: vec![session(1, "a", 1)] }));
        assert_eq!(state.selected_session().map(|session| session.session), Some(1));
        state.take(Ok(Reading::default()));
        assert_eq!(press(&mut state, &[KeyCode::Down, KeyCode::Char('k'), KeyCode::Char('y')]), None);
    }

    #[test]
    fn what_a_session_computes_is_said_by_its_nodes_clock() {
        let mut state = state(vec![session(1, "acme", 5)]);
        let first = state.sessions()[0].clone();
        assert_eq!(state.busy_percent(&first), None);
        let later = Session { busy_us: 500_000, age_ms: 3_000, ..session(1, "acme", 5) };
        for _ in 0..2 {
            state.take(Ok(Reading { gpus: vec![], sessions: vec![later.clone()] }));
        }
        assert_eq!(
            state.session_history(&later).collect::<Vec<_>>(),
            [25],
            "the same report says nothing new"
        );
    }

    #[test]
    fn a_reading_that_fails_leaves_the_last_one() {
        let mut state = state(vec![session(1, "acme", 5)]);
        state.take(Err("no answer".into()));
        assert_eq!((shown(&state), state.failed.as_deref()), (vec![1], Some("no answer")));
        press(&mut state, &[KeyCode::Char('p')]);
        state.take(Ok(Reading::default()));
        assert_eq!(shown(&state), [1], "paused");
    }
}
