//! A value in a text that was judged.

use std::borrow::Cow;

use crate::triton::json::judge::judge;
use crate::triton::refusal::Refusal;

/// A value: the text from its first byte to its last.
#[derive(Debug, Clone, Copy)]
pub(in crate::triton) struct Node<'a> {
    text: &'a str,
}

impl<'a> Node<'a> {
    /// The value that a whole text is.
    ///
    /// # Errors
    ///
    /// It is no JSON, or too deep.
    pub(in crate::triton) fn document(text: &'a [u8]) -> Result<Self, Refusal> {
        judge(text)?;
        // Judged to be UTF-8; what is empty is refused above.
        Ok(Self { text: std::str::from_utf8(text).unwrap_or("null").trim() })
    }

    /// The value that `text` starts with, and what is behind it.
    fn split(text: &'a str) -> (Self, &'a str) {
        let len = length(text.as_bytes());
        (Self { text: &text[..len] }, skip(&text[len..]))
    }

    pub(in crate::triton) fn is_object(&self) -> bool {
        self.text.starts_with('{')
    }

    pub(in crate::triton) fn is_array(&self) -> bool {
        self.text.starts_with('[')
    }

    pub(in crate::triton) fn is_null(&self) -> bool {
        self.text == "null"
    }

    /// Names and values of an object; of anything else none.
    pub(in crate::triton) fn members(self) -> impl Iterator<Item = (Cow<'a, str>, Node<'a>)> {
        let inside = if self.is_object() { &self.text[1..] } else { "" };
        let mut rest = skip(inside);
        std::iter::from_fn(move || {
            if !rest.starts_with('"') {
                return None;
            }
            let (key, behind) = Node::split(rest);
            let behind = skip(behind.strip_prefix(':').unwrap_or(behind));
            let (value, behind) = Node::split(behind);
            rest = skip(behind.strip_prefix(',').unwrap_or(behind));
            Some((key.string().unwrap_or_default(), value))
        })
    }

    /// The first member of this name.
    pub(in crate::triton) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.members().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The elements of an array; of anything else none.
    pub(in crate::triton) fn items(self) -> impl Iterator<Item = Node<'a>> {
        let inside = if self.is_array() { &self.text[1..] } else { "" };
        let mut rest = skip(inside);
        std::iter::from_fn(move || {
            if rest.is_empty() || rest.starts_with(']') {
                return None;
            }
            let (value, behind) = Node::split(rest);
            rest = skip(behind.strip_prefix(',').unwrap_or(behind));
            Some(value)
        })
    }

    /// What is in an array and the arrays in it, in order; objects as they are.
    pub(in crate::triton) fn leaves(self) -> impl Iterator<Item = Node<'a>> + Clone {
        let mut rest = self.text;
        std::iter::from_fn(move || {
            let between =
                |byte: &u8| matches!(byte, b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t');
            let at = rest.as_bytes().iter().position(|byte| !between(byte));
            rest = &rest[at.unwrap_or(rest.len())..];
            if rest.is_empty() {
                return None;
            }
            let (value, behind) = Node::split(rest);
            rest = behind;
            Some(value)
        })
    }

    /// The text of a string.
    pub(in crate::triton) fn string(&self) -> Option<Cow<'a, str>> {
        let inside = self.text.strip_prefix('"')?.strip_suffix('"')?;
        if inside.contains('\\') { Some(Cow::Owned(unescape(inside))) } else { Some(inside.into()) }
    }

    pub(in crate::triton) fn boolean(&self) -> Option<bool> {
        match self.text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// A number without sign, point and exponent.
    pub(in crate::triton) fn unsigned(&self) -> Option<u64> {
        self.text.parse().ok()
    }

    /// A number without point and exponent.
    pub(in crate::triton) fn integer(&self) -> Option<i64> {
        self.text.parse().ok()
    }

    /// Any number, the nearest that there is.
    pub(in crate::triton) fn float(&self) -> Option<f64> {
        match self.text {
            "NaN" => Some(f64::NAN),
            "Infinity" | "Inf" => Some(f64::INFINITY),
            "-Infinity" | "-Inf" => Some(f64::NEG_INFINITY),
            number
                if number.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) =>
            {
                number.parse().ok()
            }
            _ => None,
        }
    }
}

/// What is behind the blanks that a text starts with.
fn skip(text: &str) -> &str {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    match text.as_bytes().iter().position(|byte| !blank(byte)) {
        Some(at) => &text[at..],
        None => "",
    }
}

/// The length of the value that a judged text starts with.
fn length(text: &[u8]) -> usize {
    match text.first() {
        Some(b'"') => string_length(text),
        Some(b'{' | b'[') => {
            let (mut at, mut depth) = (0, 0);
            while let Some(byte) = text.get(at) {
                match byte {
                    b'"' => {
                        at += string_length(&text[at..]);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    break;
                }
            }
            at
        }
        _ => {
            let end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
            text.iter().position(end).unwrap_or(text.len())
        }
    }
}

fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    loop {
        let rest = text.get(at..).unwrap_or_default();
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(len) if rest[len] == b'"' => return at + len + 1,
            // What is escaped does not end it.
            Some(len) => at += len + 2,
            None => return text.len(),
        }
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut units = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        units.clear();
        while let Some(hex) = rest.strip_prefix("\\u").and_then(|rest| rest.get(..4)) {
            units.push(u16::from_str_radix(hex, 16).unwrap_or(0xFFFD));
            rest = &rest[6..];
        }
        out.extend(
            char::decode_utf16(units.iter().copied())
                .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)),
        );
        if units.is_empty() {
            let mut escaped = rest.chars();
            escaped.next();
            out.extend(escaped.next().map(|escape| match escape {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            }));
            rest = escaped.as_str();
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(text: &str) -> Node<'_> {
        Node::document(text.as_bytes()).unwrap()
    }

    #[test]
    fn members_and_items_come_in_order() {
        let object = node(r#" { "a" : [ 1 , {"b":2} ,"]" ] ,"c":{ } , "d" : null} "#);
        let names: Vec<_> = object.members().map(|(name, _)| name.into_owned()).collect();
        assert_eq!(names, ["a", "c", "d"]);
        let items: Vec<_> = object.get("a").unwrap().items().map(|item| item.text).collect();
        assert_eq!(items, ["1", "{\"b\":2}", "\"]\""]);
        assert_eq!(node("[]").items().count() + node("[ ]").items().count(), 0);
    }

    #[test]
    fn leaves_are_those_of_all_levels() {
        let leaves =
            |text| node(text).leaves().map(|leaf| leaf.text.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            leaves("[[1, 2],[ 3,[\"a]\"]], {\"x\":[4]}]"),
            ["1", "2", "3", "\"a]\"", "{\"x\":[4]}"]
        );
        assert!(leaves("[[],[[]]]").is_empty());
        assert_eq!(leaves("7"), ["7"]);
    }

    #[test]
    fn numbers_are_told_apart_as_they_are_written() {
        assert_eq!(node("64").unsigned(), Some(64));
        for text in ["64.0", "-64", "6e1", "\"64\"", "18446744073709551616", "true"] {
            assert_eq!(node(text).unsigned(), None, "{text}");
        }
        assert_eq!(node("18446744073709551615").unsigned(), Some(u64::MAX));
        assert_eq!(node("-9223372036854775808").integer(), Some(i64::MIN));
        assert_eq!(node("-Infinity").float(), Some(f64::NEG_INFINITY));
        assert_eq!((node("7").float(), node("\"7\"").float()), (Some(7.0), None));
    }

    proptest! {
        #[test]
        fn strings_are_what_another_writer_wrote(text in any::<String>()) {
            let written = serde_json::to_string(&text).unwrap();
            let back = node(&written).string();
            prop_assert_eq!(back.as_deref(), Some(&*text));
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let escaped = format!("\"{escaped}\"");
            let back = node(&escaped).string();
            prop_assert_eq!(back.as_deref(), Some(&*text));
        }
    }
}
