//! The token of a node that lends by itself: a file of its operator's.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sluice_transport::token::{CHARACTERS_MIN, NodeToken};

/// The token in a file; where there is none a token is made, kept there for this user alone, and said.
pub(crate) fn load(path: &Path) -> Result<NodeToken> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(path)?,
        read => read.with_context(|| path.display().to_string())?,
    };
    ensure!(
        text.trim().len() >= CHARACTERS_MIN,
        "{}: a token has {CHARACTERS_MIN} characters or more; remove the file, and one is made",
        path.display()
    );
    Ok(NodeToken::new(&text))
}

fn make(path: &Path) -> Result<String> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| path.display().to_string())?;
    writeln!(file, "{token}")?;
    eprintln!(
        "sluice: made a token, kept in {}; programs use this node with SLUICE_TOKEN={token}",
        path.display()
    );
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::surroundings::Scratch;

    #[test]
    fn a_token_is_made_once_and_for_its_user_alone() {
        let folder = Scratch::new().expect("a folder");
        let path = folder.path().join("token");
        let made = load(&path).expect("made");
        let challenge = [1; 32];
        assert!(load(&path).expect("read").is_proof(&challenge, None, &made.proof(&challenge, None)));
        assert_eq!(path.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "secret\n").expect("written");
        assert!(load(&path).expect_err("too short").to_string().contains("16 characters"));
    }
}
