//! Bounds of the numbers in calls. They are in one place, so that Rust, the command line, Python
//! and a catalog refuse the same numbers in the same words.
//!
//! | number | from | to |
//! |---|---|---|
//! | threads | 1 | [`MOST_THREADS`] |
//! | queries or inserts in flight on each thread | 1 | [`MOST_IN_FLIGHT`] |
//! | beam width | 1 | [`MOST_BEAM`] |
//! | k | 1 | the vectors that a search can find, or [`MOST_PADDED`] if this is more |
//! | list by low codes, as a multiple of the list by high codes | 1 | [`MOST_LOW`] |
//! | seeds of PRESS | 0 | [`MOST_SEEDS`] |
//! | list size of a search, build or insert; clusters probed | 1 | [`MOST_LIST`] |
//! | candidates ranked at once | 1 | [`MOST_LIST`] |
//! | k times queries | 1 | [`MOST_ANSWERS`] |
//! | benefit | 0 | 1 |
//! | queries in a sample of live recall | 1 | [`MOST_WATCHED`] |
//!
//! The bounds of an index itself (its degree, its dimension, the bytes of its codes) come from its
//! format, and are checked at the start of a build (`build/facts.rs`). A size in bytes is a limit,
//! and nothing is allocated for it alone.
//!
//! A number within its bound may still exceed the collection. A list of a billion candidates is
//! taken, and costs only as much as the collection has vectors.

use std::path::Path;

use crate::{Error, Press, SearchOptions, WriteOptions};

/// Most OS threads of a call.
pub const MOST_THREADS: usize = 1_024;

/// Most queries, or inserts, in flight on each thread.
pub const MOST_IN_FLIGHT: usize = 1_024;

/// Most nodes that one query reads at once.
pub const MOST_BEAM: usize = 1_024;

/// Most candidates of a list: the most vectors that an index can have.
pub const MOST_LIST: usize = u32::MAX as usize - 1;
/// The longest list by low codes, as a multiple of the list by high codes.
pub const MOST_LOW: f64 = 64.0;
/// Most nodes among which a search of PRESS chooses its start.
pub const MOST_SEEDS: usize = 1 << 16;

/// Most answers of one call: k times the queries. They take 12 bytes each.
pub const MOST_ANSWERS: usize = 1 << 30;

/// Most queries in a sample of live recall, whose answers are computed exactly.
pub const MOST_WATCHED: usize = 1_000;
/// The largest k of a sampled query. Queries with a larger k are not sampled, since their true
/// neighbours take memory.
pub const MOST_WATCHED_K: usize = 100;
/// The longest filter of a sampled query, in bytes of its text.
pub const MOST_WATCHED_FILTER: usize = 256;

/// A number from 1 to `most`.
pub(crate) fn number(what: &str, value: usize, most: usize) -> Result<usize, Error> {
    match value {
        0 => Err(Error::call(
            what,
            0,
            format!("at least 1 (and at most {most})"),
        )),
        value if value > most => Err(Error::call(what, value, format!("1 to {most}"))),
        value => Ok(value),
    }
}

/// OS threads.
pub(crate) fn threads(value: usize) -> Result<usize, Error> {
    number("threads", value, MOST_THREADS)
}

/// Queries of a sample.
pub(crate) fn watched(value: usize) -> Result<usize, Error> {
    number("queries of watch_recall", value, MOST_WATCHED)
}

/// A share, from 0 to 1.
pub(crate) fn share(what: &str, value: f64) -> Result<f64, Error> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(Error::call(what, value, "a share, 0 to 1")),
    }
}

pub use stratann_layout::attributes::{MOST_COLUMNS, MOST_ITEMS, MOST_PAYLOAD, MOST_STRING};

/// The largest k that is always taken. If there are fewer vectors, the answers are padded.
pub const MOST_PADDED: usize = 1 << 16;

/// The largest k among `vectors` vectors, and its description in messages. `what` describes the
/// number of vectors.
pub(crate) fn most_answers(vectors: usize, what: &str) -> (usize, &str) {
    match vectors < MOST_PADDED {
        true => (MOST_PADDED, "the most where fewer are left"),
        false => (vectors, what),
    }
}

/// Refuses the numbers of a search that are beyond their bounds. `most` is the largest k, and
/// `what` its description in messages (for example "the vectors in the index"). Every search calls
/// it first.
///
/// # Errors
/// [`Error::Call`] that names the number, its value and the bound.
pub fn search(options: &SearchOptions, most: usize, what: &str) -> Result<(), Error> {
    let k = match options.k {
        0 => return Err(Error::call("k", 0, "at least 1")),
        k if k > most => {
            let expected = format!("at most {most}, {what}");
            return Err(Error::call("k", k, expected));
        }
        k => k,
    };
    if options.recall.is_none() && options.list < k {
        let expected = format!(
            "at least k = {k} (in a cluster index `probes` sets the number of clusters, and may be smaller)"
        );
        return Err(Error::call("list size", options.list, expected));
    }
    number("list size", options.list, MOST_LIST)?;
    if let Some(probes) = options.probes {
        number("probes", probes, MOST_LIST)?;
    }
    threads(options.threads)?;
    if let Some(in_flight) = options.in_flight {
        number("queries in flight", in_flight, MOST_IN_FLIGHT)?;
    }
    if let Some(beam) = options.beam {
        number("beam width", beam, MOST_BEAM)?;
    }
    if let Some(rerank) = options.rerank {
        number("candidates ranked at once", rerank.batch, MOST_LIST)?;
        share("benefit", rerank.benefit)?;
        share("re-ranking ratio", rerank.ratio)?;
    }
    number("seeds", options.seeds.max(1), MOST_SEEDS)?;
    press(options.press)
}

/// The target recall of a search.
pub(crate) fn recall(recall: Option<f64>) -> Result<(), Error> {
    match recall {
        Some(recall) if !(recall > 0.0 && recall <= 1.0) => Err(Error::call(
            "recall",
            recall,
            "a share above 0 and up to 1, for example 0.95",
        )),
        _ => Ok(()),
    }
}

/// The numbers of PRESS.
pub(crate) fn press(press: Press) -> Result<(), Error> {
    let Press { low, ratio, seeds } = press;
    // The entry node is a seed, too.
    number("seeds", seeds.max(1), MOST_SEEDS)?;
    if !(1.0..=MOST_LOW).contains(&low) {
        let expected = format!("1 to {MOST_LOW} times the list by high codes (2 is usual)");
        return Err(Error::call("list by low codes", low, expected));
    }
    // With a ratio of 0 nothing would be found.
    match ratio > 0.0 && ratio <= 1.0 {
        true => Ok(()),
        false => Err(Error::call(
            "refinement ratio",
            ratio,
            "a share, more than 0 and at most 1 (0.3 is usual)",
        )),
    }
}

/// The numbers of inserts.
pub(crate) fn writing(options: &WriteOptions) -> Result<(), Error> {
    threads(options.threads)?;
    let direct = &options.direct;
    number("inserts in flight", direct.in_flight, MOST_IN_FLIGHT)?;
    if let Some(list) = direct.list {
        number("list size of an insert", list, MOST_LIST)?;
    }
    if direct.checkpoint == Some(0) {
        return Err(Error::call("changes between checkpoints", 0, "at least 1"));
    }
    Ok(())
}

/// The path of an index. An empty path names nothing, and the system's own error for it is no help.
pub(crate) fn path(path: &Path) -> Result<(), Error> {
    match path.as_os_str().is_empty() {
        true => Err(Error::call("the path", "empty", "the path of a directory")),
        false => Ok(()),
    }
}

/// The number of answers: `k` for each query.
pub(crate) fn answers(k: usize, queries: usize) -> Result<usize, Error> {
    match k.checked_mul(queries) {
        Some(count) if count <= MOST_ANSWERS => Ok(count),
        _ => Err(Error::call(
            "k times queries",
            format!("{k} times {queries}"),
            format!("at most {MOST_ANSWERS} answers. Search in smaller batches"),
        )),
    }
}

/// Memory for `count` answers, each `empty` at first.
pub(crate) fn room<T: Clone>(count: usize, empty: T) -> Result<Vec<T>, Error> {
    let mut room = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => {
            room.resize(count, empty);
            Ok(room)
        }
        Err(_) => Err(Error::call(
            "answers",
            count,
            "as many as the memory can hold. Search in smaller batches",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preset, Rerank};

    #[test]
    fn numbers_end_at_their_bounds() {
        assert_eq!(number("n", 7, 7).unwrap(), 7);
        let error = number("n", 8, 7).unwrap_err();
        assert_eq!(error.to_string(), "n is 8: expected 1 to 7");
        assert!(error.is_call_wrong());
        assert!(
            number("n", 0, 7)
                .unwrap_err()
                .to_string()
                .contains("at least 1")
        );
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(share("s", wrong).is_err(), "{wrong}");
        }
        assert_eq!(answers(1 << 15, 1 << 15).unwrap(), MOST_ANSWERS);
        for (k, queries) in [(1 << 15, 1 + (1 << 15)), (1 << 40, 1 << 40)] {
            let error = answers(k, queries).unwrap_err();
            assert!(error.to_string().contains("1073741824"), "{error}");
        }
        assert!(room(usize::MAX / 8, 0_u64).is_err());
        assert_eq!(room(3, 7_u64).unwrap(), [7; 3]);
    }

    #[test]
    fn every_number_of_a_search_is_looked_at() {
        let good = SearchOptions::default();
        search(&good, 1_000, "it").unwrap();
        let rerank = Preset::default().rerank;
        let batch = |batch| Some(Rerank { batch, ..rerank });
        let benefit = |benefit| Some(Rerank { benefit, ..rerank });
        let huge = 1_000_000_000_000;
        let wrong = [
            ("k", SearchOptions { k: 0, ..good }),
            ("k", SearchOptions { k: 1_001, ..good }),
            ("list size", SearchOptions { list: 9, ..good }),
            ("list size", SearchOptions { list: huge, ..good }),
            (
                "beam",
                SearchOptions {
                    beam: Some(0),
                    ..good
                },
            ),
            (
                "beam",
                SearchOptions {
                    beam: Some(huge),
                    ..good
                },
            ),
            ("threads", SearchOptions { threads: 0, ..good }),
            (
                "threads",
                SearchOptions {
                    threads: 1_025,
                    ..good
                },
            ),
            (
                "in flight",
                SearchOptions {
                    in_flight: Some(0),
                    ..good
                },
            ),
            (
                "in flight",
                SearchOptions {
                    in_flight: Some(huge),
                    ..good
                },
            ),
            (
                "at once",
                SearchOptions {
                    rerank: batch(0),
                    ..good
                },
            ),
            (
                "at once",
                SearchOptions {
                    rerank: batch(huge),
                    ..good
                },
            ),
            (
                "benefit",
                SearchOptions {
                    rerank: benefit(f64::NAN),
                    ..good
                },
            ),
        ];
        for (what, options) in wrong {
            let error = search(&options, 1_000, "it").unwrap_err();
            assert!(
                error.is_call_wrong() && error.to_string().contains(what),
                "{error}: {what}"
            );
        }
    }
}
