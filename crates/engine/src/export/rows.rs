//! The vectors of an export, one after the other: how many there are is written in front when that is known.

use std::path::Path;

use stratann_vector::Element;

use crate::DataError;
use crate::data::{NpyHeader, Output, bin_extension, extension, extension_error};

/// A file of vectors on its way.
pub(super) struct RowsFile {
    output: Output,
    header: Header,
    rows: u64,
}

/// What stands in front of the rows.
enum Header {
    /// Rows and dimension, 32 bits each.
    Bin(u32),
    Npy(NpyHeader),
}

impl Header {
    fn bytes(&self, rows: u64) -> Result<Vec<u8>, DataError> {
        match self {
            Self::Npy(header) => Ok(header.bytes(rows)),
            Self::Bin(dim) => {
                let rows = u32::try_from(rows).map_err(|_| DataError::Argument {
                    what: "the number of vectors",
                    found: rows.to_string(),
                    expected:
                        "at most 4294967295 (the format has 32 bits for it; a .npy file has 64)"
                            .to_owned(),
                })?;
                Ok([rows.to_le_bytes(), dim.to_le_bytes()].concat())
            }
        }
    }
}

impl RowsFile {
    /// Begins one, of the format that its extension says.
    ///
    /// # Errors
    /// An extension that is not one for these elements; the file cannot be made.
    pub(super) fn create(path: &Path, dim: usize, element: Element) -> Result<Self, DataError> {
        let (header, expected) = match element {
            Element::F32 => ("<f4", ".npy .fbin"),
            Element::F16 => ("<f2", ".npy .hbin"),
            Element::U8 => ("|u1", ".npy .u8bin"),
            Element::I8 => ("|i1", ".npy .i8bin"),
        };
        let header = match extension(path).as_str() {
            "npy" => Header::Npy(NpyHeader {
                descr: header,
                columns: Some(dim as u64),
            }),
            found if found == bin_extension(element) => Header::Bin(dim as u32),
            _ => return Err(extension_error(path, expected)),
        };
        let mut output = Output::create(path)?;
        output.write(&header.bytes(0)?)?;
        Ok(Self {
            output,
            header,
            rows: 0,
        })
    }

    /// How many there are.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends a vector, as it is.
    pub(super) fn push(&mut self, vector: &[u8]) -> Result<(), DataError> {
        self.rows += 1;
        self.output.write(vector)
    }

    /// Puts all of it on storage; it does not appear yet.
    pub(super) fn complete(&mut self) -> Result<(), DataError> {
        let header = self.header.bytes(self.rows)?;
        self.output.write_in_front(&header)?;
        self.output.complete()
    }

    /// Removes the file whose place it takes, if there is one.
    pub(super) fn remove_old(&self) -> Result<(), DataError> {
        self.output.remove_old()
    }

    /// Makes the complete file appear.
    pub(super) fn commit(self) -> Result<(), DataError> {
        self.output.commit()
    }
}
