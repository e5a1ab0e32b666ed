//! Connections that prove nothing, in numbers: what they keep from whom, and for how long.
//!
//! `cargo test --release -p sluice-node --test node -- --attacks` measures, and prints the table of
//! `docs/benchmarks` (`cargo xtask bench attacks` writes it there).

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sluice_control::RawSession;
use sluice_node::{GpuSelection, Listen, Node, NodeConfig, WorkerCommand, own_certificate};
use sluice_transport::Stream;
use sluice_transport::tls::{ServerIdentity, Trust};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, StatusRequest};
use sluice_wire::handshake::{LeaseToken, Purpose};
use sluice_wire::{Header, Kind, Op};

use crate::raw::{Connection, hello, lease, request};
use crate::{GIB, MIB, TestNode, synchronize};

/// More connections than there are places for such.
const MANY: usize = 1200;

pub(crate) fn strangers_keep_nobody_out(node: &TestNode) {
    let (lease, mut running) = node.session();
    for words in [Vec::new(), hello(Purpose::Control, 0)] {
        let flood = || {
            let mut stream = TcpStream::connect(&node.address).unwrap();
            // One that made way already is closed.
            let _ = stream.write_all(&words);
            stream
        };
        let _flood: Vec<TcpStream> = (0..MANY).map(|_| flood()).collect();
        // A new session of a lease, one that runs, and somebody whom nobody knows yet.
        let mut session = crate::Session::open(&node.address, lease.granted.token);
        synchronize(&mut session).unwrap();
        synchronize(&mut running).unwrap();
        node.status();
    }
    drop((running, lease));
    node.wait_until_idle();
}

pub(crate) fn whoever_does_not_get_to_the_end_of_a_message_is_cut_off(node: &TestNode) {
    let whole = hello(Purpose::Control, 0);
    let silent = Connection::connect(&node.address);
    let mut half = Connection::connect(&node.address);
    half.send(&whole[..whole.len() - 1]);
    let mut asks_nothing = Connection::greet(&node.address, Purpose::Control);
    let mut asks_half = Connection::greet(&node.address, Purpose::Control);
    let mut question = Vec::new();
    Control::from(StatusRequest {}).frame(&mut question).unwrap();
    asks_half.send(&question[..question.len() - 1]);
    let mut lease = lease(&node.address, request(100_000, MIB));
    lease.connection.send(&question[..question.len() - 1]);
    for mut connection in [silent, half] {
        connection.wait_for_end();
    }
    asks_nothing.wait_for_end();
    asks_half.wait_for_end();
    // Also with a lease, which ends as by any other end of its connection.
    lease.connection.wait_for_end();
    node.wait_until_idle();
}

pub(crate) fn a_large_message_is_refused_at_its_header(node: &TestNode) {
    let mut connection = Connection::greet(&node.address, Purpose::Control);
    let mut frame = Vec::new();
    let header = Header { kind: Kind::Control, device: 0, op: Op::NONE.0, lane: 0, sequence: 0 };
    header.frame_before(&mut frame, 1 << 20, |_| ()).unwrap();
    connection.send(&frame);
    connection.wait_for_end();
    node.wait_until_idle();
}

/// How long each attack lasts.
const LASTS: Duration = Duration::from_secs(10);
/// Threads that attack.
const ATTACKERS: usize = 4;

/// One attack, as the threads of its attackers make it until they are to stop.
struct Attack {
    what: &'static str,
    tls: bool,
    make: fn(&Target<'_>),
}

struct Target<'a> {
    address: &'a str,
    /// The first message of a handshake of TLS.
    client_hello: &'a [u8],
    stop: &'a AtomicBool,
    /// Connections so far.
    made: &'a AtomicU64,
}

impl Target<'_> {
    /// The thread gives way to the node and its users, from whose machine it would take nothing if
    /// it were elsewhere.
    fn give_way(&self) {
        // SAFETY: about the calling thread alone (setpriority(2), "C library/kernel differences");
        // plain numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    }

    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect(self.address).ok()?;
        self.made.fetch_add(1, Relaxed);
        Some(stream)
    }

    /// Keeps so many connections, which have said these words, and makes one anew wherever one has
    /// ended.
    fn keep(&self, count: usize, words: &[u8], each: impl Fn(&mut TcpStream, usize) -> io::Result<()>) {
        // Each with how often it was looked after.
        let mut held: Vec<Option<(TcpStream, usize)>> = (0..count).map(|_| None).collect();
        self.give_way();
        while !self.stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            for place in &mut held {
                if self.stop.load(Relaxed) {
                    return;
                }
                let is_alive = place.as_mut().is_some_and(|(stream, age)| {
                    let ended = matches!(stream.read(&mut [0; 256]), Ok(0));
                    *age += 1;
                    !ended && each(stream, *age).is_ok()
                });
                if is_alive {
                    continue;
                }
                *place = self.connect().and_then(|mut stream| {
                    stream.write_all(words).and_then(|()| stream.set_nonblocking(true)).ok()?;
                    Some((stream, 0))
                });
            }
        }
    }
}

const ATTACKS: &[Attack] = &[
    Attack { what: "none", tls: false, make: |_| () },
    Attack {
        what: "5,000 connections that say nothing",
        tls: false,
        make: |target| target.keep(5000 / ATTACKERS, &[], |_, _| Ok(())),
    },
    Attack {
        what: "2,000 connections that say hello and ask nothing",
        tls: false,
        make: |target| target.keep(2000 / ATTACKERS, &hello(Purpose::Control, 0), |_, _| Ok(())),
    },
    Attack {
        what: "2,000 connections that say hello, a byte each 200 ms",
        tls: false,
        make: |target| {
            let words = hello(Purpose::Control, 0);
            // The last byte never comes.
            let send = |stream: &mut TcpStream, age: usize| match words[..words.len() - 1].get(age) {
                Some(&byte) => stream.write_all(&[byte]),
                None => Ok(()),
            };
            target.keep(2000 / ATTACKERS, &words[..1], send)
        },
    },
    Attack {
        what: "1,000 handshakes of TLS a second",
        tls: true,
        make: |target| {
            target.give_way();
            let begin = Instant::now();
            let mut done = 0_u64;
            let mut answers = Vec::new();
            while !target.stop.load(Relaxed) {
                let due = (begin.elapsed().as_millis() as u64) / ATTACKERS as u64;
                if done >= due {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                done += 1;
                if let Some(mut stream) = target.connect()
                    && stream.write_all(target.client_hello).is_ok()
                {
                    answers.push(stream);
                }
                // The node has answered the older ones, and waits for what never comes.
                if answers.len() > 200 {
                    answers.drain(..100);
                }
            }
        },
    },
];

/// Measures all attacks, and prints the table.
pub(crate) fn print() {
    let folder = std::env::temp_dir().join(format!("sluice-attacks-{}", std::process::id()));
    let (certificate, key) = own_certificate(&folder.join("tls")).unwrap();
    let identity = ServerIdentity::load(&certificate, &key, None).unwrap();
    let fingerprint = identity.fingerprint();
    let config = NodeConfig {
        listen: vec![Listen::Tcp("127.0.0.1:0".into()), Listen::Tls("127.0.0.1:0".into())],
        tls: Some(identity),
        gpus: GpuSelection::Software { count: 1, memory: Some(GIB) },
        worker: WorkerCommand { arguments: vec!["worker".into()], ..WorkerCommand::default() },
        cache: None,
        ..NodeConfig::default()
    };
    let node = Node::bind(&config).unwrap();
    let addresses = node.addresses();
    let (stopper, thread) = (node.stopper(), std::thread::spawn(move || node.run().unwrap()));
    let plain = addresses[0].clone();
    let tls = addresses[1].split('/').next().unwrap().to_owned();
    let client_hello = client_hello(fingerprint);
    let holder = lease(&plain, request(500_000, 256 * MIB));
    println!(
        "| attack | connections made | a session of a lease begins, median and longest | a question to the node | refused |"
    );
    println!("|---|---|---|---|---|");
    for attack in ATTACKS {
        let address = if attack.tls { &tls } else { &plain };
        let endpoint = match attack.tls {
            true => Endpoint::Tls { address: tls.clone(), fingerprint: Some(fingerprint) },
            false => Endpoint::Tcp(plain.clone()),
        };
        let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
        let target = Target { address, client_hello: &client_hello, stop: &stop, made: &made };
        let served = std::thread::scope(|scope| {
            for _ in 0..ATTACKERS {
                scope.spawn(|| (attack.make)(&target));
            }
            let served = serve(&endpoint, holder.granted.token);
            stop.store(true, Relaxed);
            served
        });
        let [session, question] = [served.sessions, served.questions].map(spread);
        println!(
            "| {} | {} | {session} | {question} | {} |",
            attack.what,
            made.load(Relaxed),
            served.refused
        );
    }
    drop(holder);
    stopper.stop();
    thread.join().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[derive(Default)]
struct Served {
    sessions: Vec<Duration>,
    questions: Vec<Duration>,
    refused: u32,
}

/// Begins sessions under a lease, and asks the node, for as long as an attack lasts.
fn serve(node: &Endpoint, token: LeaseToken) -> Served {
    let (begin, mut served) = (Instant::now(), Served::default());
    while begin.elapsed() < LASTS {
        let start = Instant::now();
        match RawSession::open(node, token, (1 << 45, 1 << 36)) {
            Ok(_) => served.sessions.push(start.elapsed()),
            Err(_) => served.refused += 1,
        }
        let start = Instant::now();
        let asked = sluice_control::Connection::open(node).and_then(|mut node| node.ask(StatusRequest {}));
        match asked {
            Ok(_) => served.questions.push(start.elapsed()),
            Err(_) => served.refused += 1,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    served
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return "never".into() };
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    format!("{:.1} ms, {:.0} ms ({})", ms(&times[times.len() / 2]), ms(longest), times.len())
}

/// What a client of Sluice sends first.
fn client_hello(fingerprint: sluice_wire::address::Fingerprint) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = std::thread::spawn(move || {
        // Ends with the listener's connection.
        let deadline = Instant::now() + Duration::from_secs(10);
        Stream::connect_tls(&address, &Trust::Fingerprint(fingerprint), None, deadline).map(drop)
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut header = [0; 5];
    stream.read_exact(&mut header).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    stream.read_exact(&mut rest).unwrap();
    drop(stream);
    let _ = client.join();
    [&header[..], &rest].concat()
}
