//! A line of text: time, level, program, message, fields, and those of the span that it is in.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// The programs of which the crates are, as their messages name them.
const PROGRAMS: [(&str, &str); 3] = [
    ("sluice_node", "sluice node: "),
    ("sluice_server", "sluice-server: "),
    // Lines of workers, which name themselves.
    ("sluice_worker", ""),
];

pub(crate) struct Lines {
    /// Without time, level and fields.
    pub(crate) are_bare: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let of = metadata.target().split("::").next().unwrap_or_default();
        let program =
            PROGRAMS.iter().find(|(name, _)| *name == of).map_or("sluice: ", |(_, program)| program);
        let mut words = Words::default();
        event.record(&mut words);
        let Words { message, fields } = words;
        if self.are_bare {
            return writeln!(writer, "{program}{message}");
        }
        SystemTime.format_time(&mut writer)?;
        write!(writer, " {:<5} {program}{message}{fields}", metadata.level())?;
        // What the event is part of, such as a request.
        if let Some(span) = context.lookup_current()
            && let Some(fields) = span.extensions().get::<FormattedFields<N>>()
        {
            write!(writer, " {}", one_line(fields))?;
        }
        writeln!(writer)
    }
}

/// An event in words.
#[derive(Default)]
struct Words {
    message: String,
    /// Each after a blank.
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = one_line(&format!("{value:?}")),
            name => self.fields += &one_line(&format!(" {name}={value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let is_plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && c != '"');
        match is_plain {
            true => self.record_debug(field, &format_args!("{value}")),
            false => self.record_debug(field, &value),
        }
    }
}

/// An event is one line: what a message quotes cannot begin another.
fn one_line(text: &str) -> String {
    match text.contains(char::is_control) {
        true => text.chars().map(|c| if c == '\n' { ' ' } else { c }).flat_map(escaped).collect(),
        false => text.to_owned(),
    }
}

fn escaped(c: char) -> Box<dyn Iterator<Item = char>> {
    if c.is_control() { Box::new(c.escape_unicode()) } else { Box::new(std::iter::once(c)) }
}
