//! The node reader: pages of nodes in, in completion order.
//!
//! A traversal asks for pages by number and takes them as they come; it neither knows where the bytes live nor how
//! they are read. Best-first waits for as many completions as it asked for; pipelined reacts to each.

use std::task::{Context, Poll};

use stratann_tier::{Completion, ReadQueue, Request, next};

use super::Counters;
use super::parts::{Part, Timer};
use crate::Error;
use crate::measure::Heat;
use crate::stores::page_source::Bytes;
use crate::stores::{GraphStores, NodePages};

/// A page that is here.
pub(crate) struct Page<'a> {
    number: u64,
    bytes: Bytes<'a>,
}

/// One query's reads of node pages.
pub(crate) struct NodeReader<'a, N> {
    queue: Box<dyn ReadQueue>,
    graph: &'a GraphStores,
    pages: &'a N,
    check: bool,
    timer: &'a Timer,
    heat: Option<&'a Heat>,
    /// What the device moves at least.
    granularity: u64,
}

impl<'a, N: NodePages> NodeReader<'a, N> {
    /// Reads the pages of an index's graph file through `queue`; `check` verifies each page's checksums, and `heat` is told
    /// which are read.
    pub(crate) fn new(
        queue: Box<dyn ReadQueue>,
        graph: &'a GraphStores,
        pages: &'a N,
        check: bool,
        timer: &'a Timer,
        heat: Option<&'a Heat>,
    ) -> Self {
        Self {
            queue,
            graph,
            pages,
            check,
            timer,
            heat,
            granularity: u64::from(graph.tier.granularity()).max(1),
        }
    }

    /// A page that needs no read.
    #[inline]
    pub(crate) fn in_memory(&self, number: u64) -> Option<Page<'a>> {
        let bytes = self.graph.in_memory(number)?;
        Some(Page { number, bytes })
    }

    /// Whether nobody has composed a page anew that stays in its place. Where pages do not, nodes say which page they are on now.
    #[inline]
    pub(crate) fn is_current(&self, page: &Page<'a>) -> bool {
        N::MOVES || {
            let now = self.graph.unwritten(page.number);
            page.bytes.are_current(now.as_ref())
        }
    }

    /// Queues the read of a page; never blocks.
    pub(crate) fn submit(&mut self, page: u64, counters: &mut Counters) -> Result<(), Error> {
        let (offset, len) = self.pages.place(page);
        if let Some(heat) = self.heat {
            heat.graph(page);
        }
        counters.graph_reads += 1;
        counters.bytes_read += self.moved(offset, len as u64);
        self.queue.submit(Request {
            tag: page,
            offset,
            len: len as u32,
        })?;
        Ok(())
    }

    /// Bytes that the device moves for a read.
    fn moved(&self, offset: u64, len: u64) -> u64 {
        let end = (offset + len).next_multiple_of(self.granularity);
        end - offset / self.granularity * self.granularity
    }

    /// Starts what is queued, so that the device works while this thread computes.
    pub(crate) fn flush(&mut self) {
        self.queue.flush();
    }

    /// Says that the search goes on only when so many pages have come in.
    pub(crate) fn need(&mut self, pages: usize) {
        self.queue.need(pages);
    }

    /// Reads that have not been taken yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// A page that has already come in.
    pub(crate) fn try_next(&mut self) -> Result<Option<Page<'a>>, Error> {
        self.queue
            .try_next()
            .map(|done| self.open(done))
            .transpose()
    }

    /// The next page to come in.
    pub(crate) async fn next(&mut self) -> Result<Page<'a>, Error> {
        let start = self.timer.start();
        let done = next(&mut *self.queue).await;
        self.timer.stop(Part::Reads, start);
        self.open(done)
    }

    /// A read that has come in, to be [opened](NodeReader::open); at least one is in flight.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.queue.poll_next(cx)
    }

    /// Forgets the reads in flight.
    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }

    /// The nodes of a page that this reader delivered.
    #[inline]
    pub(crate) fn view<'p>(&'p self, page: &'p Page<'a>) -> Result<N::View<'p>, Error> {
        self.pages.view(&page.bytes, page.number, false)
    }

    /// The page that a read brought.
    pub(crate) fn open(&self, done: Completion) -> Result<Page<'a>, Error> {
        let number = done.tag;
        // Where pages are written in their places, one that was while it was read is in memory still.
        if !N::MOVES
            && let Some(bytes) = self.graph.unwritten(number).map(Bytes::Unwritten)
        {
            return Ok(Page { number, bytes });
        }
        let page = Page {
            number,
            bytes: Bytes::Read(done.result?),
        };
        if self.check {
            self.pages.view(&page.bytes, page.number, true)?;
        }
        Ok(page)
    }
}

impl Page<'_> {
    /// Its number in the file.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
