//! The number of lists that link to each node inserted after the build.
//!
//! At an insert, a full list drops a neighbour, usually the farthest. If an outlier is the farthest
//! neighbour in every list, all lists might drop it. So the last list that links to a node keeps
//! the link.
//!
//! 9,000 rows of photo-sift were inserted into an index of 2,000 rows with lists of 16 neighbours.
//! With OdinANN's rules alone (§3.3), no list had a link to three or four of these rows.

use std::sync::atomic::Ordering;

use super::placement::Words;

/// One byte for each node: 0 means unknown, and 255 means 255 or more.
#[derive(Default)]
pub(crate) struct ListCounts(Words);

/// The position of the word that has a node's byte, and the shift of the byte in this word.
fn place(node: u32) -> (u32, u32) {
    (node / 4, node % 4 * 8)
}

impl ListCounts {
    pub(crate) fn get(&self, node: u32) -> u8 {
        let (word, shift) = place(node);
        (self.0.get(word) >> shift) as u8
    }

    pub(crate) fn set(&self, node: u32, count: u8) {
        let (word, shift) = place(node);
        let with = |word: u32| Some(word & !(0xff << shift) | u32::from(count) << shift);
        let _ = self
            .0
            .word(word)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    pub(crate) fn join(&self, node: u32) {
        let (word, shift) = place(node);
        let more = |word: u32| ((word >> shift) as u8 != u8::MAX).then(|| word + (1 << shift));
        let _ = self
            .0
            .word(word)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Counts one list less for a node, because a list is about to drop its link to the node. The
    /// result is false if no other list has a link. Then the list must keep its link.
    pub(crate) fn leave(&self, node: u32) -> bool {
        match self.get(node) {
            0 | u8::MAX => return true,
            1 => return false,
            _ => {}
        }
        let (word, shift) = place(node);
        let fewer = |word: u32| ((word >> shift) as u8 > 1).then(|| word - (1 << shift));
        let left = self
            .0
            .word(word)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        left.is_ok()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_list_keeps_a_node() {
        let counts = ListCounts::default();
        assert!(counts.leave(7), "nobody knows");
        for node in 4..8 {
            counts.join(node);
            assert_eq!((counts.get(node), counts.leave(node)), (1, false));
        }
        counts.join(5);
        assert!(counts.leave(5) && !counts.leave(5));
        assert_eq!(
            [4, 5, 6, 7, 8].map(|node| counts.get(node)),
            [1, 1, 1, 1, 0]
        );
        // At 255, the number does not change any more, because a larger number does not fit into a
        // byte.
        counts.set(6, 254);
        counts.join(6);
        counts.join(6);
        assert!(counts.leave(6) && counts.leave(6));
        assert_eq!([5, 6, 7].map(|node| counts.get(node)), [1, 255, 1]);
    }

    #[test]
    fn of_two_that_give_it_up_at_once_one_must_not() {
        let counts = ListCounts::default();
        for _ in 0..1_000 {
            counts.set(9, 2);
            let left = std::thread::scope(|scope| {
                let both = [
                    scope.spawn(|| counts.leave(9)),
                    scope.spawn(|| counts.leave(9)),
                ];
                both.map(|one| one.join().unwrap())
            });
            assert_eq!(left.iter().filter(|&&left| left).count(), 1);
        }
    }
}
