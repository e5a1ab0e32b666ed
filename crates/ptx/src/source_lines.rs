//! Lines of the source that a PTX text was compiled from (PTX ISA, "Debugging Directives").

use std::collections::HashMap;

/// The `.loc` directives of a text. Compilers write them with `-lineinfo`.
#[derive(Debug, Default)]
pub struct SourceLines {
    /// Names by the numbers of `.file`.
    files: HashMap<u32, String>,
    /// Line of the PTX, and what it stands for; None where a function begins.
    places: Vec<(u32, Option<(u32, u32)>)>,
}

impl SourceLines {
    /// Reads a text that need not be correct. A directive counts where it starts a line.
    pub fn new(text: &[u8]) -> SourceLines {
        let mut lines = SourceLines::default();
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let line = line.trim_ascii_start();
            if !line.starts_with(b".") {
                continue;
            }
            let line = String::from_utf8_lossy(line);
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some(".loc") => {
                    let mut number_of = || words.next()?.trim_end_matches([',', ';']).parse().ok();
                    if let (Some(file), Some(line)) = (number_of(), number_of()) {
                        lines.places.push((number, Some((file, line))));
                    }
                }
                Some(".file") => {
                    let file = words.next().and_then(|word| word.parse().ok());
                    if let (Some(file), Some(name)) = (file, line.split('"').nth(1)) {
                        lines.files.insert(file, name.to_owned());
                    }
                }
                _ if line.contains(".entry") || line.contains(".func") => lines.places.push((number, None)),
                _ => {}
            }
        }
        lines
    }

    /// Whether the text has no line information.
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(|(_, place)| place.is_none())
    }

    /// File and line of the source for a line of the PTX.
    pub fn find(&self, ptx_line: u32) -> Option<(&str, u32)> {
        let behind = self.places.partition_point(|&(line, _)| line <= ptx_line);
        let (file, line) = self.places.get(behind.checked_sub(1)?)?.1?;
        Some((self.files.get(&file)?, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_of_the_last_line_in_its_function() {
        let text = b".version 7.0\n.visible .entry a()\n{\n\t.loc\t1 10 0\n\tadd;\n\tmul;\n\t.loc 2 7 3, \
            function_name $x, inlined_at 1 10 0\n\tret;\n}\n.func b()\n{\n\tret;\n}\n\t.file\t1 \"/src/a.cu\", 1, \
            2\n\t.file\t2 \"b.h\"\n";
        let lines = SourceLines::new(text);
        assert_eq!(lines.find(5), Some(("/src/a.cu", 10)));
        assert_eq!(lines.find(6), Some(("/src/a.cu", 10)));
        assert_eq!(lines.find(8), Some(("b.h", 7)));
        assert_eq!(lines.find(3), None, "nothing is known yet");
        assert_eq!(lines.find(12), None, "another function");
    }

    #[test]
    fn a_text_that_is_not_correct_has_no_lines() {
        for text in ["", ".loc", ".loc 1", ".loc x 1 2", ".file 1", ".loc 1 2 3", ".loc 4294967296 1 1"] {
            assert_eq!(SourceLines::new(text.as_bytes()).find(9), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_only_names_files_has_no_line_information() {
        let text = b".visible .entry a()\n{\n\tret;\n}\n\t.file 1 \"a.cu\"\n";
        assert!(SourceLines::new(text).is_empty());
        assert!(!SourceLines::new(&[&text[..], b"\t.loc 1 1 1\n"].concat()).is_empty());
    }
}
