//! JSON lines: one object a line, its numbers are metrics.
//!
//! `step`, `_step` or `global_step` is the step; without one, lines are counted. `run` names the
//! run. Names that begin with `_` are a logger's own and are left out. `NaN`, `Infinity` and
//! `-Infinity` are read, which Python writes though JSON has no such words.

use serde_json::{Map, Value};

use crate::Point;

const STEPS: [&str; 3] = ["step", "_step", "global_step"];

/// The points of one line. `None` for a line that is not an object. `count` is the number of lines
/// before it.
pub(crate) fn points(line: &str, run: &str, count: u64) -> Option<Vec<Point>> {
    let object = parse(line)?;
    let step = STEPS.iter().find_map(|name| object.get(*name)?.as_u64()).unwrap_or(count);
    let run = object.get("run").and_then(Value::as_str).unwrap_or(run);
    let metrics = object.iter().filter(|(name, _)| !name.starts_with('_') && !STEPS.contains(&name.as_str()));
    Some(metrics.filter_map(|(name, value)| Some(Point::new(run, name, step, number(value)?))).collect())
}

fn parse(line: &str) -> Option<Map<String, Value>> {
    let value = serde_json::from_str(line).or_else(|_| serde_json::from_str(&quoted(line)));
    match value {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(word) => match word.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// The line with quotes around the words that are no JSON.
fn quoted(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    let (mut rest, mut in_string) = (line, false);
    while let Some(next) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| rest.starts_with(word));
        if let Some(word) = word.filter(|_| !in_string) {
            out.extend(["\"", word, "\""]);
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = in_string && next == '\\';
        let taken: String = rest.chars().take(if escaped { 2 } else { 1 }).collect();
        in_string ^= next == '"';
        rest = &rest[taken.len()..];
        out.push_str(&taken);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_an_object_are_metrics() {
        let line = r#"{"step": 7, "loss": 0.5, "_runtime": 3, "note": "x", "lr": 1e-3, "ok": true}"#;
        let expected = [Point::new("r", "loss", 7, 0.5), Point::new("r", "lr", 7, 0.001)];
        assert_eq!(points(line, "r", 0).unwrap(), expected);
        assert_eq!(points(r#"{"loss": 1, "run": "b"}"#, "r", 4).unwrap(), [Point::new("b", "loss", 4, 1.0)]);
        for wrong in ["", "7", "[1]", "{", "{\"a\": NaNN}"] {
            assert!(points(wrong, "r", 0).is_none(), "{wrong}");
        }
    }

    #[test]
    fn words_that_python_writes_are_read() {
        let line = r#"{"a": NaN, "b": -Infinity, "c": Infinity, "d": "a \" NaN", "e": 1}"#;
        let points = points(line, "r", 0).unwrap();
        let value = |name: &str| points.iter().find(|point| point.metric == name).unwrap().value;
        assert!(value("a").is_nan() && value("b") == f64::NEG_INFINITY && value("c") == f64::INFINITY);
        assert_eq!((value("e"), points.len()), (1.0, 4), "text is no number");
    }
}
