//! Finds external ids that occur twice.
//!
//! Ids are usually row numbers. So an id below twice the number of vectors takes one bit in the
//! set. Larger ids take eight bytes each, and are sorted at the end.

use crate::bits::Bits;

#[derive(Debug)]
pub(super) struct Ids {
    small: Bits,
    large: Vec<u64>,
}

impl Ids {
    pub(super) fn new(vectors: u64) -> Self {
        Self {
            small: Bits::new(2 * vectors),
            large: Vec::new(),
        }
    }

    /// `false` if the id was added before. For a large id, the result is always `true`, and only
    /// [`repeated`](Self::repeated) finds that it is repeated.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        if self.small.takes(id) {
            return self.small.add(id);
        }
        self.large.push(id);
        true
    }

    /// Removes all large ids. An id that was added n times is returned n - 1 times.
    pub(super) fn repeated(&mut self) -> Vec<u64> {
        let mut large = std::mem::take(&mut self.large);
        large.sort_unstable();
        let pairs = large.windows(2).filter(|pair| pair[0] == pair[1]);
        pairs.map(|pair| pair[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repetition_is_found_once() {
        let mut ids = Ids::new(100);
        let once = (0..200)
            .chain([255, 256, 1 << 32, u64::MAX - 1, u64::MAX])
            .collect::<Vec<u64>>();
        assert!(once.iter().all(|&id| ids.insert(id)));
        assert!(ids.repeated().is_empty());
        assert!(once.iter().all(|&id| ids.insert(id) == (id >= 256)));
        assert!(
            ids.repeated().is_empty(),
            "the set has forgotten repeated ids"
        );

        let mut ids = Ids::new(100);
        let again = [7, u64::MAX, 1 << 32, 7, u64::MAX, 9, u64::MAX];
        assert_eq!(
            again.map(|id| ids.insert(id)),
            [true, true, true, false, true, true, true]
        );
        assert_eq!(ids.repeated(), [u64::MAX; 2]);
    }
}
