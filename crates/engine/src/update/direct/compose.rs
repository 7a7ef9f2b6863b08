//! Composes pages from existing records, changed lists and new nodes.

use std::ops::Range;

use crate::Error;
use crate::frontier;
use crate::stores::Composer;

#[derive(Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    places: Vec<RecordSpan>,
}

/// The bytes of a record on a page in addition to its list and its vector: node, lengths and id.
const BESIDE: usize = 9;

#[derive(Clone, Debug)]
struct RecordSpan {
    node: u32,
    id: u64,
    list: Range<usize>,
    vector: Range<usize>,
}

impl Records {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The approximate bytes that all records take on pages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + BESIDE * self.places.len()
    }

    pub(super) fn bytes_of(&self, places: &[usize]) -> usize {
        let bytes = places.iter().map(|&at| {
            let place = &self.places[at];
            place.list.len() + place.vector.len() + BESIDE
        });
        bytes.sum()
    }

    pub(super) fn node(&self, at: usize) -> u32 {
        self.places[at].node
    }

    /// `list` and `vector` append the encoded list and vector of the record.
    pub(super) fn push(
        &mut self,
        node: u32,
        id: u64,
        list: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
        vector: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let start = self.bytes.len();
        list(&mut self.bytes)?;
        let middle = self.bytes.len();
        vector(&mut self.bytes)?;
        self.places.push(RecordSpan {
            node,
            id,
            list: start..middle,
            vector: middle..self.bytes.len(),
        });
        Ok(())
    }

    /// Appends record number `at` to the page of `composer`. `false` if the record does not fit.
    pub(super) fn put(&self, at: usize, composer: &mut impl Composer) -> bool {
        let RecordSpan {
            node,
            id,
            list,
            vector,
        } = &self.places[at];
        let (list, vector) = (&self.bytes[list.clone()], &self.bytes[vector.clone()]);
        composer.push(*node, *id, list, vector)
    }
}

#[cold]
pub(super) fn too_large(file: &str, node: u32) -> Error {
    Error::Damaged {
        file: file.to_owned(),
        what: format!(
            "the record of node {node} is too large for the pages of the build (compact the index)"
        ),
    }
}

/// Divides records over pages of `capacity` bytes, so that records with near vectors share a page.
/// Records that do not fit onto one page are split into two groups that take about equally many
/// pages. Each group is divided again. Calls `page` for each page, with the positions of its
/// records.
pub(super) fn divide<C: Composer>(
    records: &Records,
    vectors: &Vectors<'_>,
    places: &mut [usize],
    capacity: usize,
    composer: &mut C,
    file: &str,
    page: &mut dyn FnMut(&[usize], &mut C),
) -> Result<(), Error> {
    composer.start();
    if places.iter().all(|&at| records.put(at, composer)) {
        page(places, composer);
        return Ok(());
    }
    if let [alone] = places {
        return Err(too_large(file, records.node(*alone)));
    }
    vectors.lean(places);
    // If the records take three pages, the left group gets one page, and the right group two.
    let bytes = records.bytes_of(places);
    let pages = bytes.div_ceil(capacity).max(2);
    let share = bytes * (pages / 2) / pages;
    let (mut at, mut taken) = (0, 0);
    while at + 1 < places.len() && taken + records.bytes_of(&places[at..=at]) / 2 <= share {
        taken += records.bytes_of(&places[at..=at]);
        at += 1;
    }
    let (left, right) = places.split_at_mut(at.max(1));
    divide(records, vectors, left, capacity, composer, file, page)?;
    divide(records, vectors, right, capacity, composer, file, page)
}

pub(super) struct Vectors<'a> {
    pub(super) dim: usize,
    pub(super) floats: &'a [f32],
}

/// The rounds of balanced 2-means. More rounds change almost nothing.
const ROUNDS: usize = 4;

impl Vectors<'_> {
    fn row(&self, at: usize) -> &[f32] {
        &self.floats[at * self.dim..][..self.dim]
    }

    /// Sorts `places` by balanced 2-means, from two rows that are far apart.
    fn lean(&self, places: &mut [usize]) {
        let farthest = |from: usize| {
            let from = self.row(from);
            let distance = |at: usize| -> f32 {
                let pairs = from.iter().zip(self.row(at));
                pairs.map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let far = places
                .iter()
                .map(|&at| frontier::key(distance(at), at as u32))
                .max();
            far.map_or(0, |key| frontier::node_of(key) as usize)
        };
        let one = farthest(places[0]);
        let other = farthest(one);
        let mut axis: Vec<f32> = self
            .row(other)
            .iter()
            .zip(self.row(one))
            .map(|(a, b)| a - b)
            .collect();
        for round in 0..ROUNDS {
            places.sort_by_cached_key(|&at| {
                let along: f32 = self.row(at).iter().zip(&axis).map(|(a, b)| a * b).sum();
                frontier::key(along, at as u32)
            });
            if round + 1 < ROUNDS {
                let half = places.len() / 2;
                axis.fill(0.0);
                for (group, sign) in [(&places[..half], -1.0), (&places[half..], 1.0)] {
                    let share = sign / group.len().max(1) as f32;
                    for &at in group {
                        for (sum, value) in axis.iter_mut().zip(self.row(at)) {
                            *sum += share * value;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first field is the maximum number of records on a page.
    struct Few(usize, Vec<u32>);

    impl Composer for Few {
        fn start(&mut self) {
            self.1.clear();
        }

        fn push(&mut self, node: u32, _: u64, _: &[u8], _: &[u8]) -> bool {
            self.1.push(node);
            self.1.len() <= self.0
        }

        fn finish(&mut self, _: u32) -> &[u8] {
            &[]
        }
    }

    fn divided(rows: &[f32], room: usize) -> Result<Vec<Vec<u32>>, Error> {
        let mut records = Records::default();
        for node in 0..rows.len() as u32 {
            let nothing = |_: &mut Vec<u8>| Ok(());
            records.push(node, 0, nothing, nothing)?;
        }
        let vectors = Vectors {
            dim: 1,
            floats: rows,
        };
        let mut places: Vec<usize> = (0..rows.len()).collect();
        let mut pages = Vec::new();
        let capacity = room * BESIDE;
        let mut few = Few(room, Vec::new());
        divide(
            &records,
            &vectors,
            &mut places,
            capacity,
            &mut few,
            "f",
            &mut |_, few| {
                let mut page = few.1.clone();
                page.sort_unstable();
                pages.push(page);
            },
        )?;
        pages.sort();
        Ok(pages)
    }

    #[test]
    fn records_that_fit_stay_together_and_others_part_by_where_they_are() {
        assert_eq!(divided(&[1.0, 9.0, 2.0], 3).unwrap(), [[0, 1, 2]]);
        let far = [1.0, 90.0, 2.0, 91.0, 3.0, 92.0];
        assert_eq!(divided(&far, 5).unwrap(), [[0, 2, 4], [1, 3, 5]]);
        let three = [1.0, 50.0, 90.0, 2.0, 51.0, 91.0, 3.0, 52.0, 92.0];
        assert_eq!(
            divided(&three, 4).unwrap(),
            [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5, 8]]
        );
        assert_eq!(divided(&[5.0; 7], 2).unwrap().concat().len(), 7);
        assert!(divided(&[1.0], 0).is_err(), "a record fits into no page");
    }
}
