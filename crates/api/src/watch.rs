//! What a watch says: events as the HTML standard defines them (`text/event-stream`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Names of events: what their data is.
pub mod kind {
    /// The watch begins here; whatever is read from now on and changes later is sent.
    pub const BEGIN: &str = "begin";
    /// A lease, as it is now.
    pub const LEASE: &str = "lease";
    /// A [`super::Change`] of a tenant, or what was spent of its budget.
    pub const TENANT: &str = "tenant";
    /// A [`super::Change`] of a node.
    pub const NODE: &str = "node";
    /// A [`super::Change`] of a GPU.
    pub const GPU: &str = "gpu";
    /// A [`super::Change`] of a pool.
    pub const POOL: &str = "pool";
    /// A [`super::Change`] of the prices of a meter, which is the name.
    pub const PRICE: &str = "price";
    /// The watch cannot continue from where the watcher was: the server's state is another one. The
    /// stream ends with it.
    pub const ANEW: &str = "anew";
}

/// What became of something that is no lease. How it is now is for a request to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    pub at_ms: u64,
    /// As the audit log names it, such as `gpu.fenced`.
    pub action: String,
    /// Of the tenant, node, GPU, pool or meter.
    pub name: String,
}

/// An event as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// One of [`kind`], or one of a later release.
    pub kind: String,
    /// From which a watch continues after this event.
    pub id: String,
    /// JSON.
    pub data: String,
}

/// Puts events together from the lines of a stream.
#[derive(Debug, Default)]
pub struct Reader {
    event: Event,
    last: Option<String>,
    retry: Option<Duration>,
}

impl Reader {
    /// Takes a line without its end; an empty one ends an event.
    pub fn take(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let id = self.event.id.clone();
            self.last = Some(id.clone()).filter(|id| !id.is_empty());
            let event = std::mem::replace(&mut self.event, Event { id, ..Event::default() });
            return Some(event).filter(|event| !event.data.is_empty());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.kind),
            "id" => value.clone_into(&mut self.event.id),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "retry" => self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry),
            // Comments, and what means something to browsers only.
            _ => {}
        }
        None
    }

    /// From where a watch continues: the id of the last event that came whole, also of one without
    /// data.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// After how long, where that was said.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_lines() {
        let text = ": kept alive\n\nid: 1.2.x\nevent: lease\ndata: {\ndata:}\n\nretry: 5\n\nevent:gpu\ndata:1\n\ndata: cut";
        let mut reader = Reader::default();
        let events: Vec<Event> = text.split('\n').filter_map(|line| reader.take(line)).collect();
        let event =
            |kind: &str, data: &str| Event { kind: kind.into(), id: "1.2.x".into(), data: data.into() };
        assert_eq!(
            events,
            [event("lease", "{\n}"), event("gpu", "1")],
            "the id stays until there is another"
        );
        assert_eq!((reader.last(), reader.retry()), (Some("1.2.x"), Some(Duration::from_millis(5))));
        let mut reader = Reader::default();
        let further: Vec<_> =
            ["id: 1.3.x", "", "id: 1.4.x"].into_iter().filter_map(|line| reader.take(line)).collect();
        assert_eq!((further, reader.last()), (Vec::new(), Some("1.3.x")), "the next is not whole");
    }
}
