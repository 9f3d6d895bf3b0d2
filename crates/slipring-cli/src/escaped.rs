//! Text of peers, as it may be printed: no byte of it steers a terminal.

use std::fmt::{self, Write};

/// Returns whether a terminal would obey a character, or show it as nothing or in another place.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Shows bytes as text in which everything that is not printable is escaped, as in a string of Rust.
pub(crate) struct Escaped<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' | '"' | '\n' | '\r' | '\t' => write!(f, "{}", c.escape_default())?,
                    c if is_unprintable(c) => write!(f, "{}", c.escape_unicode())?,
                    c => f.write_char(c)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Shows text whose characters that are not printable are escaped, and all others as they are: a line that may hold what peers
/// or files said.
pub(crate) struct Line<'a>(pub(crate) &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_unprintable(c) && c != '\n' {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        let text = Escaped(b"a\x1b[2J\xc2\x9b1m\x07\xff\"\\\n\xe2\x80\xae z\xc3\xa9").to_string();
        assert_eq!(text, r#"a\u{1b}[2J\u{9b}1m\u{7}\xff\"\\\n\u{202e} zé"#);
    }

    #[test]
    fn a_line_keeps_its_own_marks() {
        let line = Line("\"a\\b\" µs\n\x1b[2J\u{9b}").to_string();
        assert_eq!(line, "\"a\\b\" µs\n\\u{1b}[2J\\u{9b}");
    }
}
