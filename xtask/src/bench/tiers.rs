//! Tiers and shares: `tests/gpu-check/tiers.py` measures, which also runs where there is an NVIDIA
//! GPU and no compiler.

use std::process::Command;

use anyhow::{Context, Result};
use harness::load::Load;
use harness::software_gpu;
use serde_json::Value;

use super::machine;
use crate::{node, process};

pub(super) const NAME: &str = "tiers";
pub(super) const LOADED: &str = "tiers-library";

/// Per cent of the machine's processors that others may take. With more, the programs wait for
/// processors, and figures say nothing about shares.
const OTHERS_MAX: f64 = 10.0;

pub(super) fn software() -> Result<String> {
    measured(NAME, "software:1,1GiB")
}

/// As a driver that cannot be paused, which is what holds for NVIDIA's.
pub(super) fn loaded() -> Result<String> {
    measured(LOADED, &software_gpu::by_path())
}

fn measured(name: &str, gpus: &str) -> Result<String> {
    let before = Load::now()?;
    let mut command = Command::new("python3");
    command.arg(crate::root().join("tests/gpu-check/tiers.py"));
    command.arg("--sluice").arg(node::sluice());
    command.arg("--programs").arg(crate::root().join("tests/programs"));
    command.arg("--native").arg(software_gpu::driver_folder()?);
    command.args(["--gpus", gpus, "-o", "json"]);
    let text = process::output_of(&mut command)?;
    let others = 100.0 * before.others_since()?;
    let rows: Vec<Value> = serde_json::from_str(&text).with_context(|| text.clone())?;
    let mut table = format!(
        "One GPU, which {}, on\n{}. Measured by `cargo xtask bench {name}`\n\
         in one run, with everything that is compared taken by turns. Other programs took {others:.0} % of\n\
         the machine's processors meanwhile.\n\n\
         | what | figure | spread, and what it is compared with | goal | |\n|---|---|---|---|---|\n",
        if name == NAME {
            "computes on the processor"
        } else {
            "is a driver that runs what it was given to its end"
        },
        machine(),
    );
    for row in &rows {
        table += &line_of(row, others <= OTHERS_MAX)?;
    }
    Ok(table)
}

/// A figure, and what is demanded of it if anything is; on a busy machine nothing is judged.
fn line_of(row: &Value, is_quiet: bool) -> Result<String> {
    let text = |name: &str| row[name].as_str().with_context(|| format!("no {name} in {row}"));
    let met = match row["met"].as_bool() {
        Some(_) if !is_quiet => "not judged: busy",
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    };
    Ok(format!(
        "| {} | {} | {} | {} | {met} |\n",
        text("what")?,
        text("figure")?,
        text("baseline")?,
        text("goal")?
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_whether_its_goal_is_met() {
        let line = |met: Value| {
            line_of(&json!({ "what": "a", "figure": "1", "baseline": "b", "goal": "2", "met": met }), true)
                .unwrap()
        };
        assert_eq!(line(true.into()), "| a | 1 | b | 2 | met |\n");
        assert_eq!(line(false.into()), "| a | 1 | b | 2 | **missed** |\n");
        assert_eq!(line(Value::Null), "| a | 1 | b | 2 |  |\n");
        assert!(line_of(&json!({ "what": "a" }), true).is_err());
        let row = json!({ "what": "a", "figure": "1", "baseline": "b", "goal": "2", "met": false });
        assert_eq!(line_of(&row, false).unwrap(), "| a | 1 | b | 2 | not judged: busy |\n");
    }
}
