//! Decides which segments of vectors a merge keeps, and which it rewrites (DecoupleVS §3.5).
//!
//! ```text
//!   segment            0      1      2      3      4      5 (the last)
//!   live               100 %  70 %   0 %    95 %   40 %   any
//!   garbage collected         2nd           -      1st
//!   fate               kept   maybe  gone   kept   rewritten, with the new vectors behind both
//! ```
//!
//! A deleted vector leaves garbage in its segment. The segments with the highest shares of garbage
//! are picked first, and their live vectors are written to new segments. The last segment is always
//! rewritten, so that later vectors fill it.

/// The share of garbage at which a rewrite is worth its cost. Below this share, each freed byte
/// costs more than four written bytes, and vectors take at most a quarter more space.
const WORTH: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) records: u32,
    /// Records whose vectors are in the next checkpoint.
    pub(super) live: u32,
}

impl Held {
    fn garbage(self) -> f64 {
        f64::from(self.records.saturating_sub(self.live)) / f64::from(self.records.max(1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// The live vectors of the segment are written to other segments.
    Rewritten,
    /// The segment has no live vectors, so its file is removed.
    Dropped,
}

/// Decides the fate of each segment, for a merge with `new` new vectors. Full segments have
/// `capacity` records.
///
/// The picked segments have at most as many live vectors as the merge writes from other sources, so
/// garbage collection at most doubles the writes. But if any segment is worth a rewrite, at least
/// one segment is picked. Without this exception, garbage might stay forever.
pub(super) fn fates(segments: &[Held], capacity: u32, new: u64) -> Vec<Fate> {
    let last = segments.len().saturating_sub(1);
    let mut fates: Vec<Fate> = (0..)
        .zip(segments)
        .map(|(n, held)| match held.live {
            0 => Fate::Dropped,
            // In a segment of another size, readers cannot locate vectors by division.
            _ if n == last || held.records != capacity => Fate::Rewritten,
            _ => Fate::Kept,
        })
        .collect();
    let of = |fates: &[Fate], fate: Fate| {
        let segments = fates.iter().enumerate().filter(|&(_, &is)| is == fate);
        segments.map(|(n, _)| n).collect::<Vec<_>>()
    };
    let live = |n: usize| u64::from(segments[n].live);
    let anyway: u64 = of(&fates, Fate::Rewritten).into_iter().map(live).sum();
    let mut left = anyway + new;
    let mut candidates = of(&fates, Fate::Kept);
    // Of segments with equal shares of garbage, the oldest comes first.
    candidates.sort_by(|&a, &b| segments[b].garbage().total_cmp(&segments[a].garbage()));
    let worth = candidates
        .iter()
        .filter(|&&n| segments[n].garbage() >= WORTH);
    for (picked, &n) in worth.enumerate() {
        if picked > 0 && live(n) > left {
            break;
        }
        left = left.saturating_sub(live(n));
        fates[n] = Fate::Rewritten;
    }
    // Later vectors are appended to the last segment, and a kept file gets no more pages. So at
    // least one segment is rewritten.
    if new == 0
        && of(&fates, Fate::Rewritten).is_empty()
        && let Some(&n) = candidates.first()
    {
        fates[n] = Fate::Rewritten;
    }
    fates
}

#[cfg(test)]
mod tests {
    use super::Fate::{Dropped, Kept, Rewritten};
    use super::*;

    fn full(live: &[u32], last: u32) -> Vec<Held> {
        let held = |&live| Held { records: 100, live };
        let last = Held {
            records: 60,
            live: last,
        };
        live.iter().map(held).chain([last]).collect()
    }

    fn of(live: &[u32], last: u32, new: u64) -> Vec<Fate> {
        fates(&full(live, last), 100, new)
    }

    #[test]
    fn segments_with_little_garbage_are_kept_and_the_last_one_is_not() {
        assert_eq!(of(&[100, 99, 81], 60, 1000), [Kept, Kept, Kept, Rewritten]);
        assert_eq!(
            of(&[100, 80, 81], 60, 1000),
            [Kept, Rewritten, Kept, Rewritten]
        );
        assert_eq!(of(&[], 60, 0), [Rewritten]);
        assert_eq!(fates(&[], 100, 0), []);
    }

    #[test]
    fn what_has_most_garbage_is_picked_first_and_not_more_than_is_written_anyway() {
        assert_eq!(
            of(&[70, 30, 50], 60, 20),
            [Kept, Rewritten, Rewritten, Rewritten]
        );
        assert_eq!(
            of(&[70, 30, 50], 60, 19),
            [Kept, Rewritten, Kept, Rewritten]
        );
        assert_eq!(of(&[70, 30, 50], 60, 90), [Rewritten; 4]);
        assert_eq!(
            of(&[70, 30, 50], 60, 89),
            [Kept, Rewritten, Rewritten, Rewritten]
        );
        assert_eq!(of(&[50, 50, 50], 50, 0), [Rewritten, Kept, Kept, Rewritten]);
        assert_eq!(of(&[100, 79], 1, 0), [Kept, Rewritten, Rewritten]);
        assert_eq!(of(&[78, 79], 1, 0), [Rewritten, Kept, Rewritten]);
    }

    #[test]
    fn what_is_all_garbage_costs_nothing() {
        let found = of(&[0, 70, 0, 60], 1, 0);
        assert_eq!(found, [Dropped, Kept, Dropped, Rewritten, Rewritten]);
        assert_eq!(of(&[100, 0], 0, 5), [Kept, Dropped, Dropped]);
    }

    #[test]
    fn there_is_always_one_that_is_written() {
        assert_eq!(of(&[100, 90, 95], 0, 0), [Kept, Rewritten, Kept, Dropped]);
        assert_eq!(of(&[100, 100], 0, 0), [Rewritten, Kept, Dropped]);
        assert_eq!(of(&[100, 100], 0, 1), [Kept, Kept, Dropped]);
        assert_eq!(of(&[70, 100], 0, 0), [Rewritten, Kept, Dropped]);
    }

    #[test]
    fn what_has_another_size_than_is_written_now_is_not_kept() {
        let found = fates(&full(&[100, 100], 60), 120, 0);
        assert_eq!(found, [Rewritten; 3]);
    }
}
