//! What `sluice run` puts around a program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::node::Node;
use crate::process;
use crate::{Test, bare_program, expect_pass, program_file, sluice_run, start_node};

pub(crate) const TESTS: &[Test] = &[
    ("device files", device_files),
    ("library path", library_path),
    ("musl", musl),
    ("temporary folder", temporary_folder),
    ("nvidia-smi", nvidia_smi),
    ("stored kernels", stored_kernels),
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

/// A private node's second run uses the machine code of its first, but for what is damaged. A node
/// that lends stores none, since other tenants' workers write to its cache.
fn stored_kernels() -> Result<()> {
    let folder = crate::target_folder().join("stored");
    let _ = std::fs::remove_dir_all(&folder);
    let run = |place: &[&str]| {
        let mut command = Command::new(crate::node::sluice());
        command
            .arg("run")
            .args(place)
            .args(["--", "python3"])
            .arg(program_file("counts.py"))
            .env("ROUNDS", "1");
        expect_pass(command.env("XDG_CACHE_HOME", &folder), "stored kernels", LIMIT)
    };
    let private = folder.join("sluice/private");
    run(&["--gpus", "software"])?;
    let first = stored_code(&private)?;
    ensure!(!first.is_empty(), "the first run has stored no kernel in {}", private.display());
    run(&["--gpus", "software"])?;
    ensure!(stored_code(&private)? == first, "the second run has compiled again");
    for (name, _) in &first {
        std::fs::write(private.join(name), "damaged")?;
    }
    run(&["--gpus", "software"])?;
    let mended = stored_code(&private)?;
    let names = |files: &[(String, u64)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    ensure!(names(&mended) == names(&first), "other kernels: {mended:?}, not {first:?}");
    for (name, _) in &mended {
        ensure!(std::fs::metadata(private.join(name))?.len() > 100, "{name} is still damaged");
    }

    let mut node = Command::new(crate::node::sluice());
    node.args(["node", "--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"]);
    let node = Node::start_command(node.env("XDG_CACHE_HOME", &folder))?;
    run(&["--node", &node.address])?;
    node.wait_until_free()?;
    ensure!(stored_code(&folder.join("sluice/images"))?.is_empty(), "a node that lends has stored kernels");
    ensure!(stored_code(&private)? == mended, "a node that lends has written to the private cache");
    Ok(())
}

/// The files of machine code in a cache: names, and what changes when one is written anew.
fn stored_code(folder: &Path) -> Result<Vec<(String, u64)>> {
    use std::os::unix::fs::MetadataExt;
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(files) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("code-") {
            files.push((name, entry.metadata()?.ino()));
        }
    }
    files.sort();
    Ok(files)
}

fn preloaded(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("preloaded.c"), folder.join("libpreloaded.so"));
    std::fs::write(&source, PRELOADED)?;
    process::run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]))?;
    Ok(library)
}
