//! What the node has said of images and would say again: which functions they have, how these are
//! launched, how many blocks of one a multiprocessor takes.
//!
//! It follows from the image, the device and the builds of node and driver
//! (`DeviceSnapshot::build`). So it is asked once in a process; where the node is another machine,
//! processes also tell each other by a file for each kind of device, to which they append:
//!
//! ```text
//! bytes of the record: u32 | the first 8 bytes of its BLAKE3 hash | the record: ImageFacts
//! ```

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sluice_wire::control::DeviceSnapshot;
use sluice_wire::{Encode, FunctionInfo, ImageFacts, ImageHash, JitOption, decode};

/// A file of more bytes is begun anew.
const FILE_MAX: u64 = 16 << 20;
/// Images that the node is asked about at a time.
const IMAGES_MAX: usize = 512;
/// Answers kept of one image; programs ask a handful about each function.
const ANSWERS_MAX: usize = 1024;
/// Bytes before a record.
const HEAD: usize = 12;

/// What is known of the images that one device runs.
#[derive(Debug)]
pub(crate) struct Facts {
    file: Option<PathBuf>,
    /// Read when it is first wanted.
    state: OnceLock<Mutex<State>>,
}

/// An image, and how it is compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    pub(crate) image: ImageHash,
    options: Vec<(u32, u32)>,
}

#[derive(Debug, Default)]
struct State {
    of: HashMap<Subject, KnownFacts>,
    /// Images of which earlier processes knew something, the latest last, until the node was asked
    /// about them.
    before: Vec<ImageHash>,
    /// Whether the node has an image, where it has said so.
    is_there: HashMap<ImageHash, bool>,
}

#[derive(Debug, Default)]
struct KnownFacts {
    log: Vec<u8>,
    functions: HashMap<CString, FunctionInfo>,
    names: HashSet<CString>,
    /// By function and question.
    answers: HashMap<(CString, Vec<u8>), Vec<u8>>,
}

/// What is known of a function.
pub(crate) enum Function {
    Described(FunctionInfo),
    /// There is one of that name.
    Named,
}

impl Subject {
    pub(crate) fn new(image: ImageHash, options: &[JitOption]) -> Subject {
        Subject { image, options: options.iter().map(|set| (set.option.0, set.value)).collect() }
    }

    /// Facts without any.
    pub(crate) fn facts(&self) -> ImageFacts {
        let option =
            |&(option, value): &(u32, u32)| JitOption { option: sluice_cuda::CUjit_option(option), value };
        ImageFacts {
            image: self.image,
            options: self.options.iter().map(option).collect(),
            log: Vec::new(),
            functions: Vec::new(),
            names: Vec::new(),
            answers: Vec::new(),
        }
    }
}

impl Facts {
    /// Those of a device; kept for other processes that believe the same host, where the node says
    /// what they depend on.
    pub(crate) fn new(device: &DeviceSnapshot, host: Option<&str>) -> Facts {
        let file = |host| Some(user_cache()?.join(name_for(device, host)));
        Facts { file: host.filter(|_| device.build != 0).and_then(file), state: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let read = || Mutex::new(self.file.as_deref().map(State::read).unwrap_or_default());
        self.state.get_or_init(read).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the compiler said of an image that has been loaded before; `None` of any other.
    pub(crate) fn log(&self, of: &Subject) -> Option<Vec<u8>> {
        self.lock().of.get(of).map(|known| known.log.clone())
    }

    pub(crate) fn function(&self, of: &Subject, name: &CStr) -> Option<Function> {
        let state = self.lock();
        let known = state.of.get(of)?;
        match known.functions.get(name) {
            Some(info) => Some(Function::Described(info.clone())),
            None => known.names.contains(name).then_some(Function::Named),
        }
    }

    pub(crate) fn answer(&self, of: &Subject, name: &CStr, question: &[u8]) -> Option<Vec<u8>> {
        self.lock().of.get(of)?.answers.get(&(name.to_owned(), question.to_vec())).cloned()
    }

    /// Keeps what the node has said.
    pub(crate) fn learn(&self, facts: ImageFacts) {
        let record = self.file.is_some().then(|| record_of(&facts));
        let is_new = self.lock().learn(facts);
        if let Some((file, record)) = self.file.as_deref().zip(record).filter(|_| is_new) {
            // Without the file it is asked again.
            let _ = append(file, &record);
        }
    }

    /// Whether the node has an image, where it has said so.
    pub(crate) fn is_there(&self, image: ImageHash) -> Option<bool> {
        self.lock().is_there.get(&image).copied()
    }

    /// What to ask the node instead of asking about one image alone.
    pub(crate) fn doubts(&self, image: ImageHash) -> Vec<ImageHash> {
        let mut state = self.lock();
        let (mut seen, mut doubts) = (HashSet::from([image]), vec![image]);
        for other in std::mem::take(&mut state.before).into_iter().rev() {
            if doubts.len() < IMAGES_MAX && !state.is_there.contains_key(&other) && seen.insert(other) {
                doubts.push(other);
            }
        }
        doubts
    }

    /// The node has said whether it has an image.
    pub(crate) fn note(&self, image: ImageHash, is_there: bool) {
        self.lock().is_there.insert(image, is_there);
    }
}

impl State {
    /// What the file says. One that cannot be read to its end is removed, since the rest would be
    /// lost.
    fn read(file: &Path) -> State {
        let mut state = State::default();
        if state.take_in(file).is_err() {
            let _ = fs::remove_file(file);
        }
        state
    }

    fn take_in(&mut self, file: &Path) -> Result<(), ()> {
        let Ok(opened) = fs::File::open(file) else { return Ok(()) };
        let mut bytes = Vec::new();
        opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(drop)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(());
        }
        let mut rest = &bytes[..];
        while let Some((head, behind)) = rest.split_at_checked(HEAD) {
            let (size, hash) = head.split_at(4);
            let size = u32::from_le_bytes(size.try_into().map_err(drop)?) as usize;
            let (record, behind) = behind.split_at_checked(size).ok_or(())?;
            if *hash != check_of(record) {
                return Err(());
            }
            let facts: ImageFacts = decode(record).map_err(drop)?;
            self.before.push(facts.image);
            self.learn(facts);
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(()) }
    }

    /// Whether there was anything new.
    fn learn(&mut self, facts: ImageFacts) -> bool {
        let mut is_new = false;
        let known = self.of.entry(Subject::new(facts.image, &facts.options)).or_insert_with(|| {
            is_new = true;
            KnownFacts { log: facts.log, ..KnownFacts::default() }
        });
        let named = |name: String| CString::new(name).ok();
        for function in facts.functions {
            let Some(name) = named(function.name) else { continue };
            is_new |= known.functions.insert(name, function.info).is_none();
        }
        for name in facts.names.into_iter().filter_map(named) {
            is_new |= known.names.insert(name);
        }
        for (function, (question, answer)) in facts.answers {
            if known.answers.len() < ANSWERS_MAX
                && let Some(function) = named(function)
            {
                is_new |= known.answers.insert((function, question), answer).is_none();
            }
        }
        is_new
    }
}

/// `$XDG_CACHE_HOME/sluice/facts`, or the same under the home directory's `.cache`.
fn user_cache() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    folder.is_absolute().then(|| folder.join("sluice/facts"))
}

/// Devices of one kind have the same facts, however much of their memory is leased. Facts of one
/// host are not used for another.
fn name_for(device: &DeviceSnapshot, host: &str) -> String {
    let kind = DeviceSnapshot { uuid: [0; 16], memory: 0, ..device.clone() };
    let mut text = host.as_bytes().to_vec();
    kind.encode(&mut text);
    hash_of(&text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(bytes: &[u8]) -> [u8; 32] {
    sluice_image::ImageHash::of(bytes).0
}

fn check_of(record: &[u8]) -> [u8; 8] {
    let hash = hash_of(record);
    std::array::from_fn(|i| hash[i])
}

/// As it stands in a file; nothing of a size that none has.
fn record_of(facts: &ImageFacts) -> Vec<u8> {
    let mut record = vec![0; HEAD];
    facts.encode(&mut record);
    let (head, text) = record.split_at_mut(HEAD);
    head[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&check_of(text));
    record
}

/// In one write, so that records of several processes do not mix.
fn append(file: &Path, record: &[u8]) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut file = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    if file.write(record)? == record.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use sluice_wire::{NamedFunction, Parameter};

    use super::*;

    /// Those of no device, for this process alone.
    pub(crate) fn none() -> Facts {
        Facts { file: None, state: OnceLock::new() }
    }

    fn kept(file: &Path) -> Facts {
        Facts { file: Some(file.to_owned()), state: OnceLock::new() }
    }

    fn subject(number: u8) -> Subject {
        Subject::new(ImageHash([number; 32]), &[])
    }

    fn lesson(number: u8) -> ImageFacts {
        let info =
            FunctionInfo { parameters: vec![Parameter { offset: 0, size: 8 }], attributes: Vec::new() };
        ImageFacts {
            log: b"said".to_vec(),
            functions: vec![NamedFunction { name: "first".into(), info }],
            names: vec!["second".into()],
            answers: vec![("first".into(), (vec![1], vec![number]))],
            ..subject(number).facts()
        }
    }

    /// A file of its own for each test.
    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-facts-{}", std::process::id()));
        let file = folder.join(name);
        let _ = fs::remove_file(&file);
        file
    }

    #[test]
    fn another_process_knows_what_one_was_told() {
        let file = scratch("shared");
        let first = kept(&file);
        assert!(first.log(&subject(1)).is_none());
        first.learn(lesson(1));
        let bytes = fs::metadata(&file).unwrap().len();
        first.learn(lesson(1));
        assert_eq!(fs::metadata(&file).unwrap().len(), bytes, "nothing was new");
        first
            .learn(ImageFacts { answers: vec![("second".into(), (vec![2], vec![3]))], ..subject(1).facts() });
        for facts in [first, kept(&file)] {
            assert_eq!(facts.log(&subject(1)).unwrap(), b"said");
            assert!(matches!(facts.function(&subject(1), c"first"), Some(Function::Described(_))));
            assert!(matches!(facts.function(&subject(1), c"second"), Some(Function::Named)));
            assert!(facts.function(&subject(1), c"third").is_none());
            assert_eq!(facts.answer(&subject(1), c"first", &[1]), Some(vec![1]));
            assert_eq!(facts.answer(&subject(1), c"second", &[2]), Some(vec![3]));
            assert!(facts.answer(&subject(1), c"first", &[2]).is_none());
            let compiled_otherwise = Subject::new(
                ImageHash([1; 32]),
                &[JitOption { option: sluice_cuda::CUjit_option(0), value: 32 }],
            );
            assert!(facts.log(&compiled_otherwise).is_none());
        }
    }

    #[test]
    fn a_file_that_was_cut_or_changed_is_begun_anew() {
        for (name, spoil) in [("cut", 0), ("changed", 1)] {
            let file = scratch(name);
            kept(&file).learn(lesson(1));
            kept(&file).learn(lesson(2));
            let mut bytes = fs::read(&file).unwrap();
            match spoil {
                0 => bytes.truncate(bytes.len() - 1),
                _ => *bytes.last_mut().unwrap() ^= 1,
            }
            fs::write(&file, &bytes).unwrap();
            let facts = kept(&file);
            assert!(facts.log(&subject(1)).is_some() && facts.log(&subject(2)).is_none());
            assert!(!file.exists());
            facts.learn(lesson(3));
            assert!(kept(&file).log(&subject(3)).is_some());
        }
    }

    #[test]
    fn the_node_is_asked_once_about_all_that_earlier_processes_had() {
        let file = scratch("asked");
        (1..=3).for_each(|number| kept(&file).learn(lesson(number)));
        let (facts, image) = (kept(&file), |number| ImageHash([number; 32]));
        assert_eq!(facts.doubts(image(9)), [9, 3, 2, 1].map(image));
        facts.note(image(2), true);
        assert_eq!((facts.is_there(image(2)), facts.is_there(image(1))), (Some(true), None));
        assert_eq!(facts.doubts(image(1)), [image(1)]);
    }

    #[test]
    fn devices_that_differ_in_what_is_leased_of_them_share_what_is_known() {
        let device = |memory, build| DeviceSnapshot {
            name: "GPU".into(),
            uuid: [memory as u8; 16],
            memory,
            driver_version: 13000,
            attributes: Vec::new(),
            limits: Vec::new(),
            stream_priorities: (0, 0),
            is_software: true,
            functions: sluice_cuda::Presence::default(),
            chunk: 1,
            build,
        };
        assert_eq!(name_for(&device(1, 1), "a"), name_for(&device(2, 1), "a"));
        assert_ne!(name_for(&device(1, 1), "a"), name_for(&device(1, 2), "a"));
        assert_ne!(name_for(&device(1, 1), "a"), name_for(&device(1, 1), "b"));
        assert!(Facts::new(&device(1, 0), Some("a")).file.is_none(), "it is not known what they depend on");
    }
}
