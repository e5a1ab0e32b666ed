//! What a session pays for metrics: calls on a node that is scraped, and on one without metrics.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::process;

use super::{Figures, figures_of, machine, show, values};

pub(super) const NAME: &str = "scrapes";

/// Pairs of runs, taken alternately.
const PAIRS: usize = 9;
/// Prometheus scrapes every 15 s unless said.
const SCRAPE_EVERY: Duration = Duration::from_millis(100);
const ROWS: [(&str, &str, &str); 3] = [
    ("queued calls until all are done", "queued_calls_per_s", "/s"),
    ("the same from four threads at once", "queued_calls_threads_per_s", "/s"),
    ("waiting call", "waiting_call_us", "us"),
];

/// Measures, and returns the table.
pub(super) fn run() -> Result<String> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut scrapes = 0;
    for _ in 0..PAIRS {
        let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200"])?;
        without.push(measure(&node)?);
        drop(node);
        let (figures, count) = scraped()?;
        with.push(figures);
        scrapes += count;
    }
    ensure!(scrapes > 0, "the node was not scraped");
    let mut text = String::from("| what | without metrics | scraped |\n|---|---|---|\n");
    for (what, name, unit) in ROWS {
        let [without, with] = [&without, &with].map(|runs| show(values(runs, name)));
        text += &format!("| {what} | {without} {unit} | {with} {unit} |\n");
    }
    Ok(format!(
        "A node with a recording GPU, over loopback TCP: without `--metrics`, and with it, scraped ten times a second \
         ({scrapes} scrapes); {PAIRS} runs of each, taken alternately: median, lowest and highest in brackets. \
         Measured by `cargo xtask bench {NAME}` on {}.\n\n{text}",
        machine()
    ))
}

fn measure(node: &Node) -> Result<Figures> {
    let mut command = Command::new(node::sluice());
    command.args(["bench", "remoting", "--runs", "1", "-o", "json"]).env("SLUICE_NODE", &node.address);
    let report: serde_json::Value = serde_json::from_str(&process::output_of(&mut command)?)?;
    Ok(figures_of("tcp", &report["tcp"])
        .into_iter()
        .map(|(name, value)| (name.replace("tcp_", ""), value))
        .collect())
}

/// Measures on a node that is scraped meanwhile. Returns how often it was, too.
fn scraped() -> Result<(Figures, u32)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "recording:h200", "--metrics", &address])?;
    let (stop, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let figures = std::thread::scope(|scope| {
        let scraper = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                scrape(&address)?;
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(SCRAPE_EVERY);
            }
            Ok(())
        });
        let figures = measure(&node);
        stop.store(true, Ordering::Relaxed);
        scraper.join().map_err(|_| anyhow::anyhow!("the scraper failed"))??;
        figures
    })?;
    Ok((figures, count.into_inner()))
}

fn scrape(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    ensure!(page.contains("sluice_build_info"), "no metrics: {page}");
    Ok(())
}
