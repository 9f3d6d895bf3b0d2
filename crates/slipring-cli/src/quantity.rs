//! Times and lengths, as a person writes and reads them.

use std::fmt;
use std::time::Duration;

const UNITS: [(&str, f64); 6] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)];

/// The longest time in seconds, some thirty years: the clock has an end, and no wait lasts so long.
const LONGEST: f64 = 1e9;

const LENGTHS: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Returns the time that a text such as `250ms` or `1.5` (seconds) tells.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let scale = if unit.is_empty() {
        Some(1.0)
    } else {
        UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
    };
    let seconds = number.parse::<f64>().ok().zip(scale).map(|(number, scale)| number * scale);
    seconds
        .filter(|seconds| *seconds <= LONGEST)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| {
            "a time is a number up to 30 years, and ns, us, ms, s (without a unit, too) or min"
                .into()
        })
}

/// Returns the bytes that a text such as `64` or `4KiB` tells.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = if unit.is_empty() {
        Some(1)
    } else {
        LENGTHS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
    };
    let len = number.parse::<u64>().ok().zip(scale);
    len.and_then(|(number, scale)| number.checked_mul(scale)).ok_or_else(|| {
        "a length is a whole number and B (without a unit, too), KiB, MiB, GiB, kB, MB or GB".into()
    })
}

/// Returns a number and its unit.
fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

/// Shows a number of nanoseconds in the unit that a person would choose.
pub(crate) struct Nanos(pub(crate) f64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            nanos if nanos < 1e3 => (1.0, "ns"),
            nanos if nanos < 1e6 => (1e3, "µs"),
            nanos if nanos < 1e9 => (1e6, "ms"),
            _ => (1e9, "s"),
        };
        f.pad(&format!("{} {unit}", three_digits(self.0 / scale)))
    }
}

/// Shows a number of bytes in the unit that a person would choose.
pub(crate) struct Len(pub(crate) f64);

impl fmt::Display for Len {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = LENGTHS[1..4].iter().rev().find(|(_, scale)| {
            let scale = *scale as f64;
            self.0 >= scale && self.0 % scale == 0.0
        });
        if let Some((unit, scale)) = exact {
            return f.pad(&format!("{:.0} {unit}", self.0 / *scale as f64));
        }
        let (scale, unit) = match self.0 {
            len if len < 1e4 => return f.pad(&format!("{len:.0} B")),
            len if len < 1e6 => (1e3, "kB"),
            len if len < 1e9 => (1e6, "MB"),
            _ => (1e9, "GB"),
        };
        f.pad(&format!("{} {unit}", three_digits(self.0 / scale)))
    }
}

/// Returns a number with the decimals that leave it three digits.
fn three_digits(number: f64) -> String {
    let decimals = match number {
        number if number < 10.0 => 2,
        number if number < 100.0 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_lengths_are_read_as_they_are_written() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2 min"), Ok(Duration::from_secs(120)));
        assert_eq!((bytes("64"), bytes("4KiB"), bytes("3 MB")), (Ok(64), Ok(4096), Ok(3_000_000)));
        for wrong in ["", "ms", "1h", "-1", "1e400", "x", "1000000000000000"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "KiB", "1TiB", "-1", "1.5", "20000000000GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
