//! Validates JSON.

use jiter::{Jiter, JiterError, Peek};

use crate::refusal::Refusal;

/// The deepest nesting of objects and arrays.
const MAX_DEPTH: usize = 100;

/// Returns a reader at the first byte of a text.
pub(super) fn reader(text: &[u8]) -> Jiter<'_> {
    Jiter::new(text).with_allow_inf_nan()
}

/// Validates a whole text.
///
/// # Errors
///
/// The text is not JSON, or is nested too deeply. The refusal names the first wrong byte.
pub(super) fn validate(text: &[u8]) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::json_empty());
    }
    // The reader checks the bytes of a string only when somebody asks for the string.
    if let Err(error) = std::str::from_utf8(text) {
        return Err(Refusal::json_syntax("invalid UTF-8", error.valid_up_to()));
    }
    let syntax =
        |error: JiterError| Refusal::json_syntax(&error.error_type.to_string(), error.index);
    let mut reader = reader(text);
    // The reader's own depth limit is fixed, so the loop steps through containers one by one.
    let mut open = Vec::with_capacity(MAX_DEPTH);
    loop {
        let value = reader.peek().map_err(syntax)?;
        let mut another = false;
        if matches!(value, Peek::Array | Peek::Object) {
            if open.len() == MAX_DEPTH {
                return Err(Refusal::json_depth(MAX_DEPTH));
            }
            another = enter(&mut reader, value).map_err(syntax)?;
            if another {
                open.push(value);
            }
        } else {
            reader.known_skip(value).map_err(syntax)?;
        }
        while !another {
            let Some(container) = open.last() else { return reader.finish().map_err(syntax) };
            another = step(&mut reader, *container).map_err(syntax)?;
            if !another {
                open.pop();
            }
        }
    }
}

/// Returns whether the container that comes next has an element.
fn enter(reader: &mut Jiter<'_>, container: Peek) -> Result<bool, JiterError> {
    Ok(match container {
        Peek::Array => reader.known_array()?.is_some(),
        _ => reader.next_object_bytes()?.is_some(),
    })
}

/// Returns whether the container has a further element.
fn step(reader: &mut Jiter<'_>, container: Peek) -> Result<bool, JiterError> {
    Ok(match container {
        Peek::Array => reader.array_step()?.is_some(),
        _ => reader.next_key_bytes()?.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flaw(text: &[u8]) -> String {
        let text = validate(text).unwrap_err().text().to_owned();
        text.strip_prefix("failed to parse the request JSON buffer: ").unwrap_or(&text).to_owned()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(flaw(b""), "EOF while parsing a value at 0");
        assert_eq!(flaw(b" "), "EOF while parsing a value at 1");
        assert_eq!(flaw(b"{"), "EOF while parsing an object at 1");
        assert_eq!(flaw(b"{\"a\" 1}"), "expected `:` at 5");
        assert_eq!(flaw(b"[1 2]"), "expected `,` or `]` at 3");
        assert_eq!(flaw(b"{\"a\":1 \"b\":2}"), "expected `,` or `}` at 7");
        assert_eq!(flaw(b"[1,]"), "trailing comma at 3");
        assert_eq!(flaw(b"{\"a\":1,}"), "trailing comma at 7");
        assert_eq!(flaw(b"{7:1}"), "key must be a string at 1");
        assert_eq!(flaw(b"{}x"), "trailing characters at 2");
        assert_eq!(flaw(b"\"abc"), "EOF while parsing a string at 4");
        assert_eq!(flaw(b"\"\\ud800x\""), "unexpected end of hex escape at 7");
        assert_eq!(flaw(b"\"a\xff\""), "invalid UTF-8 at 2");
        assert_eq!(flaw(b"[nothing]"), "expected ident at 2");
    }

    #[test]
    fn strings_are_whole() {
        for text in ["\"\\udc00\"", "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\x\"", "\"\\u12g4\""] {
            assert!(validate(text.as_bytes()).is_err(), "{text}");
        }
        for byte in 0..0x20 {
            assert!(validate(&[b'"', byte, b'"']).is_err(), "{byte}");
            assert!(validate(&[b'{', b'"', byte, b'"', b':', b'1', b'}']).is_err(), "{byte}");
        }
    }

    #[test]
    fn a_hundred_levels_are_as_deep_as_it_gets() {
        let depth = "JSON nesting depth exceeds maximum allowed limit (100)";
        for (open, value, close) in
            [("[", "", "]"), ("[", "1", "]"), ("{\"a\":", "1", "}"), ("[1,", "{}", ",1]")]
        {
            let nested = |depth: usize| open.repeat(depth) + value + &close.repeat(depth);
            let inner = usize::from(value == "{}");
            assert_eq!(validate(nested(100 - inner).as_bytes()).map_err(|_| ()), Ok(()));
            assert_eq!(flaw(nested(101 - inner).as_bytes()), depth);
            assert_eq!(flaw(open.repeat(1_000_000).as_bytes()), depth);
        }
    }

    #[test]
    fn numbers_that_are_none_have_words() {
        for text in ["[NaN, Infinity, -Infinity, 1e5, -0.5E-3]", "NaN", "-Infinity", "1e999"] {
            assert!(validate(text.as_bytes()).is_ok(), "{text}");
        }
        for text in ["[nan]", "[-NaN]", "[01]", "[.5]", "[1.]", "[+1]", "[1e]", "[0x10]", "[--1]"] {
            assert!(validate(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["-", "1e", "1e+", "1.", "N", "Infinit", "-I", "Infinityx", "1x"] {
            assert!(validate(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(flaw("9".repeat(10_000).as_bytes()), "number out of range at 4301");
    }

    proptest! {
        #[test]
        fn another_parser_thinks_the_same(text in "[\\[\\]{}:,\"a0-9.eE+\\-\\\\u tfn]{0,24}") {
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let ours = validate(text.as_bytes());
            // Only the other parser refuses numbers out of range.
            let range = theirs.as_ref().is_err_and(|error| error.to_string().contains("range"));
            prop_assert!(range || theirs.is_ok() == ours.is_ok(), "{text:?}: {theirs:?}");
        }
    }
}
