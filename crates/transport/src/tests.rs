//! Tests of connections over pairs of sockets.

use super::*;

fn pair() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (a.into(), b.into())
}

#[test]
fn bytes_arrive_in_order_and_the_end_after_them() {
    let (a, b) = pair();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
    assert_eq!(a.write_vectored(&parts, Wait::Asleep).unwrap(), 7);
    a.shut_down();
    let mut space = [0; 16];
    assert_eq!(b.read(&mut space, Wait::Asleep).unwrap(), 7);
    assert_eq!(&space[..7], b"one two");
    assert_eq!(b.read(&mut space, Wait::Asleep).unwrap(), 0);
}

#[test]
fn what_would_wait_says_so() {
    let (a, b) = pair();
    let would_block = |result: io::Result<usize>| result.unwrap_err().kind() == io::ErrorKind::WouldBlock;
    assert!(would_block(b.read(&mut [0; 1], Wait::No)));
    assert!(!b.wait_readable(Duration::ZERO).unwrap());
    let bytes = [0; 4096];
    while let Ok(count) = a.write(&bytes) {
        assert!(count > 0);
    }
    assert!(would_block(a.write(&bytes)));
    assert!(b.wait_readable(Duration::from_secs(10)).unwrap());
}

#[test]
fn shutting_down_ends_a_read_that_sleeps() {
    let (a, _b) = pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| a.read(&mut [0; 1], Wait::Asleep));
        a.shut_down();
        assert_eq!(reader.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_host_that_is_not_there_is_an_error_by_the_deadline() {
    assert!(Stream::connect_tcp("127.0.0.1:1", Instant::now() + Duration::from_secs(10)).is_err());
    let over = Stream::connect_tcp("127.0.0.1:1", Instant::now()).unwrap_err();
    assert_eq!(over.kind(), io::ErrorKind::TimedOut);
}

/// Two ends that share memory.
fn sharing() -> (Stream, Stream) {
    let (client, worker) = pair();
    let (memory, file) = Rings::create().unwrap();
    client.share(Rings::open(file.as_fd()).unwrap(), Side::Client, 2);
    worker.share(memory, Side::Worker, 2);
    (client, worker)
}

#[test]
fn shared_memory_carries_both_directions_at_once() {
    const TOTAL: usize = 8 << 20;
    let (client, worker) = sharing();
    let byte = |at: usize| (at % 241) as u8;
    let send = |stream: &Stream| {
        let bytes: Vec<u8> = (0..TOTAL).map(byte).collect();
        let mut sent = 0;
        while sent < TOTAL {
            let (first, second) = bytes[sent..].split_at((TOTAL - sent).min(100_000));
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            sent += stream.write_vectored(&parts, Wait::Asleep).unwrap();
        }
    };
    let receive = |stream: &Stream| {
        let mut into = vec![0; 30_000];
        let mut received = 0;
        while received < TOTAL {
            let count = stream.read(&mut into, Wait::Asleep).unwrap();
            assert!(into[..count].iter().enumerate().all(|(i, &b)| b == byte(received + i)));
            received += count;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&client));
        scope.spawn(|| send(&worker));
        scope.spawn(|| receive(&client));
        scope.spawn(|| receive(&worker));
    });
}

#[test]
fn bytes_can_be_read_where_they_lie() {
    let (client, worker) = sharing();
    let mut seen = Vec::new();
    let mut take = |start: *const u8, count: usize| {
        // SAFETY: what the stream gives can be read while this runs.
        seen.extend_from_slice(unsafe { std::slice::from_raw_parts(start, count) });
    };
    let nothing = worker.read_in_place((1, 10), Wait::No, &mut take).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    client.write(b"one two").unwrap();
    let too_few = worker.read_in_place((8, 10), Wait::No, &mut take).unwrap_err();
    assert_eq!(too_few.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(worker.read_in_place((1, 4), Wait::Asleep, &mut take).unwrap(), 4);
    client.shut_down();
    assert_eq!(worker.read_in_place((50, 100), Wait::Asleep, &mut take).unwrap(), 3, "no more will come");
    assert_eq!(seen, b"one two");
    assert_eq!(worker.read_in_place((1, 100), Wait::Asleep, |_, _| ()).unwrap(), 0, "the end");
    let (socket, _other) = pair();
    let unsupported = socket.read_in_place((1, 1), Wait::No, |_, _| ()).unwrap_err();
    assert_eq!(unsupported.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn bytes_can_be_written_where_they_are_read() {
    let (client, worker) = sharing();
    let piece = 300 << 10;
    let fill = |start: *mut u8| {
        // SAFETY: what the stream gives can be written while this runs.
        unsafe { start.write_bytes(7, piece) };
        Ok::<_, ()>(())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut bytes, mut into) = (Vec::new(), vec![0; 50_000]);
            while bytes.len() < 20 * (piece + 3) {
                let count = client.read(&mut into, Wait::Asleep).unwrap();
                bytes.extend_from_slice(&into[..count]);
            }
            bytes
        });
        for _ in 0..20 {
            worker.wait_room(piece + 3).unwrap();
            assert_eq!(worker.write_in_place(b"abc", piece, fill).unwrap(), Some(Ok(())));
        }
        for part in reader.join().unwrap().chunks(piece + 3) {
            assert!(part.starts_with(b"abc") && part[3..].iter().all(|byte| *byte == 7));
        }
    });
    assert_eq!(worker.write_in_place(&[], 2 << 20, fill).unwrap(), None, "more than the ring");
    let (socket, _other) = pair();
    let unsupported = socket.write_in_place(&[], 1, fill).unwrap_err();
    assert_eq!(unsupported.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn a_full_ring_makes_its_writer_wait_for_room() {
    let (client, worker) = sharing();
    let bytes = vec![1; 1 << 16];
    while client.write(&bytes).is_ok() {}
    assert_eq!(client.write(&bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.write_vectored(&[IoSlice::new(&bytes)], Wait::Asleep));
        let mut into = vec![0; 1 << 16];
        while !writer.is_finished() {
            if worker.read(&mut into, Wait::No).is_err() {
                std::thread::yield_now();
            }
        }
        assert!(writer.join().unwrap().unwrap() > 0);
    });
}

#[test]
fn a_wait_for_room_or_bytes_ends_with_either() {
    let (client, worker) = sharing();
    while client.write(&[1; 1 << 16]).is_ok() {}
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.wait_writable(true, Duration::from_secs(60)));
        worker.write(b"x").unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(client.read(&mut [0; 4], Wait::No).unwrap(), 1);
}

#[test]
fn the_last_bytes_of_a_peer_that_is_gone_are_read_before_the_end() {
    let (client, worker) = sharing();
    worker.write(b"last words").unwrap();
    drop(worker);
    let mut into = [0; 64];
    assert_eq!(client.read(&mut into, Wait::Asleep).unwrap(), 10);
    assert_eq!(client.read(&mut into, Wait::Asleep).unwrap(), 0, "without a bell, by the socket");
    assert_eq!(client.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(client.wait_readable(Duration::from_secs(60)).unwrap());
}

#[test]
fn an_idle_reader_sleeps_on_the_socket() {
    let (client, worker) = sharing();
    let until_idle = || {
        while !worker.shared.get().unwrap().sleeps_on_socket() {
            std::thread::yield_now();
        }
    };
    let (counts, came) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut into = [0; 64];
            (0..3).for_each(|_| counts.send(worker.read(&mut into, Wait::Asleep).unwrap()).unwrap());
        });
        until_idle();
        client.write(b"one").unwrap();
        assert_eq!(came.recv(), Ok(3));
        until_idle();
        client.write(b"three").unwrap();
        assert_eq!(came.recv(), Ok(5));
        until_idle();
        client.shut_down();
        assert_eq!(came.recv(), Ok(0));
    });
}

#[test]
fn shutting_down_ends_both_sides() {
    let (client, worker) = sharing();
    std::thread::scope(|scope| {
        let here = scope.spawn(|| client.read(&mut [0; 1], Wait::Asleep));
        let there = scope.spawn(|| worker.read(&mut [0; 1], Wait::Asleep));
        client.shut_down();
        assert_eq!(here.join().unwrap().unwrap(), 0);
        assert_eq!(there.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_wait_ends_at_its_limit() {
    let (client, _worker) = sharing();
    assert!(!client.wait_readable(Duration::from_millis(1)).unwrap());
}

#[test]
fn a_read_through_shared_memory_ends_at_its_limit() {
    let (client, worker) = sharing();
    client.set_read_limit(Duration::from_millis(1)).unwrap();
    let nothing = client.read(&mut [0; 4], Wait::Asleep).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    client.set_read_limit(Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.read(&mut [0; 4], Wait::Asleep));
        while !client.shared.get().unwrap().sleeps_on_socket() {
            std::thread::yield_now();
        }
        worker.write(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), 1);
    });
}

/// Whoever runs as another user gets nothing of what is meant for the node.
#[test]
fn a_nodes_socket_is_believed_of_its_own_user_only() {
    // SAFETY: always succeeds.
    let user = unsafe { libc::geteuid() };
    let number = format!("{}", std::process::id());
    for (owner, is_believed) in [(user, true), (user + 1, false)] {
        let name = format!("{NODE_SOCKET}{owner}-{number}");
        assert!(is_node_socket(&name));
        let _listener =
            std::os::unix::net::UnixListener::bind_addr(&unix_address(Path::new(&name)).unwrap()).unwrap();
        let connected = Stream::connect_unix(Path::new(&name));
        assert_eq!(connected.map(drop).map_err(|error| error.kind()).is_ok(), is_believed);
    }
    assert!(node_socket(&number).ends_with(&format!("-{user}-{number}")));
    assert!(!is_node_socket("@sluice-node-") && !is_node_socket("/run/node.sock"));
}
