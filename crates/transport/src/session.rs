//! The sessions that a process's environment names.

use std::path::PathBuf;

use sluice_wire::address::{SESSION_VARIABLE, SessionAddress};

/// The first character of a value that names a file instead of the sessions themselves. The file
/// keeps their tokens out of the environment, which a pod's specification would show.
const FILE_MARK: char = '@';

/// Bytes of such a file: an address for each of the nodes that one program can have.
const FILE_SIZE_MAX: u64 = 64 << 10;

/// The reason why a process has no session.
#[derive(Debug)]
pub enum NoSession {
    /// The variable is not set, so the process was not started under a lease.
    Unset,
    /// The file that the variable names cannot be read.
    Unreadable(PathBuf, std::io::Error),
    /// The text names no lease.
    Malformed,
}

/// Returns the sessions that [`SESSION_VARIABLE`] holds, or that the file behind its `@` holds.
pub fn own_sessions() -> Result<Vec<SessionAddress>, NoSession> {
    let text = std::env::var(SESSION_VARIABLE).map_err(|_| NoSession::Unset)?;
    sessions(&text)
}

fn sessions(text: &str) -> Result<Vec<SessionAddress>, NoSession> {
    let addresses = match text.strip_prefix(FILE_MARK) {
        None => SessionAddress::list(text),
        Some(path) => {
            let read = read_limited(path).map_err(|error| NoSession::Unreadable(path.into(), error))?;
            SessionAddress::list(read.trim())
        }
    };
    addresses.map_err(|_| NoSession::Malformed)
}

fn read_limited(path: &str) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_SIZE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "127.0.0.1:7#0707070707070707070707070707070707070707070707070707070707070707";

    #[test]
    fn a_file_can_hold_the_sessions() {
        let path = std::env::temp_dir().join(format!("sluice-session-{}", std::process::id()));
        std::fs::write(&path, format!("{SESSION}\n")).unwrap();
        let found = sessions(&format!("@{}", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), sessions(SESSION).unwrap());
        let missing = sessions(&format!("@{}", path.display())).unwrap_err();
        assert!(matches!(missing, NoSession::Unreadable(named, _) if named == path));
        assert!(matches!(sessions("nonsense"), Err(NoSession::Malformed)));
    }
}
