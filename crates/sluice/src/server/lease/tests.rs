//! Leases of a server that is played here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use sluice_api::client::Settings;
use sluice_api::problem::{Kind, Problem};

use super::progress::{ANY_MOMENT, cut, waiting_line};
use super::*;
use crate::child::SIGNALS;
use crate::server::login;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn who_spends_is_told_from_80_percent_on() {
    let line = |percent, then, until_ms: Option<u64>| {
        let budget = serde_json::json!({ "spent_percent": percent, "then": then, "until_ms": until_ms });
        let lease = lease(serde_json::json!({ "tightest_budget": budget }));
        budget_line(&serde_json::from_value(lease).unwrap())
    };
    let expect = "83 % of the budget that acme spends from is spent, until 2026-12-01T00:00:00Z; new leases will wait when it is spent";
    assert_eq!(line(83, "hold", Some(1_796_083_200_000)).as_deref(), Some(expect));
    assert_eq!(
        line(120, "warn", None).as_deref(),
        Some("120 % of the budget that acme spends from is spent")
    );
    assert_eq!(
        line(146, "hold", None).as_deref(),
        Some("146 % of the budget that acme spends from is spent; new leases wait")
    );
    assert_eq!(line(79, "hold", None), None);
    assert_eq!(budget_line(&serde_json::from_value(lease(serde_json::json!({}))).unwrap()), None);
}

fn lease(more: serde_json::Value) -> serde_json::Value {
    let mut lease = serde_json::json!({
        "id": 1, "tenant": "acme", "name": "", "gpus": 1, "tasks": 1, "share_ppm": 1, "memory": 0, "priority": 100, "tier": "standard",
        "preemptible": true, "state": "queued", "attempt": 1, "created_at_ms": 0, "revision": 1,
        "position": 2, "reason": "acme holds 1 of the 1 GPUs that are its limit"
    });
    lease.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lease
}

/// A server that answers each request, known by its method and path and by its token, as it is
/// told to.
fn serve(answer: impl Fn(&str, &str) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve_one(stream.unwrap(), &*answer));
        }
    });
    url
}

fn serve_one(stream: TcpStream, answer: &dyn Fn(&str, &str) -> (u16, String)) {
    let mut reader = BufReader::new(&stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) < 3 {
            break;
        }
        head.push(line.to_lowercase());
    }
    let field = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mut body = vec![0; field("content-length:").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    let Some(request) = head.first() else { return };
    let token = field("authorization: bearer").unwrap_or_default();
    let (status, text) = answer(request.trim_end_matches(" http/1.1\r\n"), token);
    let _ = write!(
        &stream,
        "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
}

/// In a process that a test starts of itself: the server that it asks.
const SERVER_VARIABLE: &str = "SLUICE_TEST_WAITS_AT";

/// In a process of its own, which is asked to end.
#[test]
fn who_is_asked_to_end_while_it_waits_gives_its_lease_up() {
    if let Ok(url) = std::env::var(SERVER_VARIABLE) {
        let ask = serde_json::from_str("{}").unwrap();
        let mut waits = ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap();
        panic!("{:?}", waits.claim(0, "").map(|_| ()));
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (heard, requests) = channel();
        // An answer to a waiting program comes when something has changed: not before the lease
        // is ended.
        let ended = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
        let url = serve(move |request, _| {
            heard.send(request.to_owned()).unwrap();
            let (is_over, changed) = &*ended;
            match request.split(' ').next() {
                Some("get") => drop(changed.wait_while(is_over.lock().unwrap(), |over| !*over).unwrap()),
                Some("delete") => {
                    *is_over.lock().unwrap() = true;
                    changed.notify_all();
                }
                _ => {}
            }
            (200, lease(serde_json::json!({})).to_string())
        });
        let name = "server::lease::tests::who_is_asked_to_end_while_it_waits_gives_its_lease_up";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name]).env(SERVER_VARIABLE, &url).stdout(Stdio::null());
        // SAFETY: signal is async-signal-safe. A shell that starts something in the background
        // has it ignore SIGINT.
        unsafe {
            command.pre_exec(move || {
                libc::signal(signal, libc::SIG_DFL);
                Ok(())
            })
        };
        let mut process = command.spawn().unwrap();
        assert_eq!(requests.recv_timeout(PATIENCE).as_deref(), Ok("post /api/v1/leases"));
        let asks = requests.recv_timeout(PATIENCE).unwrap();
        assert!(asks.starts_with("get /api/v1/leases/1?"), "{asks}");
        // SAFETY: touches no memory, and the process has not been waited for.
        unsafe { libc::kill(process.id() as i32, signal) };
        assert_eq!(process.wait().unwrap().code(), Some(128 + signal));
        let ends = requests.recv_timeout(PATIENCE);
        assert_eq!(ends.as_deref(), Ok("delete /api/v1/leases/1"));
    }
}

#[test]
fn a_program_whose_token_holds_no_more_is_watched_again_when_it_does() {
    let tries = std::sync::atomic::AtomicU32::new(0);
    let url = serve(move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => {
            let refused = Problem::new(Kind::Unauthenticated, "the token has expired");
            (401, serde_json::to_string(&refused).unwrap())
        }
        _ => (200, lease(serde_json::json!({ "state": "preempting", "revision": 7 })).to_string()),
    });
    let (events, heard) = channel();
    let watcher = Watcher { client: Client::new(&url, "token"), id: 1, attempt: 1, events };
    std::thread::spawn(move || watcher.run(1));
    match heard.recv_timeout(PATIENCE) {
        Ok(Event::Lease(lease)) => assert_eq!(lease.revision, 7),
        _ => panic!("nothing is heard of the lease"),
    }
}

/// In a process whose settings are its own.
#[test]
fn what_login_keeps_is_taken_by_what_runs_already() {
    let settings = |url: &str, token: &str| Settings { server: url.into(), token: token.into(), login: None };
    if let Ok(url) = std::env::var(SERVER_VARIABLE) {
        let client = login::client(settings(&url, "old"));
        let ask = || client.get::<Lease>("/leases/1");
        settings(&url, "old").keep().unwrap();
        assert!(matches!(ask(), Err(Failure::Refused(problem)) if problem.status == 401));
        settings(&url, "new").keep().unwrap();
        assert_eq!(ask().unwrap().id, 1);
        return;
    }
    let url = serve(|_, token| match token {
        "new" => (200, lease(serde_json::json!({})).to_string()),
        _ => (401, serde_json::to_string(&Problem::new(Kind::Unauthenticated, "expired")).unwrap()),
    });
    let folder = std::env::temp_dir().join(format!("sluice-login-{}", std::process::id()));
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server::lease::tests::what_login_keeps_is_taken_by_what_runs_already"])
        .envs([("XDG_CONFIG_HOME", &folder), ("XDG_DATA_HOME", &folder)])
        .env(SERVER_VARIABLE, &url)
        .env_remove("SLUICE_TOKEN")
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_is_asked_too_often_is_asked_again() {
    let tries = std::sync::atomic::AtomicU32::new(0);
    let url = serve(move |_, _| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => (429, serde_json::to_string(&Problem::new(Kind::TooMany, "wait")).unwrap()),
        _ => (200, lease(serde_json::json!({})).to_string()),
    });
    let ask = serde_json::from_str("{}").unwrap();
    let _signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap().seen.id, 1);
}

/// The token holds no more once there is a lease.
#[test]
fn a_lease_is_asked_for_with_its_key() {
    let (heard, requests) = channel();
    let url = serve(move |request, token| {
        heard.send(format!("{request} {token}")).unwrap();
        match token {
            "token" => (200, lease(serde_json::json!({ "key": "slk_1_x", "state": "granted" })).to_string()),
            _ => (200, lease(serde_json::json!({ "state": "ended", "revision": 7 })).to_string()),
        }
    });
    let ask = serde_json::from_str("{}").unwrap();
    let _signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = ServerLease::ask(Client::new(&url, "token"), &ask, Talk::Quiet).unwrap();
    assert_eq!(held.seen.key, None, "it is shown to nobody");
    let (events, event) = channel();
    held.watch(events);
    assert!(event.recv_timeout(PATIENCE).is_ok());
    held.wait_requeued().unwrap();
    drop(held);
    let asked: Vec<String> = requests.try_iter().collect();
    let [first, then @ ..] = &asked[..] else { panic!("nobody asked") };
    assert_eq!(first, "post /api/v1/leases token");
    assert!(then.iter().all(|request| request.ends_with(" slk_1_x")), "{then:?}");
    assert_eq!(then.last().map(String::as_str), Some("delete /api/v1/leases/1 slk_1_x"));
}

#[test]
fn waiting_is_explained() {
    let brief = serde_json::json!({ "reason_brief": "acme uses 1 GPU of its limit of 1 GPU" });
    let lease: Lease = serde_json::from_value(lease(brief)).unwrap();
    assert_eq!(
        waiting_line(&lease, Some("in about 17 s")),
        "Waiting: acme uses 1 GPU of its limit of 1 GPU. You are number 2, in about 17 s."
    );
    let next = Lease { position: Some(1), reason_brief: None, ..lease.clone() };
    assert_eq!(
        waiting_line(&next, None),
        "Waiting: acme holds 1 of the 1 GPUs that are its limit. You are next; the start is not known yet."
    );
    assert_eq!(waiting_line(&Lease { reason: None, reason_brief: None, ..lease }, None), "");
}

#[test]
fn a_line_is_cut_to_the_width_of_the_terminal() {
    assert_eq!(cut("sluice: waits", 80), "sluice: waits");
    let line = cut(&"x".repeat(200), 40);
    assert!(line.chars().count() < 40 && line.ends_with('\u{2026}'), "{line}");
}

#[test]
fn pauses_grow_to_a_limit_below_that_of_the_server() {
    let mut backoff = Backoff::new();
    let pauses: Vec<u64> = (0..6).map(|_| backoff.next().as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
}

#[test]
fn where_lines_are_kept_the_start_is_said_and_again_when_it_moves() {
    let mut progress = Progress::new(Talk::Quiet);
    progress.terminal = false;
    let mut about = |at_s: u64, now_s: u64| progress.about(at_s * 1000, now_s * 1000);
    assert_eq!(about(1000, 0), "at about 1970-01-01T00:16:40Z");
    assert_eq!(about(1150, 10), "at about 1970-01-01T00:16:40Z", "it has hardly moved");
    assert_eq!(about(1500, 10), "at about 1970-01-01T00:25:00Z");
    assert_eq!([about(1500, 1500), about(1501, 1502)], [ANY_MOMENT, ANY_MOMENT]);
    let start = serde_json::json!({ "start": { "at_ms": 4_000_000_000_000_u64, "because": "" } });
    let lease: Lease = serde_json::from_value(lease(start)).unwrap();
    let line = progress.line(&lease);
    assert!(line.ends_with("You are number 2, at about 2096-10-02T07:06:40Z."), "{line}");
}
