//! Writing.

use std::fmt::Write;

/// Appends a string, quoted.
pub(in crate::triton) fn string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|char: char| char < ' ' || char == '"' || char == '\\') {
        out.push_str(&rest[..at]);
        // One byte long, as all of these are.
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            other => {
                let _ = write!(out, "\\u{other:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Appends a number; what is none as a bare word, as clients expect it.
pub(in crate::triton) fn float<T: std::fmt::Debug + Into<f64> + Copy>(out: &mut String, number: T) {
    let wide: f64 = number.into();
    if wide.is_nan() {
        out.push_str("NaN");
    } else if wide.is_infinite() {
        out.push_str(if wide > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        // The shortest that reads as the same number, with an exponent where it is long.
        let _ = write!(out, "{number:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn another_reader_reads_what_was_written(text in any::<String>(), number in any::<f64>(), short in any::<f32>()) {
            let mut out = String::new();
            string(&mut out, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
            for written in [true, false] {
                let mut out = String::new();
                if written { float(&mut out, number) } else { float(&mut out, short) };
                let expected = if written { number } else { f64::from(short) };
                if expected.is_finite() {
                    let back: f64 = out.parse().unwrap();
                    let same = if written { back == expected } else { back as f32 == short };
                    prop_assert!(same, "{}", out);
                    prop_assert!(serde_json::from_str::<f64>(&out).is_ok());
                }
            }
        }
    }
}
