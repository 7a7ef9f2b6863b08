//! Durations as text for users.

use std::fmt;
use std::time::Duration;

/// A duration for messages: `420 µs`, `35 ms`, `1.5 s`, `4 min 05 s`, `2 h 03 min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_secs(), self.0.as_millis());
        match seconds {
            0 if millis == 0 => write!(f, "{} µs", self.0.as_micros()),
            0 => write!(f, "{millis} ms"),
            1..60 => {
                let text = format!("{:.1}", self.0.as_secs_f64());
                write!(f, "{} s", text.trim_end_matches(".0"))
            }
            60..3600 => write!(f, "{} min {:02} s", seconds / 60, seconds % 60),
            _ => write!(f, "{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        for (nanos, said) in [
            (420_123, "420 µs"),
            (35_999_999, "35 ms"),
            (1_000_000_000, "1 s"),
            (1_543_210_987, "1.5 s"),
            (245_000_000_000, "4 min 05 s"),
            (7_380_000_000_000, "2 h 03 min"),
        ] {
            assert_eq!(Span(Duration::from_nanos(nanos)).to_string(), said);
        }
    }
}
