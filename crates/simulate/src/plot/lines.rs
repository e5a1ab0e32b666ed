//! Lines, steps and stacked areas over a common axis.

use std::fmt::Write;

use super::{Axis, COLOURS, escape, open};

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    /// One of the [`COLOURS`]; counted on from there.
    pub colour: usize,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
    /// How far the values scatter to either side of each point; empty for none.
    pub spread: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lines,
    /// Each series stands on the one before it.
    Stacked,
}

#[derive(Clone, Debug)]
pub struct LineChart {
    /// What it shows, for those who do not see it.
    pub description: String,
    pub kind: Kind,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// A dotted line to compare with, and its name.
    pub reference: Option<(String, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 118.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 46.0;
/// Names beside line ends keep this distance.
const NAME_STEP: f64 = 15.0;

pub fn line_chart(chart: &LineChart) -> String {
    let mut svg = open(WIDTH, HEIGHT, &chart.description);
    draw_axes(&mut svg, chart);
    if let Some((name, points)) = &chart.reference {
        let _ = write!(
            svg,
            "<path class=\"reference\" d=\"{}\"><title>{}</title></path>",
            path(chart, points),
            escape(name)
        );
    }
    let drawn = match chart.kind {
        Kind::Lines => chart.series.clone(),
        Kind::Stacked => stacked(&chart.series),
    };
    for (index, series) in drawn.iter().enumerate() {
        let colour = series.colour % COLOURS;
        let name = escape(&series.name);
        if chart.kind == Kind::Stacked {
            let below = if index == 0 {
                series.points.iter().map(|(x, _)| (*x, 0.0)).collect()
            } else {
                drawn[index - 1].points.clone()
            };
            let area = closed(chart, &series.points, &below);
            let _ = write!(svg, "<path class=\"area f{colour}\" d=\"{area}\"><title>{name}</title></path>");
            continue;
        }
        if series.spread.len() == series.points.len() {
            let shifted = |sign: f64| -> Vec<(f64, f64)> {
                series
                    .points
                    .iter()
                    .zip(&series.spread)
                    .map(|((x, y), spread)| (*x, y + sign * spread))
                    .collect()
            };
            let band = closed(chart, &shifted(1.0), &shifted(-1.0));
            let _ = write!(svg, "<path class=\"band f{colour}\" d=\"{band}\"/>");
        }
        let line = path(chart, &series.points);
        let _ = write!(svg, "<path class=\"line l{colour}\" d=\"{line}\"><title>{name}</title></path>");
    }
    draw_names(&mut svg, chart, &drawn);
    svg.push_str("</svg>");
    svg
}

fn draw_axes(svg: &mut String, chart: &LineChart) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (along, text) in chart.y.ticks() {
        let y = bottom - along * (bottom - TOP);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            escape(text)
        );
    }
    for (along, text) in chart.x.ticks() {
        let x = LEFT + along * (right - LEFT);
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 4.0,
            bottom + 18.0,
            escape(text)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"4\" y=\"13\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        escape(&chart.x.label),
        escape(&chart.y.label)
    );
}

/// Names stand where their lines end, moved apart where these meet.
fn draw_names(svg: &mut String, chart: &LineChart, drawn: &[Series]) {
    let mut ends: Vec<(f64, &Series)> = Vec::new();
    for (index, series) in drawn.iter().enumerate() {
        let Some((_, last)) = series.points.last() else { continue };
        let below =
            if chart.kind == Kind::Stacked && index > 0 { drawn[index - 1].points.last() } else { None };
        let middle = match (chart.kind, below) {
            (Kind::Lines, _) => *last,
            (Kind::Stacked, below) => (last + below.map_or(0.0, |(_, y)| *y)) / 2.0,
        };
        ends.push((place_y(chart, middle), series));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    for index in 1..ends.len() {
        ends[index].0 = ends[index].0.max(ends[index - 1].0 + NAME_STEP);
    }
    let overflow = ends.last().map_or(0.0, |(y, _)| y - (HEIGHT - BOTTOM)).max(0.0);
    for (y, series) in &mut ends {
        *y -= overflow;
        let (x, colour) = (WIDTH - RIGHT + 10.0, series.colour % COLOURS);
        let name: String = series.name.chars().take(NAME_CHARS).collect();
        let _ = write!(
            svg,
            "<rect class=\"f{colour}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" rx=\"2\"/>\
             <text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            *y - 4.5,
            x + 14.0,
            *y + 4.0,
            escape(&name)
        );
    }
}

/// What fits beside a chart.
const NAME_CHARS: usize = 14;

/// The running sums of the series; all have the same x.
fn stacked(series: &[Series]) -> Vec<Series> {
    let mut stacked: Vec<Series> = series.to_vec();
    for index in 1..stacked.len() {
        let (before, after) = stacked.split_at_mut(index);
        for (point, below) in after[0].points.iter_mut().zip(&before[index - 1].points) {
            point.1 += below.1;
        }
    }
    stacked
}

fn place_y(chart: &LineChart, value: f64) -> f64 {
    let bottom = HEIGHT - BOTTOM;
    bottom - chart.y.place(value) * (bottom - TOP)
}

/// The visible part of a line.
fn path(chart: &LineChart, points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (x, y) in points.iter().filter(|(x, _)| chart.x.shows(*x)) {
        let along = LEFT + chart.x.place(*x) * (WIDTH - RIGHT - LEFT);
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{along:.1} {:.1}", place_y(chart, *y));
    }
    path
}

fn closed(chart: &LineChart, above: &[(f64, f64)], below: &[(f64, f64)]) -> String {
    let back: Vec<(f64, f64)> = below.iter().rev().copied().collect();
    let (there, back) = (path(chart, above), path(chart, &back));
    if there.is_empty() { there } else { format!("{there}{}Z", back.replacen('M', "L", 1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(kind: Kind) -> LineChart {
        let series = |name: &str, colour, level: f64| Series {
            name: name.into(),
            colour,
            points: vec![(0.0, level), (50.0, level), (100.0, level)],
            spread: Vec::new(),
        };
        LineChart {
            description: "two".into(),
            kind,
            x: Axis::linear("x", 0.0, 100.0, ""),
            y: Axis::linear("y", 0.0, 100.0, " %"),
            series: vec![series("a & b", 0, 40.0), series("c", 9, 40.0)],
            reference: None,
        }
    }

    /// The y of the names, by what is written there.
    fn name_heights(svg: &str) -> Vec<f64> {
        let names = svg.split("<text class=\"strong\"").skip(1);
        names
            .map(|name| name.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn names_of_meeting_lines_stay_apart() {
        let svg = line_chart(&chart(Kind::Lines));
        let heights = name_heights(&svg);
        assert_eq!(heights.len(), 2);
        assert!((heights[1] - heights[0] - NAME_STEP).abs() < 0.2, "{heights:?}");
        assert!(svg.contains("a &amp; b") && svg.contains("l1\""), "{svg}");
    }

    #[test]
    fn stacked_series_add_up() {
        let sums = stacked(&chart(Kind::Stacked).series);
        assert_eq!(sums[1].points, [(0.0, 80.0), (50.0, 80.0), (100.0, 80.0)]);
        assert_eq!(line_chart(&chart(Kind::Stacked)).matches("class=\"area").count(), 2);
    }

    #[test]
    fn an_empty_chart_is_still_a_chart() {
        let mut chart = chart(Kind::Lines);
        chart.series.clear();
        assert!(line_chart(&chart).ends_with("</svg>"));
    }
}
