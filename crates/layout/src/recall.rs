//! Measured recall, for searches with a recall target: the share of the true nearest vectors that a
//! search finds. The share depends on the list size (in a cluster index, the number of probes) and
//! on the distance of the k-th nearest vector.
//!
//! The payload of a [stream](crate::stream) of kind `Recall` is little-endian. It has `l` list
//! sizes and `t` tables:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | the number of queries of the measurement |
//! | 4 | 4 | `l`, 1 to 64 |
//! | 8 | 4 | `t`, 1 to 64 |
//! | 12 | 4 l | the list sizes, rising |
//! | 12 + 4 l | .. | the tables, by rising k |
//! | a | 4 | kind of the searches: 0 walks of the graph, 1 PRESS, 2 probes of clusters |
//! | a + 4 | 4 | 1 if the program chose the queries, 0 if a user gave them |
//! | a + 8 | 4 | 1 if the distances in the tables are estimates by code, 0 if they are exact |
//! | a + 12 | 4 | `u`, 0 to 64: the number of tables for searches in memory |
//! | a + 16 | .. | these `u` tables, by rising k; their distances are always exact |
//!
//! Version 2 ends before `a + 8`. A reader of version 2 takes 0 for both missing fields. Version 1
//! ends before `a`, and a reader also takes 0 and 1 for the first two of these fields.
//!
//! The bytes of a table follow. Queries are grouped into `b` buckets by distance (*bands* in code):
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | k, 1 to the largest list size |
//! | 4 | 4 | `b`, 1 to 64 |
//! | 8 | 4 b | the distance (f32) of the median query of each bucket, not falling |
//! | 8 + 4 b | 4 b l | recall@k (f32, 0 to 1) of each bucket and list size, bucket after bucket |
//!
//! The distance of a query is the distance to its k-th nearest vector, or in a cluster index to the
//! nearest head. If vectors are stored apart from lists, it is the estimate by code of the node
//! whose estimate is the k-th smallest.

use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 2: with the kind of searches, and the origin of the queries. 3:
/// with distances by code, and with tables for searches in memory.
pub const FORMAT_VERSION: u32 = 3;

/// The most list sizes, tables, and bands of a table.
pub const MOST: usize = 64;

/// The kind of the measured searches. Another kind of search has another recall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Searched {
    /// Walks of the graph, best-first or pipelined, which find the same vectors.
    #[default]
    Walk,
    /// PRESS, the search of DistVS, with codes of two precisions.
    Press,
    /// Probes of clusters.
    Probes,
}

impl Searched {
    /// The position of each kind is its number in the file.
    const ALL: [Self; 3] = [Self::Walk, Self::Press, Self::Probes];
}

/// The decoded measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecallFile {
    /// The number of queries of the measurement.
    pub queries: u32,
    /// The kind of searches.
    pub searched: Searched,
    /// Whether the program chose the queries. Such queries predict recall less well than queries of
    /// a user.
    pub by_build: bool,
    /// The measured list sizes, rising; in a cluster index, numbers of probes.
    pub lists: Vec<u32>,
    /// A table for each number of results k, by rising k.
    pub tables: Vec<RecallTable>,
    /// Whether the distances in `tables` are estimates by code.
    pub by_code: bool,
    /// The tables for searches in memory, which expand one node at a time. With `by_code`, they are
    /// for the unpacked index, which ranks every node that it expands. Otherwise, they are for an
    /// index with most pages of the graph in memory. Empty if such searches were not measured.
    pub in_memory: Vec<RecallTable>,
}

/// The recall of searches for `k` results.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallTable {
    /// The number of results, k.
    pub k: u32,
    /// The bands of queries, by distance.
    pub bands: Vec<RecallBand>,
}

/// A band of queries with similar distances to their k-th nearest vectors (or nearest heads).
#[derive(Clone, Debug, PartialEq)]
pub struct RecallBand {
    /// The distance of the query in the middle of the band.
    pub distance: f32,
    /// The mean recall@k of the band, for each list size.
    pub recalls: Vec<f32>,
}

impl RecallFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |number: u32| out.extend_from_slice(&number.to_le_bytes());
        put(self.queries);
        put(self.lists.len() as u32);
        put(self.tables.len() as u32);
        self.lists.iter().copied().for_each(&mut put);
        let put_tables = |tables: &[RecallTable], put: &mut dyn FnMut(u32)| {
            for table in tables {
                put(table.k);
                put(table.bands.len() as u32);
                let distances = table.bands.iter().map(|band| band.distance);
                let recalls = table.bands.iter().flat_map(|band| &band.recalls).copied();
                distances.chain(recalls).for_each(|x| put(x.to_bits()));
            }
        };
        put_tables(&self.tables, &mut put);
        put(self.searched as u32);
        put(self.by_build.into());
        put(self.by_code.into());
        put(self.in_memory.len() as u32);
        put_tables(&self.in_memory, &mut put);
        out
    }

    /// Decodes a payload. `file` is the name in errors.
    ///
    /// # Errors
    /// Fails if a count or the length is wrong, or numbers do not rise or are not finite.
    pub fn decode(payload: &[u8], file: &str) -> Result<RecallFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let queries = reader.u32("queries")?;
        let l = count(&mut reader, "number of list sizes")?;
        let t = count(&mut reader, "number of tables")?;
        let at = reader.at();
        let lists = reader.u32s(l as u64, "list sizes")?;
        let rising = |numbers: &[u32]| numbers.windows(2).all(|two| two[0] < two[1]);
        if lists[0] == 0 || !rising(&lists) {
            return Err(reader.wrong(at, "list sizes", format!("{lists:?}"), "above 0 and rising"));
        }
        let tables = read_tables(&mut reader, t, &lists)?;
        let mut file = RecallFile {
            queries,
            searched: Searched::Walk,
            by_build: true,
            lists,
            tables,
            by_code: false,
            in_memory: Vec::new(),
        };
        if !reader.is_at_end() {
            let at = reader.at();
            let number = reader.u32("kind of the searches")?;
            let known = Searched::ALL.get(number as usize).copied();
            file.searched =
                known.ok_or_else(|| reader.wrong(at, "kind of the searches", number, "0 to 2"))?;
            file.by_build = flag(&mut reader, "flag for queries of a build")?;
        }
        if !reader.is_at_end() {
            file.by_code = flag(&mut reader, "flag for distances by code")?;
            let at = reader.at();
            let what = "number of tables in memory";
            let u = reader.u32(what)?;
            if u as usize > MOST {
                return Err(reader.wrong(at, what, u, format!("0 to {MOST}")));
            }
            file.in_memory = read_tables(&mut reader, u as usize, &file.lists)?;
        }
        reader.end()?;
        Ok(file)
    }
}

/// Reads `number` tables with the recall of each list size in `lists`.
fn read_tables(
    reader: &mut PayloadReader<'_>,
    number: usize,
    lists: &[u32],
) -> Result<Vec<RecallTable>, LayoutError> {
    let (l, most) = (lists.len(), lists.last().copied().unwrap_or(0));
    let mut tables = Vec::with_capacity(number);
    let mut last = 0;
    for _ in 0..number {
        let at = reader.at();
        let k = reader.u32("k of a table")?;
        if k <= last || k > most {
            let expected = format!("above {last} and up to {most}");
            return Err(reader.wrong(at, "k of a table", k, expected));
        }
        last = k;
        let b = count(reader, "number of distance buckets")?;
        let at = reader.at();
        let distances = reader.u32s(b as u64, "distances of buckets")?;
        let distances: Vec<f32> = distances.into_iter().map(f32::from_bits).collect();
        let ordered = distances.windows(2).all(|two| two[0] <= two[1]);
        if !ordered || distances.iter().any(|distance| !distance.is_finite()) {
            let found = format!("{distances:?}");
            let expected = "numbers that do not fall";
            return Err(reader.wrong(at, "distances of buckets", found, expected));
        }
        let at = reader.at();
        let recalls = reader.u32s((b * l) as u64, "recalls")?;
        let recalls: Vec<f32> = recalls.into_iter().map(f32::from_bits).collect();
        if let Some(found) = recalls.iter().find(|recall| !(0.0..=1.0).contains(*recall)) {
            return Err(reader.wrong(at, "recall", found, "0 to 1"));
        }
        let bands = distances.into_iter().zip(recalls.chunks_exact(l));
        let bands = bands.map(|(distance, recalls)| RecallBand {
            distance,
            recalls: recalls.to_vec(),
        });
        tables.push(RecallTable {
            k,
            bands: bands.collect(),
        });
    }
    Ok(tables)
}

fn flag(reader: &mut PayloadReader<'_>, what: &'static str) -> Result<bool, LayoutError> {
    let at = reader.at();
    match reader.u32(what)? {
        number @ (0 | 1) => Ok(number == 1),
        number => Err(reader.wrong(at, what, number, "0 or 1")),
    }
}

fn count(reader: &mut PayloadReader<'_>, what: &'static str) -> Result<usize, LayoutError> {
    let at = reader.at();
    match reader.u32(what)? as usize {
        found if (1..=MOST).contains(&found) => Ok(found),
        found => Err(reader.wrong(at, what, found, format!("1 to {MOST}"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FileKind;

    fn sample() -> RecallFile {
        let band = |distance, recalls: &[f32]| RecallBand {
            distance,
            recalls: recalls.to_vec(),
        };
        RecallFile {
            queries: 600,
            searched: Searched::Probes,
            by_build: false,
            lists: vec![10, 20],
            tables: vec![
                RecallTable {
                    k: 1,
                    bands: vec![band(-1.0, &[0.5, 1.0])],
                },
                RecallTable {
                    k: 10,
                    bands: vec![band(0.25, &[0.9, 0.95]), band(0.25, &[0.0, 0.5])],
                },
            ],
            by_code: true,
            in_memory: vec![RecallTable {
                k: 10,
                bands: vec![band(0.5, &[0.25, 0.75])],
            }],
        }
    }

    /// The sample as a file of version 2 has it.
    fn of_version_2() -> RecallFile {
        RecallFile {
            by_code: false,
            in_memory: Vec::new(),
            ..sample()
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let bytes = sample().encode();
        assert_eq!(RecallFile::decode(&bytes, "r").unwrap(), sample());
        // The earlier versions end where the fields of the next version begin.
        let (first, second) = (72, 80);
        let earlier = [first, second];
        for end in (0..bytes.len()).filter(|end| !earlier.contains(end)) {
            assert!(RecallFile::decode(&bytes[..end], "r").is_err(), "{end}");
        }
        let walked = RecallFile {
            searched: Searched::Walk,
            by_build: true,
            ..of_version_2()
        };
        assert_eq!(RecallFile::decode(&bytes[..first], "r").unwrap(), walked);
        let decoded = RecallFile::decode(&bytes[..second], "r").unwrap();
        assert_eq!(decoded, of_version_2());
        for (at, value, what) in [
            (4, 0u32, "number of list sizes"),
            (8, 65, "number of tables"),
            (12, 20, "list sizes"),
            (20, 0, "k of a table"),
            (20, 21, "k of a table"),
            (24, 0, "number of distance buckets"),
            (28, f32::NAN.to_bits(), "distances of buckets"),
            (32, 1.5f32.to_bits(), "recall"),
            (32, f32::NAN.to_bits(), "recall"),
            (40, 1, "k of a table"),
            (48, 1f32.to_bits(), "distances of buckets"),
            (72, 3, "kind of the searches"),
            (76, 2, "flag for queries of a build"),
            (80, 2, "flag for distances by code"),
            (84, 65, "number of tables in memory"),
            (84, 2, "k of a table"),
            (88, 0, "k of a table"),
            (92, 0, "number of distance buckets"),
            (100, 1.5f32.to_bits(), "recall"),
        ] {
            let mut wrong = bytes.clone();
            wrong[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let error = RecallFile::decode(&wrong, "r").unwrap_err().to_string();
            assert!(error.contains(what), "{at} {value}: {error}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(RecallFile::decode(&longer, "r").is_err());
    }

    #[test]
    fn a_file_of_version_1_is_read() {
        let bytes = include_bytes!("../../../fixtures/recall-v1");
        let (header, payload) = crate::stream::decode(FileKind::Recall, bytes, "r").unwrap();
        assert_eq!(header.version, 1);
        let walked = RecallFile {
            searched: Searched::Walk,
            by_build: true,
            ..of_version_2()
        };
        assert_eq!(RecallFile::decode(&payload, "r").unwrap(), walked);
    }

    #[test]
    fn a_file_of_version_2_is_read() {
        let bytes = include_bytes!("../../../fixtures/recall-v2");
        let (header, payload) = crate::stream::decode(FileKind::Recall, bytes, "r").unwrap();
        assert_eq!(header.version, 2);
        assert_eq!(RecallFile::decode(&payload, "r").unwrap(), of_version_2());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..104, value in any::<u32>()) {
            let _ = RecallFile::decode(&bytes, "r");
            let mut close = sample().encode();
            let at = at.min(close.len() - 4);
            close[at..at + 4].copy_from_slice(&value.to_le_bytes());
            if let Ok(file) = RecallFile::decode(&close, "r") {
                prop_assert_eq!(file.encode(), close);
            }
        }
    }
}
