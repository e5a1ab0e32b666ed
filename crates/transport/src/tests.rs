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
