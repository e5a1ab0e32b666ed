//! The certificate of a node that was not given one.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, KeyPair};

/// Certificate and key in `folder` as PEM files; if there are none, made now and signed by itself.
/// Clients know it by its fingerprint, so it stays the same for as long as the folder does.
pub fn own_certificate(folder: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let files = (folder.join("certificate.pem"), folder.join("key.pem"));
    if files.0.is_file() && files.1.is_file() {
        return Ok(files);
    }
    // Both or none, also when two nodes start at once.
    let new = folder.with_extension(format!("new-{}", std::process::id()));
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    DirBuilder::new().mode(0o700).create(&new)?;
    let made = make(&new).and_then(|()| match fs::rename(&new, folder) {
        Err(_) if files.0.is_file() && files.1.is_file() => Ok(()),
        done => done,
    });
    // What was not moved.
    let _ = fs::remove_dir_all(&new);
    made.map(|()| files)
}

fn make(folder: &Path) -> io::Result<()> {
    let failed = io::Error::other::<rcgen::Error>;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    // A host's name need not be one that certificates can hold; who pins the certificate does not
    // look at it.
    let names = [host, "localhost"].into_iter().filter(|name| !name.is_empty()).map(str::to_owned);
    let mut params = CertificateParams::new(names.collect::<Vec<_>>())
        .or_else(|_| CertificateParams::new(vec!["localhost".to_owned()]))
        .map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, format!("sluice node {host}"));
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    write(&folder.join("key.pem"), 0o600, &key.serialize_pem())?;
    write(&folder.join("certificate.pem"), 0o644, &certificate.pem())
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).mode(mode).open(path);
    match file {
        Ok(mut file) => file.write_all(text.as_bytes()).and_then(|()| file.sync_all()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sluice_transport::tls::ServerIdentity;

    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_its_key_is_the_users_own() {
        let base = std::env::temp_dir().join(format!("sluice-certificate-{}", std::process::id()));
        let folder = base.join("tls");
        let fingerprint = || {
            let (certificate, key) = own_certificate(&folder).unwrap();
            assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o077, 0);
            ServerIdentity::load(&certificate, &key, None).unwrap().fingerprint()
        };
        let first = fingerprint();
        assert_eq!(fingerprint(), first);
        assert_eq!(fs::read_dir(&base).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&base).unwrap();
    }
}
