//! What compressed lists will take, before there is a graph: learned from graphs over samples of the rows.
//!
//! ```text
//!   Elias-Fano code of R of N numbers, at most:  2 + log2(N / R) bits each
//!   what lists take                           :  that, less what it saves that neighbours are near each other in the order of the nodes
//! ```
//!
//! The saving grows with the collection, about alike with each doubling: in bits an edge with R=64, of samples of 4,096 and of all rows, 2.6 and 4.5 of the 100
//! thousand rows of photo-sift-100k, 1.3 and 2.7 of the 40 thousand of package-text. So graphs of R=64 over two samples, one twice the other, say what it
//! is and how it grows; to be on the safe side only a part of the growth counts ([`COUNTED`]). Shorter lists save less ([`ExpectedLists::bits`]).
//!
//! Both graphs are built by one thread, so that the same rows always give the same degree.

use std::path::Path;

use super::BuildOptions;
use super::coding::Coding;
use crate::data::{Matrix, VectorSource, check_rows};
use crate::graph;
use crate::progress::Silent;
use crate::{Error, Order};

/// Rows of the larger sample.
const SAMPLED: usize = 4096;
/// Bytes of a sample's rows, at most.
const SAMPLED_BYTES: usize = 32 << 20;
/// Rows of fewer than these are not sampled: the whole index is small.
const LEAST: usize = 4 * SAMPLED;
/// R and L of the samples' graphs.
const DEGREE: usize = 64;
const BUILD_LIST: usize = 100;
/// The share of the growth that counts.
const COUNTED: f64 = 0.8;
/// Bytes of a list's header and of what its last byte does not fill, at most on average.
const HEADER: f64 = 2.0;

/// What lists are expected to take in a collection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedLists {
    rows: usize,
    /// Bits an edge that lists of [`DEGREE`] save against the bound.
    saving: f64,
}

impl ExpectedLists {
    /// At most, whatever the order of the nodes.
    pub(super) fn bound(rows: usize) -> Self {
        Self { rows, saving: 0.0 }
    }

    /// By samples of the rows of a source; the bound where it is small, or memory is, or nodes are in the input's order.
    ///
    /// # Errors
    /// A row that cannot be read, or be indexed.
    pub(super) fn of(
        source: &dyn VectorSource,
        coding: &Coding,
        options: &BuildOptions,
    ) -> Result<Self, Error> {
        let rows = source.rows();
        let sampled = SAMPLED.min(SAMPLED_BYTES / source.row_bytes().max(1));
        // A graph takes rows, points and lists, about as much as the rows or more.
        let takes = 4 * (sampled * (source.row_bytes() + 8 * DEGREE)) as u64;
        // In the input's order neighbours are anywhere, as far as anybody knows.
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

    /// Bits of an edge in lists of so many.
    pub(super) fn bits(&self, degree: usize) -> f64 {
        // As it was with photo-sift, package-text and package-wide, samples and all rows, or less: of what 64 edges save, 16 save .51 to .77 and 40 save
        // .82 to .93; 88 save .95 and more.
        let counted = (degree as f64).clamp(16.0, 64.0);
        let share = match counted <= 40.0 {
            true => 0.5 + 0.3 * (counted - 16.0) / 24.0,
            false => 0.8 + 0.2 * (counted - 40.0) / 24.0,
        };
        let share = if degree > DEGREE { 0.95 } else { share };
        (bound(degree, self.rows) - self.saving * share).max(1.0)
    }

    /// Bytes of a list of so many.
    pub(super) fn bytes(&self, degree: usize) -> f64 {
        degree as f64 * self.bits(degree) / 8.0 + HEADER
    }
}

/// Bits of each of so many numbers below `rows`, at most.
fn bound(degree: usize, rows: usize) -> f64 {
    2.0 + (rows as f64 / degree as f64).max(1.0).log2()
}

/// Bits an edge that lists of a graph over an even sample of so many rows save.
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
            // The same each time.
            let again = ExpectedLists::of(&rows, &coding, &options).unwrap();
            assert_eq!(lists.saving, again.saving);
            build(&rows, &index, &options, &Silent).unwrap();
            let stats = Index::open(&index, &OpenOptions::default())
                .unwrap()
                .stats();
            let (expected, found) = (lists.bits(32), stats.bits_per_edge);
            // Without their samples 11.3 bits were expected in any order, where 8 to 9 come in locality order.
            assert!(
                found < expected && expected < found + 1.2,
                "{order}: {expected}, {found}"
            );
            assert!(lists.bits(96) < lists.bits(64) && lists.bits(64) < expected);
        }
        // Under a memory cap that has no room for samples, and in a small collection, it is the bound.
        let little = BuildOptions {
            memory: Some(1 << 20),
            ..BuildOptions::default()
        };
        let coding = Coding::new(&rows, 64, Compression::Best).unwrap();
        let lists = ExpectedLists::of(&rows, &coding, &little).unwrap();
        assert_eq!(lists.bits(64), bound(64, 20_000));
    }
}
