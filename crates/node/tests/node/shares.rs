//! How exactly competing sessions get their shares: measured, not asserted, since it takes the
//! machine's time.
//!
//! `cargo test --release -p sluice-node --test node -- --shares`

use std::sync::Barrier;
use std::time::{Duration, Instant};

use sluice_wire::{EventId, commands};

use crate::raw::{Session, lease, request};
use crate::{MIB, NULL, SPIN, TestNode, synchronize};

/// A session that never rests.
#[derive(Clone, Copy)]
struct Load {
    share_ppm: u32,
    /// Rounds of one kernel: its length.
    rounds: u64,
    /// Kernels that are queued before the session waits for them.
    batch: u32,
    limit_ppm: u32,
}

const SECONDS: u64 = 10;
/// Rounds of a kernel that outlives the measurement.
const ENDLESS: u64 = 1 << 40;

pub(crate) fn print(node: &TestNode) {
    let load = |share_ppm, rounds, batch| Load { share_ppm, rounds, batch, limit_ppm: 1_000_000 };
    let middle = 20_000;
    let cases: [(&str, Vec<Load>); 6] = [
        ("75/25", vec![load(750_000, middle, 4), load(250_000, middle, 4)]),
        ("90/10", vec![load(900_000, middle, 4), load(100_000, middle, 4)]),
        ("75 tiny kernels, 25 long", vec![load(750_000, 50, 64), load(250_000, 2 * ENDLESS, 1)]),
        ("25 tiny kernels, 75 long", vec![load(250_000, 50, 64), load(750_000, 2 * ENDLESS, 1)]),
        ("75 tiny, each waited for; 25 long", vec![load(750_000, 50, 1), load(250_000, 2 * ENDLESS, 1)]),
        ("25 alone under a hard cap", vec![Load { limit_ppm: 250_000, ..load(250_000, middle, 4) }]),
    ];
    for (name, loads) in cases {
        let alone: Vec<f64> =
            loads.iter().map(|&l| run(node, &[Load { limit_ppm: 1_000_000, ..l }], 2)[0]).collect();
        let together = run(node, &loads, SECONDS);
        let parts: Vec<f64> = together.iter().zip(&alone).map(|(t, a)| t / a).collect();
        let total: f64 = parts.iter().sum();
        print!("{name}:");
        for (part, load) in parts.iter().zip(&loads) {
            let of = if loads.len() == 1 { 1.0 } else { total };
            print!("  {:.1} % (share {} %)", 100.0 * part / of, load.share_ppm / 10_000);
        }
        println!("  sum of rates {total:.2} of one alone; alone {alone:.0?} rounds/s");
    }
}

/// Rounds per second of each load, all running at a time.
fn run(node: &TestNode, loads: &[Load], seconds: u64) -> Vec<f64> {
    node.wait_until_idle();
    let start = &Barrier::new(loads.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            loads.iter().map(|&load| scope.spawn(move || work(node, load, start, seconds))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn work(node: &TestNode, load: Load, start: &Barrier, seconds: u64) -> f64 {
    let request =
        sluice_wire::control::LeaseRequest { limit_ppm: load.limit_ppm, ..request(load.share_ppm, 64 * MIB) };
    let lease = lease(&node.address, request);
    let mut session = Session::open(&node.address, lease.granted.token);
    let module = session.load(SPIN);
    let spin = session.function(module, c"spin");
    session.launch(spin, 1, &[1]);
    synchronize(&mut session).unwrap();
    start.wait();
    let began = Instant::now();
    if load.rounds > ENDLESS {
        // One kernel that outlives the measurement: its work is the time it ran, which the worker
        // counts.
        session.launch(spin, 64, &[load.rounds]);
        while began.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = node.status();
        let busy = status.sessions.iter().find(|s| s.session == session.opened.session).map(|s| s.busy_us);
        return busy.unwrap_or(0) as f64 / began.elapsed().as_micros() as f64;
    }
    // One batch is always queued behind the one that is waited for, so the GPU never runs dry.
    let events = [0, 1].map(|_| EventId(session.id()));
    for phEvent in events {
        session.queue(&commands::cuEventCreate { phEvent, Flags: 2 });
    }
    let mut rounds = 0;
    for batch in 0.. {
        for _ in 0..load.batch {
            session.launch(spin, 64, &[load.rounds]);
        }
        session.queue(&commands::cuEventRecord { hEvent: events[batch % 2], hStream: NULL });
        if batch > 0 {
            session.call(&commands::cuEventSynchronize { hEvent: events[(batch - 1) % 2] }).unwrap();
            rounds += load.rounds * u64::from(load.batch);
        }
        if began.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    rounds as f64 / began.elapsed().as_secs_f64()
}
