//! Reports for people: one HTML page that needs nothing else, and its charts as files.

mod fill;
mod page;
mod replay;

use std::io;
use std::path::Path;

use crate::plot;

pub use fill::{fill_figures, fill_page};
pub use replay::{replay_figures, replay_page};

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
    /// A chart of [`crate::plot`], for the inside of a page.
    pub svg: String,
}

/// Writes each chart as a file of its own into the folder, which is made if need be.
pub fn write_figures(figures: &[Figure], folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for figure in figures {
        std::fs::write(folder.join(format!("{}.svg", figure.name)), plot::standalone(&figure.svg))?;
    }
    Ok(())
}
