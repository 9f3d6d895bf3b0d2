//! Standard output of a command: lines for people, or one JSON object a line.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

use crate::escaped::{self, Line};
use crate::failure::Failure;

/// Standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    is_json: bool,
}

impl Output {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.is_json
    }

    /// Prints a report at once: as text, or as a JSON object. Either way no character of it steers the terminal.
    ///
    /// # Errors
    ///
    /// [`Failure::unread`]: nobody reads any more.
    pub(crate) fn show(&self, report: &(impl Serialize + Display)) -> Result<(), Failure> {
        let mut line = Vec::new();
        if self.is_json {
            let mut json = serde_json::Serializer::with_formatter(&mut line, Printable);
            report.serialize(&mut json).map_err(|error| Failure::new(error.to_string()))?;
        } else {
            write!(line, "{}", Line(&report.to_string()))?;
        }
        line.push(b'\n');
        self.write(&line)
    }

    /// Prints text for people alone.
    pub(crate) fn remark(&self, text: impl Display) -> Result<(), Failure> {
        if self.is_json {
            return Ok(());
        }
        self.write(format!("{}\n", Line(&text.to_string())).as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::unread()),
            written => Ok(written?),
        }
    }
}

/// Writes compact JSON in which every character that could steer a terminal is escaped. JSON itself escapes those below 0x20.
struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        let mut units = [0; 2];
        let mut rest = fragment;
        while let Some(at) = rest.find(escaped::is_unprintable) {
            let (plain, from) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut chars = from.chars();
            for unit in chars.next().into_iter().flat_map(|c| c.encode_utf16(&mut units).to_vec()) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_no_character_that_steers_a_terminal() {
        let text = "a\u{1b}[31m\u{9b}31m\u{7f}\u{202e}\u{e0041}é";
        let mut line = Vec::new();
        text.serialize(&mut serde_json::Serializer::with_formatter(&mut line, Printable)).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(line.replace('é', "").is_ascii(), "{line:?}");
        assert!(!line.contains(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
