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
        Ok(match (self.depth(options)?, self.has_clusters()) {
            (Some(depth), true) => depth.most(),
            (None, true) => options.probes_of(),
            (Some(depth), false) => depth.most().max(options.k),
            (None, false) => options.list,
        })
    }

    /// How its recall is measured: as its preset searches.
    pub(crate) fn searched(&self) -> Searched {
        match self.preset().strategy {
            _ if self.has_clusters() => Searched::Probes,
            Strategy::Press => Searched::Press,
            Strategy::BestFirst | Strategy::Pipelined => Searched::Walk,
        }
    }

    /// How many candidates a search that is asked for a recall looks at; `None` where it is asked for a list.
    ///
    /// # Errors
    /// It asks for what has another end besides; nothing is known of how much searches of this index find.
    pub(crate) fn depth(&self, options: &SearchOptions) -> Result<Option<Depth>, Error> {
        let Some(recall) = options.recall else {
            return Ok(None);
        };
        for (what, given) in [
            ("stop early", options.stop_early),
            ("probes", options.probes.is_some()),
        ] {
            if given {
                let expected =
                    "left out where a recall is asked for, which says itself when a search ends";
                return Err(Error::call(what, "given", expected));
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
                return Ok(Some(Depth::all(self.nodes())));
            }
            Recall::Unknown(why) => return Err(unknown(why)),
        };
        let searched = match options.strategy.unwrap_or(self.preset().strategy) {
            _ if self.has_clusters() => Searched::Probes,
            Strategy::Press => Searched::Press,
            Strategy::BestFirst | Strategy::Pipelined => Searched::Walk,
        };
        if searched != file.searched {
            return Err(match searched == self.searched() {
                // Measured by a version that knew one way only.
                true => unknown("it was measured for another strategy"),
                false => Error::call(
                    "strategy",
                    options.strategy.unwrap_or(self.preset().strategy),
                    "left out where a recall is asked for, which was measured for searches as the preset makes them; or give a list size",
                ),
            });
        }
        let Some(table) = table_of(file, options.k) else {
            let most = file.tables.last().map_or(0, |table| table.k);
            return Err(unknown(&format!(
                "it was measured for up to {most} answers"
            )));
        };
        let least = match searched {
            Searched::Walk | Searched::Press => table.k as usize,
            Searched::Probes => 1,
        };
        // Where how far the answers are is known too late, all queries are taken to be the farthest.
        let late = searched == Searched::Press || self.composition().vectors == VectorsAt::Segments;
        let depth = if late { Depth::level } else { Depth::new };
        Ok(Some(depth(&file.lists, table, recall, least)))
    }
}
