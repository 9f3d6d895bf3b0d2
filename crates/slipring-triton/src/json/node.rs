//! A value in a validated text.

use std::borrow::Cow;
use std::str::FromStr;

use jiter::{Jiter, JsonValue, Peek};

use crate::json::validate::{reader, validate};
use crate::refusal::Refusal;

/// A value: its text, and the kind that its first byte tells. The text of a document extends to the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    kind: Peek,
    text: &'a [u8],
}

impl<'a> Node<'a> {
    /// Validates a text and returns its value.
    ///
    /// # Errors
    ///
    /// The text is not JSON, or is nested too deeply.
    pub(crate) fn document(text: &'a [u8]) -> Result<Self, Refusal> {
        validate(text)?;
        let mut reader = reader(text);
        // A validated text is not empty.
        let kind = reader.peek().unwrap_or(Peek::Null);
        Ok(Self { kind, text: &text[reader.current_index()..] })
    }

    /// Returns the next value and steps over it. A validated text lacks one only at its end.
    fn next(reader: &mut Jiter<'a>) -> Option<Self> {
        let kind = reader.peek().ok()?;
        let start = reader.current_index();
        reader.known_skip(kind).ok()?;
        Some(Self { kind, text: reader.slice_to_current(start) })
    }

    pub(crate) fn is_object(&self) -> bool {
        self.kind == Peek::Object
    }

    pub(crate) fn is_array(&self) -> bool {
        self.kind == Peek::Array
    }

    /// Returns the names and values of an object; nothing for any other value.
    pub(crate) fn members(self) -> impl Iterator<Item = (String, Node<'a>)> {
        let mut reader = reader(self.text);
        let mut entered = false;
        std::iter::from_fn(move || {
            let name = if entered { reader.next_key() } else { reader.next_object() };
            let name = name.ok()??.to_owned();
            entered = true;
            Some((name, Node::next(&mut reader)?))
        })
    }

    /// Returns the first member of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.members().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns the elements of an array; nothing for any other value.
    pub(crate) fn items(self) -> impl Iterator<Item = Node<'a>> {
        let mut reader = reader(self.text);
        let mut entered = false;
        std::iter::from_fn(move || {
            let another = if entered { reader.array_step() } else { reader.next_array() };
            another.ok()??;
            entered = true;
            Node::next(&mut reader)
        })
    }

    /// Returns the elements of an array and of all arrays in it, in order. Objects count as elements.
    pub(crate) fn leaves(self) -> impl Iterator<Item = Node<'a>> + Clone {
        let mut reader = reader(self.text);
        let mut depth = 0_usize;
        let mut value = Some(self.kind);
        std::iter::from_fn(move || {
            loop {
                match value.take() {
                    Some(Peek::Array) => {
                        depth += 1;
                        value = reader.known_array().ok()?;
                    }
                    Some(_) => return Node::next(&mut reader),
                    None if depth == 0 => return None,
                    None => value = reader.array_step().ok()?,
                }
                // Without a further value the array ends here.
                depth -= usize::from(value.is_none());
            }
        })
    }

    /// Returns the text of a string. `None`: it is no string, or there is no memory for its text.
    pub(crate) fn string(&self) -> Option<Cow<'a, str>> {
        if self.kind != Peek::String {
            return None;
        }
        if !self.text.contains(&b'\\') {
            return match reader(self.text).known_value(self.kind) {
                Ok(JsonValue::Str(text)) => Some(text),
                _ => None,
            };
        }
        // Without this capacity the buffer grows to twice the text, and aborts if there is no memory.
        let mut tape = Vec::new();
        tape.try_reserve_exact(self.text.len()).ok()?;
        let mut reader = Jiter::with_tape(self.text, tape);
        let text = reader.known_str().ok()?;
        let mut copy = String::new();
        copy.try_reserve_exact(text.len()).ok()?;
        copy.push_str(text);
        Some(Cow::Owned(copy))
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        reader(self.text).next_bool().ok()
    }

    /// Returns whether the value is one of `NaN`, `Infinity`, `-Infinity`.
    pub(crate) fn is_word(&self) -> bool {
        matches!(self.text, [b'N' | b'I', ..] | [b'-', b'I', ..])
    }

    /// Returns a number without sign, point and exponent.
    pub(crate) fn unsigned(&self) -> Option<u64> {
        self.digits()
    }

    /// Returns a number without point and exponent.
    pub(crate) fn integer(&self) -> Option<i64> {
        self.digits()
    }

    /// Parses the digits of a number. The reader's own integers are too short for some.
    fn digits<T: FromStr>(&self) -> Option<T> {
        let mut reader = reader(self.text);
        let digits = reader.next_number_bytes().ok()?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Returns any number, rounded to the nearest `f64`.
    pub(crate) fn float(&self) -> Option<f64> {
        reader(self.text).next_float().ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(text: &str) -> Node<'_> {
        Node::document(text.as_bytes()).unwrap()
    }

    fn text(node: Node<'_>) -> &str {
        std::str::from_utf8(node.text).unwrap()
    }

    #[test]
    fn members_and_items_come_in_order() {
        let object = node(r#" { "a" : [ 1 , {"b":2} ,"]" ] ,"c":{ } , "d" : null} "#);
        let names: Vec<_> = object.members().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "c", "d"]);
        let items: Vec<_> = object.get("a").unwrap().items().map(text).collect();
        assert_eq!(items, ["1", "{\"b\":2}", "\"]\""]);
        assert_eq!(node("[]").items().count() + node("[ ]").items().count(), 0);
        assert!(node(" null ").boolean().is_none() && node(" null ").float().is_none());
        assert_eq!(node("\n\"a\\n\" ").string().as_deref(), Some("a\n"));
    }

    #[test]
    fn leaves_are_those_of_all_levels() {
        let leaves = |json| node(json).leaves().map(text).collect::<Vec<_>>();
        assert_eq!(
            leaves("[[1, 2],[ 3,[\"a]\"]], {\"x\":[4]}]"),
            ["1", "2", "3", "\"a]\"", "{\"x\":[4]}"]
        );
        assert!(leaves("[[],[[]]]").is_empty());
        assert_eq!(leaves(" [ [ ] , [ 1 ] ] "), ["1"]);
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
        assert_eq!((node("1e999").float(), node("true").float()), (Some(f64::INFINITY), None));
        assert!(node("NaN").float().is_some_and(f64::is_nan));
        for (text, value) in [("-0", Some(0)), ("1.0", None), ("NaN", None), ("[1]", None)] {
            assert_eq!(node(text).integer(), value, "{text}");
        }
    }

    #[test]
    fn the_first_of_a_name_is_taken_however_it_is_written() {
        let object = node(r#"{"\u0061\n":1,"a\n":2,"":3}"#);
        assert_eq!(object.get("a\n").and_then(|value| value.unsigned()), Some(1));
        assert_eq!(object.get("").and_then(|value| value.unsigned()), Some(3));
        assert!(node("[\"a\",1]").get("a").is_none() && node("7").get("a").is_none());
        assert_eq!((node("{}").members().count(), node("\"a\"").items().count()), (0, 0));
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

        #[test]
        fn a_number_is_the_nearest(text in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,900})?([eE][+-]?[0-9]{1,24})?") {
            let nearest: f64 = text.parse().unwrap();
            prop_assert_eq!(node(&text).float().map(f64::to_bits), Some(nearest.to_bits()));
            prop_assert_eq!(node(&text).integer(), text.parse().ok());
            prop_assert_eq!(node(&text).unsigned(), text.parse().ok());
        }
    }
}
