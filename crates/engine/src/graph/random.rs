//! A small seeded random generator (SplitMix64), independent of versions of dependencies, so that a
//! build with one thread is reproducible on every machine.

#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// An independent generator for one piece of work, so that results do not depend on the number
    /// of threads.
    pub(crate) fn derived(seed: u64, piece: u64) -> Random {
        let mut random = Random::new(seed ^ piece.wrapping_mul(0xA076_1D64_78BD_642F));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number in `0..bound`. `bound` must be positive.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Draws `count` of the numbers `0..bound`, distinct and ascending, or all if there are fewer.
    pub(crate) fn sample(&mut self, bound: usize, count: usize) -> Vec<usize> {
        if count >= bound {
            return (0..bound).collect();
        }
        // Floyd's algorithm makes `count` draws, and needs no table of `bound` entries.
        let mut chosen = std::collections::BTreeSet::new();
        for last in bound - count..bound {
            let draw = self.below(last + 1);
            if !chosen.insert(draw) {
                chosen.insert(last);
            }
        }
        chosen.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn samples_are_distinct_and_in_range() {
        let mut random = Random::new(3);
        for count in [0, 1, 5, 99, 100, 120] {
            let sample = random.sample(100, count);
            assert_eq!(sample.len(), count.min(100));
            assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(sample.iter().all(|&item| item < 100));
        }
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<usize> = (0..1000).collect();
        Random::new(9).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
