//! A set of mostly consecutive ids. It is stored as ranges, so that it takes little memory.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdRanges {
    /// The first id of each range, and the number after its last id. No two ranges touch.
    ranges: BTreeMap<u64, u64>,
}

impl IdRanges {
    /// Each range is its first id and the number of its ids. Ranges ascend and do not touch.
    pub(crate) fn of(ranges: &[(u64, u64)]) -> Self {
        let ends = ranges.iter().map(|&(first, count)| (first, first + count));
        Self {
            ranges: ends.collect(),
        }
    }

    /// Each range is its first id and the number of its ids.
    pub(crate) fn all(&self) -> Vec<(u64, u64)> {
        let counts = self
            .ranges
            .iter()
            .map(|(&first, &end)| (first, end - first));
        counts.collect()
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        let before = self.ranges.range(..=id).next_back();
        before.is_some_and(|(_, &end)| id < end)
    }

    pub(crate) fn from(&self, least: u64) -> impl Iterator<Item = u64> + '_ {
        let before = self.ranges.range(..least).next_back();
        let ranges = before.into_iter().chain(self.ranges.range(least..));
        ranges.flat_map(move |(&first, &end)| first.max(least)..end)
    }

    /// The largest `u64` is not an id.
    pub(crate) fn insert(&mut self, id: u64) {
        if self.contains(id) || id == u64::MAX {
            return;
        }
        let before = self.ranges.range(..id).next_back();
        let first = match before {
            Some((&first, &end)) if end == id => first,
            _ => id,
        };
        let end = self.ranges.remove(&(id + 1)).unwrap_or(id + 1);
        self.ranges.insert(first, end);
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let Some((&first, &end)) = self.ranges.range(..=id).next_back() else {
            return false;
        };
        if id >= end {
            return false;
        }
        self.ranges.remove(&first);
        if first < id {
            self.ranges.insert(first, id);
        }
        if id + 1 < end {
            self.ranges.insert(id + 1, end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set(steps in prop::collection::vec((0u64..40, any::<bool>()), 0..200)) {
            let (mut ranges, mut model) = (IdRanges::default(), BTreeSet::new());
            for (id, add) in steps {
                if add {
                    ranges.insert(id);
                    model.insert(id);
                } else {
                    prop_assert_eq!(ranges.remove(id), model.remove(&id));
                }
                for id in 0..41 {
                    prop_assert_eq!(ranges.contains(id), model.contains(&id));
                }
            }
            for least in 0..41 {
                let from: Vec<u64> = ranges.from(least).collect();
                prop_assert_eq!(from, model.range(least..).copied().collect::<Vec<_>>());
            }
            let all = ranges.all();
            prop_assert!(all.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0));
            prop_assert_eq!(IdRanges::of(&all), ranges);
        }
    }
}
