//! Ground truth: the exact nearest rows of each query, and the recall of results.
//!
//! ```text
//! .bin    queries n (u32), k (u32), n*k ids (u32), n*k distances (f32; may be absent)
//! .bin64  queries n (u32), k (u32), n*k ids (u64), n*k distances (f32; may be absent)
//! .ibin   queries n (u32), k (u32), n*k ids (i32)
//! .ivecs  per query: k (u32), k ids (i32)
//! .npy    an array of n x k ids (u64; others of 32 and 64 bits are read as well)
//! ```
//!
//! `.bin` is the format of big-ann-benchmarks, and `.bin64` is the same format with larger ids. The
//! length of the file shows whether it has distances. A missing neighbour has the largest number of
//! the format as id, and an infinite distance.
//!
//! A smaller distance is nearer, and L2 distances are squared (`stratann_vector::Metric`).

use super::DataError;
use super::npy::{self, NpyHeader};
use super::output::Output;
use super::source::{check_not_empty, extension, extension_error, open, read_at};
use super::{bin, vecs};
use std::fs::File;
use std::path::Path;

const PIECE: usize = 64 << 10;
const EXTENSIONS: &str = ".bin .bin64 .ibin .ivecs .npy";

/// The relative difference up to which distances count as equal. The program that made the truth
/// may have summed in another order.
const TOLERANCE: f32 = 1e-6;

/// The nearest rows of each query, in order of distance.
#[derive(Debug, Clone, PartialEq)]
pub struct GroundTruth {
    /// The number of queries.
    pub queries: usize,
    /// The number of neighbours of each query.
    pub k: usize,
    /// The `queries * k` ids: row numbers after an exact search. 2^64-1 means that there is no
    /// neighbour.
    pub ids: Vec<u64>,
    /// The `queries * k` distances. A smaller distance is nearer.
    pub distances: Option<Vec<f32>>,
}

impl GroundTruth {
    /// Converts the results of a search. The call fails if a query does not have k ids and k
    /// distances.
    pub fn from_results(
        k: usize,
        ids: &[u64],
        distances: &[f32],
    ) -> Result<GroundTruth, DataError> {
        if k == 0 || !ids.len().is_multiple_of(k) || ids.len() != distances.len() {
            return Err(DataError::argument(
                "the number of ids and distances",
                format!("{} and {}", ids.len(), distances.len()),
                format!("each query has k = {k} ids and as many distances"),
                "Pass k ids and k distances for each query, with k at least 1",
            ));
        }
        Ok(GroundTruth {
            queries: ids.len() / k,
            k,
            ids: ids.to_vec(),
            distances: Some(distances.to_vec()),
        })
    }

    /// Writes the results of a search to a file, as [`write`](GroundTruth::write) does.
    pub fn write_results(
        path: impl AsRef<Path>,
        k: usize,
        ids: &[u64],
        distances: &[f32],
    ) -> Result<(), DataError> {
        Self::from_results(k, ids, distances)?.write(path)
    }

    /// Reads a `.bin`, `.bin64`, `.ibin`, `.ivecs` or `.npy` file.
    pub fn read(path: impl AsRef<Path>) -> Result<GroundTruth, DataError> {
        Self::read_nearest(path, usize::MAX)
    }

    /// Reads only the nearest `most` neighbours of each query, which suffice for recall@most.
    pub fn read_nearest(path: impl AsRef<Path>, most: usize) -> Result<GroundTruth, DataError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        Self::check_name(path)?;
        let extension = extension(path);
        let (file, length) = open(path, &name)?;
        match extension.as_str() {
            "ivecs" => return read_ivecs(&file, length, most, &name),
            "npy" => return read_array(&file, length, most, &name),
            _ => {}
        }
        let (queries, k) = bin::read_header(&file, length, &name)?;
        let width = if extension == "bin64" { 8 } else { 4 };
        let entries = u128::from(queries) * u128::from(k);
        let ids_only = u128::from(bin::HEADER) + width as u128 * entries;
        let both = ids_only + 4 * entries;
        let with_distances = extension != "ibin" && u128::from(length) != ids_only;
        DataError::check_length(
            &name,
            length,
            if with_distances { both } else { ids_only },
            || {
                let what = if with_distances {
                    "ids and distances"
                } else {
                    "ids"
                };
                let without = if with_distances {
                    format!("; a file without distances would have {ids_only} bytes")
                } else {
                    String::new()
                };
                format!("its header says {queries} queries of {k} {what}{without}")
            },
        )?;
        let table = Table {
            file: &file,
            name: &name,
            queries: queries as usize,
            row: k as usize,
            k: (k as usize).min(most),
        };
        let ids = match width {
            8 => table.read(bin::HEADER, wide)?,
            _ => table.read(bin::HEADER, |bytes| padded(narrow(bytes)))?,
        };
        if extension == "ibin" {
            let offset =
                |at: usize| bin::HEADER + 4 * (at / table.k * table.row + at % table.k) as u64;
            check_signs(&ids, table.k, offset, &name)?;
        }
        let read = |offset| table.read(offset, f32::from_le_bytes);
        Ok(GroundTruth {
            queries: table.queries,
            k: table.k,
            ids,
            distances: with_distances.then(|| read(ids_only as u64)).transpose()?,
        })
    }

    /// Returns an error if the extension of a path is no format of ground truth.
    pub fn check_name(path: impl AsRef<Path>) -> Result<(), DataError> {
        match extension(path.as_ref()).as_str() {
            "bin" | "bin64" | "ibin" | "ivecs" | "npy" => Ok(()),
            _ => Err(extension_error(path.as_ref(), EXTENSIONS)),
        }
    }

    /// Returns an error if ids are too large for a file of this name.
    ///
    /// # Errors
    /// The call fails if an id has more than 32 bits, and the file is a `.bin`, `.ibin` or
    /// `.ivecs`.
    pub fn check_ids(path: impl AsRef<Path>, ids: &[u64]) -> Result<(), DataError> {
        match extension(path.as_ref()).as_str() {
            "bin64" | "npy" => Ok(()),
            _ => check_narrow(ids),
        }
    }

    /// Writes the file, which gets its name when it is complete. Only `.bin` and `.bin64` files get
    /// the distances.
    ///
    /// # Errors
    /// The call fails if an id is too large for the format. Ids of `.bin`, `.ibin` and `.ivecs`
    /// have 32 bits.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let path = path.as_ref();
        Self::check_name(path)?;
        let extension = extension(path);
        if extension == "npy" {
            let header = NpyHeader {
                descr: "<u8",
                columns: Some(self.k as u64),
            };
            let mut output = Output::create(path)?;
            output.write(&header.bytes(self.queries as u64))?;
            for id in &self.ids {
                output.write(&id.to_le_bytes())?;
            }
            return output.commit();
        }
        let number = |what: &'static str, value: usize| {
            u32::try_from(value).map_err(|_| DataError::too_wide(what, value))
        };
        let (queries, k) = (
            number("the number of queries", self.queries)?,
            number("k", self.k)?,
        );
        Self::check_ids(path, &self.ids)?;
        // The ids were checked, so the low 32 bits are the whole id, or the 32-bit padding.
        let low = |&id: &u64| id as u32;
        let mut output = Output::create(path)?;
        if extension == "ivecs" {
            for ids in self.ids.chunks_exact(self.k.max(1)) {
                output.write_words(std::iter::once(k).chain(ids.iter().map(low)))?;
            }
            return output.commit();
        }
        output.write_words([queries, k].into_iter())?;
        match extension.as_str() {
            "bin64" => {
                for id in &self.ids {
                    output.write(&id.to_le_bytes())?;
                }
            }
            _ => output.write_words(self.ids.iter().map(low))?,
        }
        if let (Some(distances), "bin" | "bin64") = (&self.distances, extension.as_str()) {
            output.write_words(distances.iter().map(|distance| distance.to_bits()))?;
        }
        output.commit()
    }

    /// The ids of one query, in order of distance.
    ///
    /// # Panics
    /// The call panics if there is no such query.
    pub fn ids_of(&self, query: usize) -> &[u64] {
        &self.ids[query * self.k..(query + 1) * self.k]
    }

    /// Returns an error if an id is not the number of a row in a collection of `rows` rows.
    pub fn check_rows(&self, rows: usize, name: &str) -> Result<(), DataError> {
        let mut ids = self.ids.iter();
        match ids.position(|&id| id >= rows as u64 && id != u64::MAX) {
            None => Ok(()),
            Some(at) => Err(DataError::argument(
                "an id in the ground truth",
                format!("{} (query {}, file {name})", self.ids[at], at / self.k),
                format!("the collection has {rows} vectors, numbered from 0"),
                "Give the ground truth of this collection",
            )),
        }
    }

    /// Recall@k: the share of the `queries * k` true neighbours that a search found, from 0 to 1.
    ///
    /// `found_ids` has `queries * k` ids, and `found_distances` their exact distances. A found id
    /// counts once, if it is among the true k ids. If the truth has distances, an id also counts if
    /// its distance is at most the k-th true distance.
    ///
    /// The found id 2^64-1 means that there is no result. If the truth has fewer than k neighbours
    /// for a query, the search needs no more results.
    ///
    /// The call fails if `k` is larger than the k of the truth, or if the number of queries
    /// differs.
    pub fn recall(
        &self,
        found_ids: &[u64],
        found_distances: &[f32],
        k: usize,
    ) -> Result<f64, DataError> {
        if k == 0 || k > self.k {
            let reason = format!("the ground truth has {} neighbours of each query", self.k);
            let remedy = format!("Pass 1 to {}", self.k);
            return Err(DataError::argument("k", k, reason, remedy));
        }
        for (found, what) in [
            (found_ids.len(), "the number of found ids"),
            (found_distances.len(), "the number of found distances"),
        ] {
            if found != self.queries * k {
                let reason = format!(
                    "the ground truth has {} queries with k = {k} answers each, so {} answers",
                    self.queries,
                    self.queries * k
                );
                let remedy = "Give the answers to these queries";
                return Err(DataError::argument(what, found, reason, remedy));
            }
        }
        let (mut hits, mut there) = (0, 0);
        for query in 0..self.queries {
            let range = query * k..(query + 1) * k;
            hits += self.hits(query, &found_ids[range.clone()], &found_distances[range]);
            there += self.neighbours(query, k);
        }
        Ok(match there {
            0 => 1.0,
            there => hits as f64 / there as f64,
        })
    }

    fn neighbours(&self, query: usize, k: usize) -> usize {
        let Some(distances) = &self.distances else {
            let ids = self.ids_of(query)[..k].iter();
            return ids.take_while(|&&id| id != u64::MAX).count();
        };
        let distances = &distances[query * self.k..][..k];
        let there = distances
            .iter()
            .take_while(|distance| !distance.is_infinite());
        there.count()
    }

    fn hits(&self, query: usize, found: &[u64], found_distances: &[f32]) -> usize {
        let k = found.len();
        let ids = self.ids_of(query);
        let distances = self
            .distances
            .as_ref()
            .map(|all| &all[query * self.k..(query + 1) * self.k]);
        let there = self.neighbours(query, k);
        if there == 0 {
            return 0;
        }
        let limit = distances.map(|distances| {
            let last = distances[there - 1];
            last + last.abs() * TOLERANCE
        });
        let counts = |at: usize| {
            let id = found[at];
            if id == u64::MAX || found[..at].contains(&id) {
                return false;
            }
            match (
                ids.iter().position(|&true_id| true_id == id),
                distances,
                limit,
            ) {
                (Some(place), ..) if place < there => true,
                (Some(place), Some(distances), Some(limit)) => distances[place] <= limit,
                (None, _, Some(limit)) => found_distances[at] <= limit,
                _ => false,
            }
        };
        (0..k).filter(|&at| counts(at)).count()
    }
}

fn check_narrow(ids: &[u64]) -> Result<(), DataError> {
    let wide = |&&id: &&u64| id != u64::MAX && id >= u64::from(u32::MAX);
    match ids.iter().find(wide) {
        None => Ok(()),
        Some(id) => Err(DataError::argument(
            "an id",
            id,
            "this format has 32 bits for an id, so at most 4294967294 is possible",
            "Use .bin64, which has the distances as well, or .npy; both have 64 bits",
        )),
    }
}

fn narrow(bytes: [u8; 4]) -> u64 {
    u32::from_le_bytes(bytes).into()
}

fn wide(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

fn padded(id: u64) -> u64 {
    match id {
        NONE => u64::MAX,
        id => id,
    }
}

/// The 32-bit id of a missing neighbour.
const NONE: u64 = u32::MAX as u64;

/// A table with one row for each query. Only the first `k` numbers of a row are read.
struct Table<'a> {
    file: &'a File,
    name: &'a str,
    queries: usize,
    row: usize,
    k: usize,
}

impl Table<'_> {
    fn read<T, const WIDTH: usize>(
        &self,
        offset: u64,
        number: fn([u8; WIDTH]) -> T,
    ) -> Result<Vec<T>, DataError> {
        let row_bytes = WIDTH * self.row.max(1);
        let mut kept = Vec::with_capacity(self.queries * self.k);
        let step = (PIECE / row_bytes).max(1);
        let mut piece = vec![0; row_bytes * step.min(self.queries)];
        for first in (0..self.queries).step_by(step) {
            let piece = &mut piece[..row_bytes * step.min(self.queries - first)];
            read_at(
                self.file,
                offset + (first * row_bytes) as u64,
                piece,
                self.name,
            )?;
            for row in piece.chunks_exact(row_bytes) {
                let (numbers, _) = row[..WIDTH * self.k].as_chunks::<WIDTH>();
                kept.extend(numbers.iter().map(|&bytes| number(bytes)));
            }
        }
        Ok(kept)
    }
}

fn read_array(file: &File, length: u64, most: usize, name: &str) -> Result<GroundTruth, DataError> {
    let (found, start) = npy::read_header(file, length, name)?;
    let field = |what, found: String, reason: &str, remedy: &str| DataError::Field {
        file: name.to_owned(),
        offset: start,
        what,
        found,
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    };
    let width = match found.descr.as_str() {
        "<u8" | "<i8" => 8,
        "<u4" | "<i4" => 4,
        other => {
            let reason = "ids are uint64, int64, uint32 or int32, little-endian";
            let remedy = "Convert them with array.astype('<u8')";
            return Err(field("the dtype", other.to_owned(), reason, remedy));
        }
    };
    let &[queries, row] = &found.shape[..] else {
        let shape = format!("{:?}", found.shape);
        let reason = "ground truth has two dimensions, (queries, k)";
        let remedy = "Save an array of this shape";
        return Err(field("the shape", shape, reason, remedy));
    };
    if found.fortran_order {
        let reason = "the file must have all ids of one query, then all ids of the next (C order)";
        let remedy = "Save numpy.ascontiguousarray(array)";
        return Err(field("fortran_order", "True".to_owned(), reason, remedy));
    }
    check_not_empty(name, queries, row)?;
    let expected = (u128::from(queries) * u128::from(row))
        .saturating_mul(width)
        .saturating_add(u128::from(start));
    DataError::check_length(name, length, expected, || {
        format!("its header says {queries} queries of {row} ids")
    })?;
    let table = Table {
        file,
        name,
        queries: queries as usize,
        row: row as usize,
        k: (row as usize).min(most),
    };
    let ids = match width {
        8 => table.read(start, wide)?,
        _ => table.read(start, narrow)?,
    };
    let signed = found.descr.starts_with("<i");
    if signed {
        let high = if width == 8 { 63 } else { 31 };
        let place =
            |at: usize| start + width as u64 * (at / table.k * table.row + at % table.k) as u64;
        let none = if width == 8 { u64::MAX } else { NONE };
        if let Some(at) = ids.iter().position(|&id| id >> high != 0 && id != none) {
            return Err(DataError::Field {
                file: name.to_owned(),
                offset: place(at),
                what: "an id",
                found: "negative".to_owned(),
                reason: "ids are not negative, and only -1 means that there is no neighbour"
                    .to_owned(),
                remedy: "Write the ground truth again".to_owned(),
            });
        }
    }
    Ok(GroundTruth {
        queries: table.queries,
        k: table.k,
        ids: match width {
            8 => ids,
            _ => ids.into_iter().map(padded).collect(),
        },
        distances: None,
    })
}

fn read_ivecs(file: &File, length: u64, most: usize, name: &str) -> Result<GroundTruth, DataError> {
    let (queries, row) = vecs::read_counts(file, length, 4, name)?;
    let row = row as usize;
    let k = row.min(most);
    let mut ids: Vec<u64> = Vec::with_capacity(queries * k);
    let step = (PIECE / (4 * row.max(1))).max(1);
    let mut piece = vec![0; 4 * row * step.min(queries)];
    for first in (0..queries).step_by(step) {
        let piece = &mut piece[..4 * row * step.min(queries - first)];
        vecs::read_prefixed(file, row, 4 * row, first, piece, name)?;
        let rows = piece.chunks_exact(4 * row.max(1));
        for row in rows {
            let (words, _) = row[..4 * k].as_chunks::<4>();
            ids.extend(words.iter().map(|&bytes| narrow(bytes)));
        }
    }
    check_signs(
        &ids,
        k,
        |at| 4 * (at / k * (row + 1) + at % k + 1) as u64,
        name,
    )?;
    Ok(GroundTruth {
        queries,
        k,
        ids: ids.into_iter().map(padded).collect(),
        distances: None,
    })
}

/// Negative ids are errors, except at the end of a row of `k` ids, where they mean that there are
/// no more neighbours.
fn check_signs(
    ids: &[u64],
    k: usize,
    offset: impl Fn(usize) -> u64,
    name: &str,
) -> Result<(), DataError> {
    let wrong = ids.chunks(k.max(1)).enumerate().find_map(|(query, ids)| {
        let at = ids.iter().position(|&id| (id as u32).cast_signed() < 0)?;
        let are_none = ids[at..].iter().all(|&id| id as u32 == u32::MAX);
        (!are_none).then_some(query * k + at)
    });
    match wrong {
        None => Ok(()),
        Some(at) => Err(DataError::Field {
            file: name.to_owned(),
            offset: offset(at),
            what: "an id",
            found: (ids[at] as u32).cast_signed().to_string(),
            reason: "it is no row number".to_owned(),
            remedy: "Write the ground truth again".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> GroundTruth {
        GroundTruth {
            queries: 2,
            k: 4,
            ids: vec![5, 6, 7, 8, 1, 2, 3, 4],
            distances: Some(vec![0.0, 1.0, 2.0, 2.0, 10.0, 20.0, 30.0, 40.0]),
        }
    }

    fn written(truth: &GroundTruth, name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        truth.write(&path).unwrap();
        (folder, path)
    }

    #[test]
    fn the_nearest_alone_give_the_same_recall() {
        let truth = sample();
        let (ids, distances) = ([5, 9, 1, 3], [0.0, 2.0, 10.0, 30.0]);
        for name in ["t.bin", "t.ibin", "t.ivecs"] {
            let (_folder, path) = written(&truth, name);
            let all = GroundTruth::read(&path).unwrap();
            let two = GroundTruth::read_nearest(&path, 2).unwrap();
            assert_eq!((two.k, &two.ids[..]), (2, &[5, 6, 1, 2][..]), "{name}");
            if name == "t.bin" {
                assert_eq!(two.distances.as_deref(), Some(&[0.0, 1.0, 10.0, 20.0][..]));
            }
            assert_eq!(
                two.recall(&ids, &distances, 2).unwrap(),
                all.recall(&ids, &distances, 2).unwrap()
            );
            assert_eq!(GroundTruth::read_nearest(&path, 5).unwrap(), all);
        }
    }

    #[test]
    fn round_trips() {
        let with = sample();
        let without = GroundTruth {
            distances: None,
            ..sample()
        };
        let (_keep, path) = written(&with, "t.bin");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 + 64);
        assert_eq!(GroundTruth::read(&path).unwrap(), with);
        let (_keep, path) = written(&without, "t.bin");
        assert_eq!(GroundTruth::read(&path).unwrap(), without);
        for name in ["t.ibin", "t.ivecs"] {
            let (_keep, path) = written(&with, name);
            assert_eq!(GroundTruth::read(&path).unwrap(), without);
        }
        let (_keep, path) = written(&with, "t.ivecs");
        assert_eq!(
            std::fs::read(path).unwrap()[16..28],
            [8, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]
        );
    }

    #[test]
    fn damage_is_named() {
        let (_keep, path) = written(&sample(), "t.bin");
        let bytes = std::fs::read(&path).unwrap();
        for length in (0..bytes.len()).filter(|&length| length != 8 + 32) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            GroundTruth::read(&path).unwrap_err();
        }
        std::fs::write(&path, &bytes[..60]).unwrap();
        let text = GroundTruth::read(&path).unwrap_err().to_string();
        assert!(
            text.contains("60 bytes found, 72 expected (its header says 2 queries of 4 ids and distances; a file without distances would have 40 bytes)"),
            "{text}"
        );
        let (_keep, path) = written(
            &GroundTruth {
                ids: vec![1, 2, u64::MAX, 4, 5, 6, 7, 8],
                ..sample()
            },
            "t.ibin",
        );
        let text = GroundTruth::read(&path).unwrap_err().to_string();
        assert!(text.contains("an id at offset 16 is -1"), "{text}");
        let (_keep, path) = written(
            &GroundTruth {
                ids: vec![1, 2, 3, 4, 5, u64::MAX, 7, 8],
                ..sample()
            },
            "t.ivecs",
        );
        let text = GroundTruth::read(&path).unwrap_err().to_string();
        assert!(text.contains("an id at offset 28 is -1"), "{text}");
        let few = GroundTruth {
            ids: vec![1, 2, 3, u64::MAX, 5, u64::MAX, u64::MAX, u64::MAX],
            distances: None,
            ..sample()
        };
        for name in ["t.ibin", "t.ivecs"] {
            let (_keep, path) = written(&few, name);
            assert_eq!(GroundTruth::read(&path).unwrap(), few);
        }
        few.check_rows(6, "t.ibin").unwrap();
        GroundTruth::read("t.txt").unwrap_err();
        sample().write("t.txt").unwrap_err();
        sample().check_rows(9, "t.bin").unwrap();
        let text = sample().check_rows(8, "t.bin").unwrap_err().to_string();
        assert!(
            text.contains("is 8 (query 0, file t.bin); the collection has 8 vectors"),
            "{text}"
        );
    }

    #[test]
    fn results_are_written_as_truth() {
        let truth = GroundTruth::from_results(2, &[1, 2, 3, 4], &[0.5, 0.6, 0.7, 0.8]).unwrap();
        assert_eq!((truth.queries, truth.k), (2, 2));
        GroundTruth::from_results(2, &[1, 2, 3], &[0.5, 0.6, 0.7]).unwrap_err();
        GroundTruth::from_results(0, &[], &[]).unwrap_err();
        for name in ["t.bin", "t.ibin", "t.ivecs"] {
            let error = GroundTruth::write_results(name, 1, &[1 << 32], &[0.5]).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("an id is 4294967296") && text.contains(".bin64"),
                "{text}"
            );
        }
    }

    #[test]
    fn results_with_padding_and_wide_ids_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let ids = [7, u64::MAX, 1 << 40, u64::MAX];
        let distances = [0.5, f32::INFINITY, 0.7, f32::INFINITY];
        let path = folder.path().join("found.npy");
        GroundTruth::write_results(&path, 2, &ids, &distances).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let length = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00") && length.is_multiple_of(64));
        let header = std::str::from_utf8(&bytes[10..length]).unwrap();
        assert!(header.contains("'<u8'") && header.contains("(2, 2)") && header.ends_with('\n'));
        let words = bytes[length..].chunks_exact(8);
        let read: Vec<u64> = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(read, ids);
        let path = folder.path().join("found.bin");
        GroundTruth::write_results(&path, 2, &ids, &distances).unwrap_err();
        GroundTruth::write_results(&path, 2, &ids[..2], &distances[..2]).unwrap();
        assert_eq!(GroundTruth::read(&path).unwrap().ids, [7, u64::MAX]);
    }

    #[test]
    fn ids_of_64_bits_are_kept_and_read_with_their_distances() {
        let wide = GroundTruth {
            ids: vec![5, 6, 7, 1 << 40, 1, 2, u64::MAX - 1, u64::MAX],
            ..sample()
        };
        let (_keep, path) = written(&wide, "t.bin64");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 + 64 + 32);
        assert_eq!(GroundTruth::read(&path).unwrap(), wide);
        let two = GroundTruth::read_nearest(&path, 2).unwrap();
        assert_eq!((two.k, &two.ids[..]), (2, &[5, 6, 1, 2][..]));
        assert_eq!(two.distances.as_deref(), Some(&[0.0, 1.0, 10.0, 20.0][..]));
        let large = GroundTruth {
            ids: vec![5, 6, 7, NONE, 1, 2, u64::MAX, u64::MAX],
            ..sample()
        };
        let (_keep, path_of_large) = written(&large, "t.bin64");
        assert_eq!(GroundTruth::read(&path_of_large).unwrap(), large);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..8 + 64]).unwrap();
        let without = GroundTruth {
            distances: None,
            ..wide.clone()
        };
        assert_eq!(GroundTruth::read(&path).unwrap(), without);
        for length in (0..bytes.len()).filter(|&length| length != 8 + 64) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            GroundTruth::read(&path).unwrap_err();
        }
        let (_keep, path) = written(&wide, "t.npy");
        assert_eq!(GroundTruth::read(&path).unwrap(), without);
        assert_eq!(
            GroundTruth::read_nearest(&path, 2).unwrap().ids,
            [5, 6, 1, 2]
        );
        let array = |descr: &'static str, data: &[u8]| {
            let header = NpyHeader {
                descr,
                columns: Some(2),
            };
            std::fs::write(&path, [&header.bytes(1)[..], data].concat()).unwrap();
            GroundTruth::read(&path).map_err(|error| error.to_string())
        };
        let ids = |data: &[u8], descr| array(descr, data).unwrap().ids;
        let narrow = [3i32, -1].map(i32::to_le_bytes).concat();
        assert_eq!(ids(&narrow, "<i4"), [3, u64::MAX]);
        assert_eq!(ids(&narrow, "<u4"), [3, u64::MAX]);
        let signed = [3i64, -1].map(i64::to_le_bytes).concat();
        assert_eq!(ids(&signed, "<i8"), [3, u64::MAX]);
        let text = array("<i8", &[3i64, -2].map(i64::to_le_bytes).concat()).unwrap_err();
        assert!(text.contains("offset 136 is negative"), "{text}");
        let text = array("<f8", &signed).unwrap_err();
        assert!(text.contains("is <f8; ids are uint64"), "{text}");
        assert!(array("<u8", &narrow).unwrap_err().contains("truncated"));
        let recall = wide.recall(&[5, 1 << 40, 1, 2], &[9.0; 4], 2).unwrap();
        assert_eq!(recall, 3.0 / 4.0);
    }

    #[test]
    fn recall_counts_ids_and_ties_once() {
        let truth = sample();
        let far = [9.0; 8];
        let recall = |ids: &[u64], distances: &[f32], k| truth.recall(ids, distances, k).unwrap();
        assert_eq!(recall(&[8, 7, 6, 5, 4, 3, 2, 1], &[99.0; 8], 4), 1.0);
        assert_eq!(
            recall(&[5, 6, 99, 98, 1, 2, 3, 99], &[99.0; 8], 4),
            5.0 / 8.0
        );
        // Rows 7 and 8 have the distance of the third neighbour, so both count. If the search says
        // that row 99 has this distance, row 99 counts too.
        assert_eq!(recall(&[5, 6, 8, 1, 2, 3], &far[..6], 3), 1.0);
        assert_eq!(
            recall(&[5, 6, 99, 1, 2, 3], &[0.0, 1.0, 2.0, 1.0, 2.0, 3.0], 3),
            1.0
        );
        assert_eq!(
            recall(&[5, 6, 99, 1, 2, 3], &[0.0, 1.0, 2.1, 1.0, 2.0, 3.0], 3),
            5.0 / 6.0
        );
        // The truth has the found id 4 after the third neighbour. So the distance in the truth
        // counts, and not the distance 0.
        assert_eq!(recall(&[5, 6, 7, 1, 2, 4], &[0.0; 6], 3), 5.0 / 6.0);
        assert_eq!(recall(&[5, 5, 5, 5, 1, 1, 1, 1], &[0.0; 8], 4), 2.0 / 8.0);
        assert_eq!(recall(&[u64::MAX; 8], &[f32::INFINITY; 8], 4), 0.0);
        let few = GroundTruth {
            ids: vec![5, 6, 7, 8, 1, 2, u64::MAX, u64::MAX],
            distances: Some(
                [0.0, 1.0, 2.0, 2.0, 10.0, 20.0]
                    .into_iter()
                    .chain([f32::INFINITY; 2])
                    .collect(),
            ),
            ..sample()
        };
        let ids = [5, 6, 7, 8, 1, 44, u64::MAX, u64::MAX];
        let distances = [0.0, 1.0, 2.0, 2.0, 10.0, 50.0, f32::INFINITY, f32::INFINITY];
        assert_eq!(few.recall(&ids, &distances, 4).unwrap(), 5.0 / 6.0);
        let none = GroundTruth {
            distances: Some(vec![f32::INFINITY; 8]),
            ..sample()
        };
        assert_eq!(none.recall(&ids, &distances, 4).unwrap(), 1.0);
        assert_eq!(recall(&[u64::MAX; 8], &[f32::NAN; 8], 4), 0.0);
        assert_eq!(recall(&[5, 1], &[0.0, 10.0], 1), 1.0);
    }

    #[test]
    fn recall_without_distances_goes_by_ids() {
        let truth = GroundTruth {
            distances: None,
            ..sample()
        };
        assert_eq!(
            truth.recall(&[5, 6, 8, 1, 2, 99], &[0.0; 6], 3).unwrap(),
            4.0 / 6.0
        );
    }

    #[test]
    fn recall_of_inner_products_allows_the_tolerance_upwards() {
        let truth = GroundTruth {
            queries: 1,
            k: 1,
            ids: vec![0],
            distances: Some(vec![-100.0]),
        };
        assert_eq!(truth.recall(&[7], &[-99.99999], 1).unwrap(), 1.0);
        assert_eq!(truth.recall(&[7], &[-99.99], 1).unwrap(), 0.0);
    }

    #[test]
    fn recall_refuses_what_does_not_fit() {
        let truth = sample();
        let text = truth
            .recall(&[0; 10], &[0.0; 10], 5)
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with(
                "k is 5; the ground truth has 4 neighbours of each query. Pass 1 to 4"
            ),
            "{text}"
        );
        truth.recall(&[], &[], 0).unwrap_err();
        let text = truth.recall(&[0; 4], &[0.0; 4], 4).unwrap_err().to_string();
        assert!(
            text.contains(
                "found ids is 4; the ground truth has 2 queries with k = 4 answers each, so 8 answers. Give"
            ),
            "{text}"
        );
        truth.recall(&[0; 8], &[0.0; 4], 4).unwrap_err();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), small: bool) {
            if small && bytes.len() > 8 {
                let queries = (bytes.len() / 8 - 1) as u8;
                bytes[..8].copy_from_slice(&[queries, 0, 0, 0, 1, 0, 0, 0]);
            }
            let folder = tempfile::tempdir().unwrap();
            for name in ["t.bin", "t.bin64", "t.ibin", "t.ivecs", "t.npy"] {
                let path = folder.path().join(name);
                std::fs::write(&path, &bytes).unwrap();
                if let Ok(truth) = GroundTruth::read(&path) {
                    prop_assert_eq!(truth.ids.len(), truth.queries * truth.k);
                }
            }
        }
    }
}
