//! Bars from zero, one below the other, with the scatter of their values.

use std::fmt::Write;

use super::{Axis, COLOURS, escape, open};

#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub name: String,
    /// One of the colours; counted on from there.
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

pub fn bar_chart(description: &str, axis: &Axis, bars: &[Bar]) -> String {
    let bottom = ROW * bars.len() as f64 + 8.0;
    let across = WIDTH - RIGHT - LEFT;
    let mut svg = open(WIDTH, bottom + BOTTOM, description);
    for (along, text) in axis.ticks() {
        let x = LEFT + along * across;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            escape(text)
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        LEFT + across / 2.0,
        bottom + BOTTOM - 8.0,
        escape(&axis.label)
    );
    for (index, bar) in bars.iter().enumerate() {
        draw_bar(&mut svg, axis, bar, 8.0 + ROW * index as f64, across);
    }
    let _ = write!(svg, "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"4\" y2=\"{bottom}\"/></svg>");
    svg
}

fn draw_bar(svg: &mut String, axis: &Axis, bar: &Bar, top: f64, across: f64) {
    let place = |value: f64| LEFT + axis.place(value) * across;
    let (middle, end) = (top + 11.0, place(bar.value));
    let _ = write!(
        svg,
        "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <rect class=\"f{}\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"22\" rx=\"3\"/>",
        LEFT - 10.0,
        middle + 4.0,
        escape(&bar.name),
        bar.colour % COLOURS,
        (end - LEFT).max(0.0)
    );
    if bar.deviation > 0.0 {
        let (low, high) = (place(bar.value - bar.deviation), place(bar.value + bar.deviation));
        let _ = write!(
            svg,
            "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v10M{high:.1} {:.1}v10\"/>",
            middle - 5.0,
            middle - 5.0
        );
    }
    let behind = place(bar.value + bar.deviation) + 8.0;
    let _ = write!(svg, "<text x=\"{behind:.1}\" y=\"{:.1}\">{}</text>", middle + 4.0, escape(&bar.note));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar =
            |value, deviation| Bar { name: "fgd".into(), colour: 1, value, deviation, note: "x".into() };
        let svg = bar_chart("d", &Axis::linear("", 0.0, 100.0, " %"), &[bar(100.0, 0.0), bar(50.0, 1.0)]);
        let across = WIDTH - LEFT - RIGHT;
        assert!(svg.contains(&format!("width=\"{across:.1}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.1}\"", across / 2.0)), "{svg}");
        assert_eq!(svg.matches("whisker").count(), 1);
    }
}
