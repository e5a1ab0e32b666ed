//! Drawings as PNG files, with letters that come with the program: no font is looked for on the
//! machine.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, PathBuilder, Pixmap, PremultipliedColorU8, Rect, Stroke,
    StrokeDash, Transform,
};

use super::drawing::{Anchor, Drawing, Look, Points, Shape};
use super::{COLOURS, LIGHT};

/// Pixels for each unit of a drawing.
const SCALE: f32 = 2.0;
/// Letters of 12 units.
const LETTERS: RasterHeight = RasterHeight::Size24;
/// Their base line, in pixels from the top of a letter.
const BASE_LINE: i32 = 20;

const GROUND: u32 = 0xff_ff_ff;
const TEXT: u32 = 0x5b_60_69;
const STRONG: u32 = 0x16_18_1d;

/// A chart that could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    #[error("a chart of {width} x {height} is of no size that can be drawn")]
    Size { width: f64, height: f64 },
    #[error("the PNG file cannot be made: {0}")]
    Encoding(String),
}

impl Drawing {
    /// The file, in the colours of light surroundings.
    pub fn png(&self) -> Result<Vec<u8>, PngError> {
        let [width, height] = [self.width, self.height].map(|length| (length as f32 * SCALE).ceil() as u32);
        let no_size = PngError::Size { width: self.width, height: self.height };
        let mut pixels = Pixmap::new(width, height).ok_or(no_size)?;
        pixels.fill(colour(GROUND, 1.0));
        for shape in &self.shapes {
            draw(&mut pixels, shape);
        }
        pixels.encode_png().map_err(|error| PngError::Encoding(error.to_string()))
    }
}

fn draw(pixels: &mut Pixmap, shape: &Shape) {
    match shape {
        Shape::Lines { look, lines, .. } => lines.iter().for_each(|line| draw_line(pixels, *look, line)),
        Shape::Area { colour, opacity, outline, .. } => {
            let mut path = path_through(outline);
            path.close();
            if let Some(path) = path.finish() {
                let paint = paint(LIGHT[colour % COLOURS], *opacity as f32);
                pixels.fill_path(&path, &paint, FillRule::Winding, scaled(), None);
            }
        }
        Shape::Rectangle { colour, x, y, width, height, .. } => {
            let rectangle = Rect::from_xywh(*x as f32, *y as f32, *width as f32, *height as f32);
            if let Some(rectangle) = rectangle {
                pixels.fill_rect(rectangle, &paint(LIGHT[colour % COLOURS], 1.0), scaled(), None);
            }
        }
        Shape::Text { x, y, anchor, strong, text } => {
            draw_text(pixels, (*x, *y), *anchor, if *strong { STRONG } else { TEXT }, text);
        }
    }
}

fn draw_line(pixels: &mut Pixmap, look: Look, points: &Points) {
    let Some(path) = path_through(points).finish() else { return };
    let (colour, width) = match look {
        Look::Grid => (0xe4_e6_ea, 1.0),
        Look::Axis => (0x9a_a0_a8, 1.0),
        Look::Reference => (0x9a_a0_a8, 1.5),
        Look::Whisker => (STRONG, 1.5),
        Look::Series(colour) => (LIGHT[colour % COLOURS], 2.0),
    };
    let dash = if look == Look::Reference { StrokeDash::new(vec![2.0, 5.0], 0.0) } else { None };
    let (line_cap, line_join) = match look {
        Look::Series(_) => (LineCap::Round, LineJoin::Round),
        _ => (LineCap::Butt, LineJoin::Miter),
    };
    let stroke = Stroke { width, dash, line_cap, line_join, ..Stroke::default() };
    pixels.stroke_path(&path, &paint(colour, 1.0), &stroke, scaled(), None);
}

fn path_through(points: &Points) -> PathBuilder {
    let mut path = PathBuilder::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        if index == 0 {
            path.move_to(x as f32, y as f32);
        } else {
            path.line_to(x as f32, y as f32);
        }
    }
    path
}

fn draw_text(pixels: &mut Pixmap, (x, y): (f64, f64), anchor: Anchor, rgb: u32, text: &str) {
    let step = get_raster_width(FontWeight::Regular, LETTERS) as i32;
    let length = step * text.chars().count() as i32;
    let left = match anchor {
        Anchor::Start => 0,
        Anchor::Middle => length / 2,
        Anchor::End => length,
    };
    let mut left = (x as f32 * SCALE).round() as i32 - left;
    let top = (y as f32 * SCALE).round() as i32 - BASE_LINE;
    for character in text.chars() {
        let raster = |character| get_raster(character, FontWeight::Regular, LETTERS);
        let letter = raster(character).or_else(|| raster('\u{fffd}')).or_else(|| raster('?'));
        for (row, line) in (0..).zip(letter.iter().flat_map(|letter| letter.rows())) {
            for (column, &coverage) in (0..).zip(line.iter()) {
                blend(pixels, left + column, top + row, rgb, coverage);
            }
        }
        left += step;
    }
}

/// Lays a colour over a pixel of the opaque ground, where there is one.
fn blend(pixels: &mut Pixmap, x: i32, y: i32, rgb: u32, coverage: u8) {
    let (Ok(x), Ok(y), width) = (u32::try_from(x), u32::try_from(y), pixels.width()) else { return };
    if x >= width || y >= pixels.height() {
        return;
    }
    let pixel = &mut pixels.pixels_mut()[(y * width + x) as usize];
    let mix = |below: u8, over: u8| {
        let (below, over, coverage) = (u32::from(below), u32::from(over), u32::from(coverage));
        ((below * (255 - coverage) + over * coverage) / 255) as u8
    };
    let [_, red, green, blue] = rgb.to_be_bytes();
    let mixed = PremultipliedColorU8::from_rgba(
        mix(pixel.red(), red),
        mix(pixel.green(), green),
        mix(pixel.blue(), blue),
        255,
    );
    *pixel = mixed.unwrap_or(*pixel);
}

fn paint(rgb: u32, opacity: f32) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color(colour(rgb, opacity));
    paint
}

fn colour(rgb: u32, opacity: f32) -> Color {
    let [_, red, green, blue] = rgb.to_be_bytes();
    Color::from_rgba8(red, green, blue, (opacity * 255.0).round() as u8)
}

fn scaled() -> Transform {
    Transform::from_scale(SCALE, SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::STYLE;

    fn pixel(drawing: &Drawing, x: u32, y: u32) -> [u8; 3] {
        let pixels = Pixmap::decode_png(&drawing.png().unwrap()).unwrap();
        let pixel = pixels.pixel(x, y).unwrap();
        [pixel.red(), pixel.green(), pixel.blue()]
    }

    #[test]
    fn colours_are_those_of_the_svg_in_light_surroundings() {
        for (index, rgb) in LIGHT.into_iter().enumerate() {
            assert!(STYLE.contains(&format!(".l{index}{{stroke:#{rgb:06x}}}")), "{index}");
            assert!(STYLE.contains(&format!(".f{index}{{fill:#{rgb:06x}}}")), "{index}");
        }
    }

    #[test]
    fn shapes_and_letters_are_where_they_belong() {
        let mut drawing = Drawing::new(100.0, 40.0, "d");
        drawing.shapes.push(Shape::Rectangle {
            colour: 0,
            x: 10.0,
            y: 10.0,
            width: 20.0,
            height: 10.0,
            radius: 3.0,
        });
        drawing.strong_text((60.0, 30.0), Anchor::Start, "\u{2588}H");
        assert_eq!(pixel(&drawing, 40, 30), [0x2a, 0x78, 0xd6]);
        assert_eq!(pixel(&drawing, 4, 4), [255; 3]);
        let pixels = Pixmap::decode_png(&drawing.png().unwrap()).unwrap();
        let dark = |x: std::ops::Range<u32>| {
            x.flat_map(|x| (30..62).map(move |y| (x, y)))
                .filter(|&(x, y)| pixels.pixel(x, y).unwrap().red() < 0x40)
                .count()
        };
        assert!(
            dark(120..146) > 40,
            "two letters, the first of which stands for one that the letters do not have"
        );
        assert_eq!(dark(150..200), 0);
    }

    #[test]
    fn text_beyond_the_edge_is_cut_off() {
        let mut drawing = Drawing::new(10.0, 10.0, "d");
        drawing.text((-5.0, 3.0), Anchor::End, "left of it all");
        drawing.text((9.0, 300.0), Anchor::Middle, "below");
        assert!(drawing.png().unwrap().starts_with(b"\x89PNG"));
        assert!(Drawing::new(0.0, 10.0, "d").png().is_err());
    }
}
