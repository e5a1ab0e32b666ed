use std::io::Write;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::Stream;

/// Two ends of a stream over so many connections.
fn pair(stripes: usize) -> (Stream, Stream) {
    let mut ends = (0..stripes).map(|_| UnixStream::pair().unwrap());
    let (a, b) = ends.next().expect("at least one");
    let (a, b) = (Stream::from(a), Stream::from(b));
    let (more_a, more_b): (Vec<Stream>, Vec<Stream>) = ends.map(|(a, b)| (a.into(), b.into())).unzip();
    a.stripe(more_a);
    b.stripe(more_b);
    (a, b)
}

fn noise(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn write_all(stream: &Stream, bytes: &[u8], pieces: &[usize], wait: Wait) {
    let (mut sent, mut pieces) = (0, pieces.iter().cycle());
    while sent < bytes.len() {
        let size = (*pieces.next().expect("one at least")).min(bytes.len() - sent);
        // The same bytes come again until all are taken.
        let end = sent + size;
        while sent < end {
            let (first, second) = bytes[sent..end].split_at((end - sent) / 3);
            match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)], wait) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    stream.wait_writable(false, Duration::from_secs(60)).unwrap();
                }
            }
        }
    }
}

fn read_all(stream: &Stream, count: usize, piece: usize, wait: Wait) -> Vec<u8> {
    let (mut bytes, mut have) = (vec![0; count], 0);
    while have < count {
        let to = (have + piece).min(count);
        match stream.read(&mut bytes[have..to], wait) {
            Ok(0) => panic!("it has ended after {have}"),
            Ok(got) => have += got,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(stream.wait_readable(Duration::from_secs(60)).unwrap());
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn both_directions_carry_their_bytes_in_order(
        stripes in 2..=STRIPES_MAX,
        pieces in proptest::collection::vec(1_usize..300_000, 1..6),
        piece in 1_usize..200_000,
        asleep: bool,
    ) {
        let (a, b) = pair(stripes);
        let wait = if asleep { Wait::Asleep } else { Wait::No };
        let bytes = noise(1 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| write_all(&a, &bytes, &pieces, wait));
            scope.spawn(|| write_all(&b, &bytes, &pieces, wait));
            scope.spawn(|| assert!(read_all(&a, bytes.len(), piece.max(1000), wait) == bytes));
            assert!(read_all(&b, bytes.len(), piece.max(1000), wait) == bytes);
        });
    }
}

#[test]
fn large_writes_use_every_connection() {
    let (a, b) = pair(4);
    let bytes = noise(16 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| write_all(&a, &bytes, &[bytes.len()], Wait::Asleep));
        let mut used = [false; 4];
        // Far less than a connection carries at a time, so that what it is at shows between two
        // reads.
        let (mut have, mut into) = (0, vec![0; 1000]);
        while have < bytes.len() {
            have += b.read(&mut into, Wait::Asleep).unwrap();
            let reading = locked(&b.stripes.get().expect("agreed on").reading);
            reading.stripes.iter().zip(&mut used).for_each(|(one, used)| *used |= one.chunk().is_some());
        }
        assert_eq!(used, [true; 4]);
    });
}

#[test]
fn the_end_comes_after_all_that_was_written() {
    let (a, b) = pair(3);
    let bytes = noise(200_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_all(&a, &bytes, &[bytes.len()], Wait::Asleep);
            a.shut_down();
        });
        assert!(read_all(&b, bytes.len(), 1 << 20, Wait::Asleep) == bytes);
        assert_eq!(b.read(&mut [0; 10], Wait::Asleep).unwrap(), 0);
    });
}

#[test]
fn the_end_of_one_connection_is_the_end() {
    let (a, b) = pair(3);
    a.stripes.get().expect("agreed on").others[1].socket.shut_down();
    assert_eq!(b.read(&mut [0; 10], Wait::Asleep).unwrap(), 0);
    assert!(b.wait_readable(Duration::from_secs(60)).unwrap());
}

/// The peer may read what counts as written and no more, wherever a connection fails.
#[test]
fn what_others_took_beside_one_that_failed_counts() {
    for failed in 0..3 {
        let (a, b) = pair(3);
        let connections = |stream: &Stream, nth: usize| {
            let stripes = stream.stripes.get().expect("agreed on");
            stripes.at(&stream.connection, nth).socket.shut_down();
        };
        connections(&b, failed);
        let bytes = noise(1 << 20);
        let mut written = 0;
        let ended = loop {
            match a.write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(ended.kind(), io::ErrorKind::BrokenPipe, "{failed}");
        a.shut_down();
        let (mut read, mut into) = (0, vec![0; 1 << 20]);
        while let Ok(count @ 1..) = b.read(&mut into, Wait::Asleep) {
            read += count;
        }
        assert!(read <= written, "{read} of {written} with {failed} gone");
    }
}

#[test]
fn shutting_down_ends_a_read_that_sleeps() {
    let (a, _b) = pair(3);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| a.read(&mut [0; 1], Wait::Asleep));
        a.shut_down();
        assert_eq!(reader.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn what_would_wait_says_so() {
    let (a, b) = pair(2);
    let would_block = |result: io::Result<usize>| result.unwrap_err().kind() == io::ErrorKind::WouldBlock;
    assert!(would_block(b.read(&mut [0; 1], Wait::No)));
    assert!(!b.wait_readable(Duration::ZERO).unwrap());
    b.set_read_limit(Duration::from_millis(1)).unwrap();
    assert!(would_block(b.read(&mut [0; 1], Wait::Asleep)), "the limit");
    while a.write(&[0; 4096]).is_ok() {}
    assert!(would_block(a.write(&[0; 4096])));
    assert!(b.wait_readable(Duration::from_secs(60)).unwrap());
}

#[test]
fn nonsense_is_an_error() {
    let heads = [
        // Of the past, of no length, of too much, and twice what is not next.
        [head(0, 1), head(0, 1)],
        [head(0, 1), head(1, 0)],
        [head(0, 1), head(1, CHUNK_MAX + 1)],
        [head(7, 1), head(8, 1)],
    ];
    for [first, second] in heads {
        let (ours, mut theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
        let mut ours = ours.into_iter().map(Stream::from);
        let stream = ours.next().expect("two");
        stream.stripe(ours.collect());
        theirs[0].write_all(&first).unwrap();
        theirs[0].write_all(b"x").unwrap();
        theirs[1].write_all(&second).unwrap();
        let read = || stream.read(&mut [0; 8], Wait::Asleep);
        let error = loop {
            match read() {
                Ok(count) => assert_eq!(count, 1),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{first:?} {second:?}");
    }
}

#[test]
fn what_is_small_stays_on_one_connection() {
    let (a, b) = pair(4);
    write_all(&a, &noise(20 * 1000), &[1000], Wait::Asleep);
    assert!(read_all(&b, 20 * 1000, 5000, Wait::Asleep) == noise(20 * 1000));
    let stripes = b.stripes.get().expect("it has several");
    let used =
        locked(&stripes.reading).stripes.iter().filter(|stripe| stripe.head != [0; HEAD_BYTES]).count();
    assert_eq!(used, 1);
}
