//! The driver's libraries, for programs whose `LD_LIBRARY_PATH` was replaced. NVIDIA's are in the
//! system's path and are found nevertheless. Where the lease's folder is no longer in the path they
//! are loaded as the process starts: code that asks the dynamic linker for a library of that name
//! (its `SONAME`) later is given the one that is there already.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where `sluice run` says in which folder they are.
const FOLDER_VARIABLE: &str = "SLUICE_LIBRARIES";

const NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// The dynamic linker calls this before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = load;

extern "C" fn load() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE) else { return };
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    if is_in(&folder, &path) {
        return;
    }
    for name in NAMES {
        let Ok(library) = CString::new(Path::new(&folder).join(name).as_os_str().as_bytes()) else { return };
        // Where this fails the program fails to load it as well, and says so.
        // SAFETY: the path is NUL-terminated, and the library does nothing as it is loaded.
        unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    }
}

/// Whether the dynamic linker looks for libraries in this folder.
fn is_in(folder: &OsStr, path: &OsStr) -> bool {
    path.as_bytes().split(|byte| matches!(byte, b':' | b';')).any(|entry| entry == folder.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_in_the_path_as_a_whole_entry() {
        let is_in = |path: &str| super::is_in(OsStr::new("/a/lib"), OsStr::new(path));
        assert!(is_in("/a/lib") && is_in("/x:/a/lib") && is_in("/a/lib;/x"));
        assert!(!is_in("") && !is_in("/x") && !is_in("/a/lib2:/b/a/lib"));
    }
}
