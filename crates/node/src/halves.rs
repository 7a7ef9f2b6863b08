//! The halves of PRESS as the engine implements them ([`stratann::press`]). Only this module calls
//! the engine.

use std::ops::Range;

use stratann::press::{Full, High, HighQuery, Low, LowQuery};
use stratann::{Element, Error, Metric, Press, press};

use crate::role::{
    Done, HalfError, HighHalf, LowHalf, Missing, Narrowing, NotChanged, Ranker, Sizes, Wanted,
};
use crate::wire::{Changed, Collection, MOST_NODES, Ranked};

const _: () = assert!(press::MOST_OF_STEP <= MOST_NODES);

fn half(error: Error) -> HalfError {
    HalfError(error.to_string())
}

fn with_missing<T>(missing: &mut Missing, with: impl FnOnce(&mut press::Missing) -> T) -> T {
    let mut of = press::Missing {
        nodes: std::mem::take(&mut missing.nodes),
        most: missing.most as usize,
        bound: missing.bound,
    };
    let done = with(&mut of);
    *missing = Missing {
        nodes: of.nodes,
        most: u32::try_from(of.most).unwrap_or(u32::MAX),
        bound: of.bound,
    };
    done
}

impl From<&press::Collection> for Collection {
    fn from(of: &press::Collection) -> Collection {
        Collection {
            state: of.state,
            nodes: of.nodes,
            dim: of.dim,
            row_bytes: of.row_bytes() as u32,
            low_bytes: of.low_bytes,
            high_bytes: of.high_bytes,
            element: of.element.code(),
            metric: of.metric.code(),
            changes: false,
            vectors: of.nodes.into(),
        }
    }
}

impl TryFrom<Collection> for press::Collection {
    type Error = HalfError;

    /// Fails if the element type, metric or row length is unknown or does not fit.
    fn try_from(of: Collection) -> Result<press::Collection, HalfError> {
        let unknown = |what, code| {
            HalfError(format!(
                "{what} {code} is unknown to this version. Use the same version of StratANN on all servers"
            ))
        };
        let collection = press::Collection {
            state: of.state,
            nodes: of.nodes,
            dim: of.dim,
            element: Element::from_code(of.element)
                .ok_or_else(|| unknown("element type", of.element))?,
            metric: Metric::from_code(of.metric).ok_or_else(|| unknown("metric", of.metric))?,
            low_bytes: of.low_bytes,
            high_bytes: of.high_bytes,
        };
        match collection.row_bytes() == of.row_bytes as usize {
            true => Ok(collection),
            false => Err(HalfError(format!(
                "a row has {} bytes, but {} elements of type {} have {} bytes",
                of.row_bytes,
                of.dim,
                collection.element,
                collection.row_bytes()
            ))),
        }
    }
}

impl HighHalf for High {
    type Query = HighQuery;

    fn collection(&self) -> Collection {
        self.collection().into()
    }

    fn low_centroids(&self) -> Vec<u8> {
        self.low_centroids()
    }

    fn low_codes(&self, nodes: Range<u32>, kept: u32, out: &mut Vec<u8>) -> Result<(), HalfError> {
        self.low_codes(nodes, kept, out).map_err(half)
    }

    fn knows_popular(&self) -> bool {
        self.knows_popular()
    }

    fn count_popular(&self) -> Result<bool, HalfError> {
        self.count_popular().map_err(half)
    }

    fn query_bytes(&self) -> usize {
        self.collection().query_bytes()
    }

    fn begin(&self, query: &mut HighQuery, sent: &[u8], sizes: Sizes) -> Result<(), HalfError> {
        let Sizes { list, full, beam } = sizes;
        query.begin(self, sent, list, full, beam).map_err(half)
    }

    fn refine(&self, query: &mut HighQuery, nodes: &[(u32, f32)]) -> Result<(), HalfError> {
        query.refine(self, nodes).map_err(half)
    }

    fn advance(&self, query: &mut HighQuery, lists: &mut Vec<u8>) -> bool {
        query.advance(self, lists)
    }

    fn look(
        &self,
        query: &mut HighQuery,
        offered: &[(u32, f32)],
        missing: &mut Missing,
        estimates: &mut Vec<(u32, f32)>,
    ) -> Result<(), HalfError> {
        with_missing(missing, |missing| {
            query.look(self, offered, missing, estimates)
        })
        .map_err(half)
    }

    fn low_computations(&self, query: &HighQuery) -> u64 {
        query.low_computations()
    }

    fn best(&self, query: &HighQuery, nodes: &mut Vec<u32>) {
        query.best(nodes);
    }

    fn computations(&self, query: &HighQuery) -> u64 {
        query.computations()
    }
}

impl LowHalf for Low {
    type Query = LowQuery;

    fn room(collection: &Collection, bytes: u64) -> u32 {
        let of = press::Collection::try_from(*collection);
        of.map_or(0, |collection| Low::room(&collection, bytes))
    }

    fn load(
        collection: Collection,
        centroids: &[u8],
        bits: Option<&[u8]>,
        codes: Vec<u8>,
    ) -> Result<Low, HalfError> {
        Low::new(collection.try_into()?, centroids, bits, codes).map_err(half)
    }

    fn kept(&self) -> Option<u32> {
        self.kept()
    }

    fn code_bytes(&self) -> u64 {
        self.code_bytes()
    }

    fn hear(&self, query: &mut LowQuery, estimates: &[(u32, f32)]) {
        query.hear(estimates);
    }

    fn collection(&self) -> Collection {
        self.collection().into()
    }

    fn begin(
        &self,
        query: &mut LowQuery,
        row: &[u8],
        list: usize,
        narrowing: Narrowing,
        nodes: &mut Vec<(u32, f32)>,
        missing: &mut Missing,
    ) -> Result<(), HalfError> {
        let Narrowing { low, ratio, seeds } = narrowing;
        let press = Press { low, ratio, seeds };
        with_missing(missing, |missing| {
            query.begin(self, row, list, press, nodes, missing)
        })
        .map_err(half)
    }

    fn sent(query: &LowQuery) -> &[u8] {
        query.sent()
    }

    fn expand(&self, query: &mut LowQuery, lists: &[u8]) -> Result<(), HalfError> {
        query.expand(self, lists).map_err(half)
    }

    fn select(&self, query: &mut LowQuery, nodes: &mut Vec<(u32, f32)>, missing: &mut Missing) {
        with_missing(missing, |missing| query.select(nodes, missing));
    }

    fn computations(&self, query: &LowQuery) -> u64 {
        query.computations()
    }
}

impl Ranker for Full {
    fn collection(&self) -> Collection {
        Collection {
            changes: self.index().is_some(),
            vectors: self.vectors() as u64,
            ..(&self.collection()).into()
        }
    }

    fn collection_of(&self, state: u64) -> Option<Collection> {
        self.collection_of(state).as_ref().map(Collection::from)
    }

    fn tidy(&self, all_by: Option<u64>) {
        self.tidy(all_by);
    }

    fn rank(
        &self,
        of: (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        wanted: Wanted,
        done: Done,
    ) -> Result<(), HalfError> {
        let done = move |ranked: Result<press::Ranked, Error>| {
            done(ranked.map_err(half).map(|ranked| Ranked {
                ids: ranked.ids,
                distances: ranked.distances,
                reads: ranked.reads,
                bytes: ranked.bytes,
                computations: ranked.computations,
                refused: ranked.refused,
            }));
        };
        Full::rank_while(self, of, nodes, k, wanted, done).map_err(half)
    }

    fn change(&self, upserts: (&[u64], &[u8]), deletes: &[u64]) -> Result<Changed, NotChanged> {
        if self.index().is_none() {
            let text = "this server takes no changes. Start it (or `stratann cluster up`) with --changes, in Python with changes=True";
            return Err(NotChanged::Invalid(text.to_owned()));
        }
        let (ids, rows) = upserts;
        if !ids.is_empty() {
            self.upsert(ids, rows).map_err(not_changed)?;
        }
        let deleted = match deletes.is_empty() {
            true => 0,
            // Only existing ids count as deleted. The upserts are already durable.
            false => {
                (self.delete(deletes)).map_err(|error| NotChanged::Failed(error.to_string()))?
            }
        };
        Ok(Changed {
            upserted: ids.len() as u32,
            deleted: deleted as u32,
        })
    }
}

/// The engine checks all ids and rows before it logs the first row.
fn not_changed(error: Error) -> NotChanged {
    match error {
        Error::Argument { .. } | Error::Data(_) => NotChanged::Invalid(error.to_string()),
        failed => NotChanged::Failed(failed.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use stratann::Press;
    use stratann::press::Full;

    use crate::role::{ComputeOptions, Going, Narrowing};

    #[test]
    fn roles_narrow_as_the_engine_does() {
        let (own, engine) = (Narrowing::default(), Press::TUNED);
        let own = (own.low, own.ratio, own.seeds);
        assert_eq!(own, (engine.low, engine.ratio, engine.seeds));
    }

    #[test]
    fn compute_servers_vouch_for_states_in_time() {
        assert!(3 * ComputeOptions::default().vouch < Full::KEPT);
        // Storage keeps a state for as long as it expects the client of a lost connection.
        assert_eq!(Going::BACK, Full::KEPT);
    }
}
