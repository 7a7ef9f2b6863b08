//! The dead records of a segment, as slots of pages.

/// The dead slots of each page of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSlots {
    /// The end of each page's slots in `slots`, up to the last page with dead slots.
    ends: Vec<u32>,
    /// The slots of all pages in order, ascending within a page.
    slots: Vec<u16>,
}

impl DeadSlots {
    /// Adds the ascending dead slots of a page. The page must be after all pages that have slots
    /// already.
    pub fn push(&mut self, page: u32, slots: &[u16]) {
        if !slots.is_empty() {
            let end = self.slots.len() as u32;
            self.ends.resize(page as usize, end);
            self.slots.extend_from_slice(slots);
            self.ends.push(self.slots.len() as u32);
        }
    }

    /// The dead slots of a page; empty for a page that does not exist.
    #[inline]
    pub fn of_page(&self, page: u64) -> &[u16] {
        let Some(&end) = usize::try_from(page)
            .ok()
            .and_then(|page| self.ends.get(page))
        else {
            return &[];
        };
        let start = match page {
            0 => 0,
            page => self.ends[page as usize - 1],
        };
        &self.slots[start as usize..end as usize]
    }

    /// The slot of the `nth` live record of a page, counted from 0.
    #[inline]
    pub fn live_slot(&self, page: u64, nth: usize) -> usize {
        let mut slot = nth;
        for &dead in self.of_page(page) {
            if usize::from(dead) > slot {
                break;
            }
            slot += 1;
        }
        slot
    }

    /// Whether there is no garbage.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of dead slots.
    pub fn count(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        4 * self.ends.capacity() + 2 * self.slots.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_page_and_passed_over() {
        let mut dead = DeadSlots::default();
        for (page, slots) in (0..).zip([&[] as &[u16], &[0, 1, 4], &[], &[], &[2], &[]]) {
            dead.push(page, slots);
        }
        assert_eq!((dead.count(), dead.is_empty()), (4, false));
        let all: Vec<&[u16]> = (0..8).map(|page| dead.of_page(page)).collect();
        let none: &[u16] = &[];
        assert_eq!(all, [none, &[0, 1, 4], none, none, &[2], none, none, none]);
        assert_eq!(dead.of_page(u64::MAX), none);
        let live = |page| {
            (0..4)
                .map(|nth| dead.live_slot(page, nth))
                .collect::<Vec<_>>()
        };
        assert_eq!(live(0), [0, 1, 2, 3]);
        assert_eq!(live(1), [2, 3, 5, 6]);
        assert_eq!(live(4), [0, 1, 3, 4]);
        assert!(DeadSlots::default().is_empty());
        assert_eq!(DeadSlots::default().memory_bytes(), 0);
    }
}
