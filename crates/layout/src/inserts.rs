//! The file `INSERTS` of an index: inserts that assign consecutive ids, so that they can be
//! resumed.
//!
//! ```text
//! STRATANN INSERTS <format version> <checksum, 8 hex digits>\n
//! {"file": .., "rows": .., "first_id": .., "content": .., "beside": .., "done": .., ..}\n
//!
//! checksum: crc32c of the version, in the digits above, and of the body
//! body: a line of JSON for each insert; the last key is "replaced_by"
//! ```
//!
//! A rename replaces the file as a whole. No vector depends on the file, so a reader ignores a
//! damaged file. It also ignores version 1, which does not record attributes. In version 2 the
//! checksum covers the body alone, or version and body. A file of a later version is left
//! unchanged.

use serde::{Deserialize, Serialize};

use crate::block::crc32c;

/// The file's name in the index directory.
pub const FILE_NAME: &str = "INSERTS";
/// The name of the file before it is complete.
pub const UNFINISHED: &str = "INSERTS.new";

const FIRST_WORDS: &str = "STRATANN INSERTS ";
/// The newest format version.
pub const VERSION: u32 = 3;

/// The reason why the text of the file is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The text is damaged, or of version 1.
    Damaged,
    /// A later program wrote the text, with this version.
    Later(u32),
}

/// An insert that assigns consecutive ids: row `n` has the id `first_id + n`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunInsert {
    /// The name of the vectors, in messages and for the removal of this entry. The name of a file
    /// is its absolute path.
    pub file: String,
    /// The number of rows.
    pub rows: u64,
    /// The id of the first row.
    pub first_id: u64,
    /// A hash of the vectors, by which a repeated insert is recognised.
    pub content: String,
    /// A hash of the rows' attributes and payloads, if they have any.
    pub beside: Option<String>,
    /// Whether all rows have been inserted.
    pub done: bool,
    /// The checkpoint id ([`Manifest::state`](crate::manifest::Manifest::state)) of a build. If the
    /// index has this id now, the insert belongs to the index that the build replaced.
    pub replaced_by: Option<String>,
}

/// Encodes the text of the file.
pub fn encode(inserts: &[BegunInsert]) -> Vec<u8> {
    // Only a map whose keys are not strings makes this fail, and an insert has no such map.
    let lines = inserts.iter().map(serde_json::to_string);
    let lines: Vec<String> = lines.map(|line| line.unwrap_or_default() + "\n").collect();
    let body = lines.concat();
    let version = VERSION.to_string();
    format!(
        "{FIRST_WORDS}{version} {}\n{body}",
        checksum(&version, &body)
    )
    .into_bytes()
}

fn checksum(version: &str, body: &str) -> String {
    format!("{:08x}", crc32c(format!("{version}\n{body}").as_bytes()))
}

/// Decodes the text of the file.
///
/// # Errors
/// The reason why the text is ignored.
pub fn decode(text: &[u8]) -> Result<Vec<BegunInsert>, Unreadable> {
    let damaged = Unreadable::Damaged;
    let text = str::from_utf8(text).map_err(|_| damaged)?;
    let (first, body) = text.split_once('\n').ok_or(damaged)?;
    let words = first.strip_prefix(FIRST_WORDS);
    let (version, stored) = words.and_then(|w| w.split_once(' ')).ok_or(damaged)?;
    let without_version = || format!("{:08x}", crc32c(body.as_bytes()));
    if stored != checksum(version, body) && (version != "2" || stored != without_version()) {
        return Err(damaged);
    }
    match version.parse() {
        Ok(2 | VERSION) => {}
        Ok(later) if later > VERSION => return Err(Unreadable::Later(later)),
        _ => return Err(damaged),
    }
    let inserts = body.lines().map(serde_json::from_str::<BegunInsert>);
    let inserts: Vec<BegunInsert> = inserts.collect::<Result<_, _>>().map_err(|_| damaged)?;
    // The largest number means "no result", so no row may have it as its id.
    let has_ids = |insert: &BegunInsert| insert.first_id.checked_add(insert.rows).is_some();
    let counts = inserts.iter().all(has_ids);
    counts.then_some(inserts).ok_or(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [BegunInsert; 2] {
        let one = BegunInsert {
            file: "a \"strange\"\nname.fbin".into(),
            rows: 1_000,
            first_id: 5,
            content: "00ff".into(),
            beside: None,
            done: false,
            replaced_by: None,
        };
        let other = BegunInsert {
            file: "b.npy".into(),
            beside: Some("ff00".into()),
            done: true,
            replaced_by: Some("77".into()),
            ..one.clone()
        };
        [one, other]
    }

    #[test]
    fn texts_that_were_written_are_read_as_they_were() {
        let lines = "{\"file\":\"a \\\"strange\\\"\\nname.fbin\",\"rows\":1000,\"first_id\":5,\"content\":\"00ff\",\"beside\":null,\"done\":false,\"replaced_by\":null}\n\
            {\"file\":\"b.npy\",\"rows\":1000,\"first_id\":5,\"content\":\"00ff\",\"beside\":\"ff00\",\"done\":true,\"replaced_by\":\"77\"}\n";
        let text = format!("STRATANN INSERTS 3 f71cd6c0\n{lines}");
        assert_eq!(String::from_utf8(encode(&two())), Ok(text.clone()));
        let second =
            ["c3c88100", "de849115"].map(|crc| format!("STRATANN INSERTS 2 {crc}\n{lines}"));
        for text in second.into_iter().chain([text]) {
            assert_eq!(decode(text.as_bytes()).as_deref(), Ok(&two()[..]));
        }
        let of = |version: &str| {
            let stored = checksum(version, "");
            decode(format!("STRATANN INSERTS {version} {stored}\n").as_bytes())
        };
        assert_eq!(of("3"), Ok(Vec::new()));
        assert_eq!(of("1"), Err(Unreadable::Damaged));
        assert_eq!(of("4"), Err(Unreadable::Later(4)));
    }

    #[test]
    fn what_was_written_is_read_and_damage_says_nothing() {
        for inserts in [&two()[..], &[]] {
            assert_eq!(decode(&encode(inserts)).as_deref(), Ok(inserts));
        }
        let whole = encode(&two());
        for at in 0..whole.len() {
            assert_eq!(decode(&whole[..at]), Err(Unreadable::Damaged), "{at} bytes");
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                assert_eq!(
                    decode(&bytes),
                    Err(Unreadable::Damaged),
                    "bit {bit} of byte {at}"
                );
            }
        }
        let mut beyond = two();
        beyond[0].first_id = u64::MAX - 1;
        assert_eq!(decode(&encode(&beyond)), Err(Unreadable::Damaged));
    }
}
