//! Searches with a recall target instead of a list size.
//!
//! ```text
//!   measured (build, calibrate)        target of .95              a query
//!   recall of each bucket (band)  ──>  depth by distance  ──>     distance of its k-th result
//!   for each list size                                            ──> number of candidates to look
//!                                                                     at: the nearer, the fewer
//! ```
//!
//! The share of the nearest vectors that a list finds depends on the query. A query among many
//! vectors finds nearly all of them, and a distant one finds fewer. The distance of the k-th
//! nearest vector distinguishes such queries.
//!
//! On package-text, queries come from another source than the rows. With a list of 13, held-out
//! rows find .950 of their nearest vectors, and these queries find .909. In five buckets (bands) by
//! the distance of the tenth nearest, rows have .990, .977, .946, .952, .885, and queries .985,
//! .976, .951, .954, .887.
//!
//! So recall is measured for each range of that distance, and a search uses the distance of its
//! k-th result so far. It starts with the longest list, and shortens the list as its results come
//! nearer. So easy queries read less, and a batch of queries of another kind has about the same
//! recall (`docs/results/recall.md` has the differences).
//!
//! Where vectors are apart from lists (decoupled layout, PRESS), the distances of the results are
//! known too late. So such a search uses the whole longest list. A search of clusters requests all
//! clusters at once, so the distance of the nearest head decides how many are probed.
//!
//! - [`depth`]: the number of candidates to expand, by the distance of the k-th result
//! - [`calibrate`]: the measurements of a build and of `stratann calibrate`
//! - [`queries`]: the queries of a build's measurement
//! - [`exact`]: the true nearest vectors of some queries in the whole index
//! - [`watch`]: the recall of the queries that are served

mod calibrate;
mod depth;
mod exact;
mod queries;
mod watch;

use stratann_layout::{RecallFile, RecallTable, Searched};

pub use self::calibrate::{Calibrated, Calibration, QuerySource, calibrate, check_calibration};
pub(crate) use self::calibrate::{LEAST_ROWS, measure};
pub(crate) use self::depth::Depth;
pub(crate) use self::queries::Queries;
pub(crate) use self::watch::Measurer;
pub use self::watch::{LiveRecall, RecallFound, RecallWatch};
use crate::index::Index;
use crate::stores::VectorsAt;
use crate::{Error, SearchOptions, Strategy, bounds};

/// If an index was never measured and has at most this many vectors, a search with a recall target
/// ranks all vectors.
const SMALL: usize = 2 * LEAST_ROWS;

/// The measured recall of an index's searches, if it is known.
#[derive(Debug)]
pub(crate) enum Recall {
    /// The measurements.
    Measured(RecallFile),
    /// There are no measurements, for this reason.
    Unknown(String),
}

impl Recall {
    /// Reads the contents of the recall file, if there is one. If the file cannot be read, only
    /// searches with a recall target report the error. Searches by list size work without it.
    pub(crate) fn of(file: Result<Option<RecallFile>, Error>) -> Self {
        match file {
            Ok(Some(file)) => Self::Measured(file),
            Ok(None) => Self::Unknown("it was not measured when the index was built".into()),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }

    /// The queries of the measurement, if there is one.
    pub(crate) fn calibrated(&self) -> Option<Calibrated> {
        match self {
            Self::Measured(file) => Some(Calibrated::of(file)),
            Self::Unknown(_) => None,
        }
    }
}

/// The remedy for an argument that cannot be combined with a recall target.
const LEAVE_OUT: &str = "Leave it out, or give a list size in place of the recall";

/// The table for k results: the table of k, or of the next larger number. Recall falls with the
/// number of results, so the larger one is safe.
fn table_of(file: &RecallFile, k: usize) -> Option<&RecallTable> {
    file.tables.iter().find(|table| table.k as usize >= k)
}

impl Index {
    /// The longest list that a query may take: the requested one, or the greatest depth for a
    /// recall target. For clusters, this is the largest number of probes.
    ///
    /// # Errors
    /// A recall target without measurements of this index.
    pub fn longest_list(&self, options: &SearchOptions) -> Result<usize, Error> {
        bounds::recall(options.recall)?;
        Ok(
            match (self.depth(options, self.live())?, self.has_clusters()) {
                (Some(depth), true) => depth.most(),
                (None, true) => options.probes_of(),
                (Some(depth), false) => depth.most().max(options.k),
                (None, false) => options.list,
            },
        )
    }

    /// The kind of search whose recall is measured: the preset's.
    pub(crate) fn searched(&self) -> Searched {
        self.searched_by(None)
    }

    /// The kind of search of a strategy, or of the preset's strategy if none is given.
    fn searched_by(&self, strategy: Option<Strategy>) -> Searched {
        match strategy.unwrap_or(self.preset().strategy) {
            _ if self.has_clusters() => Searched::Probes,
            Strategy::Press => Searched::Press,
            Strategy::BestFirst | Strategy::Pipelined => Searched::Walk,
        }
    }

    /// The depth of a search with a recall target in an index of `live` vectors: the number of
    /// candidates to expand, or of clusters to probe. `None` if the search has a list size.
    ///
    /// # Errors
    /// The options end a search in another way, or rank otherwise than the measurement did. The
    /// index was not measured.
    pub(crate) fn depth(
        &self,
        options: &SearchOptions,
        live: usize,
    ) -> Result<Option<Depth>, Error> {
        let Some(recall) = options.recall else {
            return Ok(None);
        };
        for (what, given) in [
            ("stop early", options.stop_early),
            ("probes", options.probes.is_some()),
        ] {
            if given {
                return Err(Error::call(
                    "recall",
                    format!("given with {what}"),
                    "each decides when a search ends",
                    "Give only one of them",
                ));
            }
        }
        let unknown = |why: &str| {
            Error::call(
                "recall",
                recall,
                format!("the recall of this index is unknown ({why})"),
                "Give a list size, or measure the recall with `stratann calibrate`",
            )
        };
        let file = match self.recall() {
            Recall::Measured(file) => file,
            Recall::Unknown(_) if self.nodes() <= SMALL => {
                let clusters = self.clusters().map(|stores| stores.clusters() as usize);
                return Ok(Some(Depth::all(clusters.unwrap_or(self.nodes()))));
            }
            Recall::Unknown(why) => return Err(unknown(why)),
        };
        let searched = self.searched_by(options.strategy);
        if searched != file.searched {
            return Err(match searched == self.searched() {
                // An earlier version of StratANN wrote this file, and knew only one kind of search.
                true => unknown("it was measured for another strategy"),
                false => Error::call(
                    "strategy",
                    options.strategy.unwrap_or(self.preset().strategy),
                    format!(
                        "the recall of this index was measured with {}",
                        self.preset().strategy
                    ),
                    LEAVE_OUT,
                ),
            });
        }
        let most = file.tables.last().map_or(0, |table| table.k);
        if options.k > most as usize {
            let reason = format!("the recall of this index is known for at most {most} results");
            let remedy = format!("Pass at most {most}, or a list size in place of the recall");
            return Err(Error::call("k", options.k, reason, remedy));
        }
        let changed = match searched {
            Searched::Walk | Searched::Press => Changed::default(),
            Searched::Probes => self.changed(live),
        };
        // If half of the vectors in clusters were deleted, the k-th remaining one is as far as the
        // 2k-th was in the measurement.
        let k = options.k as f64 * changed.thinner;
        let Some(table) = table_of(file, k.ceil() as usize).or(file.tables.last()) else {
            return Err(unknown("nothing was measured"));
        };
        let least = match searched {
            Searched::Walk | Searched::Press => table.k as usize,
            Searched::Probes => 1,
        };
        // In two cases the distance is not known in time, or is of no use, and all queries take the
        // same list. The first is that vectors are read last. The second is that clusters were
        // split, since heads are then nearer than in the measurement. Rows represent queries of
        // another source badly, so the farthest bucket decides.
        let last = self.composition().vectors == VectorsAt::Segments;
        let is_late = searched == Searched::Press || last;
        if let (true, Some(rerank)) = (is_late, options.rerank)
            && rerank != self.preset().rerank
        {
            let reason = "the recall of this index was measured with the preset's";
            return Err(Error::call("rerank", "not the preset's", reason, LEAVE_OUT));
        }
        let depth = match (is_late, file.by_build) {
            // A user's queries resemble future queries, so their mean applies.
            (true, false) => Depth::mean,
            (true, true) => Depth::level,
            (false, _) if changed.more > SPLIT => Depth::level,
            (false, false) => Depth::measured,
            (false, true) => Depth::new,
        };
        let beyond = (k / f64::from(table.k)).max(1.0);
        let depth = depth(&file.lists, table, recall, least);
        Ok(Some(depth.times(changed.more * beyond)))
    }

    /// The changes of the clusters since they were built.
    fn changed(&self, live: usize) -> Changed {
        let built = self.manifest().clusters().map(|facts| facts.clusters);
        let now = self.clusters().map(|stores| u64::from(stores.clusters()));
        let share = |of: u64, than: u64| (of as f64 / than.max(1) as f64).max(1.0);
        Changed {
            more: share(now.unwrap_or(0), built.unwrap_or(0)),
            thinner: share(self.nodes() as u64, live as u64),
        }
    }
}

/// If splits have multiplied the clusters by more than this, the distance of the nearest head is of
/// no use.
const SPLIT: f64 = 1.05;

/// The changes of clusters since they were built.
struct Changed {
    /// The factor by which the number of clusters grew.
    more: f64,
    /// The ratio of all numbered vectors to live ones.
    thinner: f64,
}

impl Default for Changed {
    fn default() -> Self {
        Self {
            more: 1.0,
            thinner: 1.0,
        }
    }
}
