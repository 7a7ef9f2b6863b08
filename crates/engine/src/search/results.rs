//! The k nearest by exact distance: what re-ranking fills, and what a query answers.

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbour {
    /// Exact distance to the query.
    pub(crate) distance: f32,
    /// The outside id.
    pub(crate) id: u64,
}

/// A bounded list of answers, nearest first, ties by lower id.
#[derive(Debug, Default)]
pub(crate) struct Nearest {
    found: Vec<Neighbour>,
    k: usize,
}

impl Nearest {
    /// Empties the list and sets how many it keeps.
    pub(crate) fn clear(&mut self, k: usize) {
        self.found.clear();
        self.found.reserve(k + 1);
        self.k = k;
    }

    /// Offers an answer. A node must be offered once only.
    pub(crate) fn offer(&mut self, id: u64, distance: f32) {
        let before = |a: &Neighbour| a.distance < distance || (a.distance == distance && a.id < id);
        if self.found.len() == self.k {
            match self.found.last() {
                Some(last) if !before(last) => self.found.pop(),
                _ => return,
            };
        }
        let at = self.found.partition_point(before);
        self.found.insert(at, Neighbour { distance, id });
    }

    /// The answers, nearest first.
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
        for (id, distance) in [(9, 2.0), (4, 1.0), (7, 1.0), (1, 5.0), (2, 2.0)] {
            nearest.offer(id, distance);
        }
        let ids: Vec<u64> = nearest.found().iter().map(|n| n.id).collect();
        assert_eq!(ids, [4, 7, 2]);
    }
}
