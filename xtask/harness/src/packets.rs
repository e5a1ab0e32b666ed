//! A link of packets between two network namespaces: late, of a rate, and with losses, below the
//! system's own TCP.
//!
//! Each end is a TUN device. What one sends is read here, packet by packet, and written to the
//! other when the link would have carried it. So windows, acknowledgements and what is sent again
//! are those of the kernel, which a relay of bytes ([`crate::relay`]) hides.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::random::Random;

/// What the link is like, in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Both ways together.
    pub round_trip: Duration,
    pub bytes_per_s: f64,
    /// One of this number of packets is lost; 0 loses none.
    pub loses_one_of: u64,
}

/// An end of a link as `ip` names it: namespace, device, address with prefix.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub network: &'a str,
    pub device: &'a str,
    pub address: &'a str,
}

/// The largest packet, as on most links.
const PACKET_MAX: usize = 1500;
/// What waits for a link that is busy, by the time that it takes; more is dropped, as routers do.
const QUEUE_TIME: Duration = Duration::from_millis(50);

/// Lays the link. It ends with the namespaces.
pub fn link(ends: [End<'_>; 2], shape: Shape) -> Result<()> {
    let [near, far] = [open(ends[0])?, open(ends[1])?];
    let reader = |file: &File| file.try_clone();
    carry(reader(&near)?, reader(&far)?, shape, 1);
    carry(far, near, shape, 2);
    Ok(())
}

/// Makes the device in its namespace, and brings it up.
fn open(end: End<'_>) -> Result<File> {
    let ip = |words: &[&str]| {
        process::output_of(std::process::Command::new("ip").args(["-n", end.network]).args(words))
    };
    // What a thread enters is left with the thread.
    let file = std::thread::scope(|scope| scope.spawn(|| enter_and_open(end)).join());
    let file = file.map_err(|_| anyhow::anyhow!("the thread for {} has ended", end.network))??;
    ip(&["address", "add", end.address, "dev", end.device])?;
    ip(&["link", "set", end.device, "mtu", &PACKET_MAX.to_string(), "txqueuelen", "10000", "up"])?;
    Ok(file)
}

fn enter_and_open(end: End<'_>) -> Result<File> {
    let network = File::open(format!("/run/netns/{}", end.network)).context("the namespace")?;
    // SAFETY: the descriptor is open, and the call concerns this thread only.
    let status = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
    ensure!(status == 0, "entering {}: {}", end.network, std::io::Error::last_os_error());
    // What Linux does by default, whatever this machine is configured to do; where that may
    // not be chosen, its forerunner.
    let choose = |name| std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name);
    choose("cubic").or_else(|_| choose("reno")).context("tcp_congestion_control")?;
    let file = File::options().read(true).write(true).open("/dev/net/tun").context("/dev/net/tun")?;
    // SAFETY: an all-zero request is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(end.device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is as long as the kernel expects, and outlives the call.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    ensure!(status == 0, "making {}: {}", end.device, std::io::Error::last_os_error());
    Ok(file)
}

type Packets = (Instant, Vec<u8>);

/// Carries what comes out of one device into the other, until either is gone.
fn carry(mut from: File, to: File, shape: Shape, seed: u64) {
    let (sender, packets) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&waiting);
    std::thread::spawn(move || deliver(&packets, to, &left));
    std::thread::spawn(move || _ = take_in(&mut from, &sender, &waiting, shape, seed));
}

fn take_in(
    from: &mut File,
    sender: &Sender<Packets>,
    waiting: &AtomicUsize,
    shape: Shape,
    seed: u64,
) -> Result<()> {
    let mut random = Random::new(seed);
    let mut buffer = [0; PACKET_MAX + 100];
    // When the link has sent all that came before.
    let mut idle_at = Instant::now();
    // Not even a link of packets keeps more than the machine can hold.
    const WAITING_MAX: usize = 256 << 20;
    loop {
        let count = from.read(&mut buffer)?;
        let now = Instant::now();
        let is_lost = shape.loses_one_of > 0 && random.below(shape.loses_one_of) == 0;
        let is_full = idle_at.saturating_duration_since(now) > QUEUE_TIME;
        if is_lost || is_full || waiting.load(Ordering::Relaxed) > WAITING_MAX {
            continue;
        }
        idle_at = idle_at.max(now) + Duration::from_secs_f64(count as f64 / shape.bytes_per_s);
        waiting.fetch_add(count, Ordering::Relaxed);
        sender.send((idle_at + shape.round_trip / 2, buffer[..count].to_vec()))?;
    }
}

fn deliver(packets: &Receiver<Packets>, mut to: File, left: &AtomicUsize) {
    while let Ok((at, packet)) = packets.recv() {
        let early = at.saturating_duration_since(Instant::now());
        if early > Duration::from_micros(100) {
            std::thread::sleep(early);
        }
        left.fetch_sub(packet.len(), Ordering::Relaxed);
        // A device that is not up takes none.
        let _ = to.write_all(&packet);
    }
}
