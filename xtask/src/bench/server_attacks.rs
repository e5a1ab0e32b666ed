//! What connections that prove nothing keep from a server's users.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::node::token_in;
use serde_json::{Value, json};
use sluice_api::client::Client;

use super::machine;
use crate::node::{Node, sluice};

pub(super) const NAME: &str = "server-attacks";

/// The duration of each attack.
const LASTS: Duration = Duration::from_secs(10);
/// Threads that attack.
const ATTACKERS: usize = 4;
/// How often an attacker looks after its connections.
const PERIOD: Duration = Duration::from_millis(200);
/// Open files for the attackers' connections.
const FILES_MIN: u64 = 8192;
/// The most handshakes that an attacker leaves open.
const HANDSHAKES_MAX: usize = 200;

const REQUEST: &[u8] = b"GET /v1/leases HTTP/1.1\r\nHost: sluice\r\nAuthorization: Bearer nothing\r\nAccept: application/json\r\n";

/// One attack, as each of its threads makes it until it is stopped.
struct Attack {
    what: &'static str,
    tls: bool,
    make: fn(&Target<'_>),
}

const ATTACKS: &[Attack] = &[
    Attack { what: "none", tls: false, make: |_| () },
    Attack {
        what: "5,000 connections that say nothing",
        tls: false,
        make: |target| target.keep(5000 / ATTACKERS, &[], |_, _| Ok(())),
    },
    Attack {
        what: "5,000 that say nothing, to a server with TLS",
        tls: true,
        make: |target| target.keep(5000 / ATTACKERS, &[], |_, _| Ok(())),
    },
    Attack {
        what: "2,000 with headers that do not end",
        tls: false,
        make: |target| target.keep(2000 / ATTACKERS, REQUEST, |_, _| Ok(())),
    },
    Attack {
        what: "2,000 with a byte of their headers each 200 ms",
        tls: false,
        make: |target| {
            // The empty line that would end them never comes.
            let send = |stream: &mut TcpStream, age: usize| match REQUEST.get(age) {
                Some(&byte) => stream.write_all(&[byte]),
                None => Ok(()),
            };
            target.keep(2000 / ATTACKERS, &REQUEST[..1], send);
        },
    },
    Attack { what: "1,000 handshakes of TLS a second", tls: true, make: |target| target.shake_hands() },
];

struct Target<'a> {
    address: &'a str,
    /// The first message of a handshake of TLS.
    client_hello: &'a [u8],
    stop: &'a AtomicBool,
    /// Connections so far.
    made: &'a AtomicU64,
}

impl Target<'_> {
    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect(self.address).ok()?;
        self.made.fetch_add(1, Relaxed);
        Some(stream)
    }

    /// Keeps this number of connections, which have sent `words`, and replaces those that have
    /// ended. `each` gets a connection and how often it was looked after.
    fn keep(&self, count: usize, words: &[u8], each: impl Fn(&mut TcpStream, usize) -> io::Result<()>) {
        let mut held: Vec<Option<(TcpStream, usize)>> = (0..count).map(|_| None).collect();
        while !self.stop.load(Relaxed) {
            for place in &mut held {
                if self.stop.load(Relaxed) {
                    return;
                }
                let is_alive = place.as_mut().is_some_and(|(stream, age)| {
                    let ended = matches!(stream.read(&mut [0; 256]), Ok(0));
                    *age += 1;
                    !ended && each(stream, *age).is_ok()
                });
                if !is_alive {
                    *place = self.connect().and_then(|mut stream| {
                        stream.write_all(words).and_then(|()| stream.set_nonblocking(true)).ok()?;
                        Some((stream, 0))
                    });
                }
            }
            std::thread::sleep(PERIOD);
        }
    }

    /// Begins handshakes at a steady rate, and leaves them once the server has answered.
    fn shake_hands(&self) {
        let (begin, mut done) = (Instant::now(), 0_u64);
        let mut answered = Vec::new();
        while !self.stop.load(Relaxed) {
            if done >= begin.elapsed().as_millis() as u64 / ATTACKERS as u64 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            done += 1;
            answered.extend(self.connect().filter(|mut stream| stream.write_all(self.client_hello).is_ok()));
            if answered.len() > HANDSHAKES_MAX {
                answered.drain(..HANDSHAKES_MAX / 2);
            }
        }
    }
}

/// Allows this process as many open files as it may have, which the attacks need.
fn raise_file_limit() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of this frame, which the call fills.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the structure is only read.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    ensure!(got == 0 && set == 0, "the limit of open files: {}", io::Error::last_os_error());
    ensure!(limit.rlim_max >= FILES_MIN, "{} open files are too few, {FILES_MIN} are needed", limit.rlim_max);
    Ok(())
}

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    raise_file_limit()?;
    let folder = tempfile::tempdir()?;
    let servers = [
        Server::start(&folder.path().join("plain"), &[])?,
        Server::start(&folder.path().join("tls"), &["--tls"])?,
    ];
    let client_hello = client_hello()?;
    let mut table = String::from(
        "| attack | connections made | a lease is asked for and given up, median and longest | refused |\n|---|---|---|---|\n",
    );
    for attack in ATTACKS {
        let server = &servers[usize::from(attack.tls)];
        let (stop, made) = (AtomicBool::new(false), AtomicU64::new(0));
        let target =
            Target { address: server.address()?, client_hello: &client_hello, stop: &stop, made: &made };
        let served = std::thread::scope(|scope| {
            for _ in 0..ATTACKERS {
                scope.spawn(|| (attack.make)(&target));
            }
            let served = server.serve();
            stop.store(true, Relaxed);
            served
        });
        let made = made.load(Relaxed);
        table += &format!("| {} | {made} | {} | {} |\n", attack.what, spread(served.times), served.refused);
    }
    Ok(format!(
        "A server, its attackers (four threads, from the same address as its user) and its user on one machine, ten seconds \
         each; the number of tries is in brackets. Each try makes a connection of its own. Measured by `cargo xtask bench {NAME}` \
         on {}.\n\n{table}",
        machine()
    ))
}

struct Server {
    process: Node,
    token: String,
}

/// What a user got while an attack lasted.
#[derive(Default)]
struct Served {
    times: Vec<Duration>,
    refused: u32,
}

impl Server {
    fn start(data: &Path, options: &[&str]) -> Result<Server> {
        let mut command = Command::new(sluice());
        command.args(["server", "--listen", "127.0.0.1:0"]).args(options).arg("--data").arg(data);
        let process = Node::start_command(&mut command)?;
        let token = token_in(&data.join("admin.json"))?;
        Client::new(&process.address, &token)
            .post_text::<Value>("/apply", "application/yaml", "tenants: [{path: acme}]")
            .map_err(|failure| anyhow::anyhow!("{failure}"))?;
        Ok(Server { process, token })
    }

    /// Host and port.
    fn address(&self) -> Result<&str> {
        let (_, rest) = self.process.address.split_once("://").context("a URL")?;
        rest.split('/').next().context("an address")
    }

    fn serve(&self) -> Served {
        let (begin, mut served) = (Instant::now(), Served::default());
        while begin.elapsed() < LASTS {
            let start = Instant::now();
            match self.ask_for_lease() {
                Some(()) => served.times.push(start.elapsed()),
                None => served.refused += 1,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn ask_for_lease(&self) -> Option<()> {
        let client = Client::new(&self.process.address, &self.token);
        let lease: Value = client.post("/leases", &json!({"tenant": "acme"})).ok()?;
        client.delete::<Value>(&format!("/leases/{}", lease["id"])).ok().map(drop)
    }
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let Some(longest) = times.last() else { return "never".into() };
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    format!("{:.1} ms, {:.0} ms ({})", ms(&times[times.len() / 2]), ms(longest), times.len())
}

/// What a client of Sluice sends first over TLS.
fn client_hello() -> Result<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}/{}", listener.local_addr()?, "0".repeat(64));
    let mut client =
        Command::new(sluice()).args(["tenants", "--server", &url]).env("SLUICE_TOKEN", "nothing").spawn()?;
    let (mut stream, _) = listener.accept()?;
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let mut rest = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    stream.read_exact(&mut rest)?;
    let _ = client.kill();
    client.wait()?;
    Ok([&header[..], &rest].concat())
}
