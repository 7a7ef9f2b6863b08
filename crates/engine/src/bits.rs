//! A set of small numbers, with one bit for each possible number.

const WORD: u64 = 64;

/// A set of numbers from 0 on. Words that were never written take no memory.
#[derive(Debug)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(count: u64) -> Self {
        Self(vec![0; count.div_ceil(WORD) as usize])
    }

    pub(crate) fn takes(&self, at: u64) -> bool {
        at / WORD < self.0.len() as u64
    }

    pub(crate) fn has(&self, at: u64) -> bool {
        let word = usize::try_from(at / WORD).ok();
        let word = word.and_then(|word| self.0.get(word));
        word.is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    /// Returns `false` if the set already has the number, or if the number is too large for the
    /// set.
    pub(crate) fn add(&mut self, at: u64) -> bool {
        let fresh = self.takes(at) && !self.has(at);
        if fresh {
            self.0[(at / WORD) as usize] |= 1 << (at % WORD);
        }
        fresh
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
