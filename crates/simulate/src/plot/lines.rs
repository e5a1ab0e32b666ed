//! Lines, steps and stacked areas over a common axis.

use super::Axis;
use super::drawing::{Anchor, Drawing, Look, Points, Shape};

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    /// One of the [`super::COLOURS`]; counted on from there.
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

pub fn line_chart(chart: &LineChart) -> Drawing {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &chart.description);
    draw_axes(&mut drawing, chart);
    if let Some((name, points)) = &chart.reference {
        draw_line(&mut drawing, Look::Reference, name, visible(chart, points));
    }
    let drawn = match chart.kind {
        Kind::Lines => chart.series.clone(),
        Kind::Stacked => stacked(&chart.series),
    };
    for (index, series) in drawn.iter().enumerate() {
        match chart.kind {
            Kind::Stacked => {
                let below = match index.checked_sub(1) {
                    None => series.points.iter().map(|(x, _)| (*x, 0.0)).collect(),
                    Some(before) => drawn[before].points.clone(),
                };
                draw_area(&mut drawing, chart, series, 0.85, [&series.points, &below]);
            }
            Kind::Lines => {
                if series.spread.len() == series.points.len() {
                    let [above, below] = [1.0, -1.0].map(|sign| shifted(series, sign));
                    draw_area(&mut drawing, chart, series, 0.14, [&above, &below]);
                }
                let line = visible(chart, &series.points);
                draw_line(&mut drawing, Look::Series(series.colour), &series.name, line);
            }
        }
    }
    draw_names(&mut drawing, chart, &drawn);
    drawing
}

fn draw_line(drawing: &mut Drawing, look: Look, name: &str, line: Points) {
    drawing.shapes.push(Shape::Lines { look, lines: vec![line], name: Some(name.into()) });
}

/// The surface between two lines.
fn draw_area(
    drawing: &mut Drawing,
    chart: &LineChart,
    series: &Series,
    opacity: f64,
    [above, below]: [&Points; 2],
) {
    let mut outline = visible(chart, above);
    outline.extend(visible(chart, below).into_iter().rev());
    let name = (chart.kind == Kind::Stacked).then(|| series.name.clone());
    drawing.shapes.push(Shape::Area { colour: series.colour, opacity, outline, name });
}

/// The line at the end of the scatter.
fn shifted(series: &Series, sign: f64) -> Points {
    let points = series.points.iter().zip(&series.spread);
    points.map(|((x, y), spread)| (*x, y + sign * spread)).collect()
}

fn draw_axes(drawing: &mut Drawing, chart: &LineChart) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (along, text) in chart.y.ticks() {
        let y = bottom - along * (bottom - TOP);
        drawing.line(Look::Grid, (LEFT, y), (right, y));
        drawing.text((LEFT - 8.0, y + 4.0), Anchor::End, text);
    }
    for (along, text) in chart.x.ticks() {
        let x = LEFT + along * (right - LEFT);
        drawing.line(Look::Axis, (x, bottom), (x, bottom + 4.0));
        drawing.text((x, bottom + 18.0), Anchor::Middle, text);
    }
    drawing.line(Look::Axis, (LEFT, bottom), (right, bottom));
    drawing.text(((LEFT + right) / 2.0, HEIGHT - 8.0), Anchor::Middle, &chart.x.label);
    drawing.text((4.0, 13.0), Anchor::Start, &chart.y.label);
}

/// Names stand where their lines end, moved apart where these meet.
fn draw_names(drawing: &mut Drawing, chart: &LineChart, drawn: &[Series]) {
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
        let x = WIDTH - RIGHT + 10.0;
        let name: String = series.name.chars().take(NAME_CHARS).collect();
        drawing.shapes.push(Shape::Rectangle {
            colour: series.colour,
            x,
            y: *y - 4.5,
            width: 9.0,
            height: 9.0,
            radius: 2.0,
        });
        drawing.strong_text((x + 14.0, *y + 4.0), Anchor::Start, &name);
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

/// The part of a line that the axes show, in the units of the drawing.
fn visible(chart: &LineChart, points: &Points) -> Points {
    let shown = points.iter().filter(|(x, _)| chart.x.shows(*x));
    shown.map(|(x, y)| (LEFT + chart.x.place(*x) * (WIDTH - RIGHT - LEFT), place_y(chart, *y))).collect()
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
        let svg = line_chart(&chart(Kind::Lines)).svg();
        let heights = name_heights(&svg);
        assert_eq!(heights.len(), 2);
        assert!((heights[1] - heights[0] - NAME_STEP).abs() < 0.2, "{heights:?}");
        assert!(svg.contains("a &amp; b") && svg.contains("l1\""), "{svg}");
    }

    #[test]
    fn stacked_series_add_up() {
        let sums = stacked(&chart(Kind::Stacked).series);
        assert_eq!(sums[1].points, [(0.0, 80.0), (50.0, 80.0), (100.0, 80.0)]);
        assert_eq!(line_chart(&chart(Kind::Stacked)).svg().matches("opacity=\"0.85\"").count(), 2);
    }

    #[test]
    fn an_empty_chart_is_still_a_chart() {
        let mut chart = chart(Kind::Lines);
        chart.series.clear();
        assert!(line_chart(&chart).svg().ends_with("</svg>"));
    }
}
