//! Decides which segments of vectors a merge keeps, and which it rewrites (DecoupleVS §3.5).
//!
//! ```text
//!   segment            0      1      2      3      4      5 (the last)
//!   live               100 %  70 %   0 %    95 %   40 %   any
//!   garbage collected         2nd           -      1st
//!                      kept   maybe  gone   kept   anew   anew, with the new vectors behind it
//! ```
//!
//! Vectors are append-only: a deleted vector leaves garbage in its segment. A segment with little
//! garbage stays unchanged. Of the segments with much garbage, those with the highest share are
//! picked first, and their live vectors are written to new segments. The last segment is mutable:
//! it is always rewritten, so that later vectors fill it.

/// The share of garbage at which a rewrite of a segment is worth its cost. Below it, each freed
/// byte costs more than four written bytes. Garbage below this share makes vectors take at most a
/// quarter more on storage.
const WORTH: f64 = 0.2;

/// The facts about a segment by which a merge decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Records in its file.
    pub(super) records: u32,
    /// Records that are vectors of the next checkpoint.
    pub(super) live: u32,
}

impl Held {
    fn garbage(self) -> f64 {
        f64::from(self.records.saturating_sub(self.live)) / f64::from(self.records.max(1))
    }
}

/// The fate of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its file stays.
    Kept,
    /// Its live vectors are written to other segments.
    Rewritten,
    /// It has no live vectors.
    Dropped,
}

/// Decides the fate of each segment. Full segments have `capacity` records. The merge appends `new`
/// vectors.
///
/// Garbage collection is throttled: the picked segments have at most as many live vectors as the
/// merge writes in any case. So garbage collection at most doubles the writes. But if any segment
/// is worth a rewrite, one is picked: otherwise its garbage might stay forever.
pub(super) fn fates(segments: &[Held], capacity: u32, new: u64) -> Vec<Fate> {
    let last = segments.len().saturating_sub(1);
    let mut fates: Vec<Fate> = (0..)
        .zip(segments)
        .map(|(n, held)| match held.live {
            0 => Fate::Dropped,
            // Only in full segments can a vector be located by division. If a segment has another
            // size, it may also be damaged.
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
    // Of segments with equal shares, the first is rewritten, which is the oldest.
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
    // Later vectors are appended to the last segment, which must be new: no pages are added to a
    // file that was kept.
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

    /// Full segments of 100 records with the given numbers of live records, and a last segment.
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
        // A fifth of garbage is worth a rewrite.
        assert_eq!(
            of(&[100, 80, 81], 60, 1000),
            [Kept, Rewritten, Kept, Rewritten]
        );
        assert_eq!(of(&[], 60, 0), [Rewritten]);
        assert_eq!(fates(&[], 100, 0), []);
    }

    #[test]
    fn what_has_most_garbage_is_picked_first_and_not_more_than_is_written_anyway() {
        // The merge writes 60 vectors of the last segment and 20 new ones.
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
        // Of equal segments, the first is rewritten.
        assert_eq!(of(&[50, 50, 50], 50, 0), [Rewritten, Kept, Kept, Rewritten]);
        // At least one segment is rewritten.
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
        // No vector is new, and the last segment is dropped. So the segment with most garbage is
        // rewritten, or the first.
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
