//! Checks segments of columns: rows, ids, and the index part.

use stratann_layout::FileKind;

use super::Check;
use crate::stores::columns::{PartReader, RowsReader, check};
use crate::{Error, stored};

impl Check<'_> {
    /// Checks all segments whose two files have correct checksums.
    pub(super) fn columns(&mut self) -> Result<(), Error> {
        for number in self.manifest.column_segments() {
            let n = Some(number);
            let kinds = [FileKind::Rows, FileKind::Columns];
            if !kinds
                .iter()
                .all(|&kind| self.whole_columns.contains(&(kind, n)))
            {
                continue;
            }
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            if let Err(error) = self.segment_of_columns(number) {
                self.report.refused(&self.volume.name(), &error);
            }
        }
        Ok(())
    }

    fn segment_of_columns(&mut self, number: u32) -> Result<(), Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let entry = |kind| stored::entry(volume, manifest, kind, Some(number));
        let rows = RowsReader::open(volume, entry(FileKind::Rows)?)?;
        let part = PartReader::open(volume, entry(FileKind::Columns)?)?;
        let report = &mut self.report;
        check(&rows, &part, manifest.nodes(), &mut |file, what| {
            report.problem(file, None, what);
        })
    }
}
