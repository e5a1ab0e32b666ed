//! `sluice man`: manual pages, and the page of the command line.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::output;

/// Writes `sluice.1` and a page for each command into a folder, which is made if it does not exist.
/// Without a folder it prints `docs/reference/cli.md` instead.
pub(crate) fn write(folder: Option<&Path>) -> anyhow::Result<ExitCode> {
    let Some(folder) = folder else {
        write!(output::Stdout, "{}", command_line_page())?;
        return Ok(ExitCode::SUCCESS);
    };
    let failed = || format!("cannot write manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// All commands with their options, in Markdown.
fn command_line_page() -> String {
    let options = clap_markdown::MarkdownOptions::new().title("Command line".into()).show_footer(false);
    let page = clap_markdown::help_markdown_custom::<Cli>(&options);
    // Help texts end their lines where a terminal's would.
    page.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_page_has_all_commands() {
        let page = include_str!("../../../docs/reference/cli.md");
        let is_current = page == super::command_line_page();
        assert!(is_current, "run `cargo run -q -p sluice -- man --markdown > docs/reference/cli.md`");
    }
}
