//! What `sluice run` puts around a program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::e2e::{Test, bare_program, expect_pass, program_file, sluice_run, start_node};
use crate::process;

pub(crate) const TESTS: &[Test] = &[
    ("device files", device_files),
    ("library path", library_path),
    ("musl", musl),
    ("temporary folder", temporary_folder),
    ("nvidia-smi", nvidia_smi),
];

const LIMIT: Duration = Duration::from_secs(120);

/// A library that a user preloads: makes up one file.
const PRELOADED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
struct stat;

#define MAKE_UP(name) \
    int name(const char *path, struct stat *status) { \
        int (*next)(const char *, struct stat *) = dlsym(RTLD_NEXT, #name); \
        return next(strcmp(path, "/nowhere/preloaded") ? path : "/", status); \
    }
MAKE_UP(stat)
MAKE_UP(stat64)
"#;

fn nvidia_smi() -> Result<()> {
    let node = start_node()?;
    expect_pass(&mut bare_program(&node, &["-n", "2", "-p", "0.5"], "nvidia_smi.py"), "nvidia-smi", LIMIT)?;
    node.wait_until_free()
}

fn device_files() -> Result<()> {
    let folder = crate::target_folder().join("preloaded");
    std::fs::create_dir_all(&folder)?;
    let library = preloaded(&folder)?;
    let node = start_node()?;
    let mut command = bare_program(&node, &["-p", "0.25"], "device_files.py");
    expect_pass(command.env("LD_PRELOAD", library), "device files", LIMIT)?;
    node.wait_until_free()
}

/// A script that sets the library path anew finds the libraries, as it does where NVIDIA's are in
/// the system's path.
fn library_path() -> Result<()> {
    let node = start_node()?;
    let mut command = sluice_run(&node, &["-p", "0.25"]);
    command.args(["env", "LD_LIBRARY_PATH=/nowhere", "python3"]).arg(program_file("library_path.py"));
    expect_pass(&mut command, "library path", LIMIT)?;
    node.wait_until_free()
}

/// A program of another C library runs beside what is preloaded for glibc's. musl's loader takes
/// each path literally; where it is not installed, the test checks that no such path exists.
fn musl() -> Result<()> {
    let node = start_node()?;
    let folder = crate::target_folder().join("musl");
    std::fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("musl.c"), folder.join("musl"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { return puts(\"PASS\") < 0; }\n")?;
    let mut command = sluice_run(&node, &["-p", "0.25"]);
    match Command::new("musl-gcc").args(["-o"]).args([&program, &source]).status() {
        Ok(status) if status.success() => command.arg(program),
        _ => command.args([
            "sh",
            "-c",
            r#"for it in $(echo "$LD_PRELOAD" | tr : ' '); do [ ! -e "$it" ] || exit 1; done; echo PASS"#,
        ]),
    };
    expect_pass(&mut command, "musl", LIMIT)?;
    node.wait_until_free()
}

/// A private node's socket has an address of its own, whatever the folder for temporary files is
/// called.
fn temporary_folder() -> Result<()> {
    use std::os::unix::ffi::OsStringExt;
    let base = crate::target_folder().join("temporary");
    let not_text = std::ffi::OsString::from_vec(b"not\xfftext".to_vec());
    for name in ["a".repeat(90).into(), not_text] {
        let folder = base.join(name);
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(crate::node::sluice());
        command
            .args(["run", "--gpus", "software", "--", "python3"])
            .arg(program_file("driver_attributes.py"));
        command.env("TMPDIR", &folder).env("XDG_CACHE_HOME", &folder);
        expect_pass(&mut command, "temporary folder", LIMIT)?;
    }
    Ok(())
}

fn preloaded(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("preloaded.c"), folder.join("libpreloaded.so"));
    std::fs::write(&source, PRELOADED)?;
    process::run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]))?;
    Ok(library)
}
