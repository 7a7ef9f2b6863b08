//! Reads ids of vectors from a numpy array with one dimension.

use std::path::Path;

use super::DataError;
use super::npy;
use super::source::{open, read_at};

const PIECE: usize = 1 << 20;

/// Reads the ids in a `.npy` file: a little-endian array of `uint64`, `int64`, `uint32` or `int32`.
///
/// # Errors
/// The call fails if the file cannot be read or has another array, or if a number is negative or
/// 2^64-1. Such numbers are no ids.
pub fn read_ids(path: impl AsRef<Path>) -> Result<Vec<u64>, DataError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let (file, length) = open(path, &name)?;
    let (header, start) = npy::read_header(&file, length, &name)?;
    let field = |offset, what, found: String, reason: &str, remedy: &str| DataError::Field {
        file: name.clone(),
        offset,
        what,
        found,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    };
    let width = match header.descr.as_str() {
        "<u8" | "<i8" => 8,
        "<u4" | "<i4" => 4,
        other => {
            let reason = "ids are uint64, int64, uint32 or int32, little-endian";
            let remedy = "Convert them with array.astype('<u8')";
            return Err(field(start, "the dtype", other.to_owned(), reason, remedy));
        }
    };
    let &[count] = &header.shape[..] else {
        let shape = format!("{:?}", header.shape);
        let reason = "a list of ids has one dimension, (ids,)";
        let remedy = "Save an array of this shape";
        return Err(field(start, "the shape", shape, reason, remedy));
    };
    let expected = u128::from(start) + u128::from(count) * width as u128;
    DataError::check_length(&name, length, expected, || {
        format!("its header says {count} ids")
    })?;
    let signed = header.descr.starts_with("<i");
    // The length of the file was checked, so `count` is not too large.
    let mut ids = Vec::with_capacity(count as usize);
    let mut piece = vec![0; PIECE];
    let mut offset = start;
    while offset < length {
        let bytes = PIECE.min((length - offset) as usize);
        let piece = &mut piece[..bytes];
        read_at(&file, offset, piece, &name)?;
        for bytes in piece.chunks_exact(width) {
            let mut word = [0; 8];
            word[..width].copy_from_slice(bytes);
            let id = u64::from_le_bytes(word);
            if id == u64::MAX || signed && id >> (8 * width - 1) != 0 {
                let reason = "an id is a whole number from 0 to 18446744073709551614";
                let found = match signed {
                    true => "negative".to_owned(),
                    false => id.to_string(),
                };
                let at = start + (ids.len() * width) as u64;
                return Err(field(
                    at,
                    "an id",
                    found,
                    reason,
                    "Give an id in this range",
                ));
            }
            ids.push(id);
        }
        offset += bytes as u64;
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::super::npy::NpyHeader;
    use super::*;

    #[test]
    fn arrays_of_whole_numbers_are_ids() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let read = |descr, columns, count, data: &[u8]| {
            let header = NpyHeader { descr, columns };
            std::fs::write(&path, [&header.bytes(count)[..], data].concat()).unwrap();
            read_ids(&path).map_err(|error| error.to_string())
        };
        let many: Vec<u64> = (0..300_000).map(|id| id * 77_777_777_777).collect();
        let data: Vec<u8> = many.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(read("<u8", None, 300_000, &data).unwrap(), many);
        let narrow = [7i32, 0].map(i32::to_le_bytes).concat();
        assert_eq!(read("<i4", None, 2, &narrow).unwrap(), [7, 0]);
        assert_eq!(read("<u4", None, 2, &narrow).unwrap(), [7, 0]);
        let refused = |data: &[u8], descr, words: &str| {
            let count = data.len() as u64 / 8;
            let text = read(descr, None, count, data).unwrap_err();
            assert!(text.contains(words), "{text}");
        };
        refused(&(-1i64).to_le_bytes(), "<i8", "offset 128 is negative");
        refused(
            &u64::MAX.to_le_bytes(),
            "<u8",
            "is 18446744073709551615; an id is a whole number",
        );
        refused(&[0; 8], "<f8", "is <f8; ids are uint64");
        assert!(
            read("<u8", Some(1), 1, &[0; 8])
                .unwrap_err()
                .contains("one dimension")
        );
        assert!(
            read("<u8", None, 2, &[0; 8])
                .unwrap_err()
                .contains("its header says 2 ids")
        );
    }
}
