//! The text of a manifest: its first line, and the order of its body's keys.

use super::{FORMAT_VERSION, field};
use crate::block::crc32c;
use crate::error::LayoutError;

const FIRST_WORDS: &str = "STRATANN MANIFEST ";

pub(super) const KEYS: [(&str, u32); 38] = [
    ("format_version", 1),
    ("reader_features", 1),
    ("writer_features", 1),
    ("created_by", 1),
    ("checkpoint", 1),
    ("preset", 1),
    ("element", 1),
    ("metric", 1),
    // Only an index that is no graph has these keys, in any version; a reader feature bit marks it.
    ("kind", 1),
    ("cluster", 1),
    ("dimension", 1),
    ("vectors", 1),
    ("degree", 1),
    ("build_list", 1),
    ("alpha", 1),
    ("code_bytes", 1),
    ("order", 1),
    ("entry", 1),
    ("degree_mean", 1),
    ("degree_max", 1),
    ("edges", 1),
    ("deleted", 1),
    ("seed", 1),
    ("navigation", 1),
    ("layout", 2),
    ("list_bytes", 2),
    ("vector_bytes", 2),
    ("list_codec", 2),
    ("vector_codec", 2),
    ("segments", 2),
    ("measured", 2),
    ("codebook", 3),
    ("next_id", 3),
    ("log_from", 3),
    ("build", 3),
    ("placement", 4),
    // Only an index with writer feature bit 1 has this key, in any version.
    ("state", 1),
    ("files", 1),
];

pub(super) fn later_keys() -> impl Iterator<Item = (&'static str, u32)> {
    KEYS.into_iter().filter(|&(_, since)| since > 1)
}

/// Omits keys that `version` does not have.
pub(super) fn in_order(version: u32, body: &str) -> String {
    // A line with an indentation of two spaces begins a key, or ends the value of a key. No string
    // has a line break.
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut rest = body.trim_start_matches("{\n").trim_end_matches("\n}");
    while let Some(key) = rest
        .strip_prefix("  \"")
        .and_then(|rest| rest.split('"').next())
    {
        let end = rest[1..].find("\n  \"").map_or(rest.len(), |at| at + 2);
        let (value, behind) = rest.split_at(end);
        found.push((key, value.trim_end_matches(['\n', ','])));
        rest = behind;
    }
    let of_version = KEYS.iter().filter(|&&(_, since)| since <= version);
    let values = of_version.filter_map(|&(name, _)| {
        let value = found.iter().find(|&&(key, _)| key == name);
        value.map(|&(_, value)| value)
    });
    format!("{{\n{}\n}}", values.collect::<Vec<_>>().join(",\n"))
}

pub(super) fn first_line(version: u32, body: &[u8]) -> String {
    format!(
        "{FIRST_WORDS}{version} {:08x} {}\n",
        crc32c(body),
        body.len()
    )
}

pub(super) fn check_frame(text: &[u8], file: &str) -> Result<(u32, usize), LayoutError> {
    let head = &text[..text.len().min(FIRST_WORDS.len())];
    if head != &FIRST_WORDS.as_bytes()[..head.len()] {
        return Err(LayoutError::Magic {
            file: file.to_owned(),
            offset: 0,
            found: head.escape_ascii().to_string(),
            expected: FIRST_WORDS,
        });
    }
    let truncated = |offset: usize, expected: u64| LayoutError::Truncated {
        file: file.to_owned(),
        offset: offset as u64,
        expected,
        found: (text.len() - offset) as u64,
    };
    // The longest first line has three numbers of at most 10, 8 and 20 digits.
    let window = &text[..text.len().min(FIRST_WORDS.len() + 41)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return Err(truncated(0, FIRST_WORDS.len() as u64 + 41));
    };
    let bad_line = || LayoutError::Field {
        file: file.to_owned(),
        offset: FIRST_WORDS.len() as u64,
        what: "rest of the first line",
        found: format!("{:?}", text[head.len()..end].escape_ascii().to_string()),
        expected: "version, checksum and length".to_owned(),
    };
    let line = std::str::from_utf8(&text[head.len()..end]).map_err(|_| bad_line())?;
    let mut words = line.split(' ');
    let mut word = || words.next().ok_or_else(bad_line);
    let (version, sum, length) = (word()?, word()?, word()?);
    let version: u32 = version.parse().map_err(|_| bad_line())?;
    let stored = u32::from_str_radix(sum, 16).map_err(|_| bad_line())?;
    let length: u64 = length.parse().map_err(|_| bad_line())?;

    if version == 0 || version > FORMAT_VERSION {
        return Err(LayoutError::UnknownVersion {
            file: file.to_owned(),
            offset: FIRST_WORDS.len() as u64,
            found: version,
            expected: FORMAT_VERSION,
        });
    }
    let body = &text[end + 1..];
    if length > body.len() as u64 {
        return Err(truncated(end + 1, length));
    }
    if length < body.len() as u64 {
        return Err(LayoutError::Length {
            file: file.to_owned(),
            expected: (end as u64 + 1).saturating_add(length),
            found: text.len() as u64,
            by: "as its first line says",
        });
    }
    let computed = crc32c(body);
    if stored != computed {
        return Err(LayoutError::Checksum {
            file: file.to_owned(),
            offset: end as u64 + 1,
            stored,
            computed,
        });
    }
    // Only one spelling is accepted: "+1", "007" or upper-case digits count as damage.
    if first_line(version, body).as_bytes() != &text[..=end] {
        return Err(bad_line());
    }
    Ok((version, end + 1))
}

pub(super) fn not_json(error: &serde_json::Error, body: &[u8], at: u64, file: &str) -> LayoutError {
    let line_start: usize = body
        .split_inclusive(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let offset = at + (line_start + error.column()) as u64;
    field(file, offset, "body", error, "the manifest's JSON")
}

pub(super) fn first_unknown_key(
    found: &serde_json::Value,
    known: &serde_json::Value,
) -> Option<String> {
    use serde_json::Value;
    match (found, known) {
        (Value::Object(found), Value::Object(known)) => {
            found.iter().find_map(|(key, value)| match known.get(key) {
                None => Some(key.clone()),
                Some(known) => first_unknown_key(value, known),
            })
        }
        (Value::Array(found), Value::Array(known)) => found
            .iter()
            .zip(known)
            .find_map(|(found, known)| first_unknown_key(found, known)),
        _ => None,
    }
}
