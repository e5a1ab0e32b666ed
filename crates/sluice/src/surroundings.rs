//! What a program finds around it under a lease: the client libraries under the names that CUDA
//! programs look for, the session to attach to, and, for a software GPU only, what makes each
//! toolkit hand over PTX.
//!
//! Everything is environment: nothing is installed, no file of the system is touched, and the
//! folder of links that the environment points to is gone when the program has ended.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sluice_wire::address::SESSION_VARIABLE;
use tempfile::{NamedTempFile, TempDir};

use crate::ptxas;

/// A library that Sluice brings, and the names that programs know it by.
struct ClientLibrary {
    /// As cargo builds it.
    built: &'static str,
    /// As programs load it; the first is the name that an installation uses.
    names: &'static [&'static str],
}

const CUDA: ClientLibrary =
    ClientLibrary { built: "libsluice_client.so", names: &["libcuda.so.1", "libcuda.so"] };
const NVML: ClientLibrary =
    ClientLibrary { built: "libsluice_nvml.so", names: &["libnvidia-ml.so.1", "libnvidia-ml.so"] };
/// Hides nvJitLink from Python, see `crates/nojitlink`.
const NO_JITLINK: ClientLibrary =
    ClientLibrary { built: "libsluice_nojitlink.so", names: &["libsluice-nojitlink.so"] };
/// The libraries that stand for NVIDIA's where the GPU is a software one: cuBLAS, cuRAND and cuFFT,
/// see `crates/blas`, `crates/rand` and `crates/fft`.
const SOFTWARE: [ClientLibrary; 3] = [
    ClientLibrary {
        built: "libsluice_blas.so",
        names: &[
            "libsluice-blas.so",
            "libcublas.so.13",
            "libcublas.so.12",
            "libcublas.so",
            "libcublasLt.so.13",
            "libcublasLt.so.12",
            "libcublasLt.so",
        ],
    },
    ClientLibrary {
        built: "libsluice_rand.so",
        names: &["libsluice-rand.so", "libcurand.so.10", "libcurand.so"],
    },
    ClientLibrary {
        built: "libsluice_fft.so",
        names: &["libsluice-fft.so", "libcufft.so.12", "libcufft.so.11", "libcufft.so"],
    },
];
/// Shows NVIDIA's device files, see `crates/devfiles`.
const DEVICE_FILES: ClientLibrary =
    ClientLibrary { built: "libsluice_devfiles.so", names: &["libsluice-devfiles.so"] };

/// Tells the library that shows the device files where the client libraries are, for programs that
/// do not look there.
const LIBRARIES_VARIABLE: &str = "SLUICE_LIBRARIES";

/// Tells the link auditor in which folder the libraries are that stand for NVIDIA's where the GPU
/// is a software one.
const SOFTWARE_LIBRARIES_VARIABLE: &str = "SLUICE_SOFTWARE_LIBRARIES";

/// With the value `nvidia` programs get NVIDIA's libraries also where the GPU is a software one.
const CHOICE_VARIABLE: &str = "SLUICE_CUDA_LIBRARIES";

/// How long XLA tries out variants of a kernel, as an option in `XLA_FLAGS`.
const XLA_AUTOTUNE_LEVEL: &str = "--xla_gpu_autotune_level";

/// The tool that every program under a lease finds on its PATH; it is this binary.
pub(crate) const NVIDIA_SMI: &str = "nvidia-smi";

/// Where the client libraries are.
#[derive(Clone, Debug)]
pub(crate) struct Libraries {
    pub(crate) cuda: PathBuf,
    pub(crate) nvml: Option<PathBuf>,
    no_jitlink: Option<PathBuf>,
    /// Those of [`SOFTWARE`] that are there, with their place in it.
    software: Vec<(usize, PathBuf)>,
    device_files: Option<PathBuf>,
}

impl Libraries {
    /// Looks in `$SLUICE_LIB_DIR`, or else beside the executable: `../lib/sluice` of an
    /// installation, the executable's own folder of a build.
    pub(crate) fn find() -> Result<Libraries, String> {
        let folders = match std::env::var_os("SLUICE_LIB_DIR") {
            Some(folder) => vec![PathBuf::from(folder)],
            None => {
                let executable =
                    std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
                let folder = executable.parent().unwrap_or(Path::new("/")).to_path_buf();
                vec![folder.join("../lib/sluice"), folder]
            }
        };
        Libraries::find_in(&folders)
    }

    fn find_in(folders: &[PathBuf]) -> Result<Libraries, String> {
        let look = |library: &ClientLibrary| {
            let names = || library.names.iter().take(1).chain([&library.built]);
            let mut paths = folders.iter().flat_map(|folder| names().map(move |name| folder.join(name)));
            paths.find(|path| path.is_file()).and_then(|path| path.canonicalize().ok())
        };
        let cuda = look(&CUDA).ok_or_else(|| {
            let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!(
                "the client library ({} or {}) is not in {}; build it with `cargo build --release`, or set \
                 SLUICE_LIB_DIR to the folder that holds it",
                CUDA.names[0],
                CUDA.built,
                folders.join(" nor in ")
            )
        })?;
        let (nvml, no_jitlink, device_files) = (look(&NVML), look(&NO_JITLINK), look(&DEVICE_FILES));
        let software =
            SOFTWARE.iter().enumerate().filter_map(|(place, library)| Some((place, look(library)?)));
        let software = software.collect();
        Ok(Libraries { cuda, nvml, no_jitlink, software, device_files })
    }

    /// The files of [`SOFTWARE`] that are missing.
    pub(crate) fn missing_software(&self) -> Vec<&'static str> {
        let is_there = |place: usize| self.software.iter().any(|(there, _)| *there == place);
        let missing = SOFTWARE.iter().enumerate().filter(|(place, _)| !is_there(*place));
        missing.map(|(_, library)| library.built).collect()
    }

    /// Copies the libraries into a folder, for programs that another process starts: `lib` for
    /// `LD_LIBRARY_PATH`, `software` for the same where the GPU is a software one, and
    /// `preload/$LIB/libsluice-devfiles.so` for `LD_PRELOAD`. A file that is there already stays,
    /// since a program may have mapped it.
    pub(crate) fn install(&self, folder: &Path) -> io::Result<()> {
        let lib = folder.join("lib");
        fs::create_dir_all(&lib)?;
        install_one(&lib, &CUDA, &self.cuda)?;
        if let Some(nvml) = &self.nvml {
            install_one(&lib, &NVML, nvml)?;
        }
        if let Some(no_jitlink) = &self.no_jitlink {
            install_one(folder, &NO_JITLINK, no_jitlink)?;
        }
        let software = folder.join("software");
        fs::create_dir_all(&software)?;
        for (place, library) in &self.software {
            install_one(&software, &SOFTWARE[*place], library)?;
        }
        let Some(device_files) = &self.device_files else { return Ok(()) };
        for place in LIB_PLACES {
            let place = folder.join("preload").join(place);
            fs::create_dir_all(&place)?;
            install_one(&place, &DEVICE_FILES, device_files)?;
        }
        Ok(())
    }
}

fn install_one(folder: &Path, library: &ClientLibrary, built: &Path) -> io::Result<()> {
    let [first, others @ ..] = library.names else { return Ok(()) };
    let path = folder.join(first);
    if !path.is_file() {
        // Each process has a file of its own: several may install at the same time.
        let unfinished = NamedTempFile::new_in(folder)?;
        fs::copy(built, unfinished.path())?;
        unfinished.persist(&path)?;
    }
    for name in others {
        match symlink(first, folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A folder that only this user can enter, for as long as this value lives.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> io::Result<Scratch> {
        // The private node's socket lies in one, and who reaches that needs no token.
        let ours = fs::Permissions::from_mode(0o700);
        let folder = scratch_base(std::env::temp_dir());
        tempfile::Builder::new().prefix("sluice-").permissions(ours).tempdir_in(folder).map(Scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The longest base of a scratch folder, in bytes. The folder's own name and that of the node's
/// socket follow it, and the address of a Unix socket has 107 (unix(7)).
const SCRATCH_BASE_MAX: usize = 64;

/// Where scratch folders are made: in the folder for temporary files, unless its name is too long
/// for a socket's address, or is no text, as which the address of a session travels. Then in one
/// that every Linux has.
fn scratch_base(temporary: PathBuf) -> PathBuf {
    let fits = |folder: &Path| folder.to_str().is_some_and(|text| text.len() <= SCRATCH_BASE_MAX);
    if fits(&temporary) {
        return temporary;
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usable = |folder: &PathBuf| folder.is_absolute() && folder.is_dir() && fits(folder);
    runtime.into_iter().chain([PathBuf::from("/tmp")]).find(usable).unwrap_or(temporary)
}

/// The environment that points a program to its libraries and its lease.
pub(crate) struct Surroundings {
    environment: Vec<(OsString, OsString)>,
}

impl Surroundings {
    /// Places links in `folder`. `session` is what the client library attaches with; `software`
    /// says that the leased GPU runs PTX only.
    pub(crate) fn prepare(
        folder: &Path,
        libraries: &Libraries,
        session: &str,
        software: bool,
    ) -> io::Result<Surroundings> {
        let mut this = Surroundings { environment: Vec::new() };
        let (lib, bin) = (folder.join("lib"), folder.join("bin"));
        fs::create_dir(&lib)?;
        fs::create_dir(&bin)?;
        link_all(&lib, &CUDA, &libraries.cuda)?;
        if let Some(nvml) = &libraries.nvml {
            link_all(&lib, &NVML, nvml)?;
        }
        let ours = std::env::current_exe()?;
        symlink(&ours, bin.join(NVIDIA_SMI))?;

        let mut search = vec![lib.clone()];
        if software {
            let folder = folder.join("software");
            if this.place_software(&folder, &libraries.software)? {
                search.push(folder);
            }
        }
        this.prepend_all("LD_LIBRARY_PATH", &search);
        this.set(LIBRARIES_VARIABLE, &lib);
        this.prepend("PATH", &bin);
        if let Some(device_files) = &libraries.device_files {
            // Behind those of the user: a sanitizer's has to be the first.
            this.append("LD_PRELOAD", &for_glibc_only(folder, device_files)?);
        }
        this.set(SESSION_VARIABLE, session);
        this.tell_nccl_apart();
        if software {
            this.ask_for_ptx(libraries);
            symlink(&ours, bin.join(ptxas::NAME))?;
            this.set(ptxas::VARIABLE, &ours);
        } else if non_empty(ptxas::VARIABLE).is_some() {
            // This runs inside of a run on a software GPU.
            this.set(ptxas::VARIABLE, "");
        }
        Ok(this)
    }

    pub(crate) fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// What each toolkit needs to hand PTX, not machine code, to the driver. What the user has set
    /// stays.
    fn ask_for_ptx(&mut self, libraries: &Libraries) {
        // CuPy: NVRTC to PTX instead of to machine code.
        self.set_default("CUPY_COMPILE_WITH_PTX", "1");
        self.have_xla_choose_untried();
        // PyTorch's Inductor times whether padded products are faster, on matrices that a kernel of
        // PyTorch fills: machine code.
        self.set_default("TORCHINDUCTOR_SHAPE_PADDING", "0");
        // numba-cuda hands LTO code to nvJitLink whenever it finds that, and PTX to the driver
        // otherwise.
        if let Some(no_jitlink) = &libraries.no_jitlink {
            self.prepend("LD_AUDIT", no_jitlink);
        }
    }

    /// XLA times each way to multiply two matrices before it takes one. On a processor that takes
    /// many times as long as a test's whole run, and says nothing about a GPU.
    fn have_xla_choose_untried(&mut self) {
        let Ok(flags) = std::env::var("XLA_FLAGS").or_else(|error| match error {
            std::env::VarError::NotPresent => Ok(String::new()),
            error => Err(error),
        }) else {
            return;
        };
        // Else it is the name of a file with the options.
        let are_options = flags.is_empty() || flags.starts_with('-');
        if are_options && !flags.contains(XLA_AUTOTUNE_LEVEL) {
            self.set("XLA_FLAGS", format!("{flags} {XLA_AUTOTUNE_LEVEL}=0").trim_start());
        }
    }

    /// Links the libraries that stand for NVIDIA's into a folder, unless the user wants NVIDIA's.
    fn place_software(&mut self, folder: &Path, libraries: &[(usize, PathBuf)]) -> io::Result<bool> {
        let wants_nvidias = std::env::var_os(CHOICE_VARIABLE).is_some_and(|value| value == "nvidia");
        if wants_nvidias || libraries.is_empty() {
            return Ok(false);
        }
        fs::create_dir(folder)?;
        for (place, library) in libraries {
            link_all(folder, &SOFTWARE[*place], library)?;
        }
        self.set(SOFTWARE_LIBRARIES_VARIABLE, folder);
        Ok(true)
    }

    /// NCCL takes GPUs of processes on one machine for GPUs of one machine, and lets their kernels
    /// exchange data through its memory. Here it is the nodes' machines that count, and no kernel
    /// reads memory of the program's: what GPUs do not exchange directly goes through sockets.
    /// Leases share nothing, so each is a host of its own; a GPU of another node may even have the
    /// same place on the bus. What the user has set stays.
    fn tell_nccl_apart(&mut self) {
        // Where this cannot be read, few programs are NCCL's.
        if let Ok(host) = fs::read_to_string("/proc/sys/kernel/random/uuid") {
            self.set_default("NCCL_HOSTID", host.trim());
        }
        self.set_default("NCCL_SHM_DISABLE", "1");
    }

    fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.environment.push((name.into(), value.as_ref().into()));
    }

    fn set_default(&mut self, name: &str, value: &str) {
        if std::env::var_os(name).is_none() {
            self.set(name, value);
        }
    }

    fn prepend(&mut self, name: &str, path: &Path) {
        self.prepend_all(name, std::slice::from_ref(&path.to_path_buf()));
    }

    fn prepend_all(&mut self, name: &str, paths: &[PathBuf]) {
        let paths: Vec<&OsStr> = paths.iter().map(|path| path.as_os_str()).collect();
        let mut value = paths.join(OsStr::new(":"));
        if let Some(others) = non_empty(name) {
            value.push(":");
            value.push(others);
        }
        self.set(name, value);
    }

    fn append(&mut self, name: &str, path: &Path) {
        let mut value = OsString::new();
        if let Some(others) = non_empty(name) {
            value.push(others);
            value.push(":");
        }
        value.push(path);
        self.set(name, value);
    }
}

/// What glibc's loader may put in the place of `$LIB` (ld.so(8)): Fedora's and SUSE's, Debian's,
/// and others'.
const LIB_PLACES: [&str; 4] = ["lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib"];

/// A path to a library that only programs with glibc preload. The library needs glibc; musl's
/// loader takes `$LIB` for a name, finds nothing, and passes over it, where it would end the
/// program if it could not load what it finds.
fn for_glibc_only(folder: &Path, library: &Path) -> io::Result<PathBuf> {
    let (base, name) = (folder.join("preload"), DEVICE_FILES.names[0]);
    for place in LIB_PLACES {
        fs::create_dir_all(base.join(place))?;
        symlink(library, base.join(place).join(name))?;
    }
    let path = base.join("$LIB").join(name);
    Ok(if loads(&path) { path } else { library.to_path_buf() })
}

/// Whether the loader finds a library at a path, whose tokens it replaces.
fn loads(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: a string that ends with NUL; our own library does nothing when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        // SAFETY: a handle from just now, of which nothing was taken.
        unsafe { libc::dlclose(handle) };
    }
    !handle.is_null()
}

/// An empty entry in a search path means the current folder; an empty variable must not become one.
fn non_empty(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn link_all(folder: &Path, library: &ClientLibrary, target: &Path) -> io::Result<()> {
    library.names.iter().try_for_each(|name| symlink(target, folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_folder() -> Scratch {
        let folder = Scratch::new().expect("a folder");
        fs::write(folder.path().join(CUDA.built), "").expect("a file");
        fs::write(folder.path().join(NO_JITLINK.built), "").expect("a file");
        folder
    }

    fn value(surroundings: &Surroundings, name: &str) -> Option<String> {
        let found = surroundings.environment().iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn a_scratch_folder_has_room_for_a_sockets_address() {
        use std::os::unix::ffi::OsStringExt;
        let short = PathBuf::from("/var/tmp");
        assert_eq!(scratch_base(short.clone()), short);
        let not_text = PathBuf::from(OsString::from_vec(b"/tmp/\xff".to_vec()));
        for unfit in [PathBuf::from(format!("/tmp/{}", "a".repeat(90))), not_text] {
            let base = scratch_base(unfit);
            assert!(base.to_str().is_some_and(|text| text.len() <= SCRATCH_BASE_MAX), "{base:?}");
        }
    }

    #[test]
    fn a_missing_library_is_named_with_the_way_out() {
        let error = Libraries::find_in(&["/nowhere".into(), "/nor/here".into()]).expect_err("not there");
        for part in ["libcuda.so.1", "/nowhere", "/nor/here", "SLUICE_LIB_DIR", "cargo build"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn installed_libraries_stay_when_they_are_installed_again() {
        let (build, target) = (build_folder(), Scratch::new().expect("a folder"));
        fs::write(build.path().join(DEVICE_FILES.built), "").expect("a file");
        let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
        libraries.install(target.path()).expect("installed");
        let cuda = target.path().join("lib/libcuda.so.1");
        fs::write(&cuda, "mapped by a program").expect("written");
        libraries.install(target.path()).expect("installed again");
        assert_eq!(fs::read(&cuda).expect("read"), b"mapped by a program");
        assert_eq!(fs::read_link(target.path().join("lib/libcuda.so")).unwrap(), Path::new("libcuda.so.1"));
        assert!(target.path().join("preload/lib64/libsluice-devfiles.so").is_file());
        assert!(target.path().join("libsluice-nojitlink.so").is_file());
    }

    #[test]
    fn programs_find_the_client_library_first() {
        let (build, scratch) = (build_folder(), Scratch::new().expect("a folder"));
        let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
        assert!(libraries.nvml.is_none());
        let folder = scratch.path().to_path_buf();
        let surroundings =
            Surroundings::prepare(&folder, &libraries, "token@host:1", false).expect("prepared");
        let search = value(&surroundings, "LD_LIBRARY_PATH").expect("set");
        let lib = format!("{}/lib", folder.display());
        assert!(search.starts_with(&lib), "{search}");
        assert_eq!(value(&surroundings, LIBRARIES_VARIABLE), Some(lib));
        assert_eq!(fs::read_link(folder.join("lib/libcuda.so.1")).expect("a link"), libraries.cuda);
        assert_eq!(value(&surroundings, "SLUICE_SESSION").as_deref(), Some("token@host:1"));
        // With an NVIDIA GPU, nothing else but the two words for NCCL.
        assert_eq!(surroundings.environment().len(), 6);
        let mode = fs::metadata(&folder).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may enter");
        drop(scratch);
        assert!(!folder.exists());
    }

    #[test]
    fn each_lease_is_a_host_of_its_own_to_nccl() {
        let host = || {
            let (build, scratch) = (build_folder(), Scratch::new().expect("a folder"));
            let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
            let surroundings = Surroundings::prepare(scratch.path(), &libraries, "session", false);
            let surroundings = surroundings.expect("prepared");
            assert_eq!(value(&surroundings, "NCCL_SHM_DISABLE").as_deref(), Some("1"));
            value(&surroundings, "NCCL_HOSTID").expect("set")
        };
        assert_ne!(host(), host());
    }

    #[test]
    fn a_software_gpu_asks_for_ptx() {
        let (build, scratch) = (build_folder(), Scratch::new().expect("a folder"));
        let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
        let surroundings =
            Surroundings::prepare(scratch.path(), &libraries, "session", true).expect("prepared");
        assert_eq!(value(&surroundings, "CUPY_COMPILE_WITH_PTX").as_deref(), Some("1"));
        assert_eq!(value(&surroundings, "XLA_FLAGS").as_deref(), Some("--xla_gpu_autotune_level=0"));
        let ours = std::env::current_exe().expect("this program");
        assert_eq!(value(&surroundings, ptxas::VARIABLE).map(PathBuf::from), Some(ours.clone()));
        assert_eq!(fs::read_link(scratch.path().join("bin/ptxas")).expect("a link"), ours);
        assert!(value(&surroundings, "LD_AUDIT").expect("set").ends_with(NO_JITLINK.built));
    }

    #[test]
    fn only_programs_on_a_software_gpu_find_libraries_that_stand_for_nvidias() {
        let (build, target) = (build_folder(), Scratch::new().expect("a folder"));
        let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
        assert_eq!(libraries.missing_software(), SOFTWARE.map(|library| library.built));
        for library in &SOFTWARE {
            fs::write(build.path().join(library.built), "").expect("a file");
        }
        let libraries = Libraries::find_in(&[build.path().into()]).expect("found");
        assert!(libraries.missing_software().is_empty());
        for is_software in [false, true] {
            let scratch = Scratch::new().expect("a folder");
            let folder = scratch.path().join("software");
            let surroundings =
                Surroundings::prepare(scratch.path(), &libraries, "session", is_software).expect("prepared");
            let search = value(&surroundings, "LD_LIBRARY_PATH").expect("set");
            let is_searched = search.split(':').any(|part| Path::new(part) == folder);
            assert_eq!(is_searched, is_software, "{search}");
            for name in SOFTWARE.iter().flat_map(|library| library.names) {
                assert_eq!(folder.join(name).is_file(), is_software, "{name}");
            }
            let told = value(&surroundings, SOFTWARE_LIBRARIES_VARIABLE).map(PathBuf::from);
            assert_eq!(told, is_software.then_some(folder));
        }
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| libraries.install(target.path()).expect("installed"));
            }
        });
        assert!(target.path().join("software/libcublasLt.so.12").is_file());
        let mut left = fs::read_dir(target.path().join("lib")).expect("a folder").flatten();
        assert!(left.all(|file| file.file_name().to_string_lossy().starts_with("lib")), "unfinished files");
        assert!(!target.path().join("lib/libcublas.so.13").exists(), "for all GPUs");
    }
}
