//! The node reader: pages of nodes in, in completion order.
//!
//! A traversal asks for pages by number and takes them as they come; it neither knows where the bytes live nor how
//! they are read. Best-first waits for as many completions as it asked for; pipelined reacts to each.

use stratann_layout::{CoupledShape, PageView};
use stratann_tier::{Block, Completion, Lane, Request, next};

use super::Counters;
use crate::Error;
use crate::index::Graph;

/// A page that was read.
pub(crate) struct Page {
    number: u64,
    bytes: Block,
}

/// One query's reads of node pages.
pub(crate) struct NodeReader<'a> {
    lane: Box<dyn Lane>,
    shape: &'a CoupledShape,
    nodes: u64,
    file: &'a str,
    check: bool,
}

impl<'a> NodeReader<'a> {
    /// Reads the pages of an index's graph file through `lane`; `check` verifies each page's checksums.
    pub(crate) fn new(lane: Box<dyn Lane>, graph: &'a Graph, check: bool) -> Self {
        Self {
            lane,
            shape: &graph.shape,
            nodes: graph.nodes,
            file: &graph.file,
            check,
        }
    }

    /// Queues the read of a page; never blocks.
    pub(crate) fn submit(&mut self, page: u64, counters: &mut Counters) -> Result<(), Error> {
        let len = self.shape.page_bytes();
        counters.graph_reads += 1;
        counters.bytes_read += len as u64;
        self.lane.submit(Request {
            tag: page,
            offset: self.shape.file_offset(page),
            len: len as u32,
        })?;
        Ok(())
    }

    /// Starts what is queued, so that the device works while this thread computes.
    pub(crate) fn flush(&mut self) {
        self.lane.flush();
    }

    /// Says that the search goes on only when so many pages have come in.
    pub(crate) fn need(&mut self, pages: usize) {
        self.lane.need(pages);
    }

    /// Reads that have not been taken yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }

    /// A page that has already come in.
    pub(crate) fn try_next(&mut self) -> Result<Option<Page>, Error> {
        self.lane.try_next().map(|done| self.open(done)).transpose()
    }

    /// The next page to come in.
    pub(crate) async fn next(&mut self) -> Result<Page, Error> {
        let done = next(&mut *self.lane).await;
        self.open(done)
    }

    /// Forgets the reads in flight.
    pub(crate) fn reset(&mut self) {
        self.lane.reset();
    }

    /// The nodes of a page that this reader delivered.
    pub(crate) fn view<'p>(&self, page: &'p Page) -> Result<PageView<'p>, Error>
    where
        'a: 'p,
    {
        self.parse(page, false)
    }

    fn parse<'p>(&self, page: &'p Page, check: bool) -> Result<PageView<'p>, Error>
    where
        'a: 'p,
    {
        let count = self.shape.nodes_on_page(page.number, self.nodes);
        Ok(PageView::open(
            self.shape,
            &page.bytes,
            page.number,
            Some(count),
            check,
            self.file,
        )?)
    }

    fn open(&self, done: Completion) -> Result<Page, Error> {
        let page = Page {
            number: done.tag,
            bytes: done.result?,
        };
        if self.check {
            self.parse(&page, true)?;
        }
        Ok(page)
    }
}

impl Page {
    /// Its number in the file.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}
