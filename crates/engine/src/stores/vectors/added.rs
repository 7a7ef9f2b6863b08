//! Vectors inserted after the build of a decoupled index, at the mutable end of the last segment
//! (DecoupleVS §3.3).
//!
//! ```text
//!   vectors-…-0003    | pages of the build ... | added page | added page | open page
//!   firsts                                       9000         9007         9013
//!                     in memory, 4 bytes a page; and a bit
//! ```
//!
//! DecoupleVS appends raw vectors, and compresses a full segment. Here a new vector is encoded at
//! once with the model of the last segment, and joins the **open page** in memory. If a vector does
//! not fit, the open page is sealed, and later written once. A checkpoint seals the open page
//! early, because a page that a checkpoint names is not rewritten.
//!
//! An added page has consecutive nodes. If the last vector of a sealed page continues on the open
//! page, the sealed page stays in memory. So a vector is either completely in memory or completely
//! on storage.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use stratann_layout::{RunsOn, SlottedBuilder, SlottedShape};
use stratann_tier::{TierError, VolumeFile};

use crate::stores::topology::placement::{PageBytes, Unwritten, Words};

pub(crate) struct Added {
    shape: SlottedShape,
    built: u32,
    behind: u32,
    /// The first node of each added page. If no vector starts on a page, the page has the first
    /// node of the next page.
    firsts: Words,
    /// A bit for each added page: whether its last vector continues on the next page.
    runs: Words,
    pages: AtomicU32,
    unwritten: Unwritten,
    open: Mutex<Open>,
}

struct Open {
    builder: SlottedBuilder,
    next: u32,
    /// The sealed pages that are not written yet, in the order of writing.
    sealed: VecDeque<u32>,
    /// The written pages whose last vector continues on pages that are not all written.
    kept: Vec<u32>,
}

impl Added {
    /// The build has `behind` pages, and ends before node `built`. `firsts` has the first nodes of
    /// the existing added pages, and `runs` marks pages whose last vector continues on the next
    /// page.
    pub(crate) fn new(
        shape: SlottedShape,
        built: u32,
        behind: u32,
        (firsts, runs): (&[u32], &RunsOn),
        next: u32,
    ) -> Self {
        let (words, bits) = (Words::default(), Words::default());
        for (at, &first) in (0..).zip(firsts) {
            words.set(at, first);
            if runs.has(at.into()) {
                set(&bits, at);
            }
        }
        Self {
            shape,
            built,
            behind,
            firsts: words,
            runs: bits,
            pages: AtomicU32::new(firsts.len() as u32),
            unwritten: Unwritten::default(),
            open: Mutex::new(Open {
                builder: SlottedBuilder::new(shape),
                next,
                sealed: VecDeque::new(),
                kept: Vec::new(),
            }),
        }
    }

    #[inline]
    pub(crate) fn has(&self, node: u32) -> bool {
        node >= self.built
    }

    /// The page on which a node's vector starts, and the number of pages that the vector spans.
    #[inline]
    pub(crate) fn place_of(&self, node: u32) -> (u64, u32) {
        let all = self.pages.load(Ordering::Acquire);
        let (mut low, mut high) = (0, all);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.firsts.get(middle) <= node {
                low = middle;
            } else {
                high = middle;
            }
        }
        let is_last = high < all && self.firsts.get(high) == node + 1;
        let pages = if is_last { self.run(low, all) } else { 1 };
        (u64::from(self.behind) + u64::from(low), pages)
    }

    pub(crate) fn pages_from(&self, page: u64) -> u32 {
        let at = page.saturating_sub(self.behind.into()) as u32;
        self.run(at, self.pages.load(Ordering::Acquire))
    }

    fn run(&self, at: u32, all: u32) -> u32 {
        let mut last = at;
        // The bit of a page may be set before the next page exists.
        while last + 1 < all && self.goes_on(last) {
            last += 1;
            if last + 1 < all && self.starts(last) {
                break;
            }
        }
        last + 1 - at
    }

    /// The fault, if the tables give a vector more pages than the memory plan allows.
    pub(crate) fn too_long(&self) -> Option<String> {
        let all = self.pages.load(Ordering::Acquire);
        let run = |at| (u64::from(self.behind) + u64::from(at), self.run(at, all));
        too_long(&self.shape, (0..all).map(run))
    }

    /// Whether a vector starts on added page `at`, which must not be the last page.
    fn starts(&self, at: u32) -> bool {
        self.firsts.get(at) != self.firsts.get(at + 1)
    }

    fn goes_on(&self, at: u32) -> bool {
        self.runs.get(at / 32) >> (at % 32) & 1 != 0
    }

    #[inline]
    pub(crate) fn unwritten(&self, page: u64, pages: u32) -> Option<PageBytes> {
        let first = u32::try_from(page).ok()?;
        let bytes = self.unwritten.get(first)?;
        match pages {
            1 => Some(bytes),
            _ => self.put_together(bytes, first + 1..first + pages),
        }
    }

    /// The bytes of a page and of the pages `behind`. `None` if one of these is on storage already.
    fn put_together(&self, first: PageBytes, behind: Range<u32>) -> Option<PageBytes> {
        let mut all = first.to_vec();
        for page in behind {
            all.extend_from_slice(&self.unwritten.get(page)?);
        }
        Some(all.into())
    }

    /// The caller increases the number of nodes afterwards, so that threads that see the new number
    /// find the vector.
    pub(crate) fn append(&self, node: u32, id: u64, code: &[u8]) {
        let mut open = self.open.lock();
        assert_eq!(
            node, open.next,
            "vectors are appended in the order of nodes"
        );
        open.next += 1;
        let mut pages = self.pages.load(Ordering::Acquire);
        if open.builder.is_empty() || !open.builder.push(id, &[], code) {
            if !open.builder.is_empty() {
                open.sealed.push_back(self.behind + pages - 1);
            }
            open.builder.start(node);
            let fits = open.builder.push(id, &[], code);
            assert!(fits, "an empty page takes any vector");
            self.firsts.set(pages, node);
            pages += 1;
        }
        self.show(&mut open.builder, pages - 1);
        while open.builder.goes_on() {
            open.sealed.push_back(self.behind + pages - 1);
            set(&self.runs, pages - 1);
            open.builder.go_on(node + 1);
            self.firsts.set(pages, node + 1);
            pages += 1;
            self.show(&mut open.builder, pages - 1);
        }
        // All pages of the vector become visible to other threads at once.
        self.pages.store(pages, Ordering::Release);
    }

    fn show(&self, builder: &mut SlottedBuilder, at: u32) {
        let number = self.behind + at;
        self.unwritten
            .insert(number, Arc::from(builder.finish(number.into())));
    }

    pub(crate) fn seal(&self) {
        let mut open = self.open.lock();
        if !open.builder.is_empty() {
            let last = self.behind + self.pages.load(Ordering::Acquire) - 1;
            open.sealed.push_back(last);
            let next = open.next;
            open.builder.start(next);
        }
    }

    /// Writes the sealed pages, while inserts continue. If a page cannot be written, it stays in
    /// memory for the next call.
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
            }
            let mut open = self.open.lock();
            open.sealed.pop_front();
            self.let_go(&mut open.kept, page);
            written += 1;
        }
    }

    /// Releases pages whose vectors are completely on storage. All pages up to `page` are on
    /// storage. `kept` has the pages that must stay.
    fn let_go(&self, kept: &mut Vec<u32>, page: u32) {
        let at = page - self.behind;
        let goes_on = self.goes_on(at);
        kept.push(page);
        // If the last vector continues and no vector starts here, the page has only the middle of a
        // vector.
        let starts = !goes_on || self.starts(at);
        let whole = match (starts, goes_on) {
            (true, true) => kept.len() - 1,
            (true, false) => kept.len(),
            (false, _) => 0,
        };
        for page in kept.drain(..whole) {
            if let Some(bytes) = self.unwritten.get(page) {
                self.unwritten.remove(page, &bytes);
            }
        }
    }

    /// The first node of each added page. There must be no open page.
    pub(crate) fn firsts(&self) -> Vec<u32> {
        let pages = self.pages.load(Ordering::Acquire);
        (0..pages).map(|at| self.firsts.get(at)).collect()
    }

    pub(crate) fn runs(&self) -> RunsOn {
        let mut runs = RunsOn::default();
        for at in (0..self.pages.load(Ordering::Acquire)).filter(|&at| self.goes_on(at)) {
            runs.set(at);
        }
        runs
    }

    pub(crate) fn pages(&self) -> std::ops::Range<u64> {
        let behind = u64::from(self.behind);
        behind..behind + u64::from(self.pages.load(Ordering::Acquire))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let words = self.firsts.memory_bytes() + self.runs.memory_bytes();
        words as usize + (1 + self.shape.pages_per_record()) * self.shape.page_bytes()
    }
}

/// The fault, if a vector spans more pages than the shape allows. For each page, `runs` has the
/// number of pages that its last vector spans.
pub(super) fn too_long(
    shape: &SlottedShape,
    mut runs: impl Iterator<Item = (u64, u32)>,
) -> Option<String> {
    let most = shape.pages_per_record();
    let (page, pages) = runs.find(|&(_, pages)| pages as usize > most)?;
    Some(format!(
        "a vector spans {pages} pages from page {page} on; in its file each spans at most {most}"
    ))
}

/// Only one thread may call this at a time.
fn set(bits: &Words, at: u32) {
    bits.word(at / 32)
        .fetch_or(1 << (at % 32), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use stratann_layout::{FileKind, SlottedView};
    use stratann_tier::{Directory, Volume};
    use stratann_vector::Element;

    use super::*;

    struct Place {
        _folder: tempfile::TempDir,
        volume: Directory,
        file: Mutex<Box<dyn VolumeFile>>,
        shape: SlottedShape,
        added: Added,
    }

    impl Place {
        fn new(shape: SlottedShape) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let volume = Directory::open(folder.path()).unwrap();
            volume.create("v").unwrap();
            Self {
                file: Mutex::new(volume.open_pages("v").unwrap()),
                _folder: folder,
                volume,
                shape,
                added: Added::new(shape, 50, 7, (&[], &RunsOn::default()), 50),
            }
        }

        fn vector(node: u32, length: usize) -> Vec<u8> {
            (0..length)
                .map(|at| (at as u32 * 31 + node) as u8)
                .collect()
        }

        fn append(&self, node: u32, length: usize) {
            let vector = Self::vector(node, length);
            self.added.append(node, u64::from(node) + 1000, &vector);
        }

        /// Whether the vector of a node is in memory. Otherwise it must be readable from storage.
        fn find(&self, node: u32, length: usize) -> bool {
            let (page, pages) = self.added.place_of(node);
            let unwritten = self.added.unwritten(page, pages);
            let bytes = match &unwritten {
                Some(bytes) => bytes.to_vec(),
                None => {
                    let mut bytes = vec![0; pages as usize * self.shape.page_bytes()];
                    let offset = self.shape.file_offset(page);
                    self.volume.read_at("v", offset, &mut bytes).unwrap();
                    bytes
                }
            };
            assert_eq!(bytes.len(), pages as usize * self.shape.page_bytes());
            let (bytes, behind) = bytes.split_at(self.shape.page_bytes());
            let view = SlottedView::open(&self.shape, bytes, page, true, "v").unwrap();
            let slot = (node - view.first()) as usize;
            assert_eq!(view.id(slot).unwrap(), u64::from(node) + 1000);
            let mut scratch = Vec::new();
            let vector = view.whole(slot, behind, true, &mut scratch).unwrap();
            assert_eq!(vector, Self::vector(node, length));
            let end = view.vector_bytes(slot).unwrap() as usize;
            assert!(pages == 1 || end > 4064 * (pages as usize - 2), "{node}");
            unwritten.is_some()
        }
    }

    #[test]
    fn vectors_are_found_while_their_page_is_open_and_when_it_is_written() {
        let old = SlottedShape::new(FileKind::Vectors, Element::U8, 1000, 8, 1001).unwrap();
        let place = Place::new(old);
        let added = &place.added;
        assert!(added.has(50) && !added.has(49));
        for node in 50..60u32 {
            place.append(node, 1000);
            assert!(place.find(node, 1000));
        }
        let firsts = added.firsts();
        assert!((3..=4).contains(&firsts.len()), "{firsts:?}");
        assert_eq!(firsts[0], 50);
        assert_eq!(added.write(&place.file).unwrap(), firsts.len() as u64 - 1);
        added.seal();
        added.seal();
        assert_eq!(added.write(&place.file).unwrap(), 1);
        place.append(60, 1000);
        assert_eq!(added.place_of(60), (7 + firsts.len() as u64, 1));
        for node in 50..60 {
            assert!(!place.find(node, 1000), "{node}");
        }
        let runs = added.runs();
        assert!(runs.is_empty());
        let again = Added::new(old, 50, 7, (&firsts, &runs), 60);
        assert_eq!(again.place_of(59), added.place_of(59));
        again.append(60, 1, &[1; 1000]);
        assert_eq!(again.firsts().len(), firsts.len() + 1);
    }

    #[test]
    fn a_vector_that_runs_on_is_all_in_memory_or_all_on_storage() {
        for lengths in [
            &[5000][..],
            &[1100],
            &[9000],
            &[3900, 4068, 40, 12_500],
            &[300, 9000],
        ] {
            let shape = SlottedShape::running_on(Element::U8, 1000, 8, 12_500).unwrap();
            let place = Place::new(shape);
            let length = |node: u32| lengths[node as usize % lengths.len()];
            let mut sealed = 50;
            for node in 50..110u32 {
                place.append(node, length(node));
                for there in 50..=node {
                    let in_memory = place.find(there, length(there));
                    assert!(in_memory || there < node, "{there} of {node}");
                    assert!(there >= sealed || !in_memory, "{there} of {node}");
                }
                if node % 3 == 0 {
                    place.added.write(&place.file).unwrap();
                    let waiting = place.added.unwritten.all().len();
                    assert!(waiting <= 1 + shape.pages_per_record(), "{waiting}");
                }
                if node % 16 == 0 {
                    place.added.seal();
                    place.added.write(&place.file).unwrap();
                    assert!(place.added.unwritten.all().is_empty());
                    sealed = node + 1;
                    let (firsts, runs) = (place.added.firsts(), place.added.runs());
                    assert!(!runs.is_empty());
                    let again = Added::new(shape, 50, 7, (&firsts, &runs), sealed);
                    for there in 50..sealed {
                        assert_eq!(again.place_of(there), place.added.place_of(there));
                    }
                    assert_eq!(again.firsts(), firsts);
                    assert_eq!(again.runs(), runs);
                    assert_eq!(again.pages(), place.added.pages());
                }
            }
        }
    }

    #[test]
    fn tables_that_lead_a_read_over_too_many_pages_are_refused() {
        let (short, long) = (5000, 12_500);
        let shape = |largest| SlottedShape::running_on(Element::U8, 1000, 8, largest).unwrap();
        let place = Place::new(shape(long));
        for node in 50..60 {
            place.append(node, if node == 57 { long } else { 300 });
        }
        place.added.seal();
        let (firsts, runs) = (place.added.firsts(), place.added.runs());
        let again = |largest| Added::new(shape(largest), 50, 7, (&firsts, &runs), 60).too_long();
        assert_eq!(again(long), None);
        let what = again(short).unwrap();
        assert!(what.starts_with("a vector spans "), "{what}");
        let text = again(200).unwrap();
        assert!(text.ends_with("each spans at most 1"), "{text}");
    }
}
