//! The node reader reads pages of nodes, and returns them in the order of completions.

use std::task::{Context, Poll};

use stratann_tier::{Completion, ReadQueue, Request, next};

use super::Counters;
use super::parts::{Part, Timer};
use crate::Error;
use crate::stores::heat::Heat;
use crate::stores::page_source::Bytes;
use crate::stores::{GraphStores, NodePages};

pub(crate) struct Page<'a> {
    number: u64,
    bytes: Bytes<'a>,
}

pub(crate) struct NodeReader<'a, N> {
    queue: Box<dyn ReadQueue>,
    graph: &'a GraphStores,
    pages: &'a N,
    check: bool,
    timer: &'a Timer,
    heat: Option<&'a Heat>,
    /// The smallest number of bytes that the device transfers.
    granularity: u64,
}

impl<'a, N: NodePages> NodeReader<'a, N> {
    /// `check` verifies each page's checksums, and `heat` records which pages are read.
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

    #[inline]
    pub(crate) fn in_memory(&self, number: u64) -> Option<Page<'a>> {
        let bytes = self.graph.in_memory(number)?;
        Some(Page { number, bytes })
    }

    /// Whether `page` has the current bytes. If records move to other pages, this is always true,
    /// because the placement gives the current page.
    #[inline]
    pub(crate) fn is_current(&self, page: &Page<'a>) -> bool {
        N::MOVES || {
            let now = self.graph.unwritten(page.number);
            page.bytes.are_current(now.as_ref())
        }
    }

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

    fn moved(&self, offset: u64, len: u64) -> u64 {
        let end = (offset + len).next_multiple_of(self.granularity);
        end - offset / self.granularity * self.granularity
    }

    /// Submits the queued reads, so that the device works while this thread computes.
    pub(crate) fn flush(&mut self) {
        self.queue.flush();
    }

    /// Makes the queue resume the search only when `pages` pages have arrived.
    pub(crate) fn need(&mut self, pages: usize) {
        self.queue.need(pages);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    pub(crate) fn try_next(&mut self) -> Result<Option<Page<'a>>, Error> {
        self.queue
            .try_next()
            .map(|done| self.open(done))
            .transpose()
    }

    pub(crate) async fn next(&mut self) -> Result<Page<'a>, Error> {
        let start = self.timer.start();
        let done = next(&mut *self.queue).await;
        self.timer.stop(Part::Reads, start);
        self.open(done)
    }

    /// Returns a completed read for [`open`](NodeReader::open). At least one read must be in
    /// flight.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.queue.poll_next(cx)
    }

    pub(crate) fn reset(&mut self) {
        self.queue.reset();
    }

    #[inline]
    pub(crate) fn view<'p>(&'p self, page: &'p Page<'a>) -> Result<N::View<'p>, Error> {
        self.pages.view(&page.bytes, page.number, false)
    }

    pub(crate) fn open(&self, done: Completion) -> Result<Page<'a>, Error> {
        let number = done.tag;
        // The page may have been changed in place during this read, and is then dirty in memory.
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
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
