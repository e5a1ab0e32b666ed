//! Other names for what only its own text knows: every word of the text that is one of them,
//! whether it means the variable or function or something of the same name within a function, which
//! changes its name everywhere too.

use std::collections::HashMap;

/// Appends a text in which the words in `names` are replaced. Strings, comments and lines that are
/// skipped stay as they are, as do directives and modifiers, which have a dot before them, and
/// opcodes, which have one behind.
pub(super) fn copy(text: &[u8], names: &HashMap<Vec<u8>, Vec<u8>>, out: &mut Vec<u8>) {
    if names.is_empty() {
        return out.extend_from_slice(text);
    }
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        let start = at;
        at += match rest {
            [b'"', ..] => string(rest),
            // Comments, and lines of the preprocessor and of old DWARF.
            [b'/', b'/', ..] | [b'#', ..] | [b'@', b'@', ..] => until(rest, b"\n"),
            [b'/', b'*', ..] => until(rest, b"*/"),
            [first, ..] if is_word(*first) => rest.iter().take_while(|&&byte| is_word(byte)).count(),
            _ => 1,
        };
        let word = &text[start..at];
        let is_free = !(start > 0 && text[start - 1] == b'.') && text.get(at) != Some(&b'.');
        if let Some(new) = names.get(word).filter(|_| is_free) {
            out.extend_from_slice(&text[copied..start]);
            out.extend_from_slice(new);
            copied = at;
        }
    }
    out.extend_from_slice(&text[copied..]);
}

/// Numbers are words here too: no name begins like one.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

/// Bytes of a string with its quotes.
fn string(text: &[u8]) -> usize {
    let mut is_escaped = true;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'"' if !is_escaped => return at + 1,
            b'\\' if !is_escaped => is_escaped = true,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// Bytes up to this end and with it.
fn until(text: &[u8], end: &[u8]) -> usize {
    text.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_skipped_open_nothing() {
        let names = HashMap::from([(b"x".to_vec(), b"x$1".to_vec())]);
        let mut out = Vec::new();
        copy(b"#line \"x\n@@ /* x\nmov.u32 a, x;", &names, &mut out);
        assert_eq!(String::from_utf8(out).expect("ASCII"), "#line \"x\n@@ /* x\nmov.u32 a, x$1;");
    }

    #[test]
    fn words_are_replaced_and_nothing_else() {
        let names =
            HashMap::from([(b"add".to_vec(), b"add$1".to_vec()), (b"$str".to_vec(), b"$str$1".to_vec())]);
        let mut out = Vec::new();
        let text =
            b"// add\nadd.s32 %add, add, 0; /* add */ .pragma \"add \\\" add\"; ld.add [$str+4], $str2;add";
        copy(text, &names, &mut out);
        let expected = "// add\nadd.s32 %add, add$1, 0; /* add */ .pragma \"add \\\" add\"; ld.add [$str$1+4], $str2;add$1";
        assert_eq!(String::from_utf8(out).expect("ASCII"), expected);
    }
}
