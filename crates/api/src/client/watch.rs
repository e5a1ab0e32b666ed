//! Watches: a stream that goes on where it stopped, at whichever server answers.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use super::{ANSWER_SIZE_MAX, Client, Failure, Repeat, success};
use crate::watch::{Event, Reader, kind};

/// A stream is begun anew this often: whoever is at its other end may be gone without a word.
const STREAM_TIME_MAX: Duration = Duration::from_secs(60);
/// After a stream that could not be had.
const AGAIN: Duration = Duration::from_secs(1);

impl Client {
    /// Hands every event of a watch to `take`, until that says to stop. A stream that is cut off goes on where it stopped; after
    /// [`kind::ANEW`] it begins again. The failure is one that asking again does not help, or the first.
    pub fn watch(&self, path: &str, mut take: impl FnMut(Event) -> ControlFlow<()>) -> Result<(), Failure> {
        let (mut last, mut reached) = (None::<String>, false);
        loop {
            let opened = self.ask_for(path, Repeat::Freely, success, |agent, url| {
                let mut request = self.authorised(agent.get(url));
                if let Some(id) = &last {
                    request = request.header("Last-Event-ID", id);
                }
                request.config().timeout_global(Some(STREAM_TIME_MAX)).build().call()
            });
            let stream = match opened {
                Ok(stream) => stream,
                Err(failure) if reached && failure.is_temporary() => {
                    thread::sleep(AGAIN);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            reached = true;
            let mut reader = Reader::default();
            let stream = stream.into_with_config().limit(ANSWER_SIZE_MAX).reader();
            // What breaks off is told again by the next stream.
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let Some(event) = reader.take(&line) else { continue };
                last = Some(event.id.clone()).filter(|id| !id.is_empty() && event.kind != kind::ANEW);
                if take(event).is_break() {
                    return Ok(());
                }
            }
        }
    }
}
