//! Measured figures as curves, beside the tables in `docs`.

use anyhow::{Context, Result};
use sluice_simulate::plot::{Axis, Kind, LineChart, Series, line_chart, standalone};

/// A curve: its name, and its points.
pub(super) type Curve = (&'static str, Vec<(f64, f64)>);

/// Writes `docs/benchmarks/plots/FILE.svg` and `.png`: curves over `x`, all of them in `unit`.
pub(super) fn draw(file: &str, title: &str, x: Axis, unit: &str, curves: Vec<Curve>) -> Result<()> {
    let values = || curves.iter().flat_map(|(_, points)| points).map(|(_, y)| *y).filter(|y| *y > 0.0);
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
    let y = Axis::powers(unit, low, high, "");
    let curve = |(colour, (name, points)): (usize, Curve)| Series {
        name: name.into(),
        colour,
        points,
        spread: Vec::new(),
    };
    let series = curves.into_iter().enumerate().map(curve).collect();
    let chart = LineChart { description: title.into(), kind: Kind::Lines, x, y, series, reference: None };
    let drawing = line_chart(&chart);
    let folder = crate::root().join("docs/benchmarks/plots");
    std::fs::create_dir_all(&folder)?;
    let write = |extension: &str, bytes: &[u8]| {
        let path = folder.join(format!("{file}.{extension}"));
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())
    };
    write("svg", standalone(&drawing.svg()).as_bytes())?;
    write("png", &drawing.png().context(title.to_owned())?)
}
