//! Bounds of the numbers that calls accept, so that Rust, the command line, Python and a catalog
//! refuse the same numbers with the same errors.
//!
//! | number | from | to |
//! |---|---|---|
//! | threads | 1 | [`MOST_THREADS`] |
//! | queries or inserts in flight on each thread | 1 | [`MOST_IN_FLIGHT`] |
//! | beam width | 1 | [`MOST_BEAM`] |
//! | k | 1 | the number of vectors that a search can find, but at least [`MOST_PADDED`] |
//! | length of the low list, as a multiple of the length of the high list | 1 | [`MOST_LOW`] |
//! | seeds of PRESS | 0 | [`MOST_SEEDS`] |
//! | list size of a search, build or insert; clusters probed | 1 | [`MOST_LIST`] |
//! | candidates that are re-ranked in one batch | 1 | [`MOST_LIST`] |
//! | k times the number of queries | 1 | [`MOST_ANSWERS`] |
//! | benefit | 0 | 1 |
//! | queries in a sample of live recall | 1 | [`MOST_WATCHED`] |
//!
//! The bounds of an index itself (its degree, its dimension, the bytes of its codes) come from its
//! format (`build/facts.rs`). A size in bytes has no bound.

use std::path::Path;

use super::{Press, SearchOptions, WriteOptions};
use crate::Error;

/// The largest number of OS threads of a call.
pub const MOST_THREADS: usize = 1_024;

/// The largest number of queries, or of inserts, in flight on each thread.
pub const MOST_IN_FLIGHT: usize = 1_024;

/// The largest beam width: the number of nodes that one query reads at once.
pub const MOST_BEAM: usize = 1_024;

/// The largest list size, which is the largest number of vectors that an index can have.
pub const MOST_LIST: usize = u32::MAX as usize - 1;
/// The greatest length of the low list, as a multiple of the length of the high list.
pub const MOST_LOW: f64 = 64.0;
/// The largest number of seeds of a search by PRESS.
pub const MOST_SEEDS: usize = 1 << 16;

/// The largest number of results of one call (k times the queries), of 12 bytes each.
pub const MOST_ANSWERS: usize = 1 << 30;

/// The largest number of queries in a sample of live recall, whose true neighbours are computed.
pub const MOST_WATCHED: usize = 1_000;
/// The largest k of a sampled query, because true neighbours need memory.
pub const MOST_WATCHED_K: usize = 100;
/// The longest filter of a sampled query, in bytes of text.
pub const MOST_WATCHED_FILTER: usize = 256;

pub(crate) fn number(what: &str, value: usize, most: usize) -> Result<usize, Error> {
    match value {
        0 => {
            let reason = "it must be at least 1";
            Err(Error::call(what, 0, reason, format!("Pass 1 to {most}")))
        }
        value if value > most => {
            let reason = format!("it must be at most {most}");
            Err(Error::call(
                what,
                value,
                reason,
                format!("Pass 1 to {most}"),
            ))
        }
        value => Ok(value),
    }
}

pub(crate) fn threads(value: usize) -> Result<usize, Error> {
    number("number of threads", value, MOST_THREADS)
}

pub(crate) fn watched(value: usize) -> Result<usize, Error> {
    number("number of queries of watch_recall", value, MOST_WATCHED)
}

pub(crate) fn share(what: &str, value: f64) -> Result<f64, Error> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => {
            let reason = "it is a share";
            Err(Error::call(
                what,
                value,
                reason,
                "Pass a number from 0 to 1",
            ))
        }
    }
}

pub use stratann_layout::attributes::{MOST_COLUMNS, MOST_ITEMS, MOST_PAYLOAD, MOST_STRING};

/// The largest k that every search accepts. Missing results are padded.
pub const MOST_PADDED: usize = 1 << 16;

pub(crate) fn most_answers(vectors: usize, what: &str) -> (usize, &str) {
    match vectors < MOST_PADDED {
        true => (MOST_PADDED, "even if the index has fewer vectors"),
        false => (vectors, what),
    }
}

/// Refuses the numbers of a search that are beyond their bounds. `most` is the largest k, and
/// `what` explains this bound in errors.
///
/// # Errors
/// The call fails with [`Error::Argument`], which names the number, its value and the bound.
pub fn search(options: &SearchOptions, most: usize, what: &str) -> Result<(), Error> {
    let k = match options.k {
        0 => return Err(no_results()),
        k if k > most => {
            let reason = format!("it can be at most {most}, {what}");
            return Err(Error::call("k", k, reason, format!("Pass 1 to {most}")));
        }
        k => k,
    };
    if options.recall.is_none() && options.list < k {
        let reason = format!("the k = {k} results are chosen from the list");
        let remedy = format!(
            "Pass at least {k}, or a smaller k (in a cluster index, `probes` sets the number of clusters, and may be below k)"
        );
        return Err(Error::call("list size", options.list, reason, remedy));
    }
    number("list size", options.list, MOST_LIST)?;
    if let Some(probes) = options.probes {
        number("number of probes", probes, MOST_LIST)?;
    }
    threads(options.threads)?;
    if let Some(in_flight) = options.in_flight {
        number("number of queries in flight", in_flight, MOST_IN_FLIGHT)?;
    }
    if let Some(beam) = options.beam {
        number("beam width", beam, MOST_BEAM)?;
    }
    if let Some(rerank) = options.rerank {
        number(
            "number of candidates ranked at once",
            rerank.batch,
            MOST_LIST,
        )?;
        share("benefit", rerank.benefit)?;
        share("re-ranking ratio", rerank.ratio)?;
    }
    number("number of seeds", options.seeds.max(1), MOST_SEEDS)?;
    press(options.press)
}

pub(crate) fn no_results() -> Error {
    let reason = "a search returns at least one result";
    Error::call("k", 0, reason, "Pass at least 1")
}

pub(crate) fn recall(recall: Option<f64>) -> Result<(), Error> {
    match recall {
        Some(recall) if !(recall > 0.0 && recall <= 1.0) => Err(Error::call(
            "recall",
            recall,
            "it is a share of the true neighbours",
            "Pass a number above 0 and up to 1, such as 0.95",
        )),
        _ => Ok(()),
    }
}

pub(crate) fn press(press: Press) -> Result<(), Error> {
    let Press { low, ratio, seeds } = press;
    // A search with 0 seeds begins at the entry node, which counts as one seed.
    number("number of seeds", seeds.max(1), MOST_SEEDS)?;
    if !(1.0..=MOST_LOW).contains(&low) {
        let reason = "it is a multiple of the list size";
        let remedy = format!("Pass 1 to {MOST_LOW} (2 is usual)");
        return Err(Error::call("length of the low list", low, reason, remedy));
    }
    match ratio > 0.0 && ratio <= 1.0 {
        true => Ok(()),
        false => Err(Error::call(
            "refinement ratio",
            ratio,
            "it is a share, and a search with a ratio of 0 would find nothing",
            "Pass a number above 0 and up to 1 (0.3 is usual)",
        )),
    }
}

pub(crate) fn writing(options: &WriteOptions) -> Result<(), Error> {
    threads(options.threads)?;
    let direct = &options.direct;
    number(
        "number of inserts in flight",
        direct.in_flight,
        MOST_IN_FLIGHT,
    )?;
    if let Some(list) = direct.list {
        number("list size of an insert", list, MOST_LIST)?;
    }
    if direct.checkpoint == Some(0) {
        return Err(Error::call(
            "number of changes between checkpoints",
            0,
            "a checkpoint follows at least one change",
            "Pass at least 1",
        ));
    }
    Ok(())
}

/// Refuses an empty path, because the system's own error for this path does not help.
pub(crate) fn path(path: &Path) -> Result<(), Error> {
    match path.as_os_str().is_empty() {
        true => {
            let reason = "an index is in a directory";
            Err(Error::call(
                "the path",
                "empty",
                reason,
                "Pass the path of a directory",
            ))
        }
        false => Ok(()),
    }
}

pub(crate) fn answers(k: usize, queries: usize) -> Result<usize, Error> {
    match k.checked_mul(queries) {
        Some(count) if count <= MOST_ANSWERS => Ok(count),
        _ => Err(Error::call(
            "k times queries",
            format!("{k} times {queries}"),
            format!("one call returns at most {MOST_ANSWERS} answers"),
            "Search in smaller batches",
        )),
    }
}

pub(crate) fn room<T: Clone>(count: usize, empty: T) -> Result<Vec<T>, Error> {
    let mut room = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => {
            room.resize(count, empty);
            Ok(room)
        }
        Err(_) => Err(Error::call(
            "number of answers",
            count,
            "so many results do not fit into memory",
            "Search in smaller batches",
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
        assert_eq!(
            error.to_string(),
            "n is 8; it must be at most 7. Pass 1 to 7"
        );
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
