//! What workers write to standard error, in the node's log: a client decides part of it (names of
//! kernels), and all of it once it has taken its worker over. So each line is escaped and cut, and
//! their number is limited.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use sluice_wire::text::printable;

/// Bytes of a line that are kept.
const LINE_MAX: u64 = 2000;
/// Lines of one worker in the time of [`PERIOD`].
const LINES_MAX: usize = 200;
const PERIOD: Duration = Duration::from_secs(10);

/// Hands each line to `log` until the worker has ended.
pub(crate) fn follow(output: impl Read, mut log: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let (mut since, mut lines) = (Instant::now(), 0_usize);
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if since.elapsed() >= PERIOD {
            say_left_out(lines, &mut log);
            (since, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines <= LINES_MAX {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            log(&printable(&text, usize::MAX));
        }
    }
    say_left_out(lines, &mut log);
}

/// Puts a line of a worker into the node's log as a warning: workers write only what is wrong.
pub(crate) fn log(worker: u32, line: &str) {
    tracing::warn!(target: "sluice_worker", worker, "{line}");
}

fn say_left_out(lines: usize, log: &mut impl FnMut(&str)) {
    if lines > LINES_MAX {
        log(&format!("sluice worker: {} further lines are left out", lines - LINES_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(output: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        follow(output, |line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn lines_are_escaped_and_cut() {
        let lines = logged(b"sluice: kernel \x1b[2Jx\nsecond\xff\nlast");
        assert_eq!(lines, ["sluice: kernel \\u{1b}[2Jx", "second\u{fffd}", "last"]);
        let long = vec![b'x'; 5000];
        assert_eq!(logged(&long).iter().map(String::len).collect::<Vec<_>>(), [2000, 2000, 1000]);
    }

    #[test]
    fn a_flood_is_counted_and_not_logged() {
        let lines = logged(&b"x\n".repeat(1000));
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!(lines[LINES_MAX], "sluice worker: 800 further lines are left out");
    }
}
