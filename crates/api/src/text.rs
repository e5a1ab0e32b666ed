//! Texts of others in logs and on terminals.

use std::borrow::Cow;

/// Shows a text that came from elsewhere as what it is: signs that would end its line, move the
/// cursor, or have what follows read in another order are written as escapes (`\\n`, `\\u{202e}`).
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_deceptive) {
        return Cow::Borrowed(text);
    }
    let escape =
        |c: char| -> String { if is_deceptive(c) { c.escape_default().to_string() } else { c.to_string() } };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Whether a sign is none that is seen where it stands: a control character, a line or paragraph
/// separator, or one that only says in which direction text runs (Unicode Standard Annex 9, section
/// 2).
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_that_deceive_are_written_as_escapes() {
        for (text, expect) in [
            ("train.py", "train.py"),
            ("\u{fc}ber \u{4e2d}", "\u{fc}ber \u{4e2d}"),
            ("a\nb", "a\\nb"),
            ("exe.\u{202e}gpj", "exe.\\u{202e}gpj"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
        ] {
            assert_eq!(escaped(text), expect);
        }
    }
}
