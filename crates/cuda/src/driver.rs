//! Back ends: where a driver table comes from, and what is in it.

use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::generated::{
    functions::{FUNCTIONS, Fn},
    table::DriverTable,
};

/// A symbol that only Sluice's client library exports.
///
/// Three libraries of a machine may be called `libcuda.so.1`; a worker that took the client's for a
/// driver would connect to itself.
pub const CLIENT_MARKER: &str = "sluice_client_marker";

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    #[error("{path} cannot be loaded: {reason}")]
    Unloadable { path: PathBuf, reason: String },
    #[error("{0} is Sluice's own client library, not a driver")]
    Client(PathBuf),
    #[error("{0} has no cuInit, so it is not a CUDA driver")]
    NoDriver(PathBuf),
}

/// Is notified of every call of a driver, on the thread that makes it. It is called from functions
/// of the C ABI, so it does not panic.
pub trait Observer: Sync {
    /// This call begins.
    fn begins(&self, function: Fn);
    /// The call of this thread that began last has returned.
    fn ended(&self);
}

/// The driver behind the observed table.
pub(crate) static OBSERVED: OnceLock<(DriverTable, &'static dyn Observer)> = OnceLock::new();

/// Makes the driver table from the prototypes of its functions.
macro_rules! driver_table {
    ($($name:ident($($parameter:ident: $of:ty),*);)*) => {
        /// A CUDA driver: its functions, `None` where it has none. A null stream is the legacy
        /// default stream.
        #[derive(Clone, Copy)]
        pub struct DriverTable {
            $(pub $name: Option<unsafe extern "C" fn($($parameter: $of),*) -> CUresult>,)*
        }

        impl DriverTable {
            /// No driver at all: what a back end in Rust starts from.
            pub const EMPTY: DriverTable = DriverTable { $($name: None,)* };

            /// Fills the table from a library.
            ///
            /// # Safety
            ///
            /// What `symbol` answers is null, or the address of the driver function of that name.
            pub(crate) unsafe fn resolve(symbol: impl std::ops::Fn(&str) -> *mut c_void) -> DriverTable {
                DriverTable {
                    // SAFETY: null is `None`, anything else is the function of that name, as the
                    // caller vouches.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($of),*) -> CUresult>>(
                            symbol(stringify!($name)),
                        )
                    },)*
                }
            }

            /// Returns this driver with an observer that is notified of every call. A process can
            /// have one such table: a second call returns `None`.
            pub fn observed(self, observer: &'static dyn $crate::driver::Observer) -> Option<DriverTable> {
                $crate::driver::OBSERVED.set((self, observer)).ok()?;
                Some(DriverTable {
                    $($name: self.$name.map(|_| {
                        unsafe extern "C" fn observed($($parameter: $of),*) -> CUresult {
                            let Some((table, observer)) = $crate::driver::OBSERVED.get() else { return CUresult::NOT_INITIALIZED };
                            let Some(function) = table.$name else { return CUresult::NOT_SUPPORTED };
                            observer.begins(Fn::$name);
                            // SAFETY: the arguments are as the caller gave them to this very
                            // function.
                            let result = unsafe { function($($parameter),*) };
                            observer.ended();
                            result
                        }
                        observed as unsafe extern "C" fn($($of),*) -> CUresult
                    }),)*
                })
            }

            /// Whether the driver has this function.
            pub fn has(&self, function: Fn) -> bool {
                match function {
                    $(Fn::$name => self.$name.is_some(),)*
                    _ => false,
                }
            }
        }
    };
}

pub(crate) use driver_table;

impl DriverTable {
    /// Loads a driver library and keeps it for the rest of the process.
    ///
    /// The path is absolute, so that neither the loader's search path nor `LD_LIBRARY_PATH` decides
    /// which it is.
    pub fn load(path: &Path) -> Result<DriverTable, LoadError> {
        if !path.is_absolute() {
            return Err(LoadError::Relative(path.into()));
        }
        // SAFETY: constructors of a driver library are as trustworthy as the driver that the node
        // is configured to use.
        let library = unsafe { open(path)? };
        // SAFETY: the address is only compared with null, never called or read.
        if unsafe { address(&library, CLIENT_MARKER) }.is_some() {
            return Err(LoadError::Client(path.into()));
        }
        // SAFETY: the caller that named the library says that it is a CUDA driver.
        unsafe { DriverTable::keep(library, path, false) }
    }

    /// Loads `libcuda.so.1` as programs do, from where the loader finds it, whatever its vendor.
    pub fn load_as_program() -> Result<DriverTable, LoadError> {
        DriverTable::load_from_search_path(false)
    }

    /// Loads it as [`DriverTable::load_as_program`] does, with the variants of functions for which
    /// a null stream is the calling thread's own.
    pub fn load_as_program_per_thread() -> Result<DriverTable, LoadError> {
        DriverTable::load_from_search_path(true)
    }

    fn load_from_search_path(per_thread: bool) -> Result<DriverTable, LoadError> {
        let path = Path::new("libcuda.so.1");
        // SAFETY: constructors of the library are as trustworthy as the loader's search path.
        unsafe { DriverTable::keep(open(path)?, path, per_thread) }
    }

    /// # Safety
    /// The library is a CUDA driver: its functions have the prototypes of the CUDA Driver API.
    unsafe fn keep(
        library: libloading::Library,
        path: &Path,
        per_thread: bool,
    ) -> Result<DriverTable, LoadError> {
        let symbol = |name: &str| {
            let variant = || Fn::from_export(name)?.0.info().variant;
            let name = if per_thread { variant().map_or(name, |variant| variant.name) } else { name };
            // SAFETY: functions are no thread-local variables.
            unsafe { address(&library, name) }.unwrap_or(std::ptr::null_mut())
        };
        // SAFETY: the caller vouches for the prototypes.
        let table = unsafe { DriverTable::resolve(symbol) };
        if table.cuInit.is_none() {
            return Err(LoadError::NoDriver(path.into()));
        }
        // The table points into the library, and drivers do not survive being unloaded.
        std::mem::forget(library);
        Ok(table)
    }

    /// The functions that this driver has.
    pub fn present(&self) -> Presence {
        let mut presence = Presence::default();
        for info in FUNCTIONS.iter().filter(|info| self.has(info.function)) {
            presence.insert(info.function);
        }
        presence
    }
}

/// # Safety
///
/// The library's constructors do nothing that this process could not bear.
unsafe fn open(path: &Path) -> Result<libloading::Library, LoadError> {
    // SAFETY: the caller vouches for the constructors.
    unsafe { libloading::Library::new(path) }
        .map_err(|error| LoadError::Unloadable { path: path.into(), reason: error.to_string() })
}

/// # Safety
///
/// The symbol is not a thread-local variable.
unsafe fn address(library: &libloading::Library, name: &str) -> Option<*mut c_void> {
    // SAFETY: a raw pointer makes no claim about what it points to.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    symbol.ok().map(|symbol| *symbol).filter(|address| !address.is_null())
}

const WORDS: usize = Fn::COUNT.div_ceil(64);

/// A set of driver functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Presence {
    words: [u64; WORDS],
}

impl Default for Presence {
    fn default() -> Self {
        Presence { words: [0; WORDS] }
    }
}

impl Presence {
    pub fn insert(&mut self, function: Fn) {
        let number = function as usize;
        self.words[number / 64] |= 1 << (number % 64);
    }

    pub fn contains(&self, function: Fn) -> bool {
        let number = function as usize;
        self.words[number / 64] & 1 << (number % 64) != 0
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As sent: 64 functions per word, the first in the lowest bit.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// From what a peer of the same version sent; other lengths give `None`.
    pub fn from_words(words: &[u64]) -> Option<Presence> {
        Some(Presence { words: words.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::CUresult;

    /// The last call that began, plus a million for each that ended.
    struct Counting(AtomicUsize);

    impl Observer for Counting {
        fn begins(&self, function: Fn) {
            self.0.fetch_add(function as usize, SeqCst);
        }

        fn ended(&self) {
            self.0.fetch_add(1_000_000, SeqCst);
        }
    }

    #[test]
    fn an_observed_driver_has_and_answers_the_same() {
        static CALLS: Counting = Counting(AtomicUsize::new(0));
        unsafe extern "C" fn count(count: *mut i32) -> CUresult {
            assert_eq!(CALLS.0.load(SeqCst), Fn::cuDeviceGetCount as usize, "it has begun");
            // SAFETY: the caller gives a place.
            unsafe { *count = 3 };
            CUresult::INVALID_DEVICE
        }
        let table = DriverTable { cuDeviceGetCount: Some(count), ..DriverTable::EMPTY };
        let observed = table.observed(&CALLS).unwrap();
        assert_eq!(observed.present(), table.present());
        let mut got = 0;
        // SAFETY: the function above.
        let result = unsafe { observed.cuDeviceGetCount.unwrap()(&mut got) };
        assert_eq!((got, result), (3, CUresult::INVALID_DEVICE));
        assert_eq!(CALLS.0.load(SeqCst), Fn::cuDeviceGetCount as usize + 1_000_000);
        assert!(table.observed(&CALLS).is_none(), "a second one would tell of the first one's driver");
    }

    #[test]
    fn a_table_in_rust_tells_what_it_has() {
        unsafe extern "C" fn init(_flags: u32) -> CUresult {
            CUresult::SUCCESS
        }
        let table = DriverTable { cuInit: Some(init), ..DriverTable::EMPTY };
        let present = table.present();
        assert_eq!(present.len(), 1);
        assert!(present.contains(Fn::cuInit) && !present.contains(Fn::cuMemAlloc_v2));
        assert_eq!(Presence::from_words(present.words()), Some(present));
        assert_eq!(Presence::from_words(&[0]), None);
    }

    #[test]
    fn only_absolute_paths_of_drivers_are_loaded() {
        assert!(matches!(DriverTable::load(Path::new("libcuda.so.1")), Err(LoadError::Relative(_))));
        assert!(matches!(DriverTable::load(Path::new("/nonexistent.so")), Err(LoadError::Unloadable { .. })));
    }
}
