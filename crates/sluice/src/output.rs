//! Standard output and standard error of the command. The reader of either may go away at any time.
//!
//! The macros of this module shadow those of the standard library, which panic then. A command
//! whose reader has gone ends quietly, as `sluice bill -o json | head` should;
//! messages without a reader are dropped, so that a program under a lease, a node or a server does
//! not end with the terminal that started it.

use std::fmt;
use std::io::{self, Write};

macro_rules! print {
    ($($arguments:tt)*) => { $crate::output::print(format_args!($($arguments)*)) };
}
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($arguments:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arguments)*))) };
}
macro_rules! eprint {
    ($($arguments:tt)*) => { $crate::output::report(format_args!($($arguments)*)) };
}
macro_rules! eprintln {
    () => { $crate::output::report(format_args!("\n")) };
    ($($arguments:tt)*) => { $crate::output::report(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// Standard output, for what writes by itself. It ends the process quietly when it is a pipe that
/// was closed.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(end_if_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(end_if_closed)
    }
}

/// Writes data. A failure other than a closed pipe, such as a full disk, ends the command with a
/// message.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let mut out = Stdout;
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        report(format_args!("sluice: standard output: {error}\n"));
        std::process::exit(1);
    }
}

/// Writes a message. Without a reader it is dropped.
pub(crate) fn report(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Writes a line that a command which continues should not end for, such as the address of a node.
pub(crate) fn announce(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Formats an error with its causes, each once: some errors name their cause themselves.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn end_if_closed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    error
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::{Command, Output};

    use super::*;

    /// Names what a process of these tests writes with.
    const WRITER: &str = "SLUICE_TEST_WRITES_WITH";

    /// Runs a test again in a process of its own, which writes.
    fn process_of(test: &str, writer: &str) -> Output {
        let name = format!("output::tests::{test}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]).env(WRITER, writer).output().unwrap()
    }

    /// Makes a file descriptor of this process a pipe whose reader has gone.
    fn close_reader_of(descriptor: i32) {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // SAFETY: both are open file descriptors of this process, and the call touches no memory.
        assert!(unsafe { libc::dup2(writer.as_raw_fd(), descriptor) } >= 0);
    }

    #[test]
    fn a_closed_pipe_ends_a_command_quietly() {
        let Ok(writer) = std::env::var(WRITER) else {
            for writer in ["println", "csv", "announce"] {
                let output = process_of("a_closed_pipe_ends_a_command_quietly", writer);
                let said = String::from_utf8_lossy(&output.stderr);
                let expect = if writer == "announce" { "it goes on\n" } else { "" };
                assert!(output.status.success() && said == expect, "{writer}: {}, {said}", output.status);
            }
            return;
        };
        close_reader_of(1);
        match &*writer {
            "println" => println!("x"),
            "csv" => csv::Writer::from_writer(Stdout).write_record(vec!["x"; 100_000]).unwrap(),
            _ => {
                announce("x");
                eprintln!("it goes on");
                std::process::exit(0);
            }
        }
        std::process::exit(1);
    }

    #[test]
    fn messages_that_nobody_reads_are_dropped() {
        if std::env::var_os(WRITER).is_some() {
            close_reader_of(2);
            eprintln!("x");
            std::process::exit(7);
        }
        let output = process_of("messages_that_nobody_reads_are_dropped", "eprintln");
        assert_eq!(output.status.code(), Some(7));
    }

    #[test]
    fn causes_are_named_once() {
        let cause = || io::Error::other("address in use");
        let naming = anyhow::Error::new(cause()).context("cannot listen on :80: address in use");
        assert_eq!(with_causes(&naming), "cannot listen on :80: address in use");
        let other = anyhow::Error::new(cause()).context("cannot listen on :80").context("the node");
        assert_eq!(with_causes(&other), "the node: cannot listen on :80: address in use");
    }
}
