//! Vectors that came after the build of a decoupled index: the mutable end of its last segment (DecoupleVS §3.3).
//!
//! ```text
//!   vectors-…-0003    | pages of the build ... | added page | added page | open page
//!   firsts                                       9000         9007         9013        in memory, 4 bytes a page
//! ```
//!
//! DecoupleVS appends raw vectors to a mutable segment, and compresses it when it is full. Here a page is what is sealed:
//! a vector is encoded when it comes, with the model of the last segment, and joins the **open page**, which is in memory alone until
//! the next vector does not fit it. Then it is written, once, behind the others. So no vector is written raw and read again, and what is
//! in memory is a page. A checkpoint seals the open page as it is, since a page that a checkpoint names is not written
//! again.
//!
//! Nodes are numbered as they come, so an added page holds consecutive nodes as those of the build do, and where one
//! begins is all that has to be known.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use stratann_layout::{SlottedBuilder, SlottedShape};
use stratann_tier::{TierError, VolumeFile};

use crate::stores::topology::placement::{PageBytes, Unwritten, Words};

/// The added pages of a segment.
pub(crate) struct Added {
    shape: SlottedShape,
    /// The first node that came after the build.
    built: u32,
    /// Pages of the build, behind which the added ones are.
    behind: u32,
    /// The first node of each added page, by its place among them.
    firsts: Words,
    /// Added pages, the open one among them.
    pages: AtomicU32,
    /// Those that are not on storage yet: the open one, and those that are sealed.
    unwritten: Unwritten,
    open: Mutex<Open>,
}

/// The page that the next vector joins, and what is to be written.
struct Open {
    builder: SlottedBuilder,
    /// The node that comes next.
    next: u32,
    /// Pages that are sealed, by number, in the order in which they are written.
    sealed: VecDeque<u32>,
}

impl Added {
    /// Of a segment whose pages have this shape and which ends, `behind` pages from its start, before node `built`; `firsts`
    /// are the first nodes of the pages that were added before, and `next` the node that comes next.
    pub(crate) fn new(
        shape: SlottedShape,
        built: u32,
        behind: u32,
        firsts: &[u32],
        next: u32,
    ) -> Self {
        let words = Words::default();
        for (at, &first) in (0..).zip(firsts) {
            words.set(at, first);
        }
        Self {
            shape,
            built,
            behind,
            firsts: words,
            pages: AtomicU32::new(firsts.len() as u32),
            unwritten: Unwritten::default(),
            open: Mutex::new(Open {
                builder: SlottedBuilder::new(shape),
                next,
                sealed: VecDeque::new(),
            }),
        }
    }

    /// Whether a node's vector is here.
    #[inline]
    pub(crate) fn has(&self, node: u32) -> bool {
        node >= self.built
    }

    /// The page of a node's vector in the file of the segment.
    #[inline]
    pub(crate) fn page_of(&self, node: u32) -> u64 {
        let (mut low, mut high) = (0, self.pages.load(Ordering::Acquire));
        // The last that begins with the node, or before it.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.firsts.get(middle) <= node {
                low = middle;
            } else {
                high = middle;
            }
        }
        u64::from(self.behind) + u64::from(low)
    }

    /// A page that is not on storage yet. That of the open one has the vectors that had come by now.
    #[inline]
    pub(crate) fn unwritten(&self, page: u64) -> Option<PageBytes> {
        self.unwritten.get(u32::try_from(page).ok()?)
    }

    /// Appends the vector of the next node, encoded. Whoever is told of the node afterwards finds it.
    ///
    /// # Panics
    /// If it is not the next.
    pub(crate) fn append(&self, node: u32, id: u64, code: &[u8]) {
        let mut open = self.open.lock();
        let Open {
            builder,
            next,
            sealed,
        } = &mut *open;
        assert_eq!(node, *next, "vectors are appended in the order of nodes");
        *next += 1;
        let last = || self.behind + self.pages.load(Ordering::Acquire) - 1;
        if builder.is_empty() || !builder.push(id, &[], code) {
            if !builder.is_empty() {
                sealed.push_back(last());
            }
            builder.start(node);
            let fits = builder.push(id, &[], code);
            debug_assert!(fits, "an empty page takes any vector");
            let pages = self.pages.load(Ordering::Acquire);
            self.firsts.set(pages, node);
            let number = self.behind + pages;
            self.unwritten
                .insert(number, Arc::from(builder.finish(number.into())));
            self.pages.store(pages + 1, Ordering::Release);
        } else {
            let number = last();
            self.unwritten
                .insert(number, Arc::from(builder.finish(number.into())));
        }
    }

    /// Takes no more vectors onto the open page.
    pub(crate) fn seal(&self) {
        let mut open = self.open.lock();
        if !open.builder.is_empty() {
            let last = self.behind + self.pages.load(Ordering::Acquire) - 1;
            open.sealed.push_back(last);
            let next = open.next;
            open.builder.start(next);
        }
    }

    /// Writes the pages that are sealed. `file` is locked by whoever writes, one at a time; inserts go on.
    ///
    /// # Errors
    /// A page cannot be written; it stays in memory, and is tried again.
    pub(crate) fn write(&self, file: &Mutex<Box<dyn VolumeFile>>) -> Result<u64, TierError> {
        let mut written = 0;
        if self.open.lock().sealed.is_empty() {
            return Ok(written);
        }
        let mut file = file.lock();
        loop {
            let Some(page) = self.open.lock().sealed.front().copied() else {
                return Ok(written);
            };
            if let Some(bytes) = self.unwritten.get(page) {
                file.write_at(self.shape.file_offset(page.into()), &bytes)?;
                self.unwritten.remove(page, &bytes);
            }
            self.open.lock().sealed.pop_front();
            written += 1;
        }
    }

    /// The first node of each added page. None may be open.
    pub(crate) fn firsts(&self) -> Vec<u32> {
        let pages = self.pages.load(Ordering::Acquire);
        (0..pages).map(|at| self.firsts.get(at)).collect()
    }

    /// The numbers of all added pages in the file of the segment.
    pub(crate) fn pages(&self) -> std::ops::Range<u64> {
        let behind = u64::from(self.behind);
        behind..behind + u64::from(self.pages.load(Ordering::Acquire))
    }

    /// Bytes that it takes in memory, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.firsts.memory_bytes() as usize + 2 * self.shape.page_bytes()
    }
}

#[cfg(test)]
mod tests {
    use stratann_layout::{FileKind, SlottedView};
    use stratann_tier::{Directory, Volume};
    use stratann_vector::Element;

    use super::*;

    fn ids_of(shape: &SlottedShape, bytes: &[u8], page: u64) -> (u32, Vec<u64>) {
        let view = SlottedView::open(shape, bytes, page, true, "v").unwrap();
        let ids = (0..view.len()).map(|slot| view.id(slot).unwrap());
        (view.first(), ids.collect())
    }

    #[test]
    fn vectors_are_found_while_their_page_is_open_and_when_it_is_written() {
        let shape = SlottedShape::new(FileKind::Vectors, Element::U8, 1000, 8, 1001).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let volume = Directory::open(folder.path()).unwrap();
        volume.create("v").unwrap();
        let file = Mutex::new(volume.open_pages("v").unwrap());
        let added = Added::new(shape, 50, 7, &[], 50);
        assert!(added.has(50) && !added.has(49));
        for node in 50..60u32 {
            added.append(node, u64::from(node) + 1000, &[node as u8; 1000]);
            let page = added.page_of(node);
            let (first, ids) = ids_of(&shape, &added.unwritten(page).unwrap(), page);
            assert_eq!(ids[(node - first) as usize], u64::from(node) + 1000);
        }
        let firsts = added.firsts();
        assert!((3..=4).contains(&firsts.len()), "{firsts:?}");
        assert_eq!(firsts[0], 50);
        assert_eq!(added.write(&file).unwrap(), firsts.len() as u64 - 1);
        added.seal();
        added.seal();
        assert_eq!(added.write(&file).unwrap(), 1);
        added.append(60, 1, &[1; 1000]);
        assert_eq!(added.page_of(60), 7 + firsts.len() as u64);
        for node in 50..60 {
            let page = added.page_of(node);
            assert!(added.unwritten(page).is_none());
            let mut bytes = vec![0; shape.page_bytes()];
            volume
                .read_at("v", shape.file_offset(page), &mut bytes)
                .unwrap();
            let (first, ids) = ids_of(&shape, &bytes, page);
            assert_eq!(ids[(node - first) as usize], u64::from(node) + 1000);
        }
        // As after it was opened again.
        let again = Added::new(shape, 50, 7, &firsts, 60);
        assert_eq!(again.page_of(59), added.page_of(59));
        again.append(60, 1, &[1; 1000]);
        assert_eq!(again.firsts().len(), firsts.len() + 1);
    }
}
