//! A node of a simulation: the real one but for its sockets, which joins, reports, crashes, and
//! starts again on its journal.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use sluice_api::node::{Attempt, Joined, ReportAnswer};
use sluice_api::problem::Problem;
use sluice_api::usage::{UsageRecord, read_journal_line};
use sluice_node::unplugged::{Clock, NodeShape, Sent, Unplugged};

use super::SERVERS;
use super::network::Party;
use super::post::{Call, Post, Wait, is_temporary};
use super::replica::Time;

/// A node gives an answer up after this.
const ANSWER_TIME_MAX_MS: u64 = 30_000;
const RETRY_EVERY_MS: u64 = 1_000;
/// Nodes write down what was used in this rhythm.
pub(super) const RECORD_EVERY_MS: u64 = 10_000;

#[derive(Debug)]
struct NodeClock(Time);

impl Clock for NodeClock {
    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }

    fn running(&self) -> Duration {
        Duration::from_millis(self.0.now_ms.load(Ordering::Relaxed))
    }
}

enum Question {
    Join,
    Report(Box<Sent>),
}

pub(super) struct Node {
    pub(super) index: usize,
    pub(super) machine: NodeShape,
    folder: PathBuf,
    pub(super) time: Time,
    /// None while it is down, and until it has joined.
    pub(super) running: Option<Unplugged>,
    starts_at_ms: u64,
    join_token: String,
    token: String,
    server: usize,
    waits: Option<Wait>,
    asked: Option<Question>,
    /// Has to join anew though it runs.
    outcast: bool,
    next_at_ms: u64,
    record_at_ms: u64,
}

/// What came of an answer.
pub(super) enum Heard {
    Nothing,
    /// These records are the server's now, and it knows that these attempts are here.
    Answer {
        taken: Vec<UsageRecord>,
        held: Vec<Attempt>,
    },
    Wrong(String),
}

impl Node {
    pub(super) fn new(index: usize, folder: PathBuf, time: Time, join_token: String) -> Node {
        let machine = NodeShape { name: format!("n{index}"), gpus: 2, memory: 16 << 30 };
        Node {
            index,
            machine,
            folder,
            time,
            running: None,
            starts_at_ms: 0,
            join_token,
            token: String::new(),
            server: index % SERVERS,
            waits: None,
            asked: None,
            outcast: false,
            next_at_ms: 0,
            record_at_ms: 0,
        }
    }

    fn party(&self) -> Party {
        Party::Node(self.index)
    }

    /// What is not on disk is lost, and perhaps the last line is torn.
    pub(super) fn crash(&mut self, until_ms: u64, post: &mut Post) {
        self.running = None;
        (self.waits, self.asked, self.outcast) = (None, None, false);
        self.starts_at_ms = until_ms;
        if post.chance(500) {
            let path = self.folder.join("usage.journal");
            if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path) {
                file.write_all(b"0123456789abcdef {\"id\":\"torn").unwrap();
            }
        }
    }

    pub(super) fn act(&mut self, post: &mut Post) {
        if post.now_ms < self.starts_at_ms {
            return;
        }
        if let Some(node) = &self.running
            && post.now_ms >= self.record_at_ms
        {
            self.record_at_ms = post.now_ms + RECORD_EVERY_MS;
            node.record_usage();
        }
        if let Some(wait) = &self.waits {
            if post.now_ms < wait.until_ms {
                return;
            }
            self.try_another(post);
        }
        let news = self.running.as_ref().is_some_and(Unplugged::take_news);
        if post.now_ms < self.next_at_ms && !news {
            return;
        }
        let (question, call) = match &mut self.running {
            Some(node) if !self.outcast => {
                let sent = node.report();
                let call = Call::post(sent.path().to_owned(), &self.token, sent.report());
                (Question::Report(Box::new(sent)), call)
            }
            _ => (Question::Join, Call::post("/nodes".into(), &self.join_token, &self.machine.join())),
        };
        let exchange = post.ask(Party::Node(self.index), self.server, call);
        self.waits = Some(Wait { exchange, until_ms: post.now_ms + ANSWER_TIME_MAX_MS });
        self.asked = Some(question);
    }

    fn try_another(&mut self, post: &Post) {
        self.waits = None;
        self.server = (self.server + 1) % SERVERS;
        self.next_at_ms = post.now_ms + RETRY_EVERY_MS;
    }

    pub(super) fn hear(&mut self, exchange: u64, status: u16, body: &Bytes, post: &mut Post) -> Heard {
        if self.waits.is_none_or(|wait| wait.exchange != exchange) {
            return Heard::Nothing;
        }
        self.waits = None;
        let Some(question) = self.asked.take() else { return Heard::Nothing };
        if is_temporary(status) {
            self.try_another(post);
            return Heard::Nothing;
        }
        match (question, status) {
            (Question::Join, 200) => self.joined(&serde_json::from_slice(body).unwrap(), post),
            (Question::Report(sent), 200) => {
                let answer: ReportAnswer = serde_json::from_slice(body).unwrap();
                if let Some(refused) = answer.usage_refused.first() {
                    return Heard::Wrong(format!("a usage record is refused: {}", refused.reason));
                }
                let taken = sent.report().usage.iter().take(answer.usage_taken as usize).cloned().collect();
                let known = |attempt: &&Attempt| !answer.end.contains(attempt);
                let held = sent.report().leases.iter().filter(known).copied().collect();
                if !answer.end.is_empty() {
                    post.note(&format!("n{} is to end {:?}", self.index, answer.end));
                }
                if let Some(node) = &mut self.running {
                    node.answered(&sent, answer);
                    self.next_at_ms = post.now_ms + node.reports_every().as_millis() as u64;
                }
                Heard::Answer { taken, held }
            }
            (Question::Report(_), 401 | 404) => {
                let problem: Problem = serde_json::from_slice(body).unwrap();
                assert!(Unplugged::has_to_join(&problem));
                self.outcast = true;
                self.next_at_ms = post.now_ms + RETRY_EVERY_MS;
                Heard::Nothing
            }
            _ => {
                Heard::Wrong(format!("{:?} reads {status}: {}", self.party(), String::from_utf8_lossy(body)))
            }
        }
    }

    fn joined(&mut self, joined: &Joined, post: &mut Post) -> Heard {
        self.token = joined.token.clone();
        self.outcast = false;
        self.next_at_ms = post.now_ms;
        match &self.running {
            Some(node) if node.joined_again(joined) => {}
            Some(_) => return Heard::Wrong(format!("n{} is taken for a new node", self.index)),
            None => {
                let clock = Arc::new(NodeClock(self.time.clone()));
                post.note(&format!("n{} is up as node {}", self.index, joined.node));
                self.record_at_ms = post.now_ms + RECORD_EVERY_MS;
                self.running = Some(Unplugged::start(&self.machine, joined, &self.folder, clock).unwrap());
            }
        }
        Heard::Nothing
    }

    /// It is up at that moment, or before.
    pub(super) fn starts_by(&mut self, at_ms: u64) {
        self.starts_at_ms = self.starts_at_ms.min(at_ms);
    }

    /// Whether it is up, and the server has all that was written down.
    pub(super) fn has_delivered_all(&self) -> bool {
        self.running.as_ref().is_some_and(|node| node.undelivered() == 0)
    }

    /// All that it has ever written down.
    pub(super) fn journal(&self) -> Vec<UsageRecord> {
        let text = std::fs::read(self.folder.join("usage.journal")).unwrap_or_default();
        text.split_inclusive(|&byte| byte == b'\n').filter_map(read_journal_line).collect()
    }
}
