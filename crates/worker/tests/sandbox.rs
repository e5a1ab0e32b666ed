//! What a confined process can and cannot do. The sandbox is for ever, so each check runs in a process of its own.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluice_worker::sandbox;

/// Set in the process that is confined: the folder of its cache.
const FOLDER: &str = "SLUICE_TEST_FOLDER";

/// Runs the test of this name again in a process of its own, with a folder of its own.
fn in_own_process(name: &str) {
    let folder = std::env::temp_dir().join(format!("sluice-sandbox-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The folder, in the process that is to be confined; elsewhere starts that process.
fn confined(name: &str) -> Option<PathBuf> {
    match std::env::var_os(FOLDER) {
        Some(folder) => Some(folder.into()),
        None => {
            in_own_process(name);
            None
        }
    }
}

/// Landlock says one, seccomp the other.
fn assert_denied<T>(what: &str, result: io::Result<T>) {
    match result {
        Ok(_) => panic!("{what} is possible"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}"),
    }
}

#[test]
fn a_worker_opens_no_file_and_no_socket() {
    let Some(folder) = confined("a_worker_opens_no_file_and_no_socket") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    sandbox::enter(Some(&folder)).unwrap();

    assert_denied("reading a file", fs::File::open("/etc/passwd"));
    assert_denied("reading a process's memory map", fs::read("/proc/self/maps"));
    assert_denied("listing a folder", fs::read_dir("/"));
    assert_denied("writing beside the cache", fs::write(folder.with_extension("new"), "x"));
    assert_denied("leaving the cache", fs::read(folder.join("../../etc/passwd")));
    assert_denied("a folder in the cache", fs::create_dir(folder.join("sub")));
    assert_denied("a TCP connection", TcpStream::connect(address));
    assert_denied("a listener", TcpListener::bind("127.0.0.1:0"));
    assert_denied("a Unix socket", UnixStream::pair());
    assert_denied("a program", Command::new("/bin/true").status());
    // SAFETY: makes no process; if it did, the child would end at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(child, -1, "a process is possible");
    // SAFETY: signal 0 asks whether it may be sent.
    assert_eq!(unsafe { libc::kill(libc::getppid(), 0) }, -1, "signals to others are possible");

    // What is open stays of use.
    (&ours).write_all(b"word").unwrap();
    let mut word = [0; 4];
    theirs.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"word");
}

#[test]
fn a_worker_keeps_its_threads_its_memory_and_its_cache() {
    let Some(folder) = confined("a_worker_keeps_its_threads_its_memory_and_its_cache") else { return };
    let cache = folder.join("cache");
    sandbox::enter(Some(&cache)).unwrap();
    std::thread::scope(|scope| {
        let named = std::thread::Builder::new().name("named".into());
        let sum =
            named.spawn_scoped(scope, || vec![1_u8; 64 << 20].iter().map(|&b| u64::from(b)).sum::<u64>());
        assert_eq!(sum.unwrap().join().unwrap(), 64 << 20);
    });
    use_cache(&cache).unwrap();
}

/// As `images.rs` does.
fn use_cache(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let (unfinished, file) = (folder.join("x.part"), folder.join("x"));
    fs::File::create(&unfinished)?.write_all(b"kernel")?;
    fs::rename(&unfinished, &file)?;
    assert_eq!(fs::metadata(&file)?.len(), 6);
    assert_eq!(fs::read(&file)?, b"kernel");
    for entry in fs::read_dir(folder)? {
        entry?.metadata()?.modified()?;
    }
    fs::remove_file(&file)
}

#[test]
fn without_a_cache_nothing_is_opened() {
    let Some(folder) = confined("without_a_cache_nothing_is_opened") else { return };
    sandbox::enter(None).unwrap();
    assert_denied("writing a file", fs::write(folder.join("x"), "x"));
    assert_denied("reading a file", fs::read("/etc/passwd"));
}
