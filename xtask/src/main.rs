//! `cargo xtask COMMAND`: the chores of this repository.

mod codegen;

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    match command {
        "codegen" => codegen::run(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => anyhow::bail!("there is no `cargo xtask {other}`; `cargo xtask help` lists what there is"),
    }
}

const HELP: &str = "\
cargo xtask codegen [--check]    write what is generated from crates/cuda/driver.api, or only check that it is current
";

/// The repository's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}
