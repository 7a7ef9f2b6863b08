//! Estimates the bytes of compressed lists before the graph exists, from graphs over samples of the
//! rows.
//!
//! ```text
//!   Elias-Fano code of R of N numbers, at most:  2 + log2(N / R) bits each
//!   bytes of lists:  this bound, less a saving (neighbours are near in the order of nodes)
//! ```
//!
//! The saving for each edge grows by about the same number of bits with each doubling of the
//! collection. With R=64, it is 2.6 bits for 4,096 rows of photo-sift-100k and 4.5 bits for all
//! 100,000. For package-text, it is 1.3 bits for 4,096 rows, and 2.7 bits for all 40,000. So graphs
//! over two samples show the saving and its growth. To be safe, the estimate counts only the share
//! [`COUNTED`] of the growth.
//!
//! Each of both graphs is built by one thread, so that the same rows always give the same degree.

use std::path::Path;

use super::BuildOptions;
use crate::data::{Matrix, VectorSource, check_rows};
use crate::graph;
use crate::progress::Silent;
use crate::stores::writing::coding::Coding;
use crate::{Error, Order};

const SAMPLED: usize = 4096;
const SAMPLED_BYTES: usize = 32 << 20;
/// The least number of rows for which samples are taken. With fewer rows, the whole index is small.
const LEAST: usize = 4 * SAMPLED;
const DEGREE: usize = 64;
const BUILD_LIST: usize = 100;
const COUNTED: f64 = 0.8;
/// An upper bound of the mean bytes of a list's header and of the unused bits of its last byte.
const HEADER: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedLists {
    rows: usize,
    /// The bits that lists of [`DEGREE`] neighbours save for each edge.
    saving: f64,
}

impl ExpectedLists {
    pub(super) fn bound(rows: usize) -> Self {
        Self { rows, saving: 0.0 }
    }

    /// The estimate is the upper bound if the source or the memory is small, or if the order is the
    /// input order. Otherwise the estimate follows from samples.
    pub(super) fn of(
        source: &dyn VectorSource,
        coding: &Coding,
        options: &BuildOptions,
    ) -> Result<Self, Error> {
        let rows = source.rows();
        let sampled = SAMPLED.min(SAMPLED_BYTES / source.row_bytes().max(1));
        // The memory for the rows, for their copies in `Points`, and for the lists. Copies and
        // lists together need as much memory as the rows, or more.
        let takes = 4 * (sampled * (source.row_bytes() + 8 * DEGREE)) as u64;
        // In input order, the neighbours of a node may have any numbers, so lists save nothing.
        let is_ordered = options.order.unwrap_or(options.preset.order) == Order::Locality;
        if rows < LEAST || !is_ordered || options.memory.is_some_and(|memory| memory < 4 * takes) {
            return Ok(Self::bound(rows));
        }
        let half = saving(source, coding, options, sampled / 2)?;
        let whole = saving(source, coding, options, sampled)?;
        let doublings = (rows as f64 / sampled as f64).log2();
        let grows = COUNTED * (whole - half).max(0.0) * doublings;
        Ok(Self {
            rows,
            saving: (whole + grows).max(0.0),
        })
    }

    pub(super) fn bits(&self, degree: usize) -> f64 {
        // The shares are lower bounds of measured shares. On photo-sift, package-text and
        // package-wide, lists of 16 edges have .51 to .77 of the saving of lists of 64. Lists of 40
        // have .82 to .93, and lists of 88 have .95 and more.
        let counted = (degree as f64).clamp(16.0, 64.0);
        let share = match counted <= 40.0 {
            true => 0.5 + 0.3 * (counted - 16.0) / 24.0,
            false => 0.8 + 0.2 * (counted - 40.0) / 24.0,
        };
        let share = if degree > DEGREE { 0.95 } else { share };
        (bound(degree, self.rows) - self.saving * share).max(1.0)
    }

    pub(super) fn bytes(&self, degree: usize) -> f64 {
        degree as f64 * self.bits(degree) / 8.0 + HEADER
    }
}

fn bound(degree: usize, rows: usize) -> f64 {
    2.0 + (rows as f64 / degree as f64).max(1.0).log2()
}

fn saving(
    source: &dyn VectorSource,
    coding: &Coding,
    options: &BuildOptions,
    rows: usize,
) -> Result<f64, Error> {
    let chosen: Vec<u32> = coding.some_nodes(rows as u64).collect();
    let mut bytes = vec![0; chosen.len() * source.row_bytes()];
    source.gather(&chosen, &mut bytes)?;
    let sample = Matrix::new(bytes, chosen.len(), source.dim(), source.element())?;
    let parameters = graph::Parameters {
        degree: DEGREE,
        build_list: BUILD_LIST,
        alpha: options.alpha,
        threads: 1,
        seed: options.seed,
    };
    let task = graph::Task {
        metric: options.metric,
        order: graph::Order::Locality { page: 1 },
        parameters: &parameters,
        memory: None,
        scratch: Path::new(""),
        known: None,
        check: check_rows,
        savepoints: None,
        afterwards: None,
    };
    let mut built = graph::construct(&sample, &task, &Silent)?;
    let coding = Coding::new(&sample, DEGREE, coding.compression())?;
    let model = coding.learn_lists(&mut built.lists)?;
    let (mut list, mut code, mut edges) = (Vec::new(), Vec::new(), 0);
    for node in 0..chosen.len() as u32 {
        built.lists.read(node, &mut list)?;
        list.sort_unstable();
        edges += list.len();
        let encoded = model.encode(node, &list, &mut code);
        encoded.map_err(|error| Error::codec(format!("the list of node {node}"), error))?;
    }
    let bits = 8.0 * code.len() as f64 / edges.max(1) as f64;
    Ok(bound(DEGREE, chosen.len()) - bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::VectorFile;
    use crate::slow::slow;
    use crate::{Compression, Index, OpenOptions, Preset, build};

    #[test]
    fn lists_of_a_collection_are_as_long_as_its_samples_say_or_a_little_shorter() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/photo-sift-20k.base.u8bin"
        );
        let rows = VectorFile::open(path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join("index");
        let orders = [Order::Locality, Order::Input];
        for order in orders.into_iter().take(if slow() { 2 } else { 1 }) {
            let options = BuildOptions {
                preset: Preset::STRATANN,
                degree: Some(32),
                build_list: 40,
                order: Some(order),
                overwrite: true,
                ..BuildOptions::default()
            };
            let coding = Coding::new(&rows, 32, Compression::Best).unwrap();
            let lists = ExpectedLists::of(&rows, &coding, &options).unwrap();
            if slow() {
                let again = ExpectedLists::of(&rows, &coding, &options).unwrap();
                assert_eq!(lists.saving, again.saving);
            }
            build(&rows, &index, &options, &Silent).unwrap();
            let stats = Index::open(&index, &OpenOptions::default())
                .unwrap()
                .stats();
            let (expected, found) = (lists.bits(32), stats.bits_per_edge);
            // Without samples, the estimate is 11.3 bits for each edge. Lists in locality order
            // take 8 to 9 bits.
            assert!(
                found < expected && expected < found + 1.2,
                "{order}: {expected}, {found}"
            );
            assert!(lists.bits(96) < lists.bits(64) && lists.bits(64) < expected);
        }
        // With little memory or a small collection, the estimate is the upper bound.
        let little = BuildOptions {
            memory: Some(1 << 20),
            ..BuildOptions::default()
        };
        let coding = Coding::new(&rows, 64, Compression::Best).unwrap();
        let lists = ExpectedLists::of(&rows, &coding, &little).unwrap();
        assert_eq!(lists.bits(64), bound(64, 20_000));
    }
}
