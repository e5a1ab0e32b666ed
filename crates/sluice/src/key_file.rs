//! The file of a key that encrypts checkpoints: 64 hexadecimal digits.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use sluice_checkpoint::{Folder, Key};

use crate::node_token::make;

/// What those may do who are not the file's user.
const OTHERS: u32 = 0o077;

/// The key for a checkpoint in this folder. One is made where there is none and the folder is new.
pub(crate) fn load_or_make(path: &Path, folder: &Path) -> Result<Key> {
    is_elsewhere(path, folder)?;
    if !path.exists() && !Folder::is_one(folder) {
        make(path).with_context(|| path.display().to_string())?;
        eprintln!(
            "sluice: made a key, kept in {}; nothing restores the checkpoint without it",
            path.display()
        );
    }
    load(path, folder)
}

/// The key of the checkpoint in this folder.
pub(crate) fn load(path: &Path, folder: &Path) -> Result<Key> {
    is_elsewhere(path, folder)?;
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(missing(path, folder)),
        read => read.with_context(|| format!("the key file {}", path.display()))?,
    };
    let mode = path.metadata().with_context(|| path.display().to_string())?.permissions().mode();
    let path = path.display();
    ensure!(
        mode & OTHERS == 0,
        "{path}: others than its user can read the key or change it; chmod 600 {path}"
    );
    let key = key(text.trim()).with_context(|| {
        format!("{path}: a key has 64 hexadecimal digits, as `openssl rand -hex 32` prints them")
    })?;
    Ok(Key::new(key))
}

/// What to do where there is no key file.
fn missing(path: &Path, folder: &Path) -> String {
    let (path, place) = (path.display(), folder.display());
    let what = match Folder::is_encrypted(folder) {
        Some(true) => {
            format!("{place} is encrypted, and only the key that it was made with opens it: name its file")
        }
        Some(false) => format!("{place} is not encrypted: leave out --key-file, or name a new folder"),
        None => format!("{place} holds no checkpoint: name another folder, or the file of a key"),
    };
    format!("there is no key file {path}; {what}")
}

/// A copy of the folder must not carry the key.
fn is_elsewhere(path: &Path, folder: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let places = [path.canonicalize(), parent.canonicalize()];
    let is_inside =
        |folder: &Path| places.iter().any(|place| place.as_ref().is_ok_and(|it| it.starts_with(folder)));
    ensure!(
        !folder.canonicalize().is_ok_and(|folder| is_inside(&folder)),
        "the key file {} is in the folder that it encrypts, and a copy of that would have both: keep it elsewhere",
        path.display()
    );
    Ok(())
}

fn key(digits: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    let is_right = digits.len() == 2 * key.len() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_right {
        return None;
    }
    for (byte, at) in key.iter_mut().zip((0..digits.len()).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_outside_of_the_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, folder) = (scratch.path().join("key"), scratch.path().join("saved"));
        let missing = load(&path, &folder).unwrap_err();
        assert!(format!("{missing:#}").contains("key file"), "{missing:#}");
        load_or_make(&path, &folder).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        load_or_make(&path, &folder).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        for mode in [0o604, 0o640, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(load(&path, &folder).unwrap_err().to_string().contains("chmod 600"));
        }
        // A folder that has a checkpoint has a key already.
        drop(Folder::make(&folder, None).unwrap());
        let inside = load_or_make(&folder.join("key"), &folder).unwrap_err();
        assert!(inside.to_string().contains("keep it elsewhere"), "{inside}");
        let other = scratch.path().join("other");
        assert!(load_or_make(&other, &folder).is_err() && !other.exists());
    }

    #[test]
    fn a_missing_key_file_is_named_with_the_way_out() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, folder) = (scratch.path().join("key"), scratch.path().join("saved"));
        let manifest = sluice_wire::sample::manifest(&[1; 300]);
        let cases = [(None, "is not encrypted"), (Some(Key::new([1; 32])), "is encrypted")];
        for (key, said) in cases {
            Folder::make(&folder, key).unwrap().commit(&manifest).unwrap();
            let refused = load_or_make(&path, &folder).unwrap_err().to_string();
            assert!(refused.contains(&path.display().to_string()) && refused.contains(said), "{refused}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_key_is_64_digits() {
        assert_eq!(key(&"0f".repeat(32)), Some([15; 32]));
        for wrong in ["", "0f", &"0f".repeat(33), &"0g".repeat(32), &"+f".repeat(32), &"é".repeat(32)] {
            assert_eq!(key(wrong), None, "{wrong}");
        }
    }
}
