//! Text of others that people are to read, in a log or a list: what would change how the rest is
//! shown is written out.

/// Escapes what is not itself to be seen: control characters, which would begin new lines or steer
/// a terminal, and format characters, which would turn the text around it (Unicode Standard Annex
/// 9, section 2) or hide in it. At most `characters` of the text are kept.
pub fn printable(text: &str, characters: usize) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars().take(characters) {
        match character {
            '\u{feff}' => shown.extend(character.escape_unicode()),
            _ if character.is_control() => shown.extend(character.escape_default()),
            _ if is_format(character) => shown.extend(character.escape_unicode()),
            _ => shown.push(character),
        }
    }
    shown
}

/// The format characters, separators of lines, and tags of Unicode 16 (general categories Cf, Zl
/// and Zp) that scripts in use do not need inside numbers.
fn is_format(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_change_the_rest_is_written_out() {
        let all = |text: &str| printable(text, usize::MAX);
        assert_eq!(all("train.py --grün 训练"), "train.py --grün 训练");
        assert_eq!(all("a\nsluice node: b\r\t"), "a\\nsluice node: b\\r\\t");
        assert_eq!(all("\x1b[31mred\x07\0"), "\\u{1b}[31mred\\u{7}\\u{0}");
        assert_eq!(all("exe\u{202e}fdp"), "exe\\u{202e}fdp");
        for hidden in ['\u{200b}', '\u{2066}', '\u{2028}', '\u{feff}', '\u{85}', '\u{e0041}'] {
            assert!(all(&hidden.to_string()).is_ascii(), "{hidden:?}");
        }
        assert_eq!(printable("abc", 2), "ab");
    }
}
