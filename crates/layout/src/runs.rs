//! The pages whose last record continues on the next page ([`crate::slotted`], version 2 of the
//! kind `Vectors`). Such a record ends on the first later page whose bit is not set, or on which
//! another record starts. In a file, a byte has the bits of eight pages, the first one lowest, and
//! the bits after the last page are 0.

/// One bit for each page whose last record continues on the next page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunsOn {
    words: Vec<u64>,
}

impl RunsOn {
    /// Notes that the last record of a page continues on the next page.
    pub fn set(&mut self, page: u32) {
        let word = page as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (page % 64);
    }

    /// Whether the last record of a page continues on the next page.
    #[inline]
    pub fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64)
            .ok()
            .and_then(|at| self.words.get(at));
        word.is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// The number of pages of the last record of page `page`. `starts` returns whether a record
    /// starts on a page.
    #[inline]
    pub fn pages(&self, page: u64, starts: impl Fn(u64) -> bool) -> u32 {
        let (mut pages, mut last) = (1, page);
        while self.has(last) {
            last += 1;
            pages += 1;
            if starts(last) {
                break;
            }
        }
        pages
    }

    /// Whether no record spans pages.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        8 * self.words.capacity()
    }

    pub(crate) fn to_bytes(&self, first: u32, pages: u32) -> Vec<u8> {
        let mut bytes = vec![0; byte_count(pages)];
        for page in 0..pages {
            let bit = u8::from(self.has(u64::from(first) + u64::from(page)));
            bytes[page as usize / 8] |= bit << (page % 8);
        }
        bytes
    }

    /// Bits after the last page are ignored.
    pub(crate) fn add(&mut self, bytes: &[u8], first: u32, pages: u32) {
        for page in 0..pages {
            let byte = bytes.get(page as usize / 8).copied().unwrap_or(0);
            if byte >> (page % 8) & 1 != 0 {
                self.set(first.saturating_add(page));
            }
        }
    }
}

pub(crate) fn byte_count(pages: u32) -> usize {
    pages.div_ceil(8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_and_come_back_from_bytes() {
        let mut runs = RunsOn::default();
        assert!(runs.is_empty() && !runs.has(0) && !runs.has(u64::MAX));
        assert_eq!((runs.pages(7, |_| false), runs.memory_bytes()), (1, 0));
        for page in [3, 63, 64, 65, 200] {
            runs.set(page);
        }
        let all: Vec<u64> = (0..300).filter(|&page| runs.has(page)).collect();
        assert_eq!(all, [3, 63, 64, 65, 200]);
        let pages = |starts: u64| {
            let pages = [2, 3, 62, 63, 64, 65, 66];
            pages.map(|page| runs.pages(page, |page| page == starts))
        };
        assert_eq!(pages(0), [1, 2, 1, 4, 3, 2, 1]);
        assert_eq!(pages(64), [1, 2, 1, 2, 3, 2, 1]);
        assert_eq!(pages(65), [1, 2, 1, 3, 2, 2, 1]);
        assert_eq!(runs.pages(u64::MAX, |_| false), 1);

        let bytes = runs.to_bytes(60, 9);
        assert_eq!(bytes, [0b0011_1000, 0]);
        let mut back = RunsOn::default();
        back.add(&bytes, 60, 9);
        back.add(&[0b1000], 0, 4);
        back.add(&[1], 200, 1);
        assert_eq!(back, runs);
        back.add(&[255], 0, 0);
        back.add(&[], 0, 9);
        assert_eq!(back, runs);
    }
}
