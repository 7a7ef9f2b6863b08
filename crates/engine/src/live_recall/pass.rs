//! A pass of live recall. It searches the queries of a sample again at one read timestamp
//! (*moment*). At the same timestamp, it computes the true nearest vectors of these queries among
//! all vectors.
//!
//! The pass reads vectors on storage as a look-up does, through the tiers of the index, some
//! thousands at a time. The caches of searches do not change. If vectors are stored with each of
//! their clusters, one scan reads all of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::bits::Bits;
use crate::data::MatrixRef;
use crate::progress::{Progress, Stage, WithinStage};
use crate::recall::exact::{Nearest, OfQuery, Place, TILE, Wants};
use crate::search::Matches;
use crate::update::Standing;
use crate::watch::{Answered, SMALL_PIECE, Served};
use crate::{Error, ErrorKind, Filter};

/// The bytes of vectors that are in memory at a time, without a memory budget.
const PIECE: usize = 4 << 20;
/// The most bytes of sets of filter matches in one scan of all vectors, without a memory budget.
const MATCHES: usize = 64 << 20;
/// The most vectors that are read at a time. If there were more, several threads would read them.
const MOST_ROWS: usize = 1 << 12;

/// A query that was searched again.
struct Again<'a> {
    served: &'a Served,
    /// The ids of the results, ascending.
    answers: Vec<u64>,
    /// The position of the query's filter among the filters of the round.
    matches: Option<usize>,
}

/// Queries that share one scan of all vectors.
#[derive(Default)]
struct Round<'a> {
    queries: Vec<Again<'a>>,
    /// The filters of these queries, with their matches.
    filters: Vec<(&'a Filter, Matches)>,
    bytes: usize,
}

impl Wants for Round<'_> {
    fn admits(&self, query: usize, place: Place, _: u64) -> bool {
        let Some(matches) = self.queries[query].matches else {
            return true;
        };
        let matching = self.filters[matches].1.as_ref();
        match place {
            Place::Node(node) => matching.nodes.contains(node),
            Place::Slot(graph, slot) => matching.fresh[graph.min(1)].contains(slot),
        }
    }

    fn tells(&self, query: usize, id: u64) -> bool {
        self.queries[query].answers.binary_search(&id).is_ok()
    }
}

/// Measures the recall of some queries. Leaves out queries that cannot be searched any more, and
/// queries without a true nearest vector.
///
/// # Errors
/// A read fails, `progress` interrupts, or ids are replaced too often ([`Error::Restless`]).
pub(super) fn measure(
    standing: &Standing<'_>,
    sample: &[Served],
    progress: &dyn Progress,
) -> Result<Vec<Answered>, Error> {
    let most = match standing.index.memory().budget {
        None => MATCHES,
        Some(_) => SMALL_PIECE,
    };
    let _stage = Stage::begin(progress, "measuring recall", standing.live);
    let (mut answered, mut round) = (Vec::new(), Round::default());
    for served in sample {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        match round.ask(standing, served, progress) {
            Ok(()) => {}
            // The index has changed since the query was served, or the query was offered to the
            // sample before its options were checked.
            Err(error) if matches!(error.kind(), ErrorKind::Call | ErrorKind::Data) => continue,
            Err(error) => return Err(error),
        }
        if round.bytes >= most {
            answered.extend(std::mem::take(&mut round).compare(standing, progress)?);
        }
    }
    answered.extend(round.compare(standing, progress)?);
    Ok(answered)
}

impl<'a> Round<'a> {
    /// Searches a query again.
    fn ask(
        &mut self,
        standing: &Standing<'_>,
        served: &'a Served,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let index = standing.index;
        let (seen, progress) = (Some(standing.seen), &WithinStage(progress));
        let query = MatrixRef::new(&served.query, 1, index.dim(), index.element())?;
        let matches = match served.filter.as_deref() {
            None => None,
            Some(filter) => Some(self.matches(standing, filter)?),
        };
        let found = match matches {
            None => index.search_with(&query, &served.options, progress, None, seen)?,
            Some(at) => {
                let matching = self.filters[at].1.as_ref();
                index.search_matching(&query, &served.options, progress, seen, matching)?
            }
        };
        let mut answers = found.ids;
        answers.retain(|&id| id != u64::MAX);
        answers.sort_unstable();
        answers.dedup();
        self.queries.push(Again {
            served,
            answers,
            matches,
        });
        Ok(())
    }

    /// Returns the position of a filter's matches. The matches are found once for all queries with
    /// this filter, so the repeated search and the scan of all vectors use the same set.
    fn matches(&mut self, standing: &Standing<'_>, filter: &'a Filter) -> Result<usize, Error> {
        let mut known = self.filters.iter();
        if let Some(at) = known.position(|(known, _)| *known == filter) {
            return Ok(at);
        }
        let matches = Matches::find(standing.index, Some(standing.seen), filter)?;
        self.bytes += matches.memory_bytes();
        self.filters.push((filter, matches));
        Ok(self.filters.len() - 1)
    }

    /// Scans all vectors, and computes the recall of each query.
    fn compare(
        self,
        standing: &Standing<'_>,
        progress: &dyn Progress,
    ) -> Result<Vec<Answered>, Error> {
        if self.queries.is_empty() {
            return Ok(Vec::new());
        }
        let queries = self.queries.iter().flat_map(|one| &one.served.query[..]);
        let queries: Vec<u8> = queries.copied().collect();
        let ks: Vec<usize> = self
            .queries
            .iter()
            .map(|one| one.served.options.k)
            .collect();
        let answers = self.queries.iter().flat_map(|one| &one.answers);
        let mut look = Look {
            round: &self,
            nearest: Nearest::new(standing.index, &queries, &ks, 1),
            answers: answers.map(|&id| (id, false)).collect(),
            fresh: HashMap::new(),
            met: 0,
        };
        look.at_all(standing, progress)?;
        let Look {
            nearest,
            answers,
            mut fresh,
            ..
        } = look;
        // After this loop, `fresh` has only the ids whose vectors were replaced, or moved out of
        // memory, during the pass.
        for (at, (graph, _)) in standing.fresh().enumerate() {
            graph.each_slot_at(graph.now(), |slot, id, _| {
                if fresh.get(&id) == Some(&(at, slot)) {
                    fresh.remove(&id);
                }
            });
        }
        let dead = standing.seen.dead();
        let is_known = |id: u64| answers.get(&id) != Some(&false);
        let changed = |id: u64| {
            let has_changed = || !is_known(id) || dead.went_since(id) || fresh.contains_key(&id);
            standing.changes && has_changed()
        };
        let found = self.queries.iter().zip(nearest.found());
        Ok(found
            .filter_map(|(one, truth)| one.compared(&truth, changed))
            .collect())
    }
}

impl Again<'_> {
    /// Returns the recall of the query, without ids that changed during the pass. Returns `None` if
    /// no true nearest vector is left.
    fn compared(&self, truth: &OfQuery, changed: impl Fn(u64) -> bool) -> Option<Answered> {
        let k = self.served.options.k;
        let others = self.answers.iter().filter(|&&id| changed(id)).count();
        let nearest = truth.nearest.iter().filter(|&&(_, id)| !changed(id));
        let nearest: Vec<u32> = nearest.map(|&(distance, _)| distance).collect();
        let wanted = k.saturating_sub(others).min(nearest.len());
        let farthest = nearest.get(wanted.checked_sub(1)?)?;
        let found = truth.told.iter();
        let found = found
            .filter(|&(distance, id)| distance <= farthest && !changed(*id))
            .count();
        Some(Answered {
            k,
            asked: self.served.options.recall,
            found: found.min(wanted) as f64 / wanted as f64,
        })
    }
}

struct Look<'a, 'q> {
    round: &'a Round<'a>,
    nearest: Nearest<'q>,
    /// The ids of results, and whether the scan has read their vectors.
    answers: HashMap<u64, bool>,
    /// For each vector that is only in memory, the fresh graph and the slot.
    fresh: HashMap<u64, (usize, u32)>,
    /// The number of vectors that the scan has read.
    met: u64,
}

impl Look<'_, '_> {
    fn meet(&mut self, place: Place, id: u64, vector: &[u8]) {
        if let Some(met) = self.answers.get_mut(&id) {
            *met = true;
        }
        self.met += 1;
        self.nearest.meet(place, id, vector);
    }

    fn at_all(&mut self, standing: &Standing<'_>, progress: &dyn Progress) -> Result<(), Error> {
        let index = standing.index;
        self.at_fresh(standing);
        if index.stands_in_all_clusters() {
            let mut met = Bits::new(standing.nodes.into());
            standing.each_node(0, standing.nodes, progress, &mut |node, id, vector| {
                if self.counts(standing, node, id) && met.add(node.into()) {
                    self.meet(Place::Node(node), id, vector);
                    if self.nearest.waiting() >= TILE {
                        self.nearest.compare(self.round);
                    }
                }
            })?;
            self.nearest.compare(self.round);
        } else {
            let piece = match index.memory().budget {
                None => PIECE,
                Some(_) => SMALL_PIECE,
            };
            let row_bytes = index.dim() * index.element().size();
            let step = (piece / row_bytes.max(1)).clamp(64, MOST_ROWS) as u32;
            let mut first = 0;
            while first < standing.nodes {
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                let end = standing.nodes.min(first.saturating_add(step));
                standing.each_node(first, end, progress, &mut |node, id, vector| {
                    if self.counts(standing, node, id) {
                        self.meet(Place::Node(node), id, vector);
                    }
                })?;
                // This thread computes the distances, because the search threads only read.
                self.nearest.compare(self.round);
                progress.advance((end - first).into());
                first = end;
            }
        }
        if self.met != standing.live {
            return Err(Error::Restless {
                path: index.path().to_owned(),
                what: format!(
                    "the measurement of the recall met only {} of the {} vectors, since ids were replaced again and again",
                    self.met, standing.live
                ),
                remedy: "Measure while fewer vectors are replaced".into(),
            });
        }
        Ok(())
    }

    /// Whether a record has the vector that its id had at the read timestamp, and the scan has not
    /// read this vector yet.
    fn counts(&self, standing: &Standing<'_>, node: u32, id: u64) -> bool {
        standing.counts(node, id) && !self.fresh.contains_key(&id)
    }

    /// Scans the vectors that are only in memory.
    fn at_fresh(&mut self, standing: &Standing<'_>) {
        for (at, (graph, moment)) in standing.fresh().enumerate() {
            graph.each_slot_at(moment, |slot, id, vector| {
                let Entry::Vacant(place) = self.fresh.entry(id) else {
                    return;
                };
                place.insert((at, slot));
                self.meet(Place::Slot(at, slot), id, vector);
                if self.nearest.waiting() >= TILE {
                    self.nearest.compare(self.round);
                }
            });
        }
        self.nearest.compare(self.round);
    }
}

#[cfg(test)]
mod tests {
    use stratann_vector::Element;

    use super::*;
    use crate::data::Matrix;
    use crate::{BuildOptions, Index, OpenOptions, SearchOptions, Silent};

    #[test]
    fn an_answer_that_is_no_vector_is_missed_unless_it_may_have_come_since() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let rows: Vec<u8> = (0..200).flat_map(|row| [row, 0, 0, 0]).collect();
        let base = Matrix::new(rows, 200, 4, Element::U8).unwrap();
        let options = BuildOptions {
            degree: Some(8),
            threads: 1,
            ..BuildOptions::default()
        };
        crate::build(&base, &path, &options, &Silent).unwrap();
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        let served = Served {
            query: Box::new([0; 4]),
            options: SearchOptions {
                k: 5,
                list: 200,
                threads: 1,
                in_flight: Some(1),
                ..SearchOptions::default()
            },
            filter: None,
        };
        let found = |changes: Option<bool>| {
            index.with_standing(|standing| {
                let standing = Standing {
                    changes: changes.unwrap_or(standing.changes),
                    ..standing.clone()
                };
                let mut round = Round::default();
                round.ask(&standing, &served, &Silent).unwrap();
                let answers = &mut round.queries[0].answers;
                assert_eq!(answers[..], [0, 1, 2, 3, 4]);
                // A damaged table of ids could give an id that no vector has.
                answers[4] = 9_999;
                let answered = round.compare(&standing, &Silent).unwrap();
                assert_eq!(answered.len(), 1);
                answered[0].found
            })
        };
        assert_eq!(found(None), 0.8);
        assert_eq!(found(Some(true)), 1.0);
    }
}
