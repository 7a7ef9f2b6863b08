//! The file of vectors of an export. Its header has the number of vectors, and is written last.

use std::path::Path;

use stratann_vector::Element;

use crate::DataError;
use crate::data::{NpyHeader, Output, bin_extension, extension, extension_error};

pub(super) struct RowsFile {
    output: Output,
    header: Header,
    rows: u64,
}

enum Header {
    /// The number of rows and this dimension, with 32 bits each.
    Bin(u32),
    Npy(NpyHeader),
}

impl Header {
    fn bytes(&self, rows: u64) -> Result<Vec<u8>, DataError> {
        match self {
            Self::Npy(header) => Ok(header.bytes(rows)),
            Self::Bin(dim) => {
                let rows = u32::try_from(rows)
                    .map_err(|_| DataError::too_wide("the number of vectors", rows as usize))?;
                Ok([rows.to_le_bytes(), dim.to_le_bytes()].concat())
            }
        }
    }
}

impl RowsFile {
    /// The extension must fit the element type.
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

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn push(&mut self, vector: &[u8]) -> Result<(), DataError> {
        self.rows += 1;
        self.output.write(vector)
    }

    pub(super) fn complete(&mut self) -> Result<(), DataError> {
        let header = self.header.bytes(self.rows)?;
        self.output.write_in_front(&header)?;
        self.output.complete()
    }

    pub(super) fn remove_old(&self) -> Result<(), DataError> {
        self.output.remove_old()
    }

    pub(super) fn commit(self) -> Result<(), DataError> {
        self.output.commit()
    }
}
