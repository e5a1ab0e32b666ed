//! What lines look like.

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

/// The lines of some events.
fn logged(format: Format, asked: &str, events: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let (to, filter) = (log.clone(), filter(asked, format).unwrap());
    let writer = move || to.clone();
    match format {
        Format::Text | Format::Messages => {
            tracing::subscriber::with_default(text(format, filter, writer), events)
        }
        Format::Json => tracing::subscriber::with_default(json(filter, writer), events),
    }
    log.lines()
}

fn an_end() {
    tracing::warn!(target: "sluice_node::registry", session = 3_u64, lease = 7_u64, tenant = "acme/x", "session 3 ended: {}", "it was\nlong");
}

#[test]
fn a_line_of_text_has_time_level_program_message_and_fields() {
    let lines = logged(Format::Text, "", an_end);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let (time, rest) = line.split_once(' ').unwrap();
    assert_eq!((time.len(), &time[4..5], &time[10..11], &time[26..]), (27, "-", "T", "Z"), "{line}");
    assert_eq!(rest, "WARN  sluice node: session 3 ended: it was long session=3 lease=7 tenant=acme/x");
}

#[test]
fn a_line_of_json_is_an_object_with_the_fields() {
    let lines = logged(Format::Json, "", an_end);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let object: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(object["level"], "WARN");
    assert_eq!(object["target"], "sluice_node::registry");
    assert_eq!(object["message"], "session 3 ended: it was\nlong");
    assert_eq!((&object["session"], &object["lease"]), (&3.into(), &7.into()));
    assert_eq!(object["tenant"], "acme/x");
    assert!(object["timestamp"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_line_says_which_request_it_is_part_of() {
    let events = || {
        let span = tracing::info_span!(target: "sluice_server::http", "request", request = %"4f2a");
        span.in_scope(|| tracing::info!(target: "sluice_server::change", lease = 7_u64, "granted"));
    };
    let lines = logged(Format::Text, "", events);
    assert!(lines[0].ends_with("granted lease=7 request=4f2a"), "{lines:?}");
    let object: serde_json::Value = serde_json::from_str(&logged(Format::Json, "", events)[0]).unwrap();
    assert_eq!((&object["lease"], &object["span"]["request"]), (&7.into(), &"4f2a".into()));
}

#[test]
fn a_level_is_about_sluice_and_parts_have_their_own() {
    let events = || {
        tracing::debug!(target: "sluice_server::plan", "planned");
        tracing::info!(target: "sluice_node", "joined");
        tracing::info!(target: "hyper", "of others");
    };
    let count = |asked| logged(Format::Text, asked, events).len();
    assert_eq!((count(""), count("debug"), count("warn"), count("off")), (1, 2, 0, 0));
    assert_eq!((count("sluice_server=debug"), count("sluice_node=warn"), count("hyper=info")), (2, 0, 2));
    let error = filter("loud", Format::Text).unwrap_err().to_string();
    assert!(error.contains("SLUICE_LOG=\"loud\"") && error.contains("sluice_node=debug"), "{error}");
}

#[test]
fn nothing_that_is_quoted_begins_a_line_or_speaks_to_a_terminal() {
    let lines =
        logged(Format::Text, "", || tracing::warn!(target: "sluice_worker", peer = "a\nb", "\x1b[2J\r\nx"));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.ends_with("WARN  \\u{1b}[2J\\u{d} x peer=\"a\\nb\""), "{line}");
}

#[test]
fn a_command_that_a_person_runs_shows_what_is_wrong_in_words_alone() {
    let lines = logged(Format::Messages, "", || {
        tracing::info!(target: "sluice_node", "lease 7 is granted");
        an_end();
    });
    assert_eq!(lines, ["sluice node: session 3 ended: it was long"]);
}
