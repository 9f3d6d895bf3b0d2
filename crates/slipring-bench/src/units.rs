//! Times and sizes as a table shows them.

/// Returns a time with its unit, to a nanosecond or two decimals.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value.is_nan() => "–".into(),
        value if value < 1e3 => format!("{value:.0} ns"),
        value if value < 1e6 => format!("{:.2} µs", value / 1e3),
        value => format!("{:.2} ms", value / 1e6),
    }
}

/// Returns a time with its unit and three significant digits.
pub fn short_time(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value.is_nan() => "–".into(),
        value if value < 999.5 => format!("{} ns", digits(value)),
        value if value < 999.5e3 => format!("{} µs", digits(value / 1e3)),
        value => format!("{} ms", digits(value / 1e6)),
    }
}

/// Returns a number with three significant digits, or all digits before the point.
pub fn digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Returns a size in the largest unit that it reaches.
pub fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}
