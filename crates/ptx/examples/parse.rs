//! Parses PTX files whole and says how long that took:
//! `cargo run --release -p sluice-ptx --example parse FILES`.

use std::time::Instant;

fn main() -> std::process::ExitCode {
    let mut failures = 0;
    let (mut files, mut bytes, mut functions, mut statements) = (0, 0, 0, 0);
    let start = Instant::now();
    for path in std::env::args().skip(1) {
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{path}: {error}");
                failures += 1;
                continue;
            }
        };
        files += 1;
        bytes += text.len();
        match sluice_ptx::parse(&text) {
            Ok(module) => {
                let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
                functions += module.functions.len();
                statements += bodies.map(|body| body.statements.len()).sum::<usize>();
            }
            Err(error) => {
                println!("{path}: {error}");
                failures += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{files} files, {bytes} bytes, {functions} functions, {statements} statements: {failures} failures, {seconds:.3} s"
    );
    if failures == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
