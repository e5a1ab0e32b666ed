//! What charts are made of. One drawing becomes SVG or PNG.

use std::fmt::Write;

use super::{COLOURS, escape};

/// A chart, in the units of its own width and height.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    pub(super) width: f64,
    pub(super) height: f64,
    /// For those who do not see it.
    pub(super) description: String,
    pub(super) shapes: Vec<Shape>,
}

pub(super) type Points = Vec<(f64, f64)>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Lines through points; the name shows where an SVG is pointed at.
    Lines {
        look: Look,
        lines: Vec<Points>,
        name: Option<String>,
    },
    /// The surface inside of a line through points.
    Area {
        colour: usize,
        opacity: f64,
        outline: Points,
        name: Option<String>,
    },
    Rectangle {
        colour: usize,
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        radius: f64,
    },
    /// On a base line.
    Text {
        x: f64,
        y: f64,
        anchor: Anchor,
        strong: bool,
        text: String,
    },
}

/// How a line looks; series have one of the [`COLOURS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Grid,
    Axis,
    Reference,
    Whisker,
    Series(usize),
}

/// The point of a text that stands where it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64, description: &str) -> Drawing {
        Drawing { width, height, description: description.into(), shapes: Vec::new() }
    }

    pub(super) fn line(&mut self, look: Look, from: (f64, f64), to: (f64, f64)) {
        self.shapes.push(Shape::Lines { look, lines: vec![vec![from, to]], name: None });
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.push_text(at, anchor, false, text);
    }

    pub(super) fn strong_text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.push_text(at, anchor, true, text);
    }

    fn push_text(&mut self, (x, y): (f64, f64), anchor: Anchor, strong: bool, text: &str) {
        self.shapes.push(Shape::Text { x, y, anchor, strong, text: text.into() });
    }

    /// For the inside of a page that has the rules of [`super::STYLE`]: as wide as its
    /// surroundings.
    pub fn svg(&self) -> String {
        let Drawing { width, height, description, shapes } = self;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" viewBox=\"0 0 {width} {height}\" \
             aria-label=\"{0}\"><title>{0}</title>",
            escape(description)
        );
        shapes.iter().for_each(|shape| shape.write_svg(&mut svg));
        svg.push_str("</svg>");
        svg
    }
}

impl Shape {
    fn write_svg(&self, svg: &mut String) {
        let title = |name: &Option<String>| {
            name.as_ref().map_or(String::new(), |name| format!("<title>{}</title>", escape(name)))
        };
        let path = |points: &Points| {
            let steps = points.iter().enumerate();
            steps.fold(String::new(), |mut path, (index, (x, y))| {
                let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
                path
            })
        };
        let _ = match self {
            Shape::Lines { look, lines, name } => {
                let paths: String = lines.iter().map(path).collect();
                write!(svg, "<path class=\"{}\" d=\"{paths}\">{}</path>", look.class(), title(name))
            }
            Shape::Area { colour, opacity, outline, name } => write!(
                svg,
                "<path class=\"f{}\" opacity=\"{opacity}\" d=\"{}Z\">{}</path>",
                colour % COLOURS,
                path(outline),
                title(name)
            ),
            Shape::Rectangle { colour, x, y, width, height, radius } => write!(
                svg,
                "<rect class=\"f{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"{radius}\"/>",
                colour % COLOURS
            ),
            Shape::Text { x, y, anchor, strong, text } => {
                let class = if *strong { " class=\"strong\"" } else { "" };
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                write!(
                    svg,
                    "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
                    escape(text)
                )
            }
        };
    }
}

impl Look {
    fn class(self) -> String {
        match self {
            Look::Grid => "grid".into(),
            Look::Axis => "axis".into(),
            Look::Reference => "reference".into(),
            Look::Whisker => "whisker".into(),
            Look::Series(colour) => format!("line l{}", colour % COLOURS),
        }
    }
}
