//! Handshakes over a socket pair, with certificates made for the test.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use sluice_wire::address::Fingerprint;
use sluice_wire::spin::Wait;

use super::follow::{Files, Look};
use super::{ClientIdentity, ServerIdentity, TlsError, Trust};
use crate::Stream;

/// Certificates in a folder that goes with them.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("sluice-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn authority(&self, name: &str) -> (Authority, PathBuf) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = self.write(&format!("{name}.pem"), &authority.pem());
        (authority, file)
    }

    /// A certificate for `localhost` that is good until the year, and its key.
    fn issue(&self, authority: &Authority, name: &str, until: i32) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, authority).unwrap();
        let file = self.write(&format!("{name}.pem"), &certificate.pem());
        (file, self.write(&format!("{name}.key"), &key.serialize_pem()))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn load((certificate, key): &(PathBuf, PathBuf), clients: Option<&Path>) -> ServerIdentity {
    ServerIdentity::load(certificate, key, clients).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// What either side makes of the handshake; after a good one, bytes go both ways.
fn meet(
    server: &ServerIdentity,
    host: &str,
    trust: &Trust,
    client: Option<&ClientIdentity>,
) -> (io::Result<Fingerprint>, io::Result<bool>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let mut stream = Stream::from(std::os::fd::OwnedFd::from(listener.accept().unwrap().0));
            let (may_ask, shown) = stream.accept_tls(server, soon())?;
            let mut bytes = [0; 16];
            let count = stream.read(&mut bytes, Wait::Asleep)?;
            stream.write(&bytes[..count])?;
            Ok((may_ask, shown))
        });
        let address = format!("{host}:{}", address.port());
        let connected = Stream::connect_tls(&address, trust, client, soon()).map(|(stream, shown)| {
            stream.write(b"ping").unwrap();
            let mut bytes = [0; 16];
            assert_eq!(stream.read(&mut bytes, Wait::Asleep).unwrap(), 4);
            shown
        });
        let accepted = accepting.join().unwrap();
        if let (Ok(seen), Ok((_, shown))) = (&connected, &accepted) {
            assert_eq!(seen, shown, "both sides know which certificate was shown");
        }
        (connected, accepted.map(|(may_ask, _)| may_ask))
    })
}

/// The handshake fails on the client's side, and the text says `part`.
fn refused((connected, accepted): (io::Result<Fingerprint>, io::Result<bool>), part: &str) {
    let error = connected.unwrap_err();
    assert!(TlsError::of(&error).is_some(), "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
    assert!(accepted.is_err());
}

#[test]
fn a_node_is_known_by_its_fingerprint() {
    let folder = Folder::new("fingerprint");
    let (authority, _) = folder.authority("authority");
    // Whoever pins a certificate does not ask until when it is good.
    let node = load(&folder.issue(&authority, "node", 2001), None);
    let other = load(&folder.issue(&authority, "other", 2099), None);
    let trust = Trust::Fingerprint(node.fingerprint());
    let (connected, accepted) = meet(&node, "127.0.0.1", &trust, None);
    assert_eq!(connected.unwrap(), node.fingerprint());
    assert!(accepted.unwrap());
    refused(meet(&other, "127.0.0.1", &trust, None), &format!("{} and not", other.fingerprint()));
}

/// In place of what is there, as a whole.
fn replace(file: &Path, by: &Path) {
    let new = file.with_extension("new");
    std::fs::copy(by, &new).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[test]
fn a_renewed_certificate_is_shown_and_an_earlier_one_to_whoever_knows_that() {
    let folder = Folder::new("renewed");
    let (authority, file) = folder.authority("authority");
    let files = folder.issue(&authority, "node", 2099);
    let node = load(&files, None);
    let trust = Trust::authorities(&file).unwrap();
    let mut look = Look::new(node.shown());
    let mut earlier = vec![node.fingerprint()];
    for name in ["second", "third"] {
        let renewed = folder.issue(&authority, name, 2099);
        replace(&files.0, &renewed.0);
        assert_eq!(look.again(node.shown()), None, "whoever writes may not be done");
        replace(&files.1, &renewed.1);
        assert_eq!(look.again(node.shown()), None);
        assert_eq!(look.again(node.shown()), Some(Ok(true)));
        assert_eq!(look.again(node.shown()), None);
        assert_eq!(node.fingerprint(), load(&renewed, None).fingerprint());
        assert_eq!(meet(&node, "localhost", &trust, None).0.unwrap(), node.fingerprint());
        earlier.push(node.fingerprint());
        for known in &earlier {
            let (shown, _) = meet(&node, "127.0.0.1", &Trust::Fingerprint(*known), None);
            assert_eq!(shown.unwrap(), *known);
        }
    }
    let other = load(&folder.issue(&authority, "other", 2099), None);
    refused(meet(&node, "127.0.0.1", &Trust::Fingerprint(other.fingerprint()), None), "and not");
    // The first one again.
    let first = folder.issue(&authority, "first", 2099);
    replace(&files.0, &first.0);
    replace(&files.1, &first.1);
    assert_eq!(node.shown().reload(), Ok(true));
    assert_eq!(node.shown().reload(), Ok(false), "the same one");
}

#[test]
fn the_first_certificate_is_shown_however_often_it_was_renewed() {
    let folder = Folder::new("often");
    let (authority, _) = folder.authority("authority");
    let files = folder.issue(&authority, "node", 2099);
    let node = load(&files, None);
    let first = node.fingerprint();
    for _ in 0..300 {
        folder.issue(&authority, "node", 2099);
        assert_eq!(node.shown().reload(), Ok(true));
    }
    for known in [first, node.fingerprint()] {
        assert_eq!(meet(&node, "127.0.0.1", &Trust::Fingerprint(known), None).0.unwrap(), known);
    }
}

#[test]
fn what_was_not_readable_is_tried_again_and_said_once() {
    let folder = Folder::new("retried");
    let (authority, _) = folder.authority("authority");
    let files = folder.issue(&authority, "node", 2099);
    let node = load(&files, None);
    // Written after it was loaded, before anybody looks.
    let renewed = folder.issue(&authority, "renewed", 2099);
    replace(&files.0, &renewed.0);
    replace(&files.1, &renewed.1);
    let mut look = Look::new(node.shown());
    assert_eq!(look.again(node.shown()), Some(Ok(true)));
    // Not readable for a while.
    let target = folder.0.join("target");
    std::fs::rename(&files.0, &target).unwrap();
    std::fs::create_dir(&files.0).unwrap();
    assert_eq!(look.again(node.shown()), None);
    assert!(look.again(node.shown()).unwrap().is_err());
    assert_eq!(look.again(node.shown()), None, "it is said once");
    std::fs::remove_dir(&files.0).unwrap();
    std::fs::rename(&target, &files.0).unwrap();
    assert_eq!((look.again(node.shown()), look.again(node.shown())), (None, Some(Ok(false))));
    // Nothing but who may read it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&files.0, mode).unwrap();
    assert_eq!((look.again(node.shown()), look.again(node.shown())), (None, Some(Ok(false))));
}

#[test]
fn files_that_are_of_no_use_change_nothing() {
    let folder = Folder::new("broken");
    let (authority, _) = folder.authority("authority");
    let files = folder.issue(&authority, "node", 2099);
    let node = load(&files, None);
    let (known, trust) = (node.fingerprint(), Trust::Fingerprint(node.fingerprint()));
    let mut look = Look::new(node.shown());
    let mut check = |part: &str| {
        assert_eq!(look.again(node.shown()), None);
        let error = look.again(node.shown()).unwrap().unwrap_err();
        assert!(error.contains(part), "{error}");
        assert_eq!(look.again(node.shown()), None, "it is said once");
        assert_eq!((node.fingerprint(), meet(&node, "127.0.0.1", &trust, None).0.unwrap()), (known, known));
    };
    let foreign = folder.issue(&authority, "foreign", 2099);
    replace(&files.1, &foreign.1);
    check("node.pem: ");
    replace(&files.0, &folder.write("text", "no certificate"));
    check("no certificate in it");
    std::fs::remove_file(&files.0).unwrap();
    check("node.pem: ");
    replace(&files.0, &foreign.0);
    assert_eq!((look.again(node.shown()), look.again(node.shown())), (None, Some(Ok(true))));
    assert_eq!(node.fingerprint(), load(&foreign, None).fingerprint());
}

#[test]
fn a_node_is_known_by_its_authority() {
    let folder = Folder::new("authority");
    let (authority, file) = folder.authority("authority");
    let (stranger, _) = folder.authority("stranger");
    let trust = Trust::authorities(&file).unwrap();
    let node = load(&folder.issue(&authority, "node", 2099), None);
    assert_eq!(meet(&node, "localhost", &trust, None).0.unwrap(), node.fingerprint());
    refused(meet(&node, "127.0.0.1", &trust, None), "another name");
    let expired = load(&folder.issue(&authority, "expired", 2001), None);
    refused(meet(&expired, "localhost", &trust, None), "expired");
    let foreign = load(&folder.issue(&stranger, "foreign", 2099), None);
    refused(meet(&foreign, "localhost", &trust, None), "no authority");
}

#[test]
fn a_node_tells_clients_with_certificates_from_others() {
    let folder = Folder::new("clients");
    let (authority, file) = folder.authority("authority");
    let (stranger, _) = folder.authority("stranger");
    let node = load(&folder.issue(&authority, "node", 2099), Some(&file));
    let trust = Trust::Fingerprint(node.fingerprint());
    let identity = |authority: &Authority, name| {
        let (certificate, key) = folder.issue(authority, name, 2099);
        ClientIdentity { certificate, key }
    };
    assert!(!meet(&node, "127.0.0.1", &trust, None).1.unwrap());
    let known = identity(&authority, "known");
    assert!(meet(&node, "127.0.0.1", &trust, Some(&known)).1.unwrap());
    // A certificate of a stranger is worse than none.
    turned_away(&node, &identity(&stranger, "unknown"));
}

/// The node takes no such certificate. The client learns of it after its own handshake.
fn turned_away(node: &ServerIdentity, client: &ClientIdentity) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = Stream::from(std::os::fd::OwnedFd::from(listener.accept().unwrap().0));
            assert!(stream.accept_tls(node, soon()).is_err());
        });
        let trust = Trust::Fingerprint(node.fingerprint());
        let (stream, _) = Stream::connect_tls(&address, &trust, Some(client), soon()).unwrap();
        assert!(!matches!(stream.read(&mut [0; 16], Wait::Asleep), Ok(1..)));
    });
}

#[test]
fn authorities_of_clients_are_read_again_when_they_change() {
    let folder = Folder::new("authorities");
    let (first, first_file) = folder.authority("first");
    let (second, second_file) = folder.authority("second");
    let file = folder.0.join("clients.pem");
    std::fs::copy(&first_file, &file).unwrap();
    let node = load(&folder.issue(&first, "node", 2099), Some(&file));
    let trust = Trust::Fingerprint(node.fingerprint());
    let identity = |authority: &Authority, name| {
        let (certificate, key) = folder.issue(authority, name, 2099);
        ClientIdentity { certificate, key }
    };
    let (old, new) = (identity(&first, "old"), identity(&second, "new"));
    let taken = |client: &ClientIdentity| meet(&node, "127.0.0.1", &trust, Some(client)).1.unwrap();
    assert!(taken(&old));
    turned_away(&node, &new);

    let mut look = Look::new(node.clients());
    let both =
        std::fs::read_to_string(&first_file).unwrap() + &std::fs::read_to_string(&second_file).unwrap();
    replace(&file, &folder.write("both", &both));
    assert_eq!((look.again(node.clients()), look.again(node.clients())), (None, Some(Ok(true))));
    assert!(taken(&old) && taken(&new));

    // What is of no use changes nothing: an empty file must not let everybody in, or nobody.
    replace(&file, &folder.write("text", "no certificate"));
    assert_eq!(look.again(node.clients()), None);
    assert!(look.again(node.clients()).unwrap().unwrap_err().contains("no certificate in it"));
    assert!(taken(&old) && taken(&new));
    assert!(!meet(&node, "127.0.0.1", &trust, None).1.unwrap(), "a client is still asked");

    replace(&file, &second_file);
    assert_eq!((look.again(node.clients()), look.again(node.clients())), (None, Some(Ok(true))));
    assert!(taken(&new));
    turned_away(&node, &old);
    assert_eq!(node.clients().reload(), Ok(false), "the same ones");
}

#[test]
fn plain_text_is_noticed_on_either_side() {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    let folder = Folder::new("plain");
    let (authority, _) = folder.authority("authority");
    let node = load(&folder.issue(&authority, "node", 2099), None);
    let says = |bytes: &[u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        drop(theirs);
        Stream::from(ours).accept_tls(&node, soon()).unwrap_err()
    };
    let hello = sluice_wire::handshake::Welcome::to_bytes();
    assert!(matches!(TlsError::of(&says(&hello)), Some(TlsError::PlainText)));
    assert!(matches!(TlsError::of(&says(b"GET / HTTP/1.1\r\n")), Some(TlsError::NoTls)));
    assert_eq!(says(&[22, 3, 1]).kind(), io::ErrorKind::UnexpectedEof);

    let trust = Trust::Fingerprint(node.fingerprint());
    for answer in [&hello, b"HTTP/1.1 400 Bad Request\r\n".as_slice()] {
        let error = answered(answer, &trust);
        assert!(matches!(TlsError::of(&error), Some(TlsError::NoTls)), "{error}");
    }
}

/// What a client makes of somebody who answers its first words like this, and hangs up.
fn answered(answer: &[u8], trust: &Trust) -> io::Error {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
            stream.write_all(answer).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // What is left unread would take the answer along.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        Stream::connect_tls(&address, trust, None, soon()).unwrap_err()
    })
}

#[test]
fn a_cut_within_the_handshake_is_told_from_a_peer_that_is_none() {
    let folder = Folder::new("cut");
    let (authority, _) = folder.authority("authority");
    let trust = Trust::Fingerprint(load(&folder.issue(&authority, "node", 2099), None).fingerprint());
    // Nothing, a part of a record's header, a part of the record.
    let record = [22, 3, 3, 0, 100, 2, 0, 0];
    for come in [0, 1, 4, 5, 8] {
        let error = answered(&record[..come], &trust);
        assert!(TlsError::is_cut(&error) && crate::opening::is_end(&error), "{come}: {error:?}");
    }
}
