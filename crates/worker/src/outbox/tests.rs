//! What the client gets, in which order.

use std::io::Read;
use std::os::unix::net::UnixStream;

use sluice_transport::{Rings, Side};

use super::*;
use std::ptr::NonNull;

use sluice_wire::Received;
use sluice_wire::resume::LARGE;

use crate::outbox::staging::{Staging, tests::table};

/// More than the pool has pieces, and fewer bytes than the client acknowledges.
#[test]
fn small_copies_need_no_acknowledgement() {
    let (ours, _client) = UnixStream::pair().unwrap();
    let counters = Arc::new(CounterPage::create().unwrap());
    let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
    let (staging, table) = (Staging::new(), table());
    let (done, all_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for ticket in 1..=200 {
            outbox.wait_room_for_small(8);
            let bytes = staging.take(&table, 8).unwrap();
            outbox.push(Push::Data { ticket, offset: 0, bytes });
            outbox.write(|_| Ok(())).unwrap();
        }
        done.send(outbox.lock_writer().buffer.start()).unwrap();
    });
    let acknowledged = all_done.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(acknowledged, Ok(0), "they wait for their pieces");
}

fn lying(memory: &[u8]) -> Lying {
    Lying { start: NonNull::new(memory.as_ptr().cast_mut()).unwrap(), length: memory.len() }
}

/// What a client reads, to its end.
fn read_all(mut client: UnixStream) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn memory_is_sent_from_where_it_lies_and_again_after_a_cut() {
    let counters = Arc::new(CounterPage::create().unwrap());
    let [(ours, mut client), (next, client_again)] = [(); 2].map(|()| UnixStream::pair().unwrap());
    let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
    // More than a socket takes at once.
    let memory: Vec<u8> = (0..2 << 20).map(|at| (at % 251) as u8).collect();
    let mut seen = vec![0; 100_000];
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| outbox.push_lying(1, 0, lying(&memory)).unwrap());
        client.read_exact(&mut seen).unwrap();
        // Others have the writer while it waits for room.
        let sending = scope.spawn(|| outbox.send(b"between").unwrap());
        drop(client);
        assert!(pushing.join().unwrap());
        sending.join().unwrap();
    });
    let read = read_all(client_again);
    outbox.resume((&Arc::new(Stream::from(next)), Vec::new()), seen.len() as u64, b"").unwrap();
    outbox.write(|_| Ok(())).unwrap();
    drop(outbox);
    seen.extend(read.join().unwrap());
    let (data, after) = seen[PUSH_HEAD_SIZE..].split_at(memory.len());
    assert!(data == memory && after == b"between");
}

#[test]
fn where_its_bytes_would_be_looked_at_memory_is_not_lent() {
    let counters = Arc::new(CounterPage::create().unwrap());
    let (ours, client) = UnixStream::pair().unwrap();
    let stream = Arc::new(Stream::from(ours));
    let outbox = Outbox::new(Arc::clone(&stream), true, counters);
    let read = read_all(client);
    outbox.pack();
    assert!(outbox.push_lying(1, 0, lying(&[1; 8])).unwrap(), "nobody has found the link slow");
    let (memory, _file) = Rings::create().unwrap();
    stream.share(memory, Side::Worker, 2);
    assert!(!outbox.push_lying(1, 0, lying(&[1; 8])).unwrap());
    drop((outbox, stream));
    assert_eq!(read.join().unwrap().len(), PUSH_HEAD_SIZE + 8);
}

#[test]
fn small_copies_wait_while_too_much_is_kept() {
    let (ours, mut client) = UnixStream::pair().unwrap();
    let counters = Arc::new(CounterPage::create().unwrap());
    let outbox = Outbox::new(Arc::new(Stream::from(ours)), true, counters);
    let read = std::thread::spawn(move || io::copy(&mut client, &mut io::sink()));
    let frame = [0; 1000];
    while outbox.lock_writer().buffer.has_room_for_small() {
        outbox.send(&frame).unwrap();
    }
    let position = outbox.lock_writer().buffer.end();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| outbox.wait_room_for_small(8));
        // Large ones wait for a piece of the pool only.
        outbox.wait_room_for_small(LARGE);
        outbox.acknowledged(Received { position, answer: false }).unwrap();
        waiting.join().unwrap();
    });
    drop(outbox);
    assert_eq!(read.join().unwrap().unwrap(), position);
}
