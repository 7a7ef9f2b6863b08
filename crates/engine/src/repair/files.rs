//! Reads files that may be damaged, missing or cut short, or may be files of another index.
//!
//! A repair skips only damage. If this user may not read a file, or if a later version wrote it,
//! its vectors exist. So the repair fails and does not lose them.

use stratann_layout::header::stored_checksum;
use stratann_layout::{BLOCK, FileEntry, FileHeader, FileKind, LayoutError, block};
use stratann_tier::{TierError, Volume};

use crate::{Error, stored};

/// The errors of the operating system that mean lost bytes: EIO, ENODATA, EBADMSG, EUCLEAN.
const LOST: [i32; 4] = [5, 61, 74, 117];

pub(super) enum Header {
    /// The file is the file that the manifest names.
    Right(FileHeader),
    /// The header is damaged, for this reason. The bytes after it may still be readable.
    Damaged(String),
    /// The file is missing or does not belong to the index, for this reason.
    None(String),
}

pub(super) fn header(
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<Header, Error> {
    match volume.len(&entry.name) {
        Ok(_) => {}
        Err(TierError::Missing { .. }) => return Ok(Header::None("it is missing".into())),
        Err(error) => return Err(error.into()),
    }
    let mut first = vec![0; BLOCK];
    if !read(volume, &entry.name, 0, &mut first)? {
        return Ok(Header::Damaged("its header cannot be read".into()));
    }
    let damaged = |error: LayoutError| Ok(Header::Damaged(said(volume, entry, &error)));
    match FileHeader::decode(&first, &stored::name_of(volume, &entry.name)) {
        Ok(header) if header.kind == kind && stored_checksum(&first) == entry.header_crc32c => {
            Ok(Header::Right(header))
        }
        Ok(_) => {
            let what = "its header is not the header that the MANIFEST names, so it is a file of another index";
            Ok(Header::None(what.into()))
        }
        Err(
            error @ (LayoutError::Magic { .. }
            | LayoutError::Checksum { .. }
            | LayoutError::Truncated { .. }),
        ) => damaged(error),
        Err(error) => {
            let error = Error::from(error);
            match is_newer(&error) {
                true => Err(error),
                false => Ok(Header::None(said(volume, entry, &error))),
            }
        }
    }
}

/// `false` if the bytes are lost or never existed.
pub(super) fn read(
    volume: &dyn Volume,
    name: &str,
    offset: u64,
    out: &mut [u8],
) -> Result<bool, Error> {
    match volume.read_at(name, offset, out) {
        Ok(()) => Ok(true),
        Err(error) if is_lost(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_lost(error: &TierError) -> bool {
    match error {
        TierError::Missing { .. } | TierError::Short { .. } | TierError::OutOfRange { .. } => true,
        TierError::Io { source, .. } => {
            source.kind() == std::io::ErrorKind::UnexpectedEof
                || source.raw_os_error().is_some_and(|os| LOST.contains(&os))
        }
        _ => false,
    }
}

/// Whether the error means damage. Otherwise the read failed for another reason.
pub(super) fn is_damage(error: &Error) -> bool {
    match error {
        Error::Layout(_) => !is_newer(error),
        Error::Damaged { .. } | Error::DamagedLog { .. } => true,
        Error::Tier(error) => is_lost(error),
        _ => false,
    }
}

pub(super) fn is_newer(error: &Error) -> bool {
    matches!(
        error,
        Error::Layout(
            LayoutError::UnknownVersion { .. }
                | LayoutError::UnknownIndexKind { .. }
                | LayoutError::UnknownFeature { .. }
                | LayoutError::UnknownKind { .. }
        )
    )
}

pub(super) fn said(
    volume: &dyn Volume,
    entry: &FileEntry,
    error: &dyn std::fmt::Display,
) -> String {
    let (text, file) = (error.to_string(), stored::name_of(volume, &entry.name));
    let text = text.strip_prefix(&format!("{file}: ")).unwrap_or(&text);
    first_part(text).to_owned()
}

/// The text of an error without its remedy, because the repair is the remedy.
pub(super) fn first_part(text: &str) -> &str {
    const REMEDIES: [&str; 7] = ["Build", "Check", "Put", "Read", "Restore", "Run", "Use"];
    let is_remedy = |rest: &str| REMEDIES.iter().any(|verb| rest.starts_with(verb));
    let mut ends = text.match_indices(". ").map(|(at, _)| at);
    let end = ends.find(|&at| is_remedy(&text[at + 2..]));
    &text[..end.unwrap_or(text.len())]
}

/// The payload of a byte string, and whether each of its blocks is undamaged.
pub(super) struct Payload {
    pub(super) bytes: Vec<u8>,
    pub(super) whole: Vec<bool>,
}

impl Payload {
    /// Checks the blocks one by one. If parts of the payload are missing, the result also has the
    /// reason as text.
    pub(super) fn read(
        volume: &dyn Volume,
        entry: &FileEntry,
        kind: FileKind,
    ) -> Result<(Self, Option<String>), Error> {
        let mut payload = Self {
            bytes: Vec::new(),
            whole: Vec::new(),
        };
        let mut wrong = match header(volume, entry, kind)? {
            Header::Right(_) => None,
            Header::Damaged(what) => Some(what),
            Header::None(what) => return Ok((payload, Some(what))),
        };
        let file = stored::name_of(volume, &entry.name);
        // The length in a damaged manifest might be far too large.
        let blocks = volume.len(&entry.name)?.min(entry.length) / BLOCK as u64;
        let mut buffer = vec![0; BLOCK];
        for number in 1..blocks {
            let found = read(volume, &entry.name, number * BLOCK as u64, &mut buffer)?;
            let checked = match found {
                true => block::check(&buffer, number, &file).map_err(|e| said(volume, entry, &e)),
                false => Err(format!("block {number} cannot be read")),
            };
            payload.whole.push(checked.is_ok());
            payload.bytes.extend_from_slice(&buffer[4..]);
            wrong = wrong.or(checked.err());
        }
        if blocks * (BLOCK as u64) < entry.length {
            let (found, length) = (volume.len(&entry.name)?, entry.length);
            wrong = wrong.or(Some(format!(
                "it has {found} bytes, but should have {length}"
            )));
        }
        Ok((payload, wrong))
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// `None` if some of the bytes are missing or damaged.
    pub(super) fn get(&self, at: u64, length: u64) -> Option<&[u8]> {
        let end = usize::try_from(at.checked_add(length)?).ok()?;
        let at = usize::try_from(at).ok()?;
        let bytes = self.bytes.get(at..end)?;
        let blocks = at / block::PAYLOAD..end.div_ceil(block::PAYLOAD);
        let whole = self.whole.get(blocks)?.iter().all(|&whole| whole);
        whole.then_some(bytes)
    }

    pub(super) fn u32(&self, at: u64) -> Option<u32> {
        let bytes = self.get(at, 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error as IoError;

    use super::*;

    #[test]
    fn only_what_is_gone_is_lost() {
        let error = |os| {
            TierError::io(
                "read",
                "graph-000001",
                0,
                4096,
                IoError::from_raw_os_error(os),
            )
        };
        // EIO, ENOENT, EUCLEAN.
        assert!([5, 2, 117].into_iter().all(|os| is_lost(&error(os))));
        // EACCES, EMFILE, ENOMEM: the file may exist without damage.
        assert!(![13, 24, 12].into_iter().any(|os| is_lost(&error(os))));
        assert!(!is_damage(&error(13).into()) && is_damage(&error(5).into()));
        assert!(!is_damage(&Error::Interrupted));
    }

    #[test]
    fn bytes_are_given_only_where_every_block_of_them_is_whole() {
        let bytes = (0..3 * block::PAYLOAD).map(|n| n as u8).collect();
        let payload = Payload {
            bytes,
            whole: vec![true, false, true],
        };
        let size = block::PAYLOAD as u64;
        assert_eq!(payload.get(0, size).map(<[u8]>::len), Some(block::PAYLOAD));
        assert!(payload.get(2 * size, size).is_some() && payload.get(2 * size, 0).is_some());
        for (at, length) in [
            (size - 1, 2),
            (size, 1),
            (2 * size - 1, 2),
            (2 * size, size + 1),
        ] {
            assert_eq!(payload.get(at, length), None, "{at} {length}");
        }
        assert_eq!(payload.get(u64::MAX, 2), None);
        assert_eq!(payload.u32(1), Some(0x0403_0201));
        assert_eq!(payload.u32(size - 3), None);
    }
}
