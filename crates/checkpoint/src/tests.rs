//! Folders as sessions fill them.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sluice_wire::checkpoint::{CHUNK, ChunkTag, Manifest, NO_HASH, chunks};
use sluice_wire::migration::{Committed, SessionState};
use sluice_wire::{Encode, ImageHash, sample};
use tempfile::TempDir;

use crate::{Amounts, Failure, Folder, Key, TakenSession, read, take};

const AT: u64 = 1 << 40;

/// A session with an image and this memory, from which it is asked for what is not known.
#[derive(Clone)]
struct Worker {
    state: SessionState,
    memory: Vec<u8>,
    /// What it says, from here on.
    says: Vec<u8>,
    at: usize,
    hashes: Vec<u8>,
    /// It ends after this number of bytes.
    ends_after: usize,
}

impl Worker {
    fn new(memory: Vec<u8>) -> Worker {
        let committed = Committed { address: AT, bytes: memory.len() as u64, gpu: 0, by_all: false };
        let state = SessionState {
            images: vec![(ImageHash([9; 32]), vec![5; CHUNK as usize + 10])],
            variables: Vec::new(),
            memory: vec![committed],
            ..sample::session_state(&[3; 200])
        };
        let mut encoded = Vec::new();
        state.encode(&mut encoded);
        let mut says = (encoded.len() as u64).to_le_bytes().to_vec();
        says.extend_from_slice(&encoded);
        Worker { state, memory, says, at: 0, hashes: Vec::new(), ends_after: usize::MAX }
    }

    /// As a worker that is moved to sends it.
    fn whole(&self) -> Vec<u8> {
        let mut encoded = Vec::new();
        self.state.encode(&mut encoded);
        let mut whole = (encoded.len() as u64).to_le_bytes().to_vec();
        whole.extend_from_slice(&encoded);
        whole.extend_from_slice(&self.memory);
        whole
    }
}

impl Read for Worker {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let end = self.says.len().min(self.ends_after);
        let count = into.len().min(end.saturating_sub(self.at));
        into[..count].copy_from_slice(&self.says[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

impl Write for Worker {
    fn write(&mut self, hashes: &[u8]) -> io::Result<usize> {
        self.hashes.extend_from_slice(hashes);
        Ok(hashes.len())
    }

    /// The hashes are whole.
    fn flush(&mut self) -> io::Result<()> {
        for (place, known) in chunks(&self.state).zip(self.hashes.chunks(NO_HASH.len())) {
            let begin = (place.address - AT) as usize;
            let bytes = &self.memory[begin..begin + place.bytes as usize];
            let tag = match () {
                () if bytes[0] == 0 && bytes[1..] == bytes[..bytes.len() - 1] => ChunkTag::Zero,
                () if blake3::hash(bytes).as_bytes() == known => ChunkTag::Same,
                () => ChunkTag::Bytes,
            };
            self.says.push(tag as u8);
            if tag == ChunkTag::Bytes {
                self.says.extend_from_slice(bytes);
            }
        }
        Ok(())
    }
}

fn manifest_of(taken: TakenSession<()>) -> Manifest {
    let TakenSession { state, images, contents, .. } = taken;
    Manifest { state, images, contents, ..sample::manifest(&[1; 300]) }
}

/// Takes a checkpoint to its end.
fn checkpoint(folder: &Folder, worker: &Worker) -> Result<Amounts, Failure> {
    let former = folder.manifest()?;
    let taken = take(folder, former.as_ref(), worker.clone(), |_| Ok(()))?;
    let amounts = taken.amounts;
    let manifest = manifest_of(taken);
    folder.commit(&manifest)?;
    folder.sweep(Some(&manifest))?;
    Ok(amounts)
}

fn restored(folder: &Folder) -> Result<Vec<u8>, Failure> {
    let manifest = folder.manifest()?.expect("a checkpoint was taken");
    let mut bytes = Vec::new();
    read(folder, &manifest)?.send(&mut bytes)?;
    Ok(bytes)
}

/// Three chunks of other contents, one that is zero, and a rest.
fn memory() -> Vec<u8> {
    let chunk = |byte| vec![byte; CHUNK as usize];
    [chunk(1), chunk(0), chunk(2), chunk(3), vec![4; 100]].concat()
}

fn folder() -> (TempDir, Folder) {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::make(&parent.path().join("saved"), None).unwrap();
    (parent, folder)
}

fn encrypted(key: u8) -> (TempDir, Folder) {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::make(&parent.path().join("saved"), Some(Key::new([key; 32]))).unwrap();
    (parent, folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    all.sort();
    all
}

fn chunk_files(folder: &Folder) -> Vec<PathBuf> {
    files(&folder.path().join("chunks"))
}

#[test]
fn a_session_comes_back_as_it_was() {
    let (_parent, folder) = folder();
    let worker = Worker::new(memory());
    let amounts = checkpoint(&folder, &worker).unwrap();
    assert_eq!((amounts.memory, amounts.zero), (4 * CHUNK + 100, CHUNK));
    assert_eq!(amounts.copied, 3 * CHUNK + 100);
    assert_eq!(restored(&folder).unwrap(), worker.whole());
}

#[test]
fn a_further_checkpoint_writes_what_has_changed_and_removes_what_has_gone() {
    let (_parent, folder) = folder();
    let mut worker = Worker::new(memory());
    checkpoint(&folder, &worker).unwrap();
    let before = chunk_files(&folder);
    let same = checkpoint(&folder, &worker).unwrap();
    assert_eq!((same.copied, same.stored), (0, 0), "nothing has changed");
    assert_eq!(chunk_files(&folder), before);
    worker.memory[2 * CHUNK as usize] = 7;
    let changed = checkpoint(&folder, &worker).unwrap();
    assert_eq!((changed.copied, changed.stored), (CHUNK, CHUNK));
    let after = chunk_files(&folder);
    let gone = before.iter().filter(|path| !after.contains(path)).count();
    assert_eq!((gone, after.len()), (1, before.len()), "one went, one came");
    assert_eq!(restored(&folder).unwrap(), worker.whole());
}

#[test]
fn equal_chunks_take_the_room_of_one() {
    let (_parent, folder) = folder();
    let worker = Worker::new(vec![6; 5 * CHUNK as usize]);
    let amounts = checkpoint(&folder, &worker).unwrap();
    assert_eq!(amounts.copied, 5 * CHUNK);
    // The image, the state, and one chunk of memory.
    assert!(amounts.stored < 3 * CHUNK, "{amounts:?}");
    assert_eq!(restored(&folder).unwrap(), worker.whole());
}

#[test]
fn a_checkpoint_that_ends_early_leaves_the_former_one() {
    let (_parent, folder) = folder();
    let first = Worker::new(memory());
    checkpoint(&folder, &first).unwrap();
    let mut second = Worker::new(memory().iter().map(|byte| byte + 10).collect());
    for ends_after in [0, 5, 2000, CHUNK as usize * 3, CHUNK as usize * 5] {
        second.ends_after = ends_after;
        let failure = checkpoint(&folder, &second).unwrap_err();
        assert!(matches!(failure, Failure::Peer(_)), "{failure}");
        assert_eq!(restored(&folder).unwrap(), first.whole(), "cut after {ends_after} bytes");
    }
    // What these have left behind goes with the next.
    second.ends_after = usize::MAX;
    checkpoint(&folder, &second).unwrap();
    assert_eq!(restored(&folder).unwrap(), second.whole());
    let manifest = folder.manifest().unwrap().unwrap();
    let chunks: std::collections::HashSet<_> = manifest.sizes().collect();
    assert_eq!(chunk_files(&folder).len(), chunks.len());
}

#[test]
fn what_was_decided_against_is_not_kept() {
    let (_parent, folder) = folder();
    let refused = take(&folder, None, Worker::new(memory()), |_| -> Result<(), Failure> {
        Err(Failure::Peer(io::ErrorKind::ConnectionReset.into()))
    });
    assert!(matches!(refused, Err(Failure::Peer(_))));
    assert!(folder.manifest().unwrap().is_none());
}

#[test]
fn damage_is_named_by_its_file() {
    for (_parent, folder) in [folder(), encrypted(1)] {
        is_named_by_its_file(&folder);
    }
}

fn is_named_by_its_file(folder: &Folder) {
    let worker = Worker::new(memory());
    checkpoint(folder, &worker).unwrap();
    for path in files(folder.path()).into_iter().filter(|path| !path.ends_with("lock")) {
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        let damages = [changed, whole[..whole.len() - 1].to_vec(), [&whole[..], b"x"].concat(), Vec::new()];
        for damage in damages {
            fs::write(&path, damage).unwrap();
            let failure = restored(folder).unwrap_err();
            assert!(matches!(failure, Failure::Damaged { .. }), "{failure}");
            assert!(failure.to_string().contains(path.to_str().unwrap()), "{failure}");
        }
        fs::write(&path, whole).unwrap();
    }
    let chunk = chunk_files(folder).remove(0);
    fs::remove_file(&chunk).unwrap();
    let failure = restored(folder).unwrap_err();
    assert!(failure.to_string().contains(chunk.to_str().unwrap()), "{failure}");
    // The next checkpoint has it again.
    checkpoint(folder, &worker).unwrap();
    assert_eq!(restored(folder).unwrap(), worker.whole());
}

#[test]
fn an_encrypted_checkpoint_tells_nothing_without_its_key() {
    let (parent, folder) = encrypted(1);
    let mut worker = Worker::new(memory());
    checkpoint(&folder, &worker).unwrap();
    assert_eq!(restored(&folder).unwrap(), worker.whole());
    let same = checkpoint(&folder, &worker).unwrap();
    assert_eq!((same.copied, same.stored), (0, 0), "nothing has changed");
    worker.memory[2 * CHUNK as usize] = 7;
    let changed = checkpoint(&folder, &worker).unwrap();
    assert_eq!((changed.copied, changed.stored), (CHUNK, CHUNK));
    // Neither contents nor names tell what is in it.
    let plain = Folder::make(&parent.path().join("plain"), None).unwrap();
    checkpoint(&plain, &worker).unwrap();
    let names = |folder: &Folder| -> Vec<_> {
        chunk_files(folder).iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    let (names, plain_names) = (names(&folder), names(&plain));
    assert_eq!(names.len(), plain_names.len(), "equal chunks are kept once");
    assert!(names.iter().all(|name| !plain_names.contains(name)));
    for path in files(folder.path()).into_iter().filter(|path| !path.ends_with("lock")) {
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(64).any(|run| run.iter().all(|byte| *byte == run[0])), "{}", path.display());
    }
    let path = folder.path().to_owned();
    drop(folder);
    let opened = |key: Option<u8>| {
        let key = key.map(|byte| Key::new([byte; 32]));
        Folder::open(&path, key).and_then(|folder| restored(&folder))
    };
    assert!(matches!(opened(None), Err(Failure::Encrypted(_))));
    assert!(matches!(opened(Some(2)), Err(Failure::OtherKey(_))));
    assert_eq!(opened(Some(1)).unwrap(), worker.whole());
    let path = plain.path().to_owned();
    drop(plain);
    let failure = Folder::open(&path, Some(Key::new([1; 32]))).and_then(|folder| folder.manifest());
    assert!(matches!(failure, Err(Failure::NotEncrypted(_))));
}

#[test]
fn damaged_chunks_come_again_where_they_are_looked_for() {
    let (_parent, folder) = folder();
    let worker = Worker::new(memory());
    checkpoint(&folder, &worker).unwrap();
    let path = chunk_files(&folder).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, bytes).unwrap();
    folder.remove_damaged(&folder.manifest().unwrap().unwrap()).unwrap();
    assert!(!path.exists());
    checkpoint(&folder, &worker).unwrap();
    assert_eq!(restored(&folder).unwrap(), worker.whole());
}

#[test]
fn a_session_of_more_memory_than_a_checkpoint_holds_is_refused_at_once() {
    let (_parent, folder) = folder();
    let refused = |pieces: &[(u64, u64)]| {
        let worker = Worker::new(Vec::new());
        let committed = |&(address, bytes)| Committed { address, bytes, gpu: 0, by_all: false };
        let state = SessionState { memory: pieces.iter().map(committed).collect(), ..worker.state.clone() };
        let mut encoded = Vec::new();
        state.encode(&mut encoded);
        let says = [&(encoded.len() as u64).to_le_bytes()[..], &encoded].concat();
        let failure = take(&folder, None, Worker { says, ..worker }, |_| Ok(())).unwrap_err();
        assert!(matches!(failure, Failure::Nonsense(_)), "{failure}");
    };
    refused(&[(0, 1 << 60)]);
    refused(&[(u64::MAX - 5, 10)]);
    refused(&[(0, u64::MAX), (0, u64::MAX)]);
}

#[test]
fn a_manifest_of_other_memory_than_its_session_is_refused() {
    let (_parent, folder) = folder();
    checkpoint(&folder, &Worker::new(memory())).unwrap();
    let manifest = folder.manifest().unwrap().unwrap();
    let mut others = vec![manifest.clone(), manifest.clone(), manifest.clone()];
    others[0].contents.pop();
    others[1].contents[0].address += 1;
    others[2].images.pop();
    for other in others {
        folder.commit(&other).unwrap();
        let failure = restored(&folder).unwrap_err();
        assert!(matches!(failure, Failure::Damaged { .. }), "{failure}");
    }
    folder.commit(&manifest).unwrap();
    assert!(restored(&folder).is_ok());
}

#[test]
fn only_this_user_can_read_it() {
    let (_parent, folder) = folder();
    checkpoint(&folder, &Worker::new(memory())).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder.path()), 0o700);
    assert_eq!(mode(&folder.path().join("chunks")), 0o700);
    for path in files(folder.path()) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("thesis.tex"), "precious").unwrap();
    assert!(matches!(Folder::make(parent.path(), None), Err(Failure::NotEmpty(_))));
    assert!(matches!(Folder::open(parent.path(), None), Err(Failure::NoCheckpoint(_))));
    assert_eq!(files(parent.path()).len(), 1);
}

#[test]
fn links_in_a_folder_lead_nowhere() {
    let (parent, folder) = folder();
    let outside = parent.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let precious = outside.join("ab".repeat(32));
    let is_whole = || fs::read(&precious).unwrap() == b"precious";
    fs::write(&precious, "precious").unwrap();
    let worker = Worker::new(memory());
    // New files have other names, and what is found under theirs is not written to.
    let new = folder.path().join("manifest.new");
    symlink(&precious, &new).unwrap();
    checkpoint(&folder, &worker).unwrap();
    fs::hard_link(&precious, &new).unwrap();
    checkpoint(&folder, &worker).unwrap();
    assert!(is_whole());
    // A group of chunks that is elsewhere, and a file that is none of the checkpoint's.
    let strange = folder.path().join("chunks/notes.txt");
    fs::write(&strange, "notes").unwrap();
    let group = folder.path().join("chunks/ab");
    let _ = fs::remove_dir_all(&group);
    symlink(&outside, &group).unwrap();
    assert!(matches!(folder.sweep(None), Err(Failure::NotOwn(path)) if path == group));
    assert!(is_whole() && strange.exists());
    fs::remove_file(&group).unwrap();
    folder.sweep(None).unwrap();
    assert!(strange.exists());
    // A manifest, a lock and the chunks.
    let path = folder.path().to_owned();
    drop(folder);
    for (name, error) in [("manifest", "Io"), ("lock", "NoCheckpoint"), ("chunks", "NotOwn")] {
        let (here, there) = (path.join(name), outside.join(name));
        fs::rename(&here, &there).unwrap();
        symlink(&there, &here).unwrap();
        let opened = Folder::open(&path, None).and_then(|folder| folder.manifest());
        let failure = format!("{:?}", opened.unwrap_err());
        assert!(failure.starts_with(error), "{name}: {failure}");
        fs::remove_file(&here).unwrap();
        fs::rename(&there, &here).unwrap();
    }
    assert!(Folder::open(&path, None).is_ok());
}

#[test]
fn a_lock_of_something_else_is_no_mark() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("lock"), "4711").unwrap();
    assert!(matches!(Folder::make(parent.path(), None), Err(Failure::NotEmpty(_))));
    fs::create_dir(parent.path().join("chunks")).unwrap();
    assert!(!Folder::is_one(parent.path()));
    assert!(matches!(Folder::make(parent.path(), None), Err(Failure::NotEmpty(_))));
    assert_eq!(fs::read(parent.path().join("lock")).unwrap(), b"4711");
}

#[test]
fn two_processes_do_not_work_on_one_folder() {
    let (_parent, folder) = folder();
    assert!(matches!(Folder::make(folder.path(), None), Err(Failure::InUse(_))));
    let path = folder.path().to_owned();
    drop(folder);
    assert!(Folder::make(&path, None).is_ok());
}
