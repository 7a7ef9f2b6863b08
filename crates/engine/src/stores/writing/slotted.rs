//! Writes a file of slotted pages, each with as many records as fit.

use stratann_layout::{FileEntry, RunsOn, SlottedBuilder, SlottedShape};

use super::files::{Sequential, WRITE_BYTES};
use crate::Error;
use crate::durable::Checkpoint;

/// A file while a build writes it. Its header has the number of pages, and is written last.
pub(crate) struct SlottedFile {
    shape: SlottedShape,
    file: Sequential,
    builder: SlottedBuilder,
    first: u32,
    next: u32,
    counts: Vec<u16>,
    runs: RunsOn,
    buffer: Vec<u8>,
    /// The planned first node of each page.
    planned: Vec<u32>,
    /// The number of planned first nodes that were reached.
    begun: usize,
}

impl SlottedFile {
    /// Creates file `n` of the shape's kind, whose first record belongs to node `first`.
    pub(crate) fn create(
        checkpoint: &Checkpoint<'_>,
        shape: SlottedShape,
        n: Option<u32>,
        first: u32,
    ) -> Result<Self, Error> {
        let mut builder = SlottedBuilder::new(shape);
        builder.start(first);
        Ok(Self {
            shape,
            file: Sequential::create_headless(checkpoint, shape.kind(), n)?,
            builder,
            first,
            next: first,
            counts: Vec::new(),
            runs: RunsOn::default(),
            buffer: Vec::with_capacity(WRITE_BYTES + shape.page_bytes()),
            planned: Vec::new(),
            begun: 0,
        })
    }

    /// Sets the ascending nodes with which pages are planned to begin. If the last record of a page
    /// does not fit, it is written to the next page. If that page also has space for its own
    /// planned nodes, it ends as planned.
    pub(crate) fn planned(mut self, firsts: &[u32]) -> Self {
        self.planned = firsts.to_vec();
        self
    }

    fn is_planned_end(&mut self) -> bool {
        if self.planned.get(self.begun) != Some(&self.next) {
            return false;
        }
        self.begun += 1;
        // If the page began with its planned first node or an earlier node, it ends as planned.
        let began = self
            .begun
            .checked_sub(2)
            .map_or(self.first, |before| self.planned[before]);
        let on_page = self.next - self.builder.len() as u32;
        on_page <= began
    }

    /// Appends the next node. If the current page is too small, a new page begins.
    ///
    /// # Panics
    /// The call panics if the record is larger than the shape allows.
    pub(crate) fn push(&mut self, id: u64, list: &[u8], vector: &[u8]) -> Result<(), Error> {
        if self.is_planned_end() {
            self.end_page()?;
        }
        if !self.builder.push(id, list, vector) {
            self.end_page()?;
            assert!(
                self.builder.push(id, list, vector),
                "a list of {} bytes and a vector of {} bytes do not fit on an empty page",
                list.len(),
                vector.len()
            );
        }
        self.next += 1;
        while self.builder.goes_on() {
            self.end_page()?;
        }
        Ok(())
    }

    pub(crate) fn end_page(&mut self) -> Result<(), Error> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let page = self.counts.len() as u32;
        self.counts.push(self.builder.len() as u16);
        self.buffer
            .extend_from_slice(self.builder.finish(page.into()));
        if self.builder.goes_on() {
            self.runs.set(page);
            self.builder.go_on(self.next);
        } else {
            self.builder.start(self.next);
        }
        if self.buffer.len() >= WRITE_BYTES {
            self.file.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> &[u16] {
        &self.counts
    }

    pub(crate) fn runs(&self) -> &RunsOn {
        &self.runs
    }

    pub(crate) fn finish(mut self) -> Result<(FileEntry, Vec<u16>), Error> {
        self.end_page()?;
        self.file.write(&self.buffer)?;
        let nodes = u64::from(self.next - self.first);
        let header = self
            .shape
            .header(self.first, nodes, self.counts.len() as u64);
        Ok((self.file.finish_headless(&header)?, self.counts))
    }
}

#[cfg(test)]
mod tests {
    use stratann_layout::FileKind;
    use stratann_tier::testing::SimVolume;
    use stratann_vector::Element;

    use super::*;

    /// `firsts` has the nodes that are planned to begin pages.
    fn counts(sizes: &[usize], firsts: &[u32]) -> Vec<u16> {
        let volume = SimVolume::new();
        let checkpoint = Checkpoint::begin(&volume, false).unwrap();
        let shape = SlottedShape::new(FileKind::Packed, Element::U8, 128, 64, 4_000).unwrap();
        let file = SlottedFile::create(&checkpoint, shape, None, 0).unwrap();
        let mut file = file.planned(firsts);
        for &size in sizes {
            file.push(0, &[], &vec![7; size]).unwrap();
        }
        file.finish().unwrap().1
    }

    #[test]
    fn pages_begin_where_they_are_planned_to() {
        assert_eq!(counts(&[1_000; 8], &[]), [4, 4]);
        assert_eq!(counts(&[1_000; 8], &[0, 3, 5]), [3, 2, 3]);
        assert_eq!(counts(&[1_000; 8], &[0]), [4, 4]);
    }

    #[test]
    fn what_does_not_fit_is_carried_until_there_is_room() {
        // One of five records is carried over. The next page has space, and ends as planned.
        assert_eq!(counts(&[1_000; 11], &[0, 5, 8]), [4, 4, 3]);
        // Each page carries one record over, but the page before the last carries two records over.
        assert_eq!(counts(&[1_000; 20], &[0, 5, 9, 13]), [4, 4, 4, 4, 4]);
        // If the first node of a planned page is carried over, the plan continues after this node.
        assert_eq!(counts(&[1_000; 13], &[0, 5, 9]), [4, 4, 4, 1]);
    }
}
