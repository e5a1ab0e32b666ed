//! Automation of this repository: `cargo xtask TASK`.
//!
//! Every task does its own set-up (builds, Python environments under `target/`) and says what it
//! does. The end-to-end tests are a crate of their own (`tests/e2e`), which [`test`] runs.

// What the end-to-end tests use as well.
pub mod chaos;
pub mod codegen;
pub mod dist;

mod bench;
mod book;
mod evidence;
mod fuzz;
mod gpu_check;
mod prose;
#[cfg(test)]
mod reference;
mod test;
mod web;

use std::path::Path;
use std::process::ExitCode;

use harness::{SHARED_MEMORY_VARIABLE, cache_folder, node, process, python, root, target_folder};

const USAGE: &str = "\
cargo xtask test [--all] [NAME]   all tests; --all adds those that download much; NAME: only end-to-end tests so named;
                                  --record: write what the programs called into docs/cuda-support.md
cargo xtask dist [--archive] [--deb] [--oci] [--wheel]
                                  build the packages, or the kinds that are named, into target/dist
cargo xtask codegen [--check]     write what is generated from crates/cuda/driver.api, or only check that it is current
cargo xtask book [--check]        build the documents as a site with mdBook, or check links and, with mdBook, the build
cargo xtask check-prose [--list [PLACE] | --record]
                                  the language of comments and documents, against xtask/prose-budget.tsv
cargo xtask web [--check]         build the web view into web/dist, or only check that it is current
cargo xtask bench [NAME]          measure, and write the figures into docs/benchmarks
cargo xtask bench lupine --lupine-client PATH --lupine-server PATH
                                  the same beside a build of Lupine: its libcuda.so.1 and its lupine_driver_server
cargo xtask chaos [--minutes N] [--seed S]
                                  programs over a link that is cut at random: results right, side effects once
cargo xtask fuzz [--minutes N] [NAME]
                                  what parses, and a worker before a driver that trusts nobody, against any bytes
cargo xtask gpu-check --bundle    build the folder that checks everything on a machine with an NVIDIA GPU
cargo xtask gpu-check --record FOLDER
                                  write what its report in FOLDER has seen on NVIDIA's driver into docs/cuda-support.md";

/// Does what the command line says.
pub fn main() -> ExitCode {
    // What is tested and measured over the network is to stay there on one machine, too; what is
    // about shared memory says so. SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(SHARED_MEMORY_VARIABLE, "off") };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["codegen", ..] => codegen::run(&arguments[1..]).map(|()| ExitCode::SUCCESS),
        ["book", options @ ..] => book::run(options).map(|()| ExitCode::SUCCESS),
        ["check-prose", options @ ..] => prose::run(options).map(|()| ExitCode::SUCCESS),
        ["web", options @ ..] => web::run(options).map(|()| ExitCode::SUCCESS),
        ["test", options @ ..] => test::run(options),
        ["dist", options @ ..] => dist::run(options),
        ["bench", names @ ..] => bench::run(names),
        ["chaos", options @ ..] => chaos::run(options),
        ["fuzz", options @ ..] => fuzz::run(options),
        ["gpu-check", "--bundle"] => gpu_check::bundle(),
        ["gpu-check", "--record", folder] => {
            evidence::record_gpu(Path::new(folder)).map(|()| ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
