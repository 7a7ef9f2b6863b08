//! Which segments of vectors a merge keeps, and which it writes anew (DecoupleVS §3.5).
//!
//! ```text
//!   segment            0      1      2      3      4      5 (the last)
//!   live               100 %  70 %   0 %    95 %   40 %   any
//!   garbage collected         2nd           -      1st
//!                      kept   maybe  gone   kept   anew   anew, with the new vectors behind it
//! ```
//!
//! Vectors are append-only: a vector that is deleted leaves garbage in its segment, and a segment with little of it stays as
//! it is. Those with much are picked, the highest share of garbage first, and their live vectors are written to new segments.
//! The last segment is the mutable one: it is always written anew, so that what comes next fills it.

/// The share of garbage from which on a segment is worth writing anew. Below, each byte that comes free costs more than four
/// to be written; what lies about until then makes vectors take a quarter more on storage at most.
const WORTH: f64 = 0.2;

/// A segment, as far as a merge wants to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Records in its file.
    pub(super) records: u32,
    /// Those of them that are vectors of the next checkpoint.
    pub(super) live: u32,
}

impl Held {
    fn garbage(self) -> f64 {
        f64::from(self.records.saturating_sub(self.live)) / f64::from(self.records.max(1))
    }
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its file stays.
    Kept,
    /// Its live vectors are written to other segments.
    Rewritten,
    /// It has none.
    Dropped,
}

/// Decides, where full segments have `capacity` records and `new` vectors are appended.
///
/// Garbage collection is throttled: the segments that are picked have no more live vectors than the merge writes anyway, so
/// that it writes twice as much at most; but one is picked if any is worth it, or garbage might stay for ever.
pub(super) fn fates(segments: &[Held], capacity: u32, new: u64) -> Vec<Fate> {
    let last = segments.len().saturating_sub(1);
    let mut fates: Vec<Fate> = (0..)
        .zip(segments)
        .map(|(n, held)| match held.live {
            0 => Fate::Dropped,
            // One of another size than is written now would be found by no division, nor told from a damaged one.
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
    // Of equal ones the first, for it is the oldest.
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
    // The last one takes vectors later on, and pages are never added to a file that was kept.
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

    /// Full segments of 100 records with so many live ones, and a last one.
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
        // A fifth is enough.
        assert_eq!(
            of(&[100, 80, 81], 60, 1000),
            [Kept, Rewritten, Kept, Rewritten]
        );
        assert_eq!(of(&[], 60, 0), [Rewritten]);
        assert_eq!(fates(&[], 100, 0), []);
    }

    #[test]
    fn what_has_most_garbage_is_picked_first_and_not_more_than_is_written_anyway() {
        // 60 of the last one and 20 new ones.
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
        // Of equal ones the first.
        assert_eq!(of(&[50, 50, 50], 50, 0), [Rewritten, Kept, Kept, Rewritten]);
        // One at least.
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
        // Nothing is new and the last one is gone: the one with most garbage, or the first.
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
