//! Parses times.

use time::format_description::well_known::Iso8601;
use time::{Date, OffsetDateTime, PrimitiveDateTime, Time};

/// Converts a date, or a date and a time of day after `T` or a blank, to microseconds since 1970
/// UTC (ISO 8601). Without an offset, the time is in UTC. Digits below a microsecond are dropped.
pub(crate) fn timestamp(text: &str) -> Option<i64> {
    let text = match text.split_once(' ') {
        Some((date, time)) => format!("{date}T{time}"),
        None => text.to_owned(),
    };
    let format = &Iso8601::PARSING;
    let time = OffsetDateTime::parse(&text, format)
        .or_else(|_| PrimitiveDateTime::parse(&text, format).map(PrimitiveDateTime::assume_utc))
        .or_else(|_| {
            Date::parse(&text, format).map(|date| date.with_time(Time::MIDNIGHT).assume_utc())
        })
        .ok()?;
    i64::try_from(time.unix_timestamp_nanos().div_euclid(1000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let day = 86_400_000_000;
        for (text, micros) in [
            ("1970-01-02", Some(day)),
            ("1970-01-02T00:00:00Z", Some(day)),
            ("1970-01-02T00:00:00", Some(day)),
            ("1970-01-02 01:00:00.000001+01:00", Some(day + 1)),
            ("1969-12-31T23:59:59.9999999Z", Some(-1)),
            ("1969-12-31T23:59:59.999999Z", Some(-1)),
            ("2024-02-29T12:30Z", Some(1_709_209_800_000_000)),
            ("2023-02-29", None),
            ("tomorrow", None),
            ("", None),
            ("1970-01-02Tx", None),
            ("12:00", None),
        ] {
            assert_eq!(timestamp(text), micros, "{text}");
        }
    }
}
