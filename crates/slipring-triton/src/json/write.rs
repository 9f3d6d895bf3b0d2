//! Writes JSON with `serde_json`, and the words for non-finite numbers.

use std::io;

use serde_core::Serialize;

/// Writes a string, a number, or a list of these.
///
/// # Errors
///
/// Only those of the writer.
pub(crate) fn value<T: Serialize + ?Sized>(out: impl io::Write, value: &T) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Writes a number. A non-finite one becomes a bare word, as clients expect.
pub(crate) fn float<T: Serialize + Into<f64> + Copy>(
    mut out: impl io::Write,
    number: T,
) -> io::Result<()> {
    let wide: f64 = number.into();
    match wide.is_finite() {
        // `serde_json` writes the shortest text that reads as the same number.
        true => value(out, &number),
        false if wide.is_nan() => out.write_all(b"NaN"),
        false if wide > 0.0 => out.write_all(b"Infinity"),
        false => out.write_all(b"-Infinity"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::Node;

    proptest! {
        #[test]
        fn what_was_written_is_read(text in any::<String>(), wide in any::<f64>(), short in any::<f32>()) {
            let mut out = Vec::new();
            value(&mut out, &text).unwrap();
            let back = Node::document(&out).unwrap().string().map(|text| text.into_owned());
            prop_assert_eq!(back, Some(text));
            for (is_wide, number) in [(true, wide), (false, f64::from(short))] {
                let mut out = Vec::new();
                if is_wide { float(&mut out, wide) } else { float(&mut out, short) }.unwrap();
                let back = Node::document(&out).unwrap().float().unwrap();
                let same = if is_wide { back == number } else { back as f32 == short };
                prop_assert!(same || (back.is_nan() && number.is_nan()), "{out:?}");
            }
        }
    }
}
