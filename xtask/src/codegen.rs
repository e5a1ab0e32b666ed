//! `cargo xtask codegen`: everything that follows from `crates/cuda/driver.api`.
//!
//! One declaration per driver function gives the function ids and the table of facts about them,
//! the driver table, the exported symbols of both libraries, the messages with their codec, the
//! client's stubs, the worker's dispatch with the kinds of commands, and the support table in the
//! documentation. All of it is committed; `--check` and a test say when it is stale.

mod commands;
pub mod coverage;
mod declaration;
mod dispatch;
mod exchange;
mod exports;
mod functions;
mod hostile;
mod kinds;
mod parse;
mod source;
mod stubs;
mod support;
mod table;

use std::{fs, path::Path};

use anyhow::{Context, bail};

use self::declaration::Declarations;

const DECLARATIONS: &str = "crates/cuda/driver.api";

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("usage: cargo xtask codegen [--check]"),
    };
    let stale = stale_files(crate::root())?;
    if check && !stale.is_empty() {
        let names: Vec<&str> = stale.iter().map(|(path, _)| *path).collect();
        bail!("stale, run `cargo xtask codegen`: {}", names.join(", "));
    }
    for (path, text) in stale {
        let path = crate::root().join(path);
        fs::create_dir_all(path.parent().expect("generated files lie in folders"))?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Every generated file whose text on disk is not what the declarations say, with the text that it
/// should have.
fn stale_files(root: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut stale = generate(&declarations(root)?, root)?;
    stale.retain(|(path, text)| fs::read_to_string(root.join(path)).ok().as_ref() != Some(text));
    Ok(stale)
}

/// All functions of the driver.
pub(crate) fn function_names() -> anyhow::Result<Vec<String>> {
    let functions = declarations(crate::root())?.functions;
    Ok(functions.into_iter().map(|function| function.name).collect())
}

fn declarations(root: &Path) -> anyhow::Result<Declarations> {
    let text = fs::read_to_string(root.join(DECLARATIONS)).context(DECLARATIONS)?;
    parse::declarations(&text)
}

fn generate(api: &Declarations, root: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let rust = |text: String| source::format(&text, root);
    Ok(vec![
        ("crates/cuda/src/generated/functions.rs", rust(functions::generate(api))?),
        ("crates/cuda/src/generated/table.rs", rust(table::generate(api))?),
        ("tests/exchange/src/generated.rs", rust(exchange::program(api))?),
        ("tests/exchange-driver/src/generated.rs", rust(exchange::driver(api))?),
        ("tests/hostile-driver/src/generated.rs", rust(hostile::generate(api))?),
        ("crates/wire/src/generated/commands.rs", rust(commands::generate(api))?),
        ("crates/client/src/generated/stubs.rs", rust(stubs::generate(api))?),
        ("crates/client/src/generated/exports.rs", rust(exports::client(api))?),
        ("crates/softgpu-lib/src/generated/exports.rs", rust(exports::softgpu(api))?),
        ("crates/worker/src/generated/dispatch.rs", rust(dispatch::generate(api))?),
        ("crates/worker/src/generated/kinds.rs", rust(kinds::generate(api))?),
        ("docs/cuda-support.md", support::generate(api, root)?),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_files_are_current() {
        let stale = super::stale_files(crate::root()).unwrap();
        let names: Vec<&str> = stale.iter().map(|(path, _)| *path).collect();
        assert!(names.is_empty(), "stale, run `cargo xtask codegen`: {names:?}");
    }
}
