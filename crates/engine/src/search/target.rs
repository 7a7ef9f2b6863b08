//! Searches with a recall target: the depth of each query, from the measurements of the index
//! ([`recall`](crate::recall)).

use stratann_layout::{RecallFile, RecallTable, Searched};

use super::depth::{self, Depth, DepthFrom, Target};
use crate::index::Index;
use crate::index::measured::{LEAST_ROWS, Recall};
use crate::stores::VectorsAt;
use crate::{CacheSize, Error, SearchOptions, Strategy, bounds};

/// If an index was never measured and has at most this many vectors, a search with a recall target
/// ranks all vectors.
const SMALL: usize = 2 * LEAST_ROWS;

/// The least share of the graph's pages in memory with which the measurement of searches in memory
/// holds. The held pages are the ones that searches read most. So of the pages of a walk, a larger
/// share is in memory.
const MOSTLY_HELD: f64 = 0.5;

/// The remedy for an argument that cannot be combined with a recall target.
const LEAVE_OUT: &str = "Leave it out, or give a list size in place of the recall";

/// Returns the table for k results or, if there is none, the table for the next larger number of
/// results. Recall falls with the number of results, so the recall in the other table is not too
/// high. If no table has so many results, returns the last table.
fn table_of(tables: &[RecallTable], k: usize) -> Option<&RecallTable> {
    let found = tables.iter().find(|table| table.k as usize >= k);
    found.or(tables.last())
}

impl Index {
    /// The largest list size of a query with these options: the option `list` or, with a recall
    /// target, the greatest depth. For clusters, it is the largest number of probes.
    ///
    /// # Errors
    /// The options have a recall target, and the recall of this index was not measured.
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

    /// Returns a warning if the target recall of `options` exceeds the measured recall of even the
    /// longest list, or of the largest number of probes. A search then uses this list or number,
    /// and may miss the target. The measured recall is the mean over all queries of the
    /// measurement. If the list has room for all vectors of the index, there is no warning.
    /// `longest`: the [`longest_list`](Index::longest_list) of these options.
    pub fn beyond_measured(&self, options: &SearchOptions, longest: usize) -> Option<String> {
        let (Some(recall), Recall::Measured(file)) = (options.recall, self.recall()) else {
            return None;
        };
        let (_, k) = self.changed_k(file.searched, options.k, self.live());
        let table = table_of(self.tables_of(file), k.ceil() as usize)?;
        // The text has four digits, so a smaller difference is no reason for a warning.
        let reached = (depth::reached(table) * 1e4).round() / 1e4;
        let (all, remedy) = match file.searched {
            Searched::Walk | Searched::Press => (self.nodes(), "a list size"),
            Searched::Probes => {
                let clusters = self.clusters().map(|stores| stores.clusters() as usize);
                (clusters.unwrap_or(0), "a number of probes")
            }
        };
        (recall > reached && longest < all).then(|| format!(
            "recall is {recall}; the measurement of this index reached at most {reached:.4}. To find more, give {remedy} above {longest} in place of the recall"
        ))
    }

    /// The kind of search whose recall is measured: the search with the choices of the preset.
    pub(crate) fn searched(&self) -> Searched {
        self.searched_by(None)
    }

    /// The kind of search of a strategy. If `strategy` is `None`, it is the strategy of the preset.
    fn searched_by(&self, strategy: Option<Strategy>) -> Searched {
        match strategy.unwrap_or(self.preset().strategy) {
            _ if self.has_clusters() => Searched::Probes,
            Strategy::Press => Searched::Press,
            Strategy::BestFirst | Strategy::Pipelined => Searched::Walk,
        }
    }

    /// Returns the depth of a search with a recall target, in an index of `live` vectors: the
    /// number of candidates to expand, or of clusters to probe. Returns `None` if the search has no
    /// recall target.
    ///
    /// # Errors
    /// The recall of the index was not measured, or with these options, a search ends or ranks in
    /// another way than in the measurement.
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
                    "each of the two decides when a search ends",
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
                // An earlier version of StratANN wrote this file. That version knew only one kind
                // of search.
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
        // If half of the vectors were deleted, the k-th remaining vector is as far as the 2k-th
        // vector was in the measurement.
        let (changed, k) = self.changed_k(searched, options.k, live);
        let Some(table) = table_of(self.tables_of(file), k.ceil() as usize) else {
            return Err(unknown("nothing was measured"));
        };
        let least = match searched {
            Searched::Walk | Searched::Press => table.k as usize,
            Searched::Probes => 1,
        };
        // In two cases, all queries use the same list size or number of probes. With PRESS, the
        // distance is known too late. If clusters were split, heads are nearer than in the
        // measurement, so their distances say too little about recall. If the queries of the
        // measurement were vectors of the index, the farthest bucket then decides, because such
        // vectors represent queries of another source badly.
        let apart = self.composition().vectors == VectorsAt::Segments;
        if let (true, Some(rerank)) = (apart || searched == Searched::Press, options.rerank)
            && rerank != self.preset().rerank
        {
            let reason = "the recall of this index was measured with the preset's re-ranking";
            return Err(Error::call("rerank", "not the preset's", reason, LEAVE_OUT));
        }
        let from = self.depth_from(options.strategy.unwrap_or(self.preset().strategy));
        let depth = match (from, file.by_build) {
            // A user's queries resemble future queries, so the mean of all of them decides.
            (DepthFrom::Nothing, false) => Depth::mean,
            (DepthFrom::Nothing, true) => Depth::level,
            (DepthFrom::Distances | DepthFrom::Estimates, _) if changed.more > SPLIT => {
                Depth::level
            }
            (DepthFrom::Distances | DepthFrom::Estimates, false) => Depth::measured,
            (DepthFrom::Distances | DepthFrom::Estimates, true) => Depth::new,
        };
        let target = match from {
            DepthFrom::Estimates => Target::up_to_plateau(recall),
            DepthFrom::Distances | DepthFrom::Nothing => Target::strict(recall),
        };
        let beyond = (k / f64::from(table.k)).max(1.0);
        let depth = depth(&file.lists, table, target, least);
        Ok(Some(depth.times(changed.more * beyond)))
    }

    /// The tables for searches of this index. Searches in memory have tables of their own, if they
    /// were measured.
    fn tables_of<'f>(&self, file: &'f RecallFile) -> &'f [RecallTable] {
        let in_memory = match file.by_code {
            true => self.is_unpacked(),
            // Records in the cache are expanded one at a time, too.
            false => {
                let is_held = self.memory().graph_share >= MOSTLY_HELD;
                let has_cache = self.options().cache != CacheSize::None;
                (is_held || has_cache) && !self.is_unpacked()
            }
        };
        match in_memory && !file.in_memory.is_empty() {
            true => &file.in_memory,
            false => &file.tables,
        }
    }

    /// Whether searches of unpacked rows were measured.
    pub(crate) fn was_measured_unpacked(&self) -> bool {
        matches!(self.recall(), Recall::Measured(file) if file.by_code && !file.in_memory.is_empty())
    }

    /// The values that decide the depth of a search with a recall target.
    pub(crate) fn depth_from(&self, strategy: Strategy) -> DepthFrom {
        let by_code = matches!(self.recall(), Recall::Measured(file) if file.by_code);
        if self.has_clusters() {
            return DepthFrom::Distances;
        }
        match (strategy, self.composition().vectors) {
            (Strategy::Press, _) => DepthFrom::Nothing,
            (Strategy::BestFirst | Strategy::Pipelined, VectorsAt::Segments) => {
                match self.is_unpacked() {
                    true if self.was_measured_unpacked() => DepthFrom::Distances,
                    false if by_code => DepthFrom::Estimates,
                    // An earlier version measured with vectors of the index only.
                    true | false => DepthFrom::Nothing,
                }
            }
            (Strategy::BestFirst | Strategy::Pipelined, VectorsAt::Records | VectorsAt::Parts) => {
                DepthFrom::Distances
            }
        }
    }

    /// The changes after the measurement. Also returns the number of results in the measured index
    /// whose last result is as far as the k-th result in the index of `live` vectors.
    fn changed_k(&self, searched: Searched, k: usize, live: usize) -> (Changed, f64) {
        let changed = match searched {
            Searched::Walk | Searched::Press => Changed::default(),
            Searched::Probes => self.changed(live),
        };
        let k = k as f64 * changed.thinner;
        (changed, k)
    }

    /// The changes of the clusters after the build.
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

/// If the number of clusters has grown by more than this factor, the distance of the nearest head
/// says too little about recall.
const SPLIT: f64 = 1.05;

/// The changes of clusters after the build.
struct Changed {
    /// The factor by which the number of clusters grew.
    more: f64,
    /// The number of all nodes, divided by the number of live vectors.
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
