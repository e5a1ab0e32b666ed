//! Charts: few kinds, each a [`Drawing`] that becomes SVG, inside an HTML page or as a document of
//! its own, or PNG.
//!
//! Colours come from classes, so that one drawing reads in light and in dark surroundings.

mod axis;
mod bars;
mod drawing;
mod lines;
mod png;

pub use axis::Axis;
pub use axis::number;
pub use bars::{Bar, bar_chart};
pub use drawing::Drawing;
pub use lines::{Kind, LineChart, Series, line_chart};
pub use png::PngError;

/// Class rules of all charts: light, and dark where the reader's system asks for it.
///
/// The series' colours in this order are distinct for readers who cannot see all colours; each line
/// carries its name as well.
pub const STYLE: &str = "\
.plot{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
.plot text{fill:#5b6069}.plot .strong{fill:#16181d;font-weight:600}
.plot .grid{stroke:#e4e6ea;stroke-width:1}.plot .axis{stroke:#9aa0a8;stroke-width:1}
.plot .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.plot .whisker{stroke:#16181d;stroke-width:1.5}
.plot .reference{stroke:#9aa0a8;stroke-width:1.5;stroke-dasharray:2 5;fill:none}
.l0{stroke:#2a78d6}.l1{stroke:#eb6834}.l2{stroke:#1baf7a}.l3{stroke:#eda100}.l4{stroke:#4a3aa7}.l5{stroke:#e87ba4}.l6{stroke:#008300}.l7{stroke:#9a5b2e}
.f0{fill:#2a78d6}.f1{fill:#eb6834}.f2{fill:#1baf7a}.f3{fill:#eda100}.f4{fill:#4a3aa7}.f5{fill:#e87ba4}.f6{fill:#008300}.f7{fill:#9a5b2e}
@media(prefers-color-scheme:dark){
.plot text{fill:#a6adb8}.plot .strong{fill:#f2f4f7}
.plot .grid{stroke:#2b2f37}.plot .axis{stroke:#6b727d}.plot .whisker{stroke:#f2f4f7}.plot .reference{stroke:#6b727d}
.l0{stroke:#4c93ee}.l1{stroke:#ef7d4d}.l2{stroke:#2cc08b}.l3{stroke:#d9a01f}.l4{stroke:#9085e9}.l5{stroke:#e078a4}.l6{stroke:#4fae4f}.l7{stroke:#c08457}
.f0{fill:#4c93ee}.f1{fill:#ef7d4d}.f2{fill:#2cc08b}.f3{fill:#d9a01f}.f4{fill:#9085e9}.f5{fill:#e078a4}.f6{fill:#4fae4f}.f7{fill:#c08457}
}";

/// Colours before they repeat.
pub const COLOURS: usize = 8;

/// The series' colours in light surroundings, as [`STYLE`] has them.
const LIGHT: [u32; COLOURS] =
    [0x2a78d6, 0xeb6834, 0x1baf7a, 0xeda100, 0x4a3aa7, 0xe87ba4, 0x008300, 0x9a5b2e];

/// A chart for a file of its own: with the rules and a ground.
pub fn standalone(svg: &str) -> String {
    let ground = "@media(prefers-color-scheme:dark){.ground{fill:#1b1e24}}";
    let style = format!(
        "<style>.ground{{fill:#fff}}{STYLE}{ground}</style><rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    match svg.find('>') {
        Some(end) => format!("{}{style}{}\n", &svg[..=end], &svg[end + 1..]),
        None => String::new(),
    }
}

/// Text for the inside of an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not allowed in XML at all.
            character if character.is_control() && !matches!(character, '\n' | '\t') => {
                escaped.push('\u{fffd}')
            }
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_element() {
        assert_eq!(escape("<b a=\"x\">&\u{0}"), "&lt;b a=&quot;x&quot;&gt;&amp;\u{fffd}");
    }

    #[test]
    fn a_standalone_chart_brings_its_colours() {
        let svg = standalone(&Drawing::new(10.0, 10.0, "a \"chart\"").svg());
        assert!(
            svg.starts_with("<svg ") && svg.contains("<style>") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        assert!(svg.contains("aria-label=\"a &quot;chart&quot;\""), "{svg}");
    }
}
