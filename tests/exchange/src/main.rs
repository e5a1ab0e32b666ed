//! Calls driver functions, again and again, with random arguments, against the driver of
//! `tests/exchange-driver`: what comes back follows from every byte that was sent.
//!
//! Arguments: how many rounds, a seed, and the file for the calls that were made, one line each; or
//! `list` for the names of the functions. Nothing in it knows of Sluice: it asks the `libcuda.so.1`
//! that it finds.
//!
//! ```text
//!   generated  functions that travel by generated code: each has one prototype and one line
//!   copies     between host and device, and on the device; rows of bytes
//!   boxes      the same for boxes
//!   arrays     made, filled, read and destroyed
//!   textures   and surfaces, of arrays, mipmapped arrays and memory
//!   references to textures and surfaces in modules
//!   tiles      of arrays, and the memory that is mapped to them
//!   allocations    of all kinds: from pools, mapped in pieces
//!   fills      of device memory
//!   modules    and libraries from loading to unloading
//!   launches   of kernels with random parameters
//!   graphs     their structure, of which the driver makes nothing
//!   nodes      what nodes of graphs are said to do
//!   captures   of streams, of which the driver makes nothing either
//!   streams    how streams and events are made, attributes, and functions of this process
//!   memory     what device memory holds by then
//! ```

#![allow(non_snake_case)] // CUDA's names

use std::path::PathBuf;

mod allocations;
mod answer;
mod arrays;
mod boxes;
mod captures;
mod copies;
mod fills;
mod generated;
mod graphs;
mod launches;
mod memory;
mod modules;
mod nodes;
mod program;
mod references;
mod streams;
mod textures;
mod tiles;

/// Functions by name, and what calls each.
type Calls = &'static [(&'static str, fn(&mut program::Program))];

const FUNCTIONS: &[Calls] = &[
    generated::FUNCTIONS,
    copies::FUNCTIONS,
    boxes::FUNCTIONS,
    fills::FUNCTIONS,
    arrays::FUNCTIONS,
    textures::FUNCTIONS,
    tiles::FUNCTIONS,
    allocations::FUNCTIONS,
    modules::FUNCTIONS,
    launches::FUNCTIONS,
    nodes::FUNCTIONS,
    graphs::FUNCTIONS,
    captures::FUNCTIONS,
    streams::FUNCTIONS,
];

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|word| word == "list") {
        FUNCTIONS.iter().copied().flatten().for_each(|(name, _)| println!("{name}"));
        return;
    }
    let mut number = |what: &str| -> u64 {
        arguments.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{what}: a number"))
    };
    let (rounds, seed) = (number("rounds"), number("seed"));
    let file = arguments.next().expect("a file for the calls");
    let mut program = program::Program::start(seed, PathBuf::from(&file));
    let mut calls = 0;
    for _ in 0..rounds {
        for (name, call) in FUNCTIONS.iter().copied().flatten() {
            if program.can(name) {
                program.next_call(name);
                call(&mut program);
                calls += 1;
            }
        }
    }
    memory::compare_all(&mut program);
    program.synchronize();
    std::fs::write(file, program.lines()).expect("the file can be written");
    println!("{calls} calls of {} functions: PASS", FUNCTIONS.iter().copied().flatten().count());
}
