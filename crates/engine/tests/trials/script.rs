//! Random calls from a seed, the same even if calls fail, for trials in one process and in several.

use std::collections::BTreeMap;

pub const DIM: usize = 16;
pub const BASE: u64 = 40;
const IDS: u64 = 60;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// The vector of an id in some version. Two such vectors are equal only with a probability of
/// 2^-100.
pub fn vector(id: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(id << 32 ^ version);
    (0..DIM).map(|_| random.next() as u8).collect()
}

pub type Versions = BTreeMap<u64, u64>;

pub fn first() -> Versions {
    (0..BASE).map(|id| (id, 0)).collect()
}

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Insert(Vec<(u64, u64)>),
    Upsert(Vec<(u64, u64)>),
    Delete(Vec<u64>),
    Flush,
    Compact,
    /// Also opens the index for reading.
    Read,
}

impl Call {
    /// The states of ids after the call: a version, or `None` if deleted.
    pub fn changes(&self) -> Vec<(u64, Option<u64>)> {
        match self {
            Call::Insert(rows) | Call::Upsert(rows) => rows
                .iter()
                .map(|&(id, version)| (id, Some(version)))
                .collect(),
            Call::Delete(ids) => ids.iter().map(|&id| (id, None)).collect(),
            Call::Flush | Call::Compact | Call::Read => Vec::new(),
        }
    }
}

/// One of several threads that make calls at the same time, each with its own ids.
#[derive(Clone)]
pub struct Caller {
    random: Random,
    number: u64,
    of: u64,
    pub versions: Versions,
    version: u64,
}

impl Caller {
    pub fn new(seed: u64, number: u64, of: u64, all: &Versions) -> Self {
        let own = all.iter().filter(|&(&id, _)| id % of == number);
        Self {
            random: Random::new(seed ^ (number + 1) << 56),
            number,
            of,
            versions: own.map(|(&id, &version)| (id, version)).collect(),
            // New versions are above all existing versions.
            version: 1 + all.values().max().copied().unwrap_or(0),
        }
    }

    fn some(&mut self, most: u64) -> Vec<u64> {
        let count = 1 + self.random.below(most);
        let ids = (0..count).map(|_| self.number + self.of * self.random.below(IDS));
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn anew(&mut self, ids: Vec<u64>) -> Vec<(u64, u64)> {
        self.version += 1;
        ids.into_iter().map(|id| (id, self.version)).collect()
    }

    pub fn call(&mut self) -> Call {
        let call = match self.random.below(100) {
            0..36 => {
                let mut ids = self.some(5);
                ids.retain(|id| !self.versions.contains_key(id));
                match ids.is_empty() {
                    true => Call::Read,
                    false => Call::Insert(self.anew(ids)),
                }
            }
            36..60 => {
                let ids = self.some(4);
                Call::Upsert(self.anew(ids))
            }
            60..84 => {
                let mut ids = self.some(6);
                ids.retain(|id| self.versions.contains_key(id));
                ids.truncate(self.versions.len().saturating_sub(3));
                match ids.is_empty() {
                    true => Call::Read,
                    false => Call::Delete(ids),
                }
            }
            84..89 => Call::Flush,
            89..93 => Call::Compact,
            _ => Call::Read,
        };
        for (id, version) in call.changes() {
            match version {
                Some(version) => self.versions.insert(id, version),
                None => self.versions.remove(&id),
            };
        }
        call
    }
}

/// Runs each trial, or only the trial that `STRATANN_SEED` names.
pub fn each_seed(seeds: std::ops::Range<u64>, trial: impl Fn(u64)) {
    let named = std::env::var("STRATANN_SEED").ok();
    let named = named.map(|seed| seed.parse().expect("STRATANN_SEED is a number"));
    let seeds = named.map_or(seeds, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trial(seed)));
        if let Err(panic) = tried {
            eprintln!("seed {seed} failed: STRATANN_SEED={seed} runs it again");
            std::panic::resume_unwind(panic);
        }
    }
}
