//! The token of a node that lends by itself: a file of its operator's.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sluice_transport::token::{CHARACTERS_MIN, NodeToken};

/// What those may do who are neither the file's user nor of its group.
const OTHERS: u32 = 0o007;

/// The token in a file that not all users can read; where there is none a token is made, kept
/// there for this user alone, and said.
pub(crate) fn load(path: &Path) -> Result<NodeToken> {
    let news = |token: &str| news(path, token, std::io::stderr().is_terminal());
    text(path, news).map(|text| NodeToken::new(&text))
}

/// Loads or makes the token for scrapers of metrics, which send the token itself.
pub(crate) fn load_for_metrics(path: &Path) -> Result<String> {
    let news = |_: &str| format!("made a token for the scrapers of metrics, kept in {}", path.display());
    text(path, news).map(|text| text.trim().to_owned())
}

fn text(path: &Path, news: impl Fn(&str) -> String) -> Result<String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let token = make(path).with_context(|| path.display().to_string())?;
            eprintln!("sluice: {}", news(&token));
            token
        }
        read => {
            let text = read.with_context(|| path.display().to_string())?;
            let mode = path.metadata().with_context(|| path.display().to_string())?.permissions().mode();
            let path = path.display();
            ensure!(
                mode & OTHERS == 0,
                "{path}: any user of this machine can read the token or change it; chmod 600 {path} (a secret that is \
                 mounted: give it the mode 0440)"
            );
            text
        }
    };
    ensure!(
        text.trim().chars().count() >= CHARACTERS_MIN,
        "{}: a token has {CHARACTERS_MIN} characters or more; remove the file, and one is made",
        path.display()
    );
    Ok(text)
}

/// Puts 64 random hexadecimal digits there, whole or not at all, and in nothing's place.
pub(crate) fn make(path: &Path) -> std::io::Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let beside = beside(path);
    // What an earlier process of this number has left.
    let _ = fs::remove_file(&beside);
    let made = write(&beside, &token).and_then(|()| fs::hard_link(&beside, path));
    let _ = fs::remove_file(&beside);
    made.map(|()| token)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

fn write(path: &Path, token: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()
}

/// What a log keeps does not hold the token.
fn news(path: &Path, token: &str, is_terminal: bool) -> String {
    let path = path.display();
    let token = if is_terminal { format!("={token}") } else { ", which is what that file holds".to_owned() };
    format!("made a token, kept in {path}; programs use this node with SLUICE_NODE_TOKEN{token}")
}

#[cfg(test)]
mod tests {
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
        assert!(make(&path).is_err(), "what is there stays");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        for mode in [0o604, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
            let refused = load(&path).expect_err("others can read or change it").to_string();
            assert!(refused.contains(&format!("chmod 600 {}", path.display())), "{refused}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
        load(&path).expect("a group is for its operator to choose");
        for short in ["secret\n", "üüüüüüüü"] {
            fs::write(&path, short).expect("written");
            assert!(load(&path).expect_err("too short").to_string().contains("16 characters"));
        }
    }

    #[test]
    fn a_token_is_said_to_a_terminal_alone() {
        let said = |is_terminal| news(Path::new("users.token"), "0123", is_terminal);
        assert!(said(true).ends_with("users.token; programs use this node with SLUICE_NODE_TOKEN=0123"));
        assert!(said(false).contains("users.token") && !said(false).contains("0123"));
    }
}
