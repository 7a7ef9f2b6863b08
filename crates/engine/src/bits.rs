//! A set of small numbers, which takes a bit for each that it has room for.

/// Numbers of a word.
const WORD: u64 = 64;

/// Numbers from 0 on. Words that were never touched take no memory.
#[derive(Debug)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// None yet, with room for `count` numbers at least.
    pub(crate) fn new(count: u64) -> Self {
        Self(vec![0; count.div_ceil(WORD) as usize])
    }

    /// Whether there is room for a number.
    pub(crate) fn takes(&self, at: u64) -> bool {
        at / WORD < self.0.len() as u64
    }

    /// Whether a number is in.
    pub(crate) fn has(&self, at: u64) -> bool {
        let word = usize::try_from(at / WORD).ok();
        let word = word.and_then(|word| self.0.get(word));
        word.is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    /// Adds a number. `false`: it was there before, or there is no room for it.
    pub(crate) fn add(&mut self, at: u64) -> bool {
        let fresh = self.takes(at) && !self.has(at);
        if fresh {
            self.0[(at / WORD) as usize] |= 1 << (at % WORD);
        }
        fresh
    }

    /// How many are in.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
