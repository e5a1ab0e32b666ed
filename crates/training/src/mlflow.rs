//! The file store of MLflow: `RUN/metrics/NAME`, a value a line: time in milliseconds, value, step.

use std::path::{Component, Path};

use crate::Point;

/// The run and the metric of a file, if it is one of a run's metrics.
pub(crate) fn names(path: &Path) -> Option<(String, String)> {
    let parts: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    let folder = parts.iter().rposition(|part| *part == "metrics")?;
    let (run, metric) = (parts.get(folder.checked_sub(1)?)?, parts.get(folder + 1..)?);
    (!metric.is_empty()).then(|| ((*run).to_owned(), metric.join("/")))
}

/// The point of a line. `None` for a line of another form.
pub(crate) fn point(line: &str, run: &str, metric: &str) -> Option<Point> {
    let mut words = line.split_ascii_whitespace();
    let (_time, value, step) = (words.next()?, words.next()?, words.next()?);
    Some(Point::new(run, metric, step.parse().ok()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_time_value_and_step() {
        let names = names(Path::new("mlruns/0/8f2c/metrics/val/loss")).unwrap();
        assert_eq!(names, ("8f2c".into(), "val/loss".into()));
        assert_eq!(super::names(Path::new("metrics")), None);
        assert_eq!(super::names(Path::new("mlruns/0/8f2c/params/lr")), None);
        assert_eq!(
            point("1732700000000 0.25 40", "8f2c", "loss"),
            Some(Point::new("8f2c", "loss", 40, 0.25))
        );
        assert!(point("1732700000000 nan 40", "r", "loss").unwrap().value.is_nan());
        assert!(point("1732700000000 0.25", "r", "loss").is_none());
    }
}
