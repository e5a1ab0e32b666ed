//! Evidence for the support table: which driver functions the end-to-end tests called with success.
//!
//! Every program that a test starts finds a folder of the test's name in `SLUICE_EVIDENCE`, in
//! which the client library writes what was called. `cargo xtask test --record` turns the folders
//! of the tests that passed into `docs/cuda-support.results`, from which `cargo xtask codegen`
//! makes the table. `cargo xtask gpu-check --record FOLDER` adds what the check on a machine with
//! an NVIDIA GPU has left in its report (`evidence.txt`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use harness::evidence::{entries, folders};

const RESULTS: &str = "docs/cuda-support.results";

/// Back ends of tests that do not compute, by the beginnings of the tests' names. The driver of the
/// exchange answers from the bytes that reach it.
const BACK_ENDS: &[(&str, &str)] =
    &[("sequence ", "recording driver"), ("recording", "recording driver"), ("byte exchange", BYTES)];
const BYTES: &str = "byte by byte";

/// What a test's programs ran on.
fn back_end(test: &str) -> &'static str {
    if test.ends_with(", recorded") {
        return "recording driver";
    }
    let found = BACK_ENDS.iter().find(|(start, _)| test.starts_with(start));
    found.map_or("software GPU", |(_, back_end)| back_end)
}

/// Rewrites the results: for each function and back end the first test by name that called it. Rows
/// of tests that have left no evidence here stay as they are.
pub(crate) fn record() -> Result<()> {
    let mut tests: Vec<PathBuf> = entries(&folders())?;
    tests.sort();
    let name_of = |test: &PathBuf| test.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = tests.iter().map(name_of).collect();
    let exchanged = crate::codegen::coverage::exchanged()?;
    let mut rows = Rows::new();
    for (test, name) in tests.iter().zip(&names) {
        for file in entries(test)? {
            for function in fs::read_to_string(&file)?.lines() {
                // The exchange compares what it is there for only.
                if back_end(name) == BYTES && !exchanged.iter().any(|of| of == function) {
                    continue;
                }
                let key = (function.to_string(), back_end(name).to_string());
                rows.entry(key).or_insert_with(|| (name.clone(), today()));
            }
        }
    }
    let before = fs::read_to_string(crate::root().join(RESULTS)).unwrap_or_default();
    keep(&mut rows, &before, &names);
    write(&rows)
}

fn write(rows: &Rows) -> Result<()> {
    let mut text = String::from("# function\tback end\ttest\tdate\n");
    for ((function, back_end), (test, date)) in rows {
        text += &format!("{function}\t{back_end}\t{test}\t{date}\n");
    }
    fs::write(crate::root().join(RESULTS), text).context(RESULTS)?;
    crate::codegen::run(&[])
}

/// The back end of what was seen on NVIDIA's driver, before its version.
pub(crate) const NVIDIA: &str = "NVIDIA ";

/// Adds what a report of the check on a machine with a GPU has seen.
pub(crate) fn record_gpu(folder: &Path) -> Result<()> {
    let file = folder.join("evidence.txt");
    let read = || seen(&fs::read_to_string(&file)?, &crate::codegen::function_names()?);
    let mut rows = read().with_context(|| file.display().to_string())?;
    let before = fs::read_to_string(crate::root().join(RESULTS)).context(RESULTS)?;
    keep(&mut rows, &before, &[]);
    write(&rows)
}

/// What `evidence.txt` says. It is refused unless a node lent GPUs of NVIDIA's driver, and unless
/// all in it are functions of the driver: the check can be tried without a GPU.
fn seen(text: &str, known: &[String]) -> Result<Rows> {
    let head: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(": ")).collect();
    let of = |name: &str| {
        let value = head.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        value.with_context(|| format!("it does not say its {name}"))
    };
    let (gpus, driver, card, date) = (of("gpus")?, of("driver")?, of("card")?, of("date")?);
    ensure!(gpus.split(':').next() == Some("nvidia"), "a node with --gpus {gpus} is not NVIDIA's driver");
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        driver.contains('.') && driver.split('.').all(is_number),
        "{driver:?} is no version of NVIDIA's driver"
    );
    ensure!(![card, date].iter().any(|text| text.contains('\t')), "a tab in its head");
    let mut rows = Rows::new();
    for function in text.lines().filter(|line| !line.starts_with('#')) {
        if !known.iter().any(|name| name == function) {
            bail!("{function:?} is no function of the driver");
        }
        let key = (function.to_string(), format!("{NVIDIA}{driver}"));
        rows.insert(key, (format!("gpu-check on {card}"), date.to_string()));
    }
    ensure!(!rows.is_empty(), "no function succeeded");
    Ok(rows)
}

/// Function and back end to test and date.
type Rows = BTreeMap<(String, String), (String, String)>;

/// Adds the rows of earlier results that no test of `names` speaks for.
fn keep(rows: &mut Rows, before: &str, names: &[String]) {
    for line in before.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [function, back_end, test, date] = columns[..] else { continue };
        if !names.iter().any(|name| name == test) {
            let key = (function.to_string(), back_end.to_string());
            rows.entry(key).or_insert_with(|| (test.to_string(), date.to_string()));
        }
    }
}

/// The date in UTC, as YYYY-MM-DD.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day last, so months are regular (Hinnant,
    // "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_tells_its_back_end_by_its_name() {
        assert_eq!(back_end("graphs in namespaces"), "software GPU");
        for recorded in ["sequence torch, a100", "recording driver", "sharing between processes, recorded"] {
            assert_eq!(back_end(recorded), "recording driver");
        }
        assert_eq!(back_end("byte exchange, same host"), BYTES);
    }

    #[test]
    fn rows_of_tests_that_did_not_run_are_kept() {
        let row =
            |of: &str, test: &str| ((of.to_string(), "b".to_string()), (test.to_string(), "d".to_string()));
        let mut rows = Rows::from([row("f", "new")]);
        keep(&mut rows, "# head\nf\tb\told\td\ng\tb\told\td\nh\tb\tnew\td\n", &["new".to_string()]);
        assert_eq!(rows, Rows::from([row("f", "new"), row("g", "old")]));
    }

    #[test]
    fn what_was_seen_on_nvidia_is_what_its_driver_answered() {
        let known = ["cuInit", "cuMemAlloc_v2"].map(String::from);
        let head = "# gpus: nvidia\n# driver: 580.65.06\n# card: NVIDIA H200\n# date: 2026-11-24\n";
        let rows = seen(&format!("{head}cuInit\n"), &known).unwrap();
        let key = ("cuInit".to_string(), "NVIDIA 580.65.06".to_string());
        let row = (key, ("gpu-check on NVIDIA H200".to_string(), "2026-11-24".to_string()));
        assert_eq!(rows, Rows::from([row]));
        let refused = |text: String, why: &str| {
            let error = seen(&text, &known).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(head.to_string(), "no function succeeded");
        refused(format!("{head}cuInvented\n"), "cuInvented");
        refused("cuInit\n".to_string(), "its gpus");
        refused(format!("{head}cuInit\n").replace("gpus: nvidia", "gpus: library:/there"), "library:/there");
        refused(format!("{head}cuInit\n").replace("580.65.06", ""), "its driver");
        refused(format!("{head}cuInit\n").replace("580.65.06", "soft"), "no version");
        // What tests record leaves it as it is.
        let mut kept = Rows::new();
        let before = "cuInit\tNVIDIA 580.65.06\tgpu-check on NVIDIA H200\t2026-11-24\n";
        keep(&mut kept, before, &["graphs".to_string()]);
        assert_eq!(kept, rows);
    }

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_777), (2026, 11, 20));
    }
}
