//! Bars from zero, one below the other, with the scatter of their values.

use super::Axis;
use super::drawing::{Anchor, Drawing, Look, Shape};

#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub name: String,
    /// One of the [`super::COLOURS`]; counted on from there.
    pub colour: usize,
    pub value: f64,
    /// Standard deviation of what `value` is the mean of; 0 draws none.
    pub deviation: f64,
    /// Written behind the bar.
    pub note: String,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 190.0;
const ROW: f64 = 34.0;
const BOTTOM: f64 = 46.0;

pub fn bar_chart(description: &str, axis: &Axis, bars: &[Bar]) -> Drawing {
    let bottom = ROW * bars.len() as f64 + 8.0;
    let across = WIDTH - RIGHT - LEFT;
    let mut drawing = Drawing::new(WIDTH, bottom + BOTTOM, description);
    for (along, text) in axis.ticks() {
        let x = LEFT + along * across;
        drawing.line(Look::Grid, (x, 4.0), (x, bottom));
        drawing.text((x, bottom + 16.0), Anchor::Middle, text);
    }
    drawing.text((LEFT + across / 2.0, bottom + BOTTOM - 8.0), Anchor::Middle, &axis.label);
    for (index, bar) in bars.iter().enumerate() {
        draw_bar(&mut drawing, axis, bar, 8.0 + ROW * index as f64, across);
    }
    drawing.line(Look::Axis, (LEFT, 4.0), (LEFT, bottom));
    drawing
}

fn draw_bar(drawing: &mut Drawing, axis: &Axis, bar: &Bar, top: f64, across: f64) {
    let place = |value: f64| LEFT + axis.place(value) * across;
    let (middle, end) = (top + 11.0, place(bar.value));
    drawing.strong_text((LEFT - 10.0, middle + 4.0), Anchor::End, &bar.name);
    drawing.shapes.push(Shape::Rectangle {
        colour: bar.colour,
        x: LEFT,
        y: top,
        width: (end - LEFT).max(0.0),
        height: 22.0,
        radius: 3.0,
    });
    if bar.deviation > 0.0 {
        let (low, high) = (place(bar.value - bar.deviation), place(bar.value + bar.deviation));
        let end = |x| vec![(x, middle - 5.0), (x, middle + 5.0)];
        let lines = vec![vec![(low, middle), (high, middle)], end(low), end(high)];
        drawing.shapes.push(Shape::Lines { look: Look::Whisker, lines, name: None });
    }
    let behind = place(bar.value + bar.deviation) + 8.0;
    drawing.text((behind, middle + 4.0), Anchor::Start, &bar.note);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar =
            |value, deviation| Bar { name: "fgd".into(), colour: 1, value, deviation, note: "x".into() };
        let axis = Axis::linear("", 0.0, 100.0, " %");
        let svg = bar_chart("d", &axis, &[bar(100.0, 0.0), bar(50.0, 1.0)]).svg();
        let across = WIDTH - LEFT - RIGHT;
        assert!(svg.contains(&format!("width=\"{across:.1}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.1}\"", across / 2.0)), "{svg}");
        assert_eq!(svg.matches("whisker").count(), 1);
    }
}
