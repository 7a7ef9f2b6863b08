//! How many of the nearest candidates a search has to look at for a recall, by how far its k-th answer is; or how many clusters it has to
//! probe, by how far the nearest head is.

use stratann_layout::RecallTable;

/// Points of the curve, at most.
const POINTS: usize = 16;

/// Depth by distance: a line through points, level beyond its ends. Plain data, so that each task of a search has its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Depth {
    /// Distances, rising, and how many have to be looked at there, not falling.
    points: [(f32, f32); POINTS],
    count: usize,
}

impl Depth {
    /// So many candidates, however far the answers are.
    pub(crate) fn all(count: usize) -> Self {
        let mut points = [(0.0, 0.0); POINTS];
        points[0] = (0.0, count.max(1) as f32);
        Self { points, count: 1 }
    }

    /// What gives a recall by what was measured with list sizes `lists`, rising, and with rows of the index; never fewer than `least`.
    pub(crate) fn new(lists: &[u32], table: &RecallTable, recall: f64, least: usize) -> Self {
        let mut depth = Self::measured(lists, table, recall, least);
        depth.go_on(lists.last().copied().unwrap_or(1) as f32);
        depth
    }

    /// As many for each query as the farthest that were measured take.
    pub(crate) fn level(lists: &[u32], table: &RecallTable, recall: f64, least: usize) -> Self {
        Self::all(Self::measured(lists, table, recall, least).most())
    }

    /// As many for each query as give the recall in the mean of all that were measured.
    pub(crate) fn mean(lists: &[u32], table: &RecallTable, recall: f64, least: usize) -> Self {
        let bands = table.bands.len().max(1) as f32;
        let of = |at: usize| {
            let found = table.bands.iter().filter_map(|band| band.recalls.get(at));
            found.sum::<f32>() / bands
        };
        let recalls: Vec<f32> = (0..lists.len()).map(of).collect();
        let list = list_for(lists, &recalls, recall as f32).max(least as f32);
        Self::all(list.ceil() as usize)
    }

    /// So many times as many.
    pub(crate) fn times(mut self, factor: f64) -> Self {
        for (_, depth) in &mut self.points[..self.count] {
            *depth *= factor as f32;
        }
        self
    }

    /// The same where queries were measured that are like those to come, so that none is farther.
    pub(crate) fn measured(lists: &[u32], table: &RecallTable, recall: f64, least: usize) -> Self {
        let mut depth = Self {
            points: [(0.0, 0.0); POINTS],
            count: 0,
        };
        // Of more bands than there are points, every so many, the last one among them; one point is for those that are farther.
        let bands = table.bands.len();
        let step = bands.div_ceil(POINTS - 1).max(1);
        let chosen = table.bands.iter().rev().step_by(step).collect::<Vec<_>>();
        let mut deepest = least as f32;
        for band in chosen.into_iter().rev() {
            // What is farther takes no less; where less was measured, that is chance.
            deepest = deepest.max(list_for(lists, &band.recalls, recall as f32));
            depth.points[depth.count] = (band.distance, deepest);
            depth.count += 1;
        }
        depth
    }

    /// Has depth rise beyond the last band as it rose up to it, over as much distance: queries of another source than the vectors are farther
    /// from them than these are from each other. No deeper than `most`, and than twice as deep.
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

    /// The most candidates that may have to be looked at.
    pub(crate) fn most(&self) -> usize {
        let last = self.points[..self.count].last();
        last.map_or(1, |&(_, depth)| depth.ceil() as usize)
    }

    /// Of a query whose k-th answer, or nearest head, is so far.
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

/// The list size with which a band has a recall: between two that were tried, by the share that is missed, which falls about as a power of
/// the list. The largest where none has it.
fn list_for(lists: &[u32], recalls: &[f32], wanted: f32) -> f32 {
    // A longer list finds no less but by chance.
    let missed = |at: usize| 1.0 - recalls[..=at].iter().copied().fold(0.0, f32::max);
    let wanted = 1.0 - wanted;
    let last = lists.len().min(recalls.len()).saturating_sub(1);
    let Some(at) = (0..=last).find(|&at| missed(at) <= wanted) else {
        return lists[last] as f32;
    };
    let here = lists[at] as f32;
    let Some(before) = at.checked_sub(1) else {
        return here;
    };
    // Nothing missed at all is less than can be seen.
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
        assert_eq!(list_for(&lists, &[0.9, 0.96, 0.99], 0.85), 10.0);
        assert_eq!(list_for(&lists, &[0.9, 0.96, 0.99], 0.9), 10.0);
        let between = list_for(&lists, &[0.9, 0.96, 0.99], 0.93);
        assert!((12.0..15.0).contains(&between), "{between}");
        assert!((list_for(&lists, &[0.9, 0.96, 0.99], 0.96) - 20.0).abs() < 1e-3);
        // Out of reach; less found with more; nothing missed.
        assert_eq!(list_for(&lists, &[0.9, 0.96, 0.99], 0.995), 40.0);
        assert_eq!(list_for(&lists, &[0.96, 0.9, 0.99], 0.95), 10.0);
        let all = list_for(&lists, &[0.9, 1.0, 1.0], 1.0);
        assert!((all - 20.0).abs() < 1e-3, "{all}");
    }

    #[test]
    fn what_is_farther_is_looked_for_deeper() {
        let lists = [10, 20, 40];
        let bands: [(f32, &[f32]); 3] = [
            (1.0, &[0.95, 0.99, 1.0]),
            (2.0, &[0.9, 0.95, 0.99]),
            // By chance less is missed than nearer.
            (3.0, &[0.92, 0.97, 0.99]),
        ];
        let depth = Depth::new(&lists, &table(&bands), 0.95, 10);
        let of = |distance| depth.of(distance);
        assert_eq!([of(-1e30), of(0.0), of(1.0), of(1.5)], [10, 10, 10, 15]);
        assert_eq!([of(2.0), of(2.5), of(3.0)], [20, 20, 20]);
        assert_eq!([of(1e30), of(f32::INFINITY), of(f32::NAN)], [20; 3]);
        assert_eq!(depth.most(), 20);
        // Never fewer than the least.
        let most = |least| Depth::new(&[4, 8], &table(&[(1.0, &[1.0, 1.0])]), 0.5, least).most();
        assert_eq!([most(10), most(1)], [10, 4]);
        assert_eq!((Depth::all(7).of(3.0), Depth::all(0).most()), (7, 1));
    }

    #[test]
    fn farther_than_all_bands_it_goes_on_as_it_rose() {
        let lists = [10, 20, 40, 80];
        let depth = |recalls: [&[f32]; 2]| {
            let bands = [(1.0, recalls[0]), (2.0, recalls[1])];
            Depth::new(&lists, &table(&bands), 0.95, 10)
        };
        let rising = depth([&[0.95, 1.0, 1.0, 1.0], &[0.9, 0.95, 0.99, 1.0]]);
        let of = [1.0, 2.0, 2.5, 3.0, 9.0].map(|distance| rising.of(distance));
        assert_eq!(of, [10, 20, 25, 30, 30]);
        let level = Depth::level(
            &lists,
            &table(&[(1.0, &[0.95; 4]), (2.0, &[0.9, 0.95, 1.0, 1.0])]),
            0.95,
            10,
        );
        assert_eq!([0.5, 2.0, 9.0].map(|distance| level.of(distance)), [20; 3]);
        let mean = Depth::mean(
            &lists,
            &table(&[(1.0, &[0.95; 4]), (2.0, &[0.85, 0.95, 1.0, 1.0])]),
            0.95,
            10,
        );
        assert_eq!(mean.most(), 20);
        // At most twice as deep, and no deeper than what was tried.
        let steep = depth([&[0.95, 1.0, 1.0, 1.0], &[0.5, 0.6, 0.95, 1.0]]);
        assert_eq!(steep.most(), 70);
        let beyond = depth([&[0.95, 1.0, 1.0, 1.0], &[0.5, 0.6, 0.7, 0.95]]);
        assert_eq!(beyond.most(), 80);
    }

    #[test]
    fn more_bands_than_points_end_with_the_last() {
        let recalls: Vec<[f32; 1]> = vec![[1.0]; 40];
        let bands: Vec<(f32, &[f32])> = (0..40u8).map(|i| (i.into(), &recalls[0][..])).collect();
        let depth = Depth::new(&[10], &table(&bands), 0.9, 10);
        assert!(depth.count <= POINTS && depth.points[depth.count - 2].0 == 39.0);
    }
}
