//! Calls every function that travels by generated code, again and again, with random arguments, against the driver of
//! `tests/exchange-driver`: what comes back follows from every byte that was sent.
//!
//! Arguments: how many rounds, a seed, and the file for the calls that were made, one line each. Nothing in it knows of
//! Sluice: it asks the `libcuda.so.1` that it finds.

mod answer;
mod generated;
mod program;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |what: &str| -> u64 {
        arguments.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{what}: a number"))
    };
    let (rounds, seed) = (number("rounds"), number("seed"));
    let file = arguments.next().expect("a file for the calls");
    let mut program = program::Program::start(seed);
    let mut calls = 0;
    for _ in 0..rounds {
        for (name, call) in generated::FUNCTIONS {
            if program.can(name) {
                call(&mut program);
                calls += 1;
            }
        }
    }
    program.synchronize();
    std::fs::write(file, program.lines()).expect("the file can be written");
    println!("{calls} calls of {} functions: PASS", generated::FUNCTIONS.len());
}
