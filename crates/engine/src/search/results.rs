//! The list of the k nearest vectors by exact distance, which becomes the results of a query.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbour {
    pub(crate) distance: f32,
    pub(crate) id: u64,
}

const RESERVED: usize = 1 << 12;

/// A bounded list of results, nearest first, ties by lower id.
#[derive(Debug, Default)]
pub(crate) struct Nearest {
    found: Vec<Neighbour>,
    k: usize,
}

impl Nearest {
    pub(crate) fn clear(&mut self, k: usize) {
        self.found.clear();
        // If `k` is larger than `RESERVED`, the list grows as results arrive.
        self.found.reserve(k.min(RESERVED) + 1);
        self.k = k;
    }

    /// Returns whether the result was added. A result that is already in the list is ignored.
    pub(crate) fn offer(&mut self, id: u64, distance: f32) -> bool {
        // `min` turns NaN, which would sort before all numbers, into infinity.
        let distance = distance.min(f32::INFINITY);
        let before = |a: &Neighbour| a.distance < distance || (a.distance == distance && a.id < id);
        if self.found.len() == self.k && self.found.last().is_none_or(before) {
            return false;
        }
        let at = self.found.partition_point(before);
        let offered = Neighbour { distance, id };
        if self.found.get(at) == Some(&offered) {
            return false;
        }
        // While an id is being replaced, the search may meet the old and the new vector of this id.
        match self.found.iter().position(|found| found.id == id) {
            Some(nearer) if nearer < at => return false,
            Some(farther) => drop(self.found.remove(farther)),
            None => self.found.truncate(self.k - 1),
        }
        self.found.insert(at, offered);
        true
    }

    /// The distance of the k-th result, or `None` if there are fewer than k results.
    pub(crate) fn bound(&self) -> Option<f32> {
        match self.found.last() {
            Some(last) if self.found.len() == self.k => Some(last.distance),
            _ => None,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.found.len() == self.k
    }

    pub(crate) fn found(&self) -> &[Neighbour] {
        &self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_nearest_and_breaks_ties_by_id() {
        let mut nearest = Nearest::default();
        nearest.clear(3);
        let mut came_in = Vec::new();
        let offers = [
            (9, 2.0),
            (4, 1.0),
            (4, 1.0),
            (7, 1.0),
            (1, 5.0),
            (2, 2.0),
            (7, 1.5),
            (2, 1.9),
        ];
        for (id, distance) in offers {
            came_in.push(nearest.offer(id, distance));
        }
        assert_eq!(came_in, [true, true, false, true, false, true, false, true]);
        let ids: Vec<u64> = nearest.found().iter().map(|n| n.id).collect();
        assert_eq!(ids, [4, 7, 2]);
        assert_eq!(nearest.bound(), Some(1.9));
    }
}
