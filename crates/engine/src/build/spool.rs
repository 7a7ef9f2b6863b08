//! A file of vectors that grows, for rows whose number is not known beforehand.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use stratann_tier::TierError;
use stratann_vector::Element;

use crate::Error;
use crate::data::VectorFile;

const PIECE: usize = 1 << 20;

pub(crate) struct Spool {
    file: BufWriter<File>,
    path: PathBuf,
    rows: u32,
}

impl Spool {
    pub(crate) fn create(folder: &Path, element: Element, dim: usize) -> Result<Self, Error> {
        let path = folder.join(format!("rows.{}", extension(element)));
        let failed = |source| cannot_write(&path, source);
        let mut file = BufWriter::with_capacity(PIECE, File::create(&path).map_err(failed)?);
        // These bytes are a placeholder. `finish` writes the number of rows here.
        file.write_all(&[[0; 4], (dim as u32).to_le_bytes()].concat())
            .map_err(failed)?;
        Ok(Self {
            file,
            path,
            rows: 0,
        })
    }

    pub(crate) fn push(&mut self, row: &[u8]) -> Result<(), Error> {
        self.rows = self.rows.saturating_add(1);
        let written = self.file.write_all(row);
        Ok(written.map_err(|source| cannot_write(&self.path, source))?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The file must have at least one row.
    pub(crate) fn finish(self) -> Result<VectorFile, Error> {
        let (path, rows) = (self.path, self.rows);
        let failed = |source| cannot_write(&path, source);
        let file = self.file.into_inner();
        let mut file = file.map_err(|error| failed(error.into_error()))?;
        file.rewind().map_err(failed)?;
        file.write_all(&rows.to_le_bytes()).map_err(failed)?;
        drop(file);
        Ok(VectorFile::open(&path)?)
    }
}

fn cannot_write(path: &Path, source: std::io::Error) -> TierError {
    TierError::io("write", path.display().to_string(), 0, 0, source)
}

fn extension(element: Element) -> &'static str {
    match element {
        Element::F32 => "fbin",
        Element::F16 => "hbin",
        Element::U8 => "u8bin",
        Element::I8 => "i8bin",
    }
}
