//! Reports for people: one HTML page that needs nothing else, and its charts as files.

mod fill;
mod page;
mod replay;
mod value;

use std::io;
use std::path::Path;

use crate::plot::{self, Drawing};

pub use fill::{fill_figures, fill_page};
pub use replay::{replay_figures, replay_page};
pub use value::value_page;

/// What was simulated, as the page calls it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file names of the lists.
    pub nodes: String,
    pub jobs: String,
    /// The command that repeats the report.
    pub command: String,
}

/// One chart of a report.
#[derive(Clone, Debug)]
pub struct Figure {
    /// For a file: lower case, no blanks.
    pub name: String,
    pub title: String,
    /// What to see in it.
    pub caption: String,
    pub drawing: Drawing,
}

/// The kind of a chart's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureFormat {
    /// Sharp at any size, with the reader's own colours and letters.
    Svg,
    /// For where SVG is not shown.
    Png,
}

/// Writes each chart as a file of its own into the folder, which is made if need be.
pub fn write_figures(figures: &[Figure], format: FigureFormat, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for Figure { name, drawing, .. } in figures {
        let (ending, bytes) = match format {
            FigureFormat::Svg => ("svg", plot::standalone(&drawing.svg()).into_bytes()),
            FigureFormat::Png => ("png", drawing.png().map_err(io::Error::other)?),
        };
        std::fs::write(folder.join(format!("{name}.{ending}")), bytes)?;
    }
    Ok(())
}
