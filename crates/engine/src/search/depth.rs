//! Depth: the number of nearest candidates that a search must expand for a recall target. It
//! depends on the distance of the k-th result. For clusters, it is the number of probes, which
//! depends on the distance of the nearest head.

use stratann_layout::RecallTable;

/// On a plateau of recall, the missed share that suffices, as a multiple of the least missed share.
const PLATEAU: f32 = 1.1;

/// The most points of the curve.
const POINTS: usize = 16;

/// The values that decide the depth of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DepthFrom {
    /// The distance of the k-th result so far; for clusters, of the nearest head.
    Distances,
    /// The k-th smallest estimate in the candidate list.
    Estimates,
    /// All queries have the same depth.
    Nothing,
}

/// The recall that a depth must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) recall: f64,
    /// The least factor by which the missed share may exceed the smallest measured missed share. If
    /// re-ranking loses results, longer lists hardly find more, and only cost reads.
    pub(crate) plateau: f32,
}

impl Target {
    /// The recall must be reached if any measured list size reaches it.
    pub(crate) fn strict(recall: f64) -> Self {
        Self {
            recall,
            plateau: 0.0,
        }
    }

    /// If the longest lists find hardly more than shorter ones, a missed share up to a tenth above
    /// the least suffices.
    pub(crate) fn up_to_plateau(recall: f64) -> Self {
        Self {
            recall,
            plateau: PLATEAU,
        }
    }
}

/// The depth as a function of the distance: a line through points, which is constant beyond its
/// ends. The value is small, so each task of a search has a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Depth {
    /// The points: ascending distances, each with its depth. The depth never falls.
    points: [(f32, f32); POINTS],
    count: usize,
    /// The number of measured points. These points come first.
    measured: usize,
}

impl Depth {
    /// Returns a constant depth.
    pub(crate) fn all(count: usize) -> Self {
        let mut points = [(0.0, 0.0); POINTS];
        points[0] = (0.0, count.max(1) as f32);
        Self {
            points,
            count: 1,
            measured: 1,
        }
    }

    /// Returns a curve through points, for tests.
    #[cfg(test)]
    pub(crate) fn line(of: &[(f32, f32)]) -> Self {
        let mut points = [(0.0, 0.0); POINTS];
        points[..of.len()].copy_from_slice(of);
        Self {
            points,
            count: of.len(),
            measured: of.len(),
        }
    }

    /// Computes the depth for a recall target from a measurement with vectors of the index as
    /// queries. `lists` has the measured list sizes, which ascend. The depth is at least `least`.
    pub(crate) fn new(lists: &[u32], table: &RecallTable, target: Target, least: usize) -> Self {
        let mut depth = Self::measured(lists, table, target, least);
        depth.go_on(lists.last().copied().unwrap_or(1) as f32);
        depth
    }

    /// Computes a constant depth: the depth that the farthest measured queries need.
    pub(crate) fn level(lists: &[u32], table: &RecallTable, target: Target, least: usize) -> Self {
        Self::all(Self::measured(lists, table, target, least).most())
    }

    /// Computes a constant depth: the depth with which the mean recall of all measured queries is
    /// the target.
    pub(crate) fn mean(lists: &[u32], table: &RecallTable, target: Target, least: usize) -> Self {
        let bands = table.bands.len().max(1) as f32;
        let of = |at: usize| {
            let found = table.bands.iter().filter_map(|band| band.recalls.get(at));
            found.sum::<f32>() / bands
        };
        let recalls: Vec<f32> = (0..lists.len()).map(of).collect();
        let list = list_for(lists, &recalls, target).max(least as f32);
        Self::all(list.ceil() as usize)
    }

    /// The depth multiplied by `factor`.
    pub(crate) fn times(self, factor: f64) -> Self {
        self.map(|depth| depth * factor)
    }

    /// Returns the curve with `new` applied to each depth. A larger depth must not give a smaller
    /// result of `new`.
    pub(crate) fn map(mut self, new: impl Fn(f64) -> f64) -> Self {
        for (_, depth) in &mut self.points[..self.count] {
            *depth = new(f64::from(*depth)) as f32;
        }
        self
    }

    /// Computes the depth for a recall target from a measurement with queries of a user. Future
    /// queries are like these, so the curve is not extended to larger distances.
    pub(crate) fn measured(
        lists: &[u32],
        table: &RecallTable,
        target: Target,
        least: usize,
    ) -> Self {
        let mut depth = Self {
            points: [(0.0, 0.0); POINTS],
            count: 0,
            measured: 0,
        };
        // If there are more buckets than points, every `step`-th bucket gives a point, and the last
        // bucket always gives one. One point stays free for farther queries (`go_on`).
        let bands = table.bands.len();
        let step = bands.div_ceil(POINTS - 1).max(1);
        let chosen = table.bands.iter().rev().step_by(step).collect::<Vec<_>>();
        let mut deepest = least as f32;
        for band in chosen.into_iter().rev() {
            // Farther queries need at least the same depth. If the measurement of a farther bucket
            // is smaller, that is chance.
            deepest = deepest.max(list_for(lists, &band.recalls, target));
            depth.points[depth.count] = (band.distance, deepest);
            depth.count += 1;
        }
        depth.measured = depth.count;
        depth
    }

    /// Extends the curve beyond the last bucket by the slope of its last segment. Queries from
    /// another source are farther from the vectors than the vectors are from each other. The new
    /// depth is at most `most`, and at most twice the last depth.
    fn go_on(&mut self, most: f32) {
        let Some(&[(near, less), (far, more)]) = self.points[..self.count].last_chunk::<2>() else {
            return;
        };
        let beyond = (2.0 * more - less).min(2.0 * more).min(most).max(more);
        if far > near {
            self.points[self.count] = (2.0 * far - near, beyond);
            self.count += 1;
        }
    }

    /// Returns the approximate mean depth of queries. Each measured point represents the same
    /// number of queries.
    pub(crate) fn typical(&self) -> f64 {
        let measured = &self.points[..self.measured.max(1)];
        let sum: f64 = measured.iter().map(|&(_, depth)| f64::from(depth)).sum();
        (sum / measured.len() as f64).max(1.0)
    }

    /// The greatest depth.
    pub(crate) fn most(&self) -> usize {
        let last = self.points[..self.count].last();
        last.map_or(1, |&(_, depth)| depth.ceil() as usize)
    }

    /// The depth of a query, given the distance of its k-th result or, for clusters, of its nearest
    /// head.
    #[inline]
    pub(crate) fn of(&self, distance: f32) -> usize {
        let points = &self.points[..self.count];
        let Some(at) = points.iter().position(|&(there, _)| distance < there) else {
            return self.most();
        };
        let (right, deeper) = points[at];
        let Some(&(left, depth)) = at.checked_sub(1).and_then(|before| points.get(before)) else {
            return deeper.ceil() as usize;
        };
        let share = (distance - left) / (right - left);
        (depth + (deeper - depth) * share).ceil() as usize
    }
}

/// Returns the mean recall of all measured queries with the list size that found most.
pub(crate) fn reached(table: &RecallTable) -> f64 {
    let most = |recalls: &[f32]| recalls.iter().copied().fold(0.0, f32::max);
    let bands = table
        .bands
        .iter()
        .map(|band| f64::from(most(&band.recalls)));
    bands.sum::<f64>() / table.bands.len().max(1) as f64
}

/// Returns the list size at which a bucket reaches a recall, or the largest list size if no
/// measured size suffices. Between two measured sizes, the result is interpolated: the missed share
/// is about a power of the list size.
fn list_for(lists: &[u32], recalls: &[f32], target: Target) -> f32 {
    // A longer list finds fewer results only by chance.
    let missed = |at: usize| 1.0 - recalls[..=at].iter().copied().fold(0.0, f32::max);
    let last = lists.len().min(recalls.len()).saturating_sub(1);
    // On a plateau, the longest list misses hardly less than a list of half its size.
    let half = lists.iter().position(|&list| 2 * list >= lists[last]);
    let suffices = target.plateau * missed(last);
    let is_plateau = missed(half.unwrap_or(last).min(last)) <= suffices;
    let wanted = match is_plateau {
        true => suffices.max(1.0 - target.recall as f32),
        false => 1.0 - target.recall as f32,
    };
    let Some(at) = (0..=last).find(|&at| missed(at) <= wanted) else {
        return lists[last] as f32;
    };
    let here = lists[at] as f32;
    let Some(before) = at.checked_sub(1) else {
        return here;
    };
    // The measurement cannot distinguish a missed share of 0 from a very small share.
    let log = |missed: f32| missed.max(1e-4).ln();
    let (m0, m1, m) = (log(missed(before)), log(missed(at)), log(wanted));
    let share = match m0 > m1 {
        true => ((m0 - m) / (m0 - m1)).clamp(0.0, 1.0),
        false => 1.0,
    };
    let there = lists[before] as f32;
    there * (here / there).powf(share)
}

#[cfg(test)]
mod tests {
    use stratann_layout::RecallBand;

    use super::*;

    fn table(bands: &[(f32, &[f32])]) -> RecallTable {
        let bands = bands.iter().map(|&(distance, recalls)| RecallBand {
            distance,
            recalls: recalls.to_vec(),
        });
        RecallTable {
            k: 10,
            bands: bands.collect(),
        }
    }

    #[test]
    fn the_list_that_has_a_recall_is_between_those_that_were_tried() {
        let lists = [10, 20, 40];
        assert_eq!(
            list_for(&lists, &[0.9, 0.96, 0.99], Target::strict(0.85)),
            10.0
        );
        assert_eq!(
            list_for(&lists, &[0.9, 0.96, 0.99], Target::strict(0.9)),
            10.0
        );
        let between = list_for(&lists, &[0.9, 0.96, 0.99], Target::strict(0.93));
        assert!((12.0..15.0).contains(&between), "{between}");
        assert!((list_for(&lists, &[0.9, 0.96, 0.99], Target::strict(0.96)) - 20.0).abs() < 1e-3);
        // The cases are a recall that no list reaches, a longer list that finds less, and a list
        // that misses nothing.
        assert_eq!(
            list_for(&lists, &[0.9, 0.96, 0.99], Target::strict(0.995)),
            40.0
        );
        assert_eq!(
            list_for(&lists, &[0.96, 0.9, 0.99], Target::strict(0.95)),
            10.0
        );
        let all = list_for(&lists, &[0.9, 1.0, 1.0], Target::strict(1.0));
        assert!((all - 20.0).abs() < 1e-3, "{all}");
    }

    #[test]
    fn a_list_that_finds_hardly_more_is_not_used() {
        let lists = [10, 20, 40, 80];
        let recalls = [0.9, 0.979, 0.9805, 0.981];
        let list = |target| list_for(&lists, &recalls, target);
        assert_eq!(list(Target::strict(0.99)), 80.0);
        // With 20 candidates, a search misses 1.105 times as much as with 80, and with 40
        // candidates 1.03 times as much.
        let list_of_plateau = list(Target::up_to_plateau(0.99));
        assert!((20.0..24.0).contains(&list_of_plateau), "{list_of_plateau}");
        // A plateau far below the target is used, too. While recall still rises, the longest list
        // is used.
        let flat = list_for(&lists, &[0.5, 0.6, 0.7, 0.71], Target::up_to_plateau(0.95));
        assert!(flat < 80.0);
        let rising = list_for(&lists, &[0.5, 0.6, 0.7, 0.8], Target::up_to_plateau(0.95));
        assert_eq!(rising, 80.0);
        for recall in [0.9, 0.95, 0.97] {
            let (strict, plateau) = (Target::strict(recall), Target::up_to_plateau(recall));
            assert_eq!(list(strict), list(plateau), "{recall}");
        }
    }

    #[test]
    fn the_reached_recall_is_the_mean_of_the_best_of_each_bucket() {
        // By chance, a longer list finds less.
        let of = |bands| reached(&table(bands));
        assert_eq!(
            of(&[(1.0, &[0.5, 1.0, 0.75]), (2.0, &[0.25, 0.5, 0.5])]),
            0.75
        );
        assert_eq!(of(&[]), 0.0);
    }

    #[test]
    fn what_is_farther_is_looked_for_deeper() {
        let lists = [10, 20, 40];
        let bands: [(f32, &[f32]); 3] = [
            (1.0, &[0.95, 0.99, 1.0]),
            (2.0, &[0.9, 0.95, 0.99]),
            // By chance, a farther bucket misses less than a nearer one.
            (3.0, &[0.92, 0.97, 0.99]),
        ];
        let depth = Depth::new(&lists, &table(&bands), Target::strict(0.95), 10);
        let of = |distance| depth.of(distance);
        assert_eq!([of(-1e30), of(0.0), of(1.0), of(1.5)], [10, 10, 10, 15]);
        assert_eq!([of(2.0), of(2.5), of(3.0)], [20, 20, 20]);
        assert_eq!([of(1e30), of(f32::INFINITY), of(f32::NAN)], [20; 3]);
        assert_eq!(depth.most(), 20);
        // The depth is never below the minimum.
        let most = |least| {
            Depth::new(
                &[4, 8],
                &table(&[(1.0, &[1.0, 1.0])]),
                Target::strict(0.5),
                least,
            )
            .most()
        };
        assert_eq!([most(10), most(1)], [10, 4]);
        assert_eq!((Depth::all(7).of(3.0), Depth::all(0).most()), (7, 1));
        let half = depth.times(0.5);
        let of = [1.0, 1.5, 2.0].map(|distance| half.of(distance));
        assert_eq!((of, half.most()), ([5, 8, 10], 10));
    }

    #[test]
    fn the_typical_depth_is_of_measured_points() {
        let lists = [10, 20, 40];
        let bands: [(f32, &[f32]); 2] = [(1.0, &[0.95, 1.0, 1.0]), (2.0, &[0.9, 0.95, 1.0])];
        // With queries of a user, no point is added for farther queries.
        for depth in [Depth::measured, Depth::new] {
            assert_eq!(
                depth(&lists, &table(&bands), Target::strict(0.95), 10).typical(),
                15.0
            );
        }
        assert_eq!(Depth::all(7).typical(), 7.0);
        assert_eq!(Depth::all(7).times(2.0).typical(), 14.0);
    }

    #[test]
    fn farther_than_all_bands_it_goes_on_as_it_rose() {
        let lists = [10, 20, 40, 80];
        let depth = |recalls: [&[f32]; 2]| {
            let bands = [(1.0, recalls[0]), (2.0, recalls[1])];
            Depth::new(&lists, &table(&bands), Target::strict(0.95), 10)
        };
        let rising = depth([&[0.95, 1.0, 1.0, 1.0], &[0.9, 0.95, 0.99, 1.0]]);
        let of = [1.0, 2.0, 2.5, 3.0, 9.0].map(|distance| rising.of(distance));
        assert_eq!(of, [10, 20, 25, 30, 30]);
        let level = Depth::level(
            &lists,
            &table(&[(1.0, &[0.95; 4]), (2.0, &[0.9, 0.95, 1.0, 1.0])]),
            Target::strict(0.95),
            10,
        );
        assert_eq!([0.5, 2.0, 9.0].map(|distance| level.of(distance)), [20; 3]);
        let mean = Depth::mean(
            &lists,
            &table(&[(1.0, &[0.95; 4]), (2.0, &[0.85, 0.95, 1.0, 1.0])]),
            Target::strict(0.95),
            10,
        );
        assert_eq!(mean.most(), 20);
        // The extension is at most twice the last depth, and at most the largest measured list
        // size.
        let steep = depth([&[0.95, 1.0, 1.0, 1.0], &[0.5, 0.6, 0.95, 1.0]]);
        assert_eq!(steep.most(), 70);
        let beyond = depth([&[0.95, 1.0, 1.0, 1.0], &[0.5, 0.6, 0.7, 0.95]]);
        assert_eq!(beyond.most(), 80);
    }

    #[test]
    fn more_bands_than_points_end_with_the_last() {
        let recalls: Vec<[f32; 1]> = vec![[1.0]; 40];
        let bands: Vec<(f32, &[f32])> = (0..40u8).map(|i| (i.into(), &recalls[0][..])).collect();
        let depth = Depth::new(&[10], &table(&bands), Target::strict(0.9), 10);
        assert!(depth.count <= POINTS && depth.points[depth.count - 2].0 == 39.0);
    }
}
