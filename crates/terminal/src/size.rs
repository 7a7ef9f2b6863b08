//! Sizes as users write and read them: in bytes, and for a cache in entries.
//!
//! ```text
//! 1048576      bytes
//! 64MB         64 * 10^6     kB MB GB TB: powers of 1000, as on a disk's label
//! 2GiB, 2G     2 * 2^30      KiB MiB GiB TiB, or the bare letter: powers of 1024, as in dd
//! ```

use std::str::FromStr;

/// Parses a size. The error gives valid examples.
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1000 * 1000,
        "gb" => 1000 * 1000 * 1000,
        "tb" => 1000 * 1000 * 1000 * 1000,
        _ => {
            return Err(format!(
                "'{}' is not a unit of size. Write bytes, or a number with kB, MB, GB (powers of 1000) \
                 or KiB, MiB, GiB (powers of 1024), for example 64MB or 2GiB",
                unit.trim()
            ));
        }
    };
    let wrong = || format!("'{text}' is not a size. Write for example 64MB, 2GiB or 1048576");
    let bytes = if number.contains('.') {
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = number * scale as f64;
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(format!("'{text}' is more than 2^64 bytes"));
        }
        bytes.round() as u64
    } else {
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number
            .checked_mul(scale)
            .ok_or_else(|| format!("'{text}' is more than 2^64 bytes"))?
    };
    if bytes == 0 {
        return Err(
            "0 bytes is too little for any use. Leave the option out for its default".into(),
        );
    }
    Ok(bytes)
}

/// Formats a size in powers of 1000, so that it compares with row counts and disk labels.
pub fn format(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 would print as 1000.0 of the smaller unit.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a count with separators: `1,000,000`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun: `1 vector`, `2,000 vectors`.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    let noun = if number == 1 { one } else { several };
    format!("{} {noun}", count(number))
}

/// Formats a number of vectors: `1 vector`.
pub fn vectors(number: u64) -> String {
    counted(number, "vector", "vectors")
}

/// Formats a number of queries: `1 query`.
pub fn queries(number: u64) -> String {
    counted(number, "query", "queries")
}

/// Formats a number of indexes: `1 index`.
pub fn indexes(number: u64) -> String {
    counted(number, "index", "indexes")
}

/// Formats a duration for users: `850 ms`, `12.3 s`, `4 min 05 s`.
pub fn seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = seconds.round() as u64;
        if whole < 3600 {
            format!("{} min {:02} s", whole / 60, whole % 60)
        } else {
            format!("{} h {:02} min", whole / 3600, whole % 3600 / 60)
        }
    }
}

/// The size of a cache in entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheEntries {
    /// A number of entries.
    Count(usize),
    /// A share of the vectors of the index.
    Share(f64),
}

impl CacheEntries {
    /// The number of entries for an index of `vectors` vectors, at most one for each.
    pub fn of(self, vectors: usize) -> usize {
        match self {
            Self::Count(entries) => entries.min(vectors),
            Self::Share(share) => ((share * vectors as f64).round() as usize).clamp(1, vectors),
        }
    }
}

impl FromStr for CacheEntries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "'{text}' {what}. Write a number of entries, 1 or more, or percent of the vectors, for example 1%; \
                 leave the option out for no cache"
            ))
        };
        match text.trim().strip_suffix('%').map(str::trim) {
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                    Ok(Self::Share(percent / 100.0))
                }
                Ok(_) => wrong("is not above 0% and up to 100%"),
                Err(_) => wrong("is not a percentage"),
            },
            None => match text.trim().parse::<usize>() {
                Ok(0) => wrong("is not a size of a cache"),
                Ok(entries) => Ok(Self::Count(entries)),
                Err(_) => wrong("is not a number of entries"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_cache() {
        let of = |text: &str, vectors| text.parse::<CacheEntries>().unwrap().of(vectors);
        assert_eq!((of("30", 1000), of("30", 20)), (30, 20));
        assert_eq!((of("1%", 1000), of("0.5 %", 1000)), (10, 5));
        assert_eq!((of("1%", 20), of("100%", 7)), (1, 7));
    }

    #[test]
    fn units() {
        assert_eq!(parse("1048576"), Ok(1 << 20));
        assert_eq!(parse("64MB"), Ok(64_000_000));
        assert_eq!(parse("64 mb"), Ok(64_000_000));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("2g"), Ok(2 << 30));
        assert_eq!(parse("1.5KiB"), Ok(1536));
        assert_eq!(parse("12B"), Ok(12));
    }

    #[test]
    fn refusals_say_what_would_be_right() {
        for text in [
            "",
            "MB",
            "x",
            "12 parsecs",
            "1.2.3MB",
            "-5MB",
            "99999999999999999999",
            "99999999TiB",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.len() > 10, "{text}: {error}");
        }
        assert!(parse("12 parsecs").unwrap_err().contains("parsecs"));
        assert!(parse("0").unwrap_err().contains("Leave the option out"));
    }

    #[test]
    fn for_people() {
        assert_eq!(format(0), "0 B");
        assert_eq!(format(999), "999 B");
        assert_eq!(format(1000), "1.0 kB");
        assert_eq!(format(999_990), "1.0 MB");
        assert_eq!(format(12_800_008), "12.8 MB");
        assert_eq!(format(u64::MAX), "18446.7 PB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(seconds(0.85), "850 ms");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(245.0), "4 min 05 s");
        assert_eq!(seconds(7322.0), "2 h 02 min");
    }
}
