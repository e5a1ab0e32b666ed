//! Watches: a stream that continues where it stopped, at whichever server answers.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use super::{ANSWER_SIZE_MAX, Client, Failure, Repeat, success};
use crate::watch::{Event, Reader, kind};

/// A stream is begun anew this often: the server at its other end may be gone without a word.
const STREAM_TIME_MAX: Duration = Duration::from_secs(60);
/// Before each stream but the first, unless the server says otherwise.
const AGAIN: Duration = Duration::from_secs(1);

impl Client {
    /// Hands every event of a watch to `take`, until that says to stop. A stream that is cut off
    /// continues where it stopped; after [`kind::ANEW`] it begins again. The failure is one that
    /// asking again does not help, or the first.
    pub fn watch(&self, path: &str, mut take: impl FnMut(Event) -> ControlFlow<()>) -> Result<(), Failure> {
        let (mut last, mut reached, mut again) = (None::<String>, false, AGAIN);
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
                    thread::sleep(again);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            reached = true;
            let mut reader = Reader::default();
            let stream = stream.into_with_config().limit(ANSWER_SIZE_MAX).reader();
            // What breaks off is sent again by the next stream.
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let event = reader.take(&line);
                if let Some(id) = reader.last().filter(|_| line.is_empty()) {
                    last = Some(id.to_owned());
                }
                let Some(event) = event else { continue };
                if event.kind == kind::ANEW {
                    last = None;
                }
                if take(event).is_break() {
                    return Ok(());
                }
            }
            again = reader.retry().map_or(again, |retry| retry.min(STREAM_TIME_MAX));
            thread::sleep(again);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::problem::{Kind, Problem};

    /// Answers one request; says what it asked to continue from.
    fn answer(listener: &TcpListener, status: u16, kind: &str, body: &str) -> Option<String> {
        let mut stream = listener.accept().unwrap().0;
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        write!(stream, "HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{body}")
            .unwrap();
        let mut fields = head.iter().filter_map(|line| line.split_once(": "));
        fields.find(|(name, _)| name.eq_ignore_ascii_case("last-event-id")).map(|(_, id)| id.to_owned())
    }

    #[test]
    fn a_watch_goes_on_from_an_id_without_data_and_after_too_many_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap()), "token");
        let server = thread::spawn(move || {
            let stream = "text/event-stream";
            let skipped = "id: 1\nretry: 10\nevent: begin\ndata: {}\n\nid: 2\n\nid: 3\ndata: cut";
            let first = answer(&listener, 200, stream, skipped);
            let problem = serde_json::to_string(&Problem::new(Kind::TooMany, "wait")).unwrap();
            let second = answer(&listener, 429, "application/problem+json", &problem);
            let third = answer(&listener, 200, stream, "id: 4\nevent: anew\ndata: {}\n\n");
            let fourth = answer(&listener, 200, stream, "id: 5\nevent: begin\ndata: {}\n\n");
            [first, second, third, fourth]
        });
        let mut kinds = Vec::new();
        let taken = client.watch("/watch", |event| {
            kinds.push(event.kind);
            if kinds.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        taken.unwrap();
        assert_eq!(kinds, [kind::BEGIN, kind::ANEW, kind::BEGIN]);
        let asked = [None, Some("2".to_owned()), Some("2".to_owned()), None];
        assert_eq!(server.join().unwrap(), asked);
    }
}
