//! The screen, from 80 x 24 up; a smaller one shows less.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::act::{Act, Kind, Question};
use super::state::{Gpu, Session, State};
use crate::quantity::{Memory, Period};
use crate::run::share_text;

/// Readings that a line of history shows.
const HISTORY_WIDTH: u16 = 10;
/// Columns of a terminal below which sessions are shown without their history.
const NARROW: u16 = 100;
/// Where the terminal is as wide as this, sessions' memory that is not on the GPU is shown, memory
/// that cannot leave it, and the time that swapping has taken.
const MEMORY_WIDTH: u16 = 130;
/// `100 C 1000 W`
const SENSORS_WIDTH: u16 = 12;
/// A longer name of a node is cut, so that the other columns stay on the screen.
const GPU_WIDTH_MAX: usize = 20;
/// Lines of GPUs before the rest is left out, so that sessions have room.
const GPUS_MAX: u16 = 8;
const KEYS: &str = "q quit  s sort  r reverse  / filter  p pause  k end  z suspend  e resize";
/// From nothing to the whole GPU.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let gpus = (state.gpus().len() as u16).min(GPUS_MAX) + 1;
    let parts = [
        Constraint::Length(1),
        Constraint::Length(gpus),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ];
    let [title, upper, middle, lower, bottom] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(title_line(state), title);
    gpu_table(frame, upper, state);
    frame.render_widget(sessions_line(state), middle);
    session_table(frame, lower, state);
    frame.render_widget(bottom_line(state), bottom);
    if let Some(question) = &state.asking {
        ask(frame, question);
    }
}

fn title_line(state: &State) -> Line<'static> {
    let mut line = vec![Span::from("sluice top").bold(), Span::from(format!("  {}", plain(&state.source)))];
    if state.paused {
        line.push(Span::from("  paused").fg(Color::Yellow));
    }
    if let Some(why) = &state.failed {
        let age = Period::from_duration(Duration::from_secs(state.taken.elapsed().as_secs()));
        line.push(Span::from(format!("  as of {age} ago: {}", plain(why))).fg(Color::Red));
    }
    Line::from(line)
}

fn sessions_line(state: &State) -> Line<'static> {
    let (shown, all) = (state.sessions().len(), state.sessions_in_all());
    let count = if shown == all { format!("{all} sessions") } else { format!("{shown} of {all} sessions") };
    let direction = if state.reversed { ", reversed" } else { "" };
    let filter = match (state.filtering, state.filter.is_empty()) {
        (true, _) => format!("  filter: {}_", plain(&state.filter)),
        (false, false) => format!("  filter: {}", plain(&state.filter)),
        (false, true) => String::new(),
    };
    Line::from(format!("{count} by {}{direction}{filter}", state.order.name())).bold()
}

fn bottom_line(state: &State) -> Line<'static> {
    match &state.said {
        Some(Ok(done)) => Line::from(plain(done)).fg(Color::Green),
        Some(Err(why)) => Line::from(plain(why)).fg(Color::Red),
        None if state.filtering => Line::from("Enter keeps the filter, Esc takes it away").dim(),
        None => Line::from(KEYS).dim(),
    }
}

/// `61 C 312 W`, as far as they are known.
fn sensors(gpu: &Gpu) -> String {
    let temperature = gpu.temperature_c.map(|degrees| format!("{degrees} C"));
    let power = gpu.power_w.map(|watts| format!("{watts} W"));
    temperature.into_iter().chain(power).collect::<Vec<_>>().join(" ")
}

fn gpu_table(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let has_sensors = area.width >= NARROW && state.gpus().iter().any(|gpu| !sensors(gpu).is_empty());
    let row = |gpu: &Gpu| {
        let memory = format!("{}/{}", Memory::from_bytes(gpu.memory_used), Memory::from_bytes(gpu.memory));
        let mut cells = vec![
            plain(&gpu.name),
            plain(&gpu.model),
            share_text(gpu.busy_ppm / 10_000 * 10_000),
            share_text(gpu.share_leased_ppm),
            memory,
            gpu.users.to_string(),
            history(state.gpu_history(gpu)),
        ];
        if has_sensors {
            cells.insert(5, sensors(gpu));
        }
        Row::new(cells)
    };
    let names = state.gpus().iter().map(|gpu| gpu.name.chars().count()).max().unwrap_or_default();
    let mut widths = vec![
        Constraint::Length(names.clamp(3, GPU_WIDTH_MAX) as u16),
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(21),
        Constraint::Length(5),
        Constraint::Length(HISTORY_WIDTH),
    ];
    let mut names = vec!["GPU", "NAME", "BUSY", "LEASED", "MEMORY", "USERS", "HISTORY"];
    if has_sensors {
        widths.insert(5, Constraint::Length(SENSORS_WIDTH));
        names.insert(5, "SENSORS");
    }
    frame.render_widget(Table::new(state.gpus().iter().map(row), widths).header(header(&names)), area);
}

fn gpu_name(session: &Session) -> String {
    match session.node.as_str() {
        "" => session.gpu.to_string(),
        node => format!("{node}/{}", session.gpu),
    }
}

fn session_table(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let sessions = state.sessions();
    let is_wide = area.width >= MEMORY_WIDTH;
    let row = |session: &&Session| {
        let busy = state.busy_percent(session).map_or_else(|| "-".into(), |percent| format!("{percent}%"));
        let tenant = if session.tenant.is_empty() { "-" } else { &session.tenant };
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        let mut cells = vec![
            session.lease.to_string(),
            plain(tenant),
            format!("{}{}", plain(&session.program), if session.suspended { " (suspended)" } else { "" }),
            plain(&gpu_name(session)),
            share_text(session.share_ppm),
            busy,
            memory(session.memory_used.saturating_sub(session.memory_swapped)),
        ];
        if is_wide {
            let swapping = Period::from_duration(Duration::from_micros(session.memory_moving_us));
            let (swapped, pinned) = (memory(session.memory_swapped), memory(session.memory_pinned));
            cells.extend([swapped, pinned, swapping.to_string()]);
        }
        cells.push(Period::from_duration(Duration::from_millis(session.age_ms / 1000 * 1000)).to_string());
        cells.push(history(state.session_history(session)));
        Row::new(cells)
    };
    // The program is what people look for: names as wide as they are and, on a narrow terminal,
    // the history make room for it.
    let widest = |title: &str, texts: &mut dyn Iterator<Item = usize>, max: usize| {
        Constraint::Length(texts.max().unwrap_or(0).clamp(title.len(), max) as u16)
    };
    let tenants = widest("TENANT", &mut sessions.iter().map(|session| session.tenant.chars().count()), 14);
    let gpus = widest("GPU", &mut sessions.iter().map(|session| gpu_name(session).chars().count()), 10);
    let mut widths = vec![
        Constraint::Length(6),
        tenants,
        Constraint::Fill(1),
        gpus,
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(10),
    ];
    let mut titles = vec!["LEASE", "TENANT", "PROGRAM", "GPU", "SHARE", "HAS", "ON GPU"];
    if is_wide {
        widths.extend([Constraint::Length(10); 3]);
        titles.extend(["SWAPPED", "PINNED", "SWAPPING"]);
    }
    let history_width = if area.width < NARROW { 0 } else { HISTORY_WIDTH };
    widths.extend([Constraint::Length(9), Constraint::Length(history_width)]);
    titles.extend(["AGE", "HISTORY"]);
    let header = header(&titles);
    let table = Table::new(sessions.iter().map(row), widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, area, &mut selection);
}

fn header(titles: &[&'static str]) -> Row<'static> {
    Row::new(titles.iter().copied()).style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED))
}

fn ask(frame: &mut Frame<'_>, question: &Question) {
    let Session { tenant, program, lease, session, .. } = &question.session;
    let (tenant, program) = (plain(tenant), plain(program));
    let is_alone = tenant.is_empty();
    let whole = format!("lease {lease} of {tenant} ({program})");
    let (title, text) = match &question.kind {
        Kind::Confirm(Act::End) if is_alone => {
            ("end", format!("End the program {program} (lease {lease})? It gets SIGTERM."))
        }
        Kind::Confirm(Act::End) => ("end", format!("End {whole}? All programs of the lease end.")),
        Kind::Confirm(act) => {
            let (title, verb, what) = match act {
                Act::Resume => ("resume", "Resume", "Its memory comes back to the GPU."),
                _ => ("suspend", "Suspend", "Its memory leaves the GPU, and its calls wait."),
            };
            let whom = if is_alone { format!("session {session} ({program})") } else { whole };
            (title, format!("{verb} {whom}? {what}"))
        }
        Kind::Size { typed, problem } => {
            let whom = if is_alone { format!("lease {lease} ({program})") } else { whole };
            let problem = problem.as_deref().map_or(String::new(), |why| format!("\n{}", plain(why)));
            ("resize", format!("New share or memory of {whom}, such as 50% 16GiB: {typed}_{problem}"))
        }
    };
    let keys = match question.kind {
        Kind::Confirm(_) => "y: yes, any other key: no",
        Kind::Size { .. } => "Enter: resize, Esc: leave it",
    };
    let area = frame.area().centered(Constraint::Max(60), Constraint::Max(8));
    frame.render_widget(Clear, area);
    let text = Paragraph::new(format!("{text}\n\n{keys}")).wrap(Wrap { trim: true });
    frame.render_widget(text.block(Block::bordered().title(title)), area);
}

/// The latest readings, each as a column from nothing to 100 %.
fn history(percents: impl Iterator<Item = u32>) -> String {
    let percents: Vec<u32> = percents.collect();
    let latest = percents.len().saturating_sub(usize::from(HISTORY_WIDTH));
    let level = |&percent: &u32| LEVELS[(percent.min(100) as usize * (LEVELS.len() - 1)).div_ceil(100)];
    percents[latest..].iter().map(level).collect()
}

/// A text from elsewhere: nothing in it moves the cursor or turns the direction of writing.
fn plain(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_plain(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::state::Reading;
    use super::*;

    fn reading(sessions: u64) -> Reading {
        let gpu = |index: u32| Gpu {
            name: format!("gpu1/{index}"),
            model: "NVIDIA H100 80GB HBM3".into(),
            busy_ppm: 730_000,
            share_leased_ppm: 750_000,
            memory: 80 << 30,
            memory_used: 21 << 30,
            users: 3,
            ..Gpu::default()
        };
        let session = |number: u64| Session {
            node: "gpu1".into(),
            session: number,
            lease: 40 + number,
            tenant: "acme/research".into(),
            program: format!("python train{number}.py"),
            share_ppm: 250_000,
            memory_used: 7 << 30,
            busy_us: number * 200_000,
            age_ms: 1_000,
            ..Session::default()
        };
        Reading { gpus: vec![gpu(0), gpu(1)], sessions: (1..=sessions).map(session).collect() }
    }

    fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn state(sessions: u64) -> State {
        let mut state = State::new("http://127.0.0.1:7580".into());
        state.take(Ok(reading(sessions)));
        let mut later = reading(sessions);
        for session in &mut later.sessions {
            (session.busy_us, session.age_ms) = (session.busy_us + session.session * 100_000, 2_000);
        }
        state.take(Ok(later));
        state
    }

    #[test]
    fn eighty_columns_and_twenty_four_lines_show_gpus_and_sessions() {
        let screen = screen(&state(3), 80, 24);
        let expect = [
            (0, "sluice top  http://127.0.0.1:7580"),
            (1, "GPU    NAME                  BUSY  LEASED MEMORY                USERS HISTORY"),
            (2, "gpu1/0 NVIDIA H100 80GB HBM3 73%   75%    21 GiB/80 GiB         3     ▇▇"),
            (4, "3 sessions by GPU time"),
            (23, KEYS),
        ];
        for (line, text) in expect {
            assert_eq!(screen[line], text, "\n{}", screen.join("\n"));
        }
        let sessions: Vec<&str> = screen[6..9].iter().map(|line| &line[..2]).collect();
        assert_eq!(sessions, ["43", "42", "41"], "the busiest first\n{}", screen.join("\n"));
        for part in ["acme/research", "python train3.py", "gpu1/0", "30%"] {
            assert!(screen[6].contains(part), "no {part}: {}", screen[6]);
        }
    }

    #[test]
    fn a_wide_terminal_shows_where_memory_is() {
        let mut state = state(0);
        let mut reading = reading(1);
        (reading.sessions[0].memory_swapped, reading.sessions[0].memory_pinned) = (5 << 30, 1 << 30);
        reading.sessions[0].memory_moving_us = 1_500_000;
        state.take(Ok(reading));
        let wide = screen(&state, MEMORY_WIDTH, 24);
        assert!(wide[5].contains("ON GPU     SWAPPED    PINNED     SWAPPING"), "{}", wide.join("\n"));
        assert!(wide[6].contains("2 GiB      5 GiB      1 GiB      1.5 s"), "{}", wide.join("\n"));
        let narrow = screen(&state, MEMORY_WIDTH - 1, 24);
        assert!(!narrow[5].contains("SWAPPED") && narrow[6].contains("2 GiB"), "{}", narrow.join("\n"));
    }

    #[test]
    fn many_sessions_scroll_with_the_selection() {
        let mut state = state(100);
        state.key(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        let screen = screen(&state, 80, 24);
        assert!(screen[22].starts_with("41 "), "{}", screen.join("\n"));
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut state = state(5);
        state.key(KeyEvent::new(KeyCode::Char('k'), KeyModifiers::NONE));
        for (width, height) in [(1, 1), (10, 3), (40, 8), (79, 23), (300, 90)] {
            screen(&state, width, height);
        }
    }

    #[test]
    fn the_question_names_what_would_end() {
        let mut state = state(1);
        state.key(KeyEvent::new(KeyCode::Char('k'), KeyModifiers::NONE));
        let screen = screen(&state, 80, 24).join("\n");
        assert!(screen.contains("End lease 41 of acme/research (python train1.py)?"), "{screen}");
        assert!(screen.contains("y: yes"), "{screen}");
    }

    #[test]
    fn sensors_are_shown_of_gpus_that_have_them_where_there_is_room() {
        let mut reading = reading(1);
        (reading.gpus[0].temperature_c, reading.gpus[0].power_w) = (Some(61), Some(312));
        let mut state = State::new("here".into());
        state.take(Ok(reading));
        let wide = screen(&state, 110, 24);
        assert!(wide[1].contains("SENSORS") && wide[2].contains("61 C 312 W"), "{}", wide.join("\n"));
        assert!(!wide[3].contains(" C "), "the other has none: {}", wide[3]);
        assert!(!screen(&state, 80, 24)[1].contains("SENSORS"));
    }

    #[test]
    fn other_questions_say_what_follows() {
        let mut state = state(1);
        state.key(KeyEvent::new(KeyCode::Char('z'), KeyModifiers::NONE));
        let suspend = screen(&state, 100, 24).join("\n");
        assert!(suspend.contains("Suspend lease 41 of acme/research"), "{suspend}");
        state.key(KeyEvent::new(KeyCode::Char('n'), KeyModifiers::NONE));
        for c in ['e', '4', '0'] {
            state.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        }
        state.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        let resize = screen(&state, 100, 24).join("\n");
        assert!(resize.contains("40_") && resize.contains("at most 1"), "{resize}");
    }

    #[test]
    fn hostile_names_change_nothing_but_their_cell() {
        let mut state = state(0);
        let mut reading = reading(1);
        reading.sessions[0].program = "a\u{1b}[2J\r\nb\u{202e}c".into();
        state.take(Ok(reading));
        let screen = screen(&state, 120, 24);
        assert!(screen[6].contains("a?[2J??b?c"), "{}", screen.join("\n"));
    }

    #[test]
    fn stale_numbers_are_said_to_be_stale() {
        let mut state = state(1);
        state.take(Err("connection refused".into()));
        let screen = screen(&state, 100, 24);
        assert!(screen[0].contains("as of") && screen[0].contains("connection refused"), "{}", screen[0]);
    }
}
