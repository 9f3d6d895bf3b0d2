//! A time of the clock, as a person and a program read it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Shows a time of the clock in UTC, to the nanosecond, as RFC 3339 writes it.
pub(crate) struct Stamp(pub(crate) SystemTime);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = match self.0.duration_since(UNIX_EPOCH) {
            Ok(time) => time.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        let (seconds, nanos) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
        let (days, second) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
        // Days of the proleptic Gregorian calendar, counted in eras of 400 years that begin on the first of March: Hinnant,
        // "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = year + era * 400 + i128::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_is_a_date() {
        let at = |seconds| Stamp(UNIX_EPOCH + Duration::new(seconds, 7)).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.000000007Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.000000007Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000000007Z");
        let before = Stamp(UNIX_EPOCH - Duration::from_secs(1)).to_string();
        assert_eq!(before, "1969-12-31T23:59:59.000000000Z");
    }
}
