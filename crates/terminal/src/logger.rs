//! Messages on standard error: plain lines on a terminal, lines with the time in a server's log,
//! and JSON for a log collector.
//!
//! ```text
//!   Form::Plain   warning: the memory server at 10.0.0.1:7700 is not connected any more ...
//!   Form::Timed   2026-11-24T00:31:05.120Z warning: the memory server at ...
//!   Form::Json    {"time":"2026-11-24T00:31:05.120Z","level":"warn",
//!                  "target":"stratann_node::serve","message":"the memory .."}, on one line
//! ```

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each message.
    Plain,
    /// A line for each message, which begins with the time (UTC).
    Timed,
    /// One JSON object a line: `time`, `level`, `target`, `message`.
    Json,
}

static FORM: OnceLock<Form> = OnceLock::new();

/// The variable with the lowest level to show: error, warn, info, debug or off.
const LEVEL: &str = "STRATANN_LOG";

/// Shows messages from this level on, unless `STRATANN_LOG` sets another.
pub fn install(level: log::LevelFilter, form: Form) {
    let named = std::env::var(LEVEL).ok();
    let level = named.and_then(|name| name.parse().ok()).unwrap_or(level);
    if FORM.set(form).is_ok() && log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

#[derive(Serialize)]
struct Event<'a> {
    time: &'a str,
    level: &'a str,
    target: &'a str,
    message: &'a str,
}

/// `level` is `None` for output at any level.
fn line(
    form: Form,
    now: SystemTime,
    level: Option<log::Level>,
    target: &str,
    message: &str,
) -> String {
    let named = match level {
        Some(log::Level::Error) => "error: ",
        Some(log::Level::Warn) => "warning: ",
        Some(_) => "note: ",
        None => "",
    };
    match form {
        Form::Plain => format!("{named}{message}"),
        Form::Timed => format!("{} {named}{message}", time(now)),
        Form::Json => {
            let level = level.unwrap_or(log::Level::Info).as_str().to_lowercase();
            let event = Event {
                time: &time(now),
                level: &level,
                target,
                message,
            };
            // All fields are strings.
            serde_json::to_string(&event).unwrap_or_else(|_| message.to_owned())
        }
    }
}

/// The time is in UTC to the millisecond, as in RFC 3339.
fn time(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin with March, so that leap days end years; 1970-01-01 is day 719,468.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, later) = match month {
        0..=9 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    format!(
        "{:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}.{:03}Z",
        400 * era + year + later,
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

fn write(level: Option<log::Level>, target: &str, message: &str) {
    let form = FORM.get().copied().unwrap_or(Form::Plain);
    let line = line(form, SystemTime::now(), level, target, message);
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Shows progress, or the effect of a signal.
pub(crate) fn say(message: &str) {
    write(None, "stratann", message);
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let message = record.args().to_string();
            write(Some(record.level()), record.target(), &message);
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis)
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        // From `date -u -d @N +%FT%TZ`.
        for (seconds, right) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_799, "2000-02-29T23:59:59.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_709_164_800, "2024-02-29T00:00:00.007Z"),
            (1_798_761_599, "2026-12-31T23:59:59.007Z"),
            (1_798_761_600, "2027-01-01T00:00:00.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(time(at(seconds, 7)), right);
        }
    }

    #[test]
    fn each_form_says_what_it_is_about() {
        let (now, level) = (at(0, 120), Some(log::Level::Warn));
        let told = |form, level| line(form, now, level, "of", "it \"is\"");
        assert_eq!(told(Form::Plain, level), "warning: it \"is\"");
        assert_eq!(told(Form::Plain, None), "it \"is\"");
        let stamped = "1970-01-01T00:00:00.120Z warning: it \"is\"";
        assert_eq!(told(Form::Timed, level), stamped);
        let object = r#"{"time":"1970-01-01T00:00:00.120Z","level":"warn","target":"of","message":"it \"is\""}"#;
        assert_eq!(told(Form::Json, level), object);
        assert!(told(Form::Json, None).contains(r#""level":"info""#));
    }
}
