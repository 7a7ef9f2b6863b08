//! One search in several indexes of a catalog. Each index returns its nearest vectors. The nearest
//! of all these vectors are the results.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use stratann_vector::{Element, Metric};

use super::Catalog;
use crate::data::VectorSource;
use crate::filter::{Checked, Filter, Schema};
use crate::progress::{Progress, Silent};
use crate::search::Counters;
use crate::{Error, Index, Parts, SearchOptions, SearchResults, bounds, stored};

/// The kind of an index's vectors, and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    element: Element,
    dim: usize,
    metric: Metric,
    vectors: usize,
}

impl Space {
    pub(super) fn of(index: &Index) -> Self {
        Self {
            element: index.element(),
            dim: index.dim(),
            metric: index.metric(),
            vectors: index.len(),
        }
    }

    /// Whether distances in both indexes can be compared.
    fn is_of(&self, other: &Self) -> bool {
        (self.element, self.dim, self.metric) == (other.element, other.dim, other.metric)
    }

    fn describe(&self) -> String {
        format!("{} {} under {}", self.dim, self.element, self.metric)
    }
}

impl Catalog {
    /// Searches several indexes. The results of a query are the `k` nearest vectors of all indexes.
    /// If distances are equal, the smaller id comes first.
    ///
    /// External ids should be unique over all indexes
    /// ([`BuildOptions::ids`](crate::BuildOptions::ids)), because a result does not name its index.
    /// If two indexes return the same id with the same distance, they count as one result.
    ///
    /// Indexes are searched one after the other, and only one of them must be in memory at a time.
    /// Each index returns up to `k` results from a candidate list of the size in `options`. If all
    /// indexes together have fewer results, the remaining places have the id 2^64-1 and an infinite
    /// distance. If an option is not set, each index uses the default of its own preset. The
    /// counters and the latency of a query are sums over the indexes. The seconds cover the whole
    /// call, including the opening of indexes.
    ///
    /// # Errors
    /// - `names` is empty.
    /// - The indexes have different dimensions, element types or metrics. The call fails before any
    ///   search, and the error names two of the indexes.
    /// - `k` is larger than the number of vectors of all indexes, and larger than
    ///   [`MOST_PADDED`](bounds::MOST_PADDED).
    /// - The errors of [`index`](Catalog::index) and [`Index::search`].
    pub fn search<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(names, queries, options, &Silent)
    }

    /// Does the same as [`search`](Catalog::search). `progress` counts each query in each index,
    /// and may interrupt the search.
    ///
    /// # Errors
    /// The call fails for the reasons of [`search`](Catalog::search), and with
    /// [`Error::Interrupted`].
    pub fn search_observed<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        self.search_each(names, queries, options, None, progress)
    }

    /// Does the same as [`search`](Catalog::search), among the vectors that match a filter. The
    /// results are the k nearest of all matching vectors. There are k results if k vectors match.
    ///
    /// The filter refers to the columns of all indexes, as if they were one index. If an index
    /// lacks a column that others have, all vectors of this index count as vectors without a value
    /// in the column ([`Filter`] defines how such vectors match). A column that no index has is an
    /// error. If the first index lacks this column, the call fails before any search. Each index
    /// chooses its own strategy for the filter ([`Explained`](crate::Explained)).
    ///
    /// # Errors
    /// The call fails for the reasons of [`search`](Catalog::search), and with [`Error::Filter`] if
    /// the filter does not fit the columns. If only one index is the reason, the error names this
    /// index.
    pub fn search_filtered<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
    ) -> Result<SearchResults, Error> {
        self.search_filtered_observed(names, queries, options, filter, &Silent)
    }

    /// Does the same as [`search_filtered`](Catalog::search_filtered). `progress` counts each query
    /// in each index, and may interrupt the search.
    ///
    /// # Errors
    /// The call fails for the reasons of `search_filtered`, and with [`Error::Interrupted`].
    pub fn search_filtered_observed<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        self.search_each(names, queries, options, Some(filter), progress)
    }

    fn search_each<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        let mut seen = HashSet::new();
        let each: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let each: Vec<&str> = each.into_iter().filter(|name| seen.insert(*name)).collect();
        let vectors = self.check(&each)?;
        let (most, what) = bounds::most_answers(vectors, "the number of vectors in all indexes");
        bounds::search(options, most, what)?;
        let (k, start, rows) = (options.k, Instant::now(), queries.rows());
        let answers = bounds::answers(k, rows)?;
        let mut all = SearchResults {
            k,
            ids: bounds::room(answers, u64::MAX)?,
            distances: bounds::room(answers, f32::INFINITY)?,
            exact: true,
            distance_error: 0.0,
            seconds: 0.0,
            cpu_seconds: 0.0,
            process_cpu_seconds: 0.0,
            in_flight: 0,
            tried: Vec::new(),
            latencies_us: vec![0.0; rows],
            counters: Counters::default(),
            explained: None,
            parts: options.parts.then(Parts::default),
        };
        let mut merged = Vec::with_capacity(k);
        // Results of several indexes are compared. Distances by leading parts alone would have
        // different errors in each index.
        let exact = options.exact || each.len() > 1;
        let mut columns = None;
        for &name in &each {
            let (index, filter) = match filter {
                None => (self.index_observed(name, progress)?, None),
                Some(filter) => {
                    let asked = (filter, &*each);
                    let (index, filter) = self.asked(name, asked, &mut columns, progress)?;
                    (index, Some(filter))
                }
            };
            // Deleted vectors are no results. So an index without live vectors is not searched.
            let k = k.min(index.live());
            if k == 0 {
                continue;
            }
            let options = SearchOptions {
                k,
                exact,
                ..*options
            };
            let beyond = index.beyond_measured(&options);
            if let Some(warning) = beyond.map_err(|error| of_index(error, name))? {
                progress.warn(&format!("{name}: {warning}"));
            }
            let found = match &filter {
                None => index.search_observed(queries, &options, progress),
                Some(filter) => index.search_checked(queries, &options, filter, progress),
            };
            let found = found.map_err(|error| of_index(error, name))?;
            drop(index);
            all.exact &= found.exact;
            add(&mut all, &found, &mut merged);
        }
        all.seconds = start.elapsed().as_secs_f64();
        Ok(all)
    }

    /// Opens an index, and resolves a filter for it. `columns` has the columns of all `names`. They
    /// are collected at the first call that needs them.
    ///
    /// # Errors
    /// The call fails if the filter does not fit the columns, or if indexes cannot be opened.
    fn asked(
        &self,
        name: &str,
        (filter, names): (&Filter, &[&str]),
        columns: &mut Option<Schema>,
        progress: &dyn Progress,
    ) -> Result<(Arc<Index>, Checked), Error> {
        let index = self.index_observed(name, progress)?;
        if let Ok(checked) = filter.check(&index.schema()) {
            return Ok((index, checked));
        }
        // The memory may suffice for only one open index.
        drop(index);
        let all = match columns {
            Some(all) => all,
            None => columns.insert(self.columns(names, progress)?),
        };
        if names.len() > 1 {
            // If the filter fits no index, the filter itself is wrong.
            filter.check(all)?;
        }
        let index = self.index_observed(name, progress)?;
        let mut own = index.schema();
        own.join(all);
        let checked = filter.check(&own);
        Ok((index, checked.map_err(|error| of_index(error, name))?))
    }

    /// The columns of several indexes together. If a column has different types, its type in the
    /// first index counts.
    fn columns(&self, names: &[&str], progress: &dyn Progress) -> Result<Schema, Error> {
        let mut all = Schema::default();
        for name in names {
            all.join(&self.index_observed(name, progress)?.schema());
        }
        Ok(all)
    }

    /// The number of vectors in all indexes. The call fails unless all indexes have the same
    /// dimension, element type and metric.
    fn check(&self, names: &[&str]) -> Result<usize, Error> {
        let mut vectors = 0_usize;
        let mut first: Option<(&str, Space)> = None;
        for &name in names {
            let space = self.space(name)?;
            let (other, expected) = *first.get_or_insert((name, space));
            if !space.is_of(&expected) {
                return Err(Error::call(
                    format!("the index {name:?}"),
                    space.describe(),
                    format!(
                        "{other:?} is {}, and both are searched together",
                        expected.describe()
                    ),
                    "Search indexes of one kind together",
                ));
            }
            vectors = vectors.saturating_add(space.vectors);
        }
        match first {
            None => Err(Error::call(
                "the list of indexes to search",
                "empty",
                "a search needs at least one index",
                "Name one or more",
            )),
            Some(_) => Ok(vectors),
        }
    }

    /// The kind and the number of an index's vectors. They are cached until the manifest of the
    /// index changes.
    fn space(&self, name: &str) -> Result<Space, Error> {
        let path = self.place.path(name)?;
        let stamp = self.stamp(name, &path)?;
        if let Some((known, space)) = self.spaces.lock().get(name)
            && *known == stamp
        {
            return Ok(*space);
        }
        let manifest = stored::manifest(&stored::existing(&path)?)?;
        let space = Space {
            element: manifest.element,
            dim: manifest.dimension as usize,
            metric: manifest.metric,
            vectors: manifest.built_vectors() as usize,
        };
        self.spaces.lock().insert(name.to_owned(), (stamp, space));
        Ok(space)
    }
}

/// Adds the name of the index to the error of a wrong argument.
fn of_index(error: Error, name: &str) -> Error {
    match error {
        Error::Filter { position, reason } => Error::Filter {
            position,
            reason: format!("{reason} (index {name:?})"),
        },
        Error::Argument {
            what,
            found,
            reason,
            remedy,
        } => Error::Argument {
            what: format!("{what} (index {name:?})"),
            found,
            reason,
            remedy,
        },
        error => error,
    }
}

/// Merges the results of one index into the results of all indexes.
fn add(all: &mut SearchResults, found: &SearchResults, merged: &mut Vec<(f32, u64)>) {
    let k = all.k;
    let ids = all.ids.chunks_exact_mut(k);
    let rows = ids.zip(all.distances.chunks_exact_mut(k));
    let ids = found.ids.chunks_exact(found.k);
    let new = ids.zip(found.distances.chunks_exact(found.k));
    for ((ids, distances), new) in rows.zip(new) {
        merge((distances, ids), (new.1, new.0), merged);
        for (at, &(distance, id)) in merged.iter().enumerate() {
            (distances[at], ids[at]) = (distance, id);
        }
    }
    for (sum, latency) in all.latencies_us.iter_mut().zip(&found.latencies_us) {
        *sum += latency;
    }
    all.distance_error = all.distance_error.max(found.distance_error);
    all.cpu_seconds += found.cpu_seconds;
    all.process_cpu_seconds += found.process_cpu_seconds;
    // Each index has its own number of queries in flight. The tried numbers are those of the last
    // index.
    all.in_flight = all.in_flight.max(found.in_flight);
    all.tried.clone_from(&found.tried);
    all.counters += found.counters;
    match (&mut all.explained, found.explained) {
        (Some(all), Some(found)) => *all += found,
        (all, found) => *all = all.or(found),
    }
    if let (Some(all), Some(found)) = (&mut all.parts, found.parts) {
        *all += found;
    }
}

/// Merges two lists of distances and ids, which are both in order of distance. The result is as
/// long as the first list.
fn merge(a: (&[f32], &[u64]), b: (&[f32], &[u64]), out: &mut Vec<(f32, u64)>) {
    out.clear();
    let entry = |list: (&[f32], &[u64]), at: usize| Some((*list.0.get(at)?, *list.1.get(at)?));
    let (mut i, mut j) = (0, 0);
    while out.len() < a.0.len() {
        let (x, y) = (entry(a, i), entry(b, j));
        let order = match (x, y) {
            (Some(x), Some(y)) => before(x, y),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        i += usize::from(order.is_le());
        j += usize::from(order.is_ge());
        out.extend(if order.is_le() { x } else { y });
    }
}

/// Whether `x` comes before `y`. The nearer result comes first, and at equal distance the smaller
/// id.
fn before(x: (f32, u64), y: (f32, u64)) -> Ordering {
    let distance = x.0.partial_cmp(&y.0);
    distance
        .unwrap_or_else(|| x.0.total_cmp(&y.0))
        .then(x.1.cmp(&y.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_two_lists() {
        let none = (f32::INFINITY, u64::MAX);
        let merged = |a: &[(f32, u64)], b: &[(f32, u64)]| {
            let split =
                |list: &[(f32, u64)]| -> (Vec<f32>, Vec<u64>) { list.iter().copied().unzip() };
            let ((ad, ai), (bd, bi)) = (split(a), split(b));
            let mut out = Vec::new();
            merge((&ad, &ai), (&bd, &bi), &mut out);
            out
        };
        let a = [(1.0, 4), (2.0, 9), (3.0, 1)];
        // At equal distance, the smaller id comes first. If both lists have the same result, it
        // counts once.
        let b = [(1.0, 3), (2.0, 9), (2.5, 2)];
        assert_eq!(merged(&a, &b), [(1.0, 3), (1.0, 4), (2.0, 9)]);
        assert_eq!(merged(&b, &a), [(1.0, 3), (1.0, 4), (2.0, 9)]);
        // One list has fewer results, and the other list has none yet.
        assert_eq!(
            merged(&[none, none, none], &[(5.0, 7)]),
            [(5.0, 7), none, none]
        );
        assert_eq!(merged(&a, &[(0.0, 0)]), [(0.0, 0), (1.0, 4), (2.0, 9)]);
        assert_eq!(merged(&a, &[]), a);
        // Both lists have fewer results than the caller requested.
        assert_eq!(
            merged(&[(4.0, 1), none, none], &[(5.0, 7), none, none]),
            [(4.0, 1), (5.0, 7), none]
        );
        // Zero and negative zero are equal.
        assert_eq!(merged(&[(0.0, 8), none], &[(-0.0, 5), none])[0].1, 5);
    }
}
