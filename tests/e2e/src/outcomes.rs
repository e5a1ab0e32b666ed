//! How far programs have to get: `outcomes.tsv`, line by line.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use crate::process::Ended;

const TABLE: &str = include_str!("outcomes.tsv");

/// The step that stands for the end of the program.
const EXIT: &str = "(exit)";

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row<'a> {
    program: &'a str,
    step: &'a str,
    /// OK, FAIL, or an exit code. A step that failed there has to be tried here, and may say where
    /// it ended.
    outcome: &'a str,
    /// Part of what the step has to say; empty where kernels compute that.
    says: &'a str,
}

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or("");
        Row { program: next(), step: next(), outcome: next(), says: next() }
    })
}

/// Compares what a program did, whose steps are lines as those of `steps.py`, with all that the
/// table has of it.
pub(super) fn compare(program: &str, ended: &Ended) -> Result<()> {
    compare_with(TABLE, program, ended)
}

fn compare_with(table: &str, program: &str, ended: &Ended) -> Result<()> {
    let steps: HashMap<&str, &str> = ended.output.lines().filter_map(step).collect();
    let mut compared = 0;
    for row in rows(table).filter(|row| row.program == program) {
        compared += 1;
        if row.step == EXIT {
            // Where the measured program crashed, that was because of what its kernels did not
            // compute.
            ensure!(ended.code == Some(0), "{program} ended with {:?}", ended.code);
            continue;
        }
        let said = steps
            .get(row.step)
            .with_context(|| format!("{program} did not get through the step {:?}", row.step))?;
        ensure!(
            said.contains(row.says),
            "{program}, step {:?}: {said:?}, where {:?} is expected",
            row.step,
            row.says
        );
    }
    ensure!(compared > 0, "the table of outcomes has no program {program:?}");
    Ok(())
}

/// Name and words of a step that a line reports as done.
fn step(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("OK\t")?.split_once('\t')
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SMALL: &str = "# head\np\tcount\tOK\t1\np\tadd\tOK\np\tconv\tFAIL\np\t(exit)\t135\nq\tadd\tOK\n";

    fn ended(code: i32, output: &str) -> Ended {
        Ended { code: Some(code), output: output.into(), cpu: std::time::Duration::ZERO }
    }

    fn refusal(code: i32, output: &str) -> String {
        compare_with(SMALL, "p", &ended(code, output)).unwrap_err().to_string()
    }

    #[test]
    fn a_program_that_does_all_of_it_and_more_passes() {
        let output = "x\nOK\tcount\t1\nOK\tadd\t0.0\nOK\tconv\tas far as cuDNN\nOK\tmore\t\n";
        compare_with(SMALL, "p", &ended(0, output)).unwrap();
    }

    #[test]
    fn a_step_that_is_missing_or_failed_or_says_something_else_is_named() {
        assert_eq!(refusal(0, "OK\tcount\t1\n"), "p did not get through the step \"add\"");
        let output = "OK\tcount\t1\nFAILED\tadd\tRuntimeError\n";
        assert_eq!(refusal(0, output), "p did not get through the step \"add\"");
        let output = "OK\tcount\t2\nOK\tadd\t\n";
        assert_eq!(refusal(0, output), "p, step \"count\": \"2\", where \"1\" is expected");
        assert_eq!(refusal(1, "OK\tcount\t1\nOK\tadd\t\nOK\tconv\t\n"), "p ended with Some(1)");
    }

    #[test]
    fn a_program_that_the_table_does_not_have_is_refused() {
        let refused = compare_with(SMALL, "r", &ended(0, "")).unwrap_err();
        assert_eq!(refused.to_string(), "the table of outcomes has no program \"r\"");
    }

    #[test]
    fn the_table_is_whole_and_says_nothing_twice() {
        let rows: Vec<Row> = rows(TABLE).collect();
        assert_eq!(rows.len(), 233);
        let steps: HashSet<(&str, &str)> = rows.iter().map(|row| (row.program, row.step)).collect();
        assert_eq!(steps.len(), rows.len());
        for row in rows {
            let is_code = row.step == EXIT && row.outcome.parse::<i32>().is_ok();
            assert!(is_code || ["OK", "FAIL"].contains(&row.outcome), "{row:?}");
        }
    }

    #[test]
    fn each_program_of_the_table_has_one_sequence() {
        let of_table: HashSet<&str> = rows(TABLE).map(|row| row.program).collect();
        let of_sequences: Vec<&str> = crate::sequences::programs().collect();
        assert_eq!(of_sequences.iter().copied().collect::<HashSet<_>>(), of_table);
        assert_eq!(of_sequences.len(), of_table.len());
    }
}
