//! Whether a text is JSON.

use crate::triton::refusal::Refusal;

/// Levels of objects and arrays at most.
const DEEPEST: usize = 100;

/// Why it is none, and at which byte.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Syntax { what: &'static str, at: usize },
    Depth,
}

impl From<Flaw> for Refusal {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Syntax { what, at } => Self::json_syntax(what, at),
            Flaw::Depth => Self::json_depth(DEEPEST),
        }
    }
}

/// Judges a whole text.
pub(super) fn judge(text: &[u8]) -> Result<(), Flaw> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(Flaw::Syntax { what: "Invalid encoding in string.", at: error.valid_up_to() });
    }
    let mut judge = Judge { text, at: 0 };
    judge.blanks();
    if judge.peek().is_none() {
        return judge.flaw("The document is empty.");
    }
    judge.document()?;
    judge.blanks();
    match judge.peek() {
        None => Ok(()),
        Some(_) => judge.flaw("The document root must not be followed by other values."),
    }
}

struct Judge<'a> {
    text: &'a [u8],
    at: usize,
}

impl Judge<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn flaw<T>(&self, what: &'static str) -> Result<T, Flaw> {
        Err(Flaw::Syntax { what, at: self.at })
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// One value and all in it. The open containers are kept as bits, not on the stack.
    fn document(&mut self) -> Result<(), Flaw> {
        let mut open = [false; DEEPEST];
        let mut depth = 0;
        loop {
            self.blanks();
            let opened = match self.peek() {
                Some(b'{') => Some(true),
                Some(b'[') => Some(false),
                _ => None,
            };
            if let Some(object) = opened {
                self.at += 1;
                let Some(level) = open.get_mut(depth) else { return Err(Flaw::Depth) };
                *level = object;
                depth += 1;
                self.blanks();
                match self.peek() {
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => {
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
            } else {
                self.scalar()?;
            }
            // Behind a value: closing brackets, and then a comma.
            loop {
                self.blanks();
                let Some(level) = depth.checked_sub(1) else { return Ok(()) };
                match (self.peek(), open[level]) {
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        depth = level;
                    }
                    (Some(b','), object) => {
                        self.at += 1;
                        if object {
                            self.blanks();
                            self.key()?;
                        }
                        break;
                    }
                    (_, true) => {
                        return self.flaw("Missing a comma or } after an object member.");
                    }
                    (_, false) => {
                        return self.flaw("Missing a comma or ] after an array element.");
                    }
                }
                if depth == 0 {
                    return Ok(());
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), Flaw> {
        if self.peek() != Some(b'"') {
            return self.flaw("Missing a name for object member.");
        }
        self.string()?;
        self.blanks();
        if self.peek() != Some(b':') {
            return self.flaw("Missing a colon after a name of object member.");
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Flaw> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let rest = &self.text[self.at..];
                let words = ["true", "false", "null", "NaN", "Infinity", "Inf"];
                match words.iter().find(|word| rest.starts_with(word.as_bytes())) {
                    Some(word) => {
                        self.at += word.len();
                        Ok(())
                    }
                    None => self.flaw("Invalid value."),
                }
            }
        }
    }

    fn digits(&mut self) -> Result<(), Flaw> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { self.flaw("Invalid value.") } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), Flaw> {
        if self.peek() == Some(b'-') {
            self.at += 1;
            let rest = &self.text[self.at..];
            let words = ["Infinity", "Inf"];
            if let Some(word) = words.iter().find(|word| rest.starts_with(word.as_bytes())) {
                self.at += word.len();
                return Ok(());
            }
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Flaw> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = |byte: &u8| *byte != b'"' && *byte != b'\\' && *byte >= 0x20;
            let Some(len) = rest.iter().position(|byte| !plain(byte)) else {
                return self.flaw("Missing a closing quotation mark in string.");
            };
            self.at += len;
            match rest[len] {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => self.escape()?,
                _ => return self.flaw("Invalid encoding in string."),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Flaw> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let first = self.unit()?;
                match first {
                    0xD800..=0xDBFF => match self.unit() {
                        Ok(0xDC00..=0xDFFF) => Ok(()),
                        _ => self.flaw("The surrogate pair in string is invalid."),
                    },
                    0xDC00..=0xDFFF => self.flaw("The surrogate pair in string is invalid."),
                    _ => Ok(()),
                }
            }
            _ => self.flaw("Invalid escape character in string."),
        }
    }

    /// `\uXXXX`
    fn unit(&mut self) -> Result<u16, Flaw> {
        let digits = self.text.get(self.at..self.at + 6).and_then(|unit| unit.strip_prefix(b"\\u"));
        let hex = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u16::from_str_radix(hex, 16).ok()) {
            Some(unit) => {
                self.at += 6;
                Ok(unit)
            }
            None => self.flaw("Incorrect hex digit after \\u escape in string."),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flaw(text: &str) -> (&'static str, usize) {
        match judge(text.as_bytes()) {
            Err(Flaw::Syntax { what, at }) => (what, at),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(flaw(""), ("The document is empty.", 0));
        assert_eq!(flaw(" "), ("The document is empty.", 1));
        assert_eq!(flaw("{"), ("Missing a name for object member.", 1));
        assert_eq!(flaw("{\"a\" 1}"), ("Missing a colon after a name of object member.", 5));
        assert_eq!(flaw("[1 2]"), ("Missing a comma or ] after an array element.", 3));
        assert_eq!(flaw("{\"a\":1 \"b\":2}"), ("Missing a comma or } after an object member.", 7));
        assert_eq!(flaw("[1,]"), ("Invalid value.", 3));
        assert_eq!(flaw("{}x"), ("The document root must not be followed by other values.", 2));
        assert_eq!(flaw("\"abc"), ("Missing a closing quotation mark in string.", 1));
        assert_eq!(flaw("\"\\ud800x\""), ("The surrogate pair in string is invalid.", 7));
    }

    #[test]
    fn a_hundred_levels_are_as_deep_as_it_gets() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(judge(nested(100).as_bytes()), Ok(()));
        assert_eq!(judge(nested(101).as_bytes()), Err(Flaw::Depth));
        assert_eq!(judge("{\"a\":".repeat(1_000_000).as_bytes()), Err(Flaw::Depth));
    }

    #[test]
    fn numbers_that_are_none_have_words() {
        for text in ["[NaN, Infinity, -Infinity, -Inf, 1e5, -0.5E-3]", "NaN"] {
            assert_eq!(judge(text.as_bytes()), Ok(()), "{text}");
        }
        for text in ["[nan]", "[-NaN]", "[01]", "[.5]", "[1.]", "[+1]", "[1e]", "[0x10]", "[--1]"] {
            assert!(judge(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn another_parser_thinks_the_same(text in "[\\[\\]{}:,\"a0-9.eE+\\-\\\\u tfn]{0,24}") {
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let ours = judge(text.as_bytes());
            // It alone knows numbers that are out of range.
            let range = theirs.as_ref().is_err_and(|error| error.to_string().contains("range"));
            prop_assert!(range || theirs.is_ok() == ours.is_ok(), "{text:?}: {theirs:?} {ours:?}");
        }
    }
}
