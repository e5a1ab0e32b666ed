//! The tables in `docs/benchmarks`, written between their markers.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{Figures, PAGES, Section};

pub(super) fn table(section: &Section, runs: &[Figures]) -> String {
    let mut text = format!(
        "{}. Measured by `cargo xtask bench {}` on {}; median of {} runs, lowest and highest in brackets.\n\n\
         | what | figure | baseline, same run | ratio |\n|---|---|---|---|\n",
        section.title,
        section.name,
        machine(),
        runs.len()
    );
    for row in section.rows {
        let of = |get: fn(&Figures) -> Option<f64>| -> Vec<f64> { runs.iter().filter_map(get).collect() };
        let ratios: Vec<f64> =
            runs.iter().filter_map(|run| Some((row.figure)(run)? / (row.of_baseline)(run)?)).collect();
        let baseline = match spread(of(row.of_baseline)) {
            Some(spread) => format!("{spread} {} ({})", row.unit, row.baseline),
            None => "-".into(),
        };
        let figure = show(of(row.figure));
        let ratio = spread(ratios).unwrap_or_else(|| "-".into());
        text += &format!("| {} | {figure} {} | {baseline} | {ratio} |\n", row.what, row.unit);
    }
    text
}

/// `MEDIAN [LOWEST, HIGHEST]` with three digits that count.
pub(super) fn spread(mut values: Vec<f64>) -> Option<String> {
    values.sort_by(f64::total_cmp);
    let (lowest, highest) = (*values.first()?, *values.last()?);
    let median = values[values.len() / 2];
    let digits = |value: f64| match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    Some(format!("{} [{}, {}]", digits(median), digits(lowest), digits(highest)))
}

/// [`spread`], in the cell of a table.
pub(super) fn show(values: Vec<f64>) -> String {
    spread(values).unwrap_or_else(|| "not measured".into())
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure of each run that has it.
pub(super) fn values(runs: &[Figures], name: &str) -> Vec<f64> {
    runs.iter().filter_map(|run| run.get(name).copied()).collect()
}

/// One figure through another, run by run.
pub(super) fn ratios(runs: &[Figures], name: &str, baseline: &str) -> Vec<f64> {
    values(runs, name)
        .iter()
        .zip(values(runs, baseline))
        .map(|(figure, baseline)| figure / baseline)
        .collect()
}

/// The processor and how many cores of it, for the heading of a table.
pub(super) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", model.map_or("an unknown processor", |(_, name)| name.trim()))
}

pub(super) fn write_section(name: &str, table: &str) -> Result<()> {
    let path = page_of(name)?;
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    std::fs::write(path, replace_section(&text, name, table)?)?;
    Ok(())
}

/// Returns the page of `docs/benchmarks` that has a place for a section.
pub(crate) fn page_of(name: &str) -> Result<PathBuf> {
    for entry in std::fs::read_dir(crate::root().join(PAGES)).context(PAGES)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md")
            && section(&std::fs::read_to_string(&path)?, name).is_ok()
        {
            return Ok(path);
        }
    }
    bail!("no page in {PAGES} has the marks <!-- {name} --> and <!-- /{name} -->")
}

/// What stands between `<!-- NAME -->` and `<!-- /NAME -->`.
pub(crate) fn section<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    Ok(around_section(text, name)?.1)
}

pub(crate) fn replace_section(text: &str, name: &str, table: &str) -> Result<String> {
    let (before, _, after) = around_section(text, name)?;
    Ok(format!("{before}{table}{after}"))
}

/// What precedes a section, the section, and what follows; the marks are outside.
fn around_section<'a>(text: &'a str, name: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let missing = |mark: &str| format!("no {mark:?} on the page");
    let begin = text.find(&begin).with_context(|| missing(&begin))? + begin.len();
    let (before, rest) = text.split_at(begin);
    let (section, after) = rest.split_at(rest.find(&end).with_context(|| missing(&end))?);
    Ok((before, section, after))
}
