//! Stands for NVIDIA's `ptxas` under a lease of a software GPU: its output is the PTX itself.
//!
//! Triton, XLA and `nvcc --cubin` have `ptxas` turn their PTX into machine code and hand that to
//! the driver, which takes PTX in its place (`cuModuleLoadData`). `crates/devfiles` starts this
//! program instead of NVIDIA's, whose path is then its name; it also lies on the program's `PATH`.
//! Whatever else it is asked for, NVIDIA's program does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Names of NVIDIA's program; Triton brings the second one for newer GPUs.
const NAMES: [&str; 2] = ["ptxas", "ptxas-blackwell"];

/// Names the program to start in place of NVIDIA's.
pub(crate) const VARIABLE: &str = "SLUICE_PTXAS";

/// The name that this program has on the `PATH` of a program under a lease.
pub(crate) const NAME: &str = NAMES[0];

/// What `ptxas --version` says where NVIDIA's is not installed: programs take the newest PTX that
/// they may write from it.
const VERSION: &str =
    "ptxas: Sluice's, which leaves PTX as it is\nCuda compilation tools, release 13.0, V13.0.0";

/// Whether a program of this name is NVIDIA's assembler.
pub(crate) fn is_name(called_as: &OsStr) -> bool {
    Path::new(called_as).file_name().is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// Does what NVIDIA's program of the name `called_as` would be asked for with these arguments.
pub(crate) fn run(called_as: &OsStr, arguments: &[OsString]) -> ExitCode {
    let assembly = Assembly::of(arguments).filter(|_| !is_part_of_build());
    let Some(Assembly { input, output }) = assembly else {
        return run_nvidias(called_as, arguments);
    };
    let hand_over = || {
        let mut text = std::fs::read(&input)?;
        // The driver reads PTX to its NUL, and some programs hand over the file's bytes alone.
        text.push(0);
        std::fs::write(&output, text)
    };
    match hand_over() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ptxas (sluice): {} to {}: {error}", input.display(), output.display());
            ExitCode::FAILURE
        }
    }
}

/// One file of PTX to be made one file of machine code.
#[derive(Debug, PartialEq)]
struct Assembly {
    input: PathBuf,
    output: PathBuf,
}

impl Assembly {
    /// What is asked for, unless it is something else or something more.
    fn of(arguments: &[OsString]) -> Option<Assembly> {
        let (mut inputs, mut output) = (Vec::new(), None);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_bytes() {
                b"-o" | b"--output-file" => output = Some(PathBuf::from(arguments.next()?)),
                // What is to be linked with other machine code, and options from a file.
                b"-c" | b"-optf" => return None,
                option
                    if [&b"--compile-only"[..], b"--options-file"].iter().any(|o| option.starts_with(o)) =>
                {
                    return None;
                }
                option if option.starts_with(b"-") => {
                    let value = [&b"--output-file="[..], b"-o="].iter().find_map(|o| option.strip_prefix(*o));
                    if let Some(value) = value {
                        output = Some(PathBuf::from(OsStr::from_bytes(value)));
                    }
                }
                // Else it is the value of an option.
                _ if Path::new(argument).is_file() => inputs.push(PathBuf::from(argument)),
                _ => {}
            }
        }
        let [input] = <[PathBuf; 1]>::try_from(inputs).ok()?;
        Some(Assembly { input, output: output.unwrap_or_else(|| "elf.o".into()) })
    }
}

/// Whether a compiler has started this process to build a program, which may be for another
/// machine: its fat binary needs machine code. `nvcc --cubin` gives its user what `ptxas` gives it.
fn is_part_of_build() -> bool {
    // A shell may stand between.
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..3 {
        let Ok(words) = std::fs::read(format!("/proc/{process}/cmdline")) else { return false };
        if is_build(&words) {
            return true;
        }
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        let Some(parent) = parent else { return false };
        process = parent;
    }
    false
}

/// Whether a command line, of which each word ends with NUL, builds a program.
fn is_build(words: &[u8]) -> bool {
    let mut words = words.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match program {
        b"nvcc" => !words.any(|word| matches!(word, b"--cubin" | b"-cubin")),
        program => program.starts_with(b"clang"),
    }
}

/// Becomes NVIDIA's program. Without one it answers for it, or says that it is missing.
fn run_nvidias(called_as: &OsStr, arguments: &[OsString]) -> ExitCode {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(program) = nvidias(Path::new(called_as), &path) {
        let error = Command::new(&program).arg0(&program).args(arguments).exec();
        eprintln!("ptxas (sluice): {}: {error}", program.display());
        return ExitCode::FAILURE;
    }
    if arguments.iter().any(|argument| argument == "--version" || argument == "-V") {
        println!("{VERSION}");
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "ptxas (sluice): NVIDIA's ptxas is not installed, and a software GPU has PTX handed over as it is only \
         for one input file, without -c"
    );
    ExitCode::FAILURE
}

/// NVIDIA's program: where it was called, or else in a folder of `path`. This program stands there
/// as well, as a link to a file of another name.
fn nvidias(called_as: &Path, path: &OsStr) -> Option<PathBuf> {
    let is_theirs =
        |place: &PathBuf| place.is_file() && place.canonicalize().is_ok_and(|real| is_name(real.as_os_str()));
    let name = called_as.file_name()?;
    let named = called_as.parent().filter(|folder| !folder.as_os_str().is_empty());
    let on_path = std::env::split_paths(path).map(|folder| folder.join(name));
    named.map(|folder| folder.join(name)).into_iter().chain(on_path).find(is_theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembly(arguments: &[&str]) -> Option<Assembly> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        Assembly::of(&arguments)
    }

    #[test]
    fn one_input_and_its_output_are_found_among_options() {
        let folder = tempfile::tempdir().expect("a folder");
        let input = folder.path().join("k.ptx");
        std::fs::write(&input, ".version 8.0").expect("a file");
        let path = input.to_str().expect("text");
        let expected = |output: &str| Some(Assembly { input: input.clone(), output: output.into() });
        assert_eq!(assembly(&["-lineinfo", "-v", "--gpu-name=sm_90a", path, "-o", "k.o"]), expected("k.o"));
        assert_eq!(assembly(&["-arch", "sm_80", "--output-file=k.cubin", path]), expected("k.cubin"));
        assert_eq!(assembly(&[path]), expected("elf.o"));
        for others in
            [&["--version"][..], &[path, "-c", "-o", "k.o"], &[path, path, "-o", "k.o"], &[path, "-o"]]
        {
            assert_eq!(assembly(others), None, "{others:?}");
        }
        for option in ["--compile-only=true", "--options-file=x", "-optf"] {
            assert_eq!(assembly(&[option, path, "-o", "k.o"]), None, "{option}");
        }
    }

    #[test]
    fn builds_by_compilers_keep_their_machine_code() {
        for (words, expected) in [
            (&b"/opt/bin/nvcc\0-arch=sm_80\0k.cu\0-o\0k\0"[..], true),
            (b"nvcc\0--keep\0k.cu\0", true),
            (b"nvcc\0--cubin\0-arch\0sm_80\0k.cu\0", false),
            (b"/usr/bin/clang-19\0-x\0cuda\0", true),
            (b"sh\0-c\0ptxas k.ptx\0", false),
            (b"python3\0nvcc\0", false),
            (b"", false),
        ] {
            assert_eq!(is_build(words), expected, "{}", String::from_utf8_lossy(words));
        }
    }

    #[test]
    fn what_a_program_hands_to_the_driver_ends_with_nul() {
        let folder = tempfile::tempdir().expect("a folder");
        let (input, output) = (folder.path().join("k.ptx"), folder.path().join("k.cubin"));
        std::fs::write(&input, ".version 8.0").expect("a file");
        let arguments = [input.into_os_string(), "-o".into(), output.clone().into_os_string()];
        run(OsStr::new("ptxas"), &arguments);
        assert_eq!(std::fs::read(output).expect("written"), b".version 8.0\0");
    }

    #[test]
    fn nvidias_program_is_the_one_that_was_named_or_the_next_on_the_path() {
        let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
        let programs = [0, 1].map(|index: usize| folders[index].path().join("ptxas"));
        std::os::unix::fs::symlink(std::env::current_exe().expect("this"), &programs[0]).expect("a link");
        std::fs::write(&programs[1], "").expect("a file");
        let path = std::env::join_paths(folders.iter().map(|folder| folder.path())).expect("a path");
        assert_eq!(nvidias(Path::new("ptxas"), &path), Some(programs[1].clone()));
        assert_eq!(nvidias(&programs[1], OsStr::new("")), Some(programs[1].clone()));
        assert_eq!(nvidias(&programs[0], OsStr::new("")), None, "a link to this program");
    }
}
