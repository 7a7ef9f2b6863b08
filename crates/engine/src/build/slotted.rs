//! Writing a file of slotted pages: records of any length, as many on a page as fit; or, where they run on, one behind the other.

use stratann_layout::{FileEntry, RunsOn, SlottedBuilder, SlottedShape};

use super::files::{Sequential, WRITE_BYTES};
use crate::Error;
use crate::durable::Checkpoint;

/// A file of slotted pages being written. Its header says how many pages it has, so it is written last.
pub(crate) struct SlottedFile {
    shape: SlottedShape,
    file: Sequential,
    builder: SlottedBuilder,
    /// Its first node, and the one that comes next.
    first: u32,
    next: u32,
    /// Records that start on each page that is full.
    counts: Vec<u16>,
    /// Those of these pages whose last record goes on on the next.
    runs: RunsOn,
    /// Pages that wait to be written together.
    buffer: Vec<u8>,
}

impl SlottedFile {
    /// Begins the file of the shape's kind, the `n`-th if an index has several. Its first record is node `first`.
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
        })
    }

    /// Appends the next node, on a new page if the last one has no room for it.
    ///
    /// # Panics
    /// When the record is larger than the shape was made for.
    pub(crate) fn push(&mut self, id: u64, list: &[u8], vector: &[u8]) -> Result<(), Error> {
        if !self.builder.push(id, list, vector) {
            self.end_page()?;
            assert!(
                self.builder.push(id, list, vector),
                "a list of {} and a vector of {} bytes do not fit the page that was made for the largest",
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

    /// The next record begins a new page.
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

    /// Records that start on each of the pages that were ended so far.
    pub(crate) fn counts(&self) -> &[u16] {
        &self.counts
    }

    /// Those of these pages whose last record goes on on the next.
    pub(crate) fn runs(&self) -> &RunsOn {
        &self.runs
    }

    /// Completes the file. Gives its entry and the records on each page.
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
