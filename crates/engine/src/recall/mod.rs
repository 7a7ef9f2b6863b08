//! Searches that are asked for a recall instead of a list size.
//!
//! ```text
//!   measured (build, calibrate)            asked for .95                      a query
//!   recall of each band of distances  ──>  depth that gives it, by distance ──> its k-th answer is so far: so many candidates are looked at
//!   with each list size                                                          │ the nearer it comes, the fewer
//! ```
//!
//! How much of the nearest a list of so many finds depends on the query: of one that lies among many vectors nearly all, of one far off fewer.
//! What tells them apart is how far the k-th nearest is. On package-text, whose queries come from another source than its rows, a list of 13
//! finds .950 of the nearest of rows that were held out and .909 of those of queries; by the distance of the tenth nearest, in five bands, it is .990, .977,
//! .946, .952, .885 of the ones and .985, .976, .951, .954, .887 of the others. So recall is measured by that distance, and a search goes by
//! the distance of its k-th answer so far: it starts with the deepest list, which becomes shorter as answers come nearer. Easy queries read
//! less, and a batch of other queries than those that were measured keeps about the recall (`bench/README.md` has how far off it was).
//!
//! Where vectors are apart from lists (decoupled, and PRESS), how far the answers are is not known in time: there all of the longest list is
//! looked at. Clusters are all asked for at once: there the distance of the nearest head says how many are probed.
//!
//! - [`depth`]: how many candidates are looked at, by the distance of the k-th answer
//! - [`calibrate`]: what a build and `stratann calibrate` measure
//! - [`exact`]: the true nearest of some queries, of all that an index holds

mod calibrate;
mod depth;
mod exact;

use stratann_layout::{RecallFile, RecallTable, Searched};

pub use self::calibrate::{Calibration, calibrate};
pub(crate) use self::calibrate::{LEAST_ROWS, measure, own_queries};
pub(crate) use self::depth::Depth;
use crate::index::Index;
use crate::stores::VectorsAt;
use crate::{Error, SearchOptions, Strategy, bounds};

/// Of an index that was never measured and has no more vectors than this, all are looked at.
const SMALL: usize = 2 * LEAST_ROWS;

/// What is known of how much searches of an index find.
#[derive(Debug)]
pub(crate) enum Recall {
    /// What was measured.
    Measured(RecallFile),
    /// Nothing, and why.
    Unknown(String),
}

impl Recall {
    /// Of what its file says, if there is one. What cannot be read is told who asks for a recall; searches by list go on without it.
    pub(crate) fn of(file: Result<Option<RecallFile>, Error>) -> Self {
        match file {
            Ok(Some(file)) => Self::Measured(file),
            Ok(None) => Self::Unknown("it was not measured when the index was built".into()),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// An argument that does not go with a recall.
fn unfit(what: &str, found: impl ToString, reason: String) -> Error {
    Error::Unfit {
        what: what.to_owned(),
        found: found.to_string(),
        reason,
        remedy: "Leave it out, or give a list size in place of the recall",
    }
}

/// The table that k answers are looked up in: that of k, or of the next more, since of more answers fewer are found.
fn table_of(file: &RecallFile, k: usize) -> Option<&RecallTable> {
    file.tables.iter().find(|table| table.k as usize >= k)
}

impl Index {
    /// The longest list that a query may take: the one that is asked for, or the deepest for a recall; of clusters the most probes.
    ///
    /// # Errors
    /// A recall of which nothing is known here.
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

    /// How its recall is measured: as its preset searches.
    pub(crate) fn searched(&self) -> Searched {
        self.searched_by(None)
    }

    /// How a search goes by a strategy, or else by the preset's.
    fn searched_by(&self, strategy: Option<Strategy>) -> Searched {
        match strategy.unwrap_or(self.preset().strategy) {
            _ if self.has_clusters() => Searched::Probes,
            Strategy::Press => Searched::Press,
            Strategy::BestFirst | Strategy::Pipelined => Searched::Walk,
        }
    }

    /// How many candidates a search of `live` vectors looks at that is asked for a recall, or how many clusters it probes; `None` where it is
    /// asked for a list.
    ///
    /// # Errors
    /// It asks for what has another end besides, or ranks otherwise than was measured; nothing is known of how much searches of this index find.
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
                let expected = "one of them: each says when a search ends";
                return Err(Error::call(
                    format!("recall and {what}"),
                    "both given",
                    expected,
                ));
            }
        }
        let unknown = |why: &str| {
            Error::call(
                "recall",
                recall,
                format!(
                    "a list size instead: nothing is known of how much searches of this index find ({why}); `stratann calibrate` measures it"
                ),
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
                // Measured by a version that knew one way only.
                true => unknown("it was measured for another strategy"),
                false => unfit(
                    "strategy",
                    options.strategy.unwrap_or(self.preset().strategy),
                    format!(
                        "the recall of this index was measured with {}",
                        self.preset().strategy
                    ),
                ),
            });
        }
        let most = file.tables.last().map_or(0, |table| table.k);
        if options.k > most as usize {
            let expected = format!("at most {most} with a recall, or a list size in its place");
            return Err(Error::call("k", options.k, expected));
        }
        let changed = match searched {
            Searched::Walk | Searched::Press => Changed::default(),
            Searched::Probes => self.changed(live),
        };
        // Of clusters half of whose vectors were deleted, those that are left are as far apart as twice as many were.
        let k = options.k as f64 * changed.thinner;
        let Some(table) = table_of(file, k.ceil() as usize).or(file.tables.last()) else {
            return Err(unknown("nothing was measured"));
        };
        let least = match searched {
            Searched::Walk | Searched::Press => table.k as usize,
            Searched::Probes => 1,
        };
        // Where how far the answers are is known too late, all queries take the same list: where vectors are read last; and where clusters were
        // split, since heads are nearer then than those that were measured. Rows say little of queries from elsewhere: that of the farthest.
        let last = self.composition().vectors == VectorsAt::Segments;
        let is_late = searched == Searched::Press || last;
        if let (true, Some(rerank)) = (is_late, options.rerank)
            && rerank != self.preset().rerank
        {
            let reason = "the recall of this index was measured with the preset's".to_owned();
            return Err(unfit("rerank", "not the preset's", reason));
        }
        let depth = match (is_late, file.are_rows) {
            // Queries like those to come: they are as far as these in the mean.
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

    /// What became of the clusters since they were built.
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

/// Clusters that came by splits, as a share of those that there were, from which on the distance of the nearest head says nothing.
const SPLIT: f64 = 1.05;

/// What became of clusters since they were built.
struct Changed {
    /// How many times as many there are.
    more: f64,
    /// How many times as many vectors had numbers as are left.
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
