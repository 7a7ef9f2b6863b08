//! One search in several indexes of a catalog. The nearest vectors of all indexes are the results.

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
use crate::{Error, ErrorKind, Index, Parts, SearchOptions, SearchResults, bounds, stored};

/// The maximum number of searches of one index in a call. Each further search needs a change of the
/// index during the one before it.
const MOST_SEARCHES: usize = 20;

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

    fn is_of(&self, other: &Self) -> bool {
        (self.element, self.dim, self.metric) == (other.element, other.dim, other.metric)
    }

    fn describe(&self) -> String {
        format!("{} {} under {}", self.dim, self.element, self.metric)
    }
}

impl Catalog {
    /// Searches several indexes, one after the other. The results are the `k` nearest vectors of
    /// all indexes, ties by lower id. Missing results have the id 2^64-1 at infinite distance.
    /// Counters and latencies are sums over the indexes.
    ///
    /// Ids should be unique over all indexes ([`BuildOptions::ids`](crate::BuildOptions::ids)),
    /// because a result does not name its index. Equal ids at the same distance count as one
    /// result.
    ///
    /// # Errors
    /// - `names` is empty, or the indexes have different dimensions, element types or metrics. The
    ///   call fails before any search.
    /// - `k` is larger than both the number of vectors and [`MOST_PADDED`](bounds::MOST_PADDED).
    /// - The errors of [`index`](Catalog::index) and [`Index::search`].
    pub fn search<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
    ) -> Result<SearchResults, Error> {
        self.search_observed(names, queries, options, &Silent)
    }

    /// Searches as [`search`](Catalog::search) does. `progress` counts queries, and may interrupt.
    ///
    /// # Errors
    /// Fails as [`search`](Catalog::search) does, and with [`Error::Interrupted`].
    pub fn search_observed<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<SearchResults, Error> {
        self.search_each(names, queries, options, None, progress)
    }

    /// Searches as [`search`](Catalog::search) does, among all vectors that match a filter.
    ///
    /// The filter refers to the columns of all indexes together. Vectors of an index without a
    /// column have no value in this column. Each index chooses its own strategy
    /// ([`Explained`](crate::Explained)).
    ///
    /// # Errors
    /// Fails as [`search`](Catalog::search) does, and with [`Error::Filter`] if the filter does not
    /// fit the columns.
    pub fn search_filtered<N: AsRef<str>>(
        &self,
        names: &[N],
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: &Filter,
    ) -> Result<SearchResults, Error> {
        self.search_filtered_observed(names, queries, options, filter, &Silent)
    }

    /// Searches as [`search_filtered`](Catalog::search_filtered) does. `progress` counts queries,
    /// and may interrupt.
    ///
    /// # Errors
    /// Fails as `search_filtered` does, and with [`Error::Interrupted`].
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
        // Distances by leading parts alone would have different errors in each index.
        let exact = options.exact || each.len() > 1;
        let mut columns = None;
        for &name in &each {
            let mut searches = 1;
            let found = loop {
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
                    break None;
                }
                let options = SearchOptions {
                    k,
                    exact,
                    ..*options
                };
                let longest = index.longest_list(&options);
                let longest = longest.map_err(|error| of_index(error, name))?;
                if let Some(warning) = index.beyond_measured(&options, longest) {
                    progress.warn(&format!("{name}: {warning}"));
                }
                let found = match &filter {
                    None => index.search_observed(queries, &options, progress),
                    Some(filter) => index.search_checked(queries, &options, filter, progress),
                };
                match found {
                    // The catalog opens the index again, since the index has changed.
                    Err(error)
                        if error.kind() == ErrorKind::Outdated && searches < MOST_SEARCHES =>
                    {
                        searches += 1;
                    }
                    found => break Some(found.map_err(|error| of_index(error, name))?),
                }
            };
            if let Some(found) = found {
                all.exact &= found.exact;
                add(&mut all, &found, &mut merged);
            }
        }
        all.seconds = start.elapsed().as_secs_f64();
        Ok(all)
    }

    /// `columns` caches the columns of all `names`.
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
        // The memory may suffice for only one open index, so this index is dropped first.
        drop(index);
        let all = match columns {
            Some(all) => all,
            None => columns.insert(self.columns(names, progress)?),
        };
        if names.len() > 1 {
            // The filter must fit the columns of all indexes together.
            filter.check(all)?;
        }
        let index = self.index_observed(name, progress)?;
        let mut own = index.schema();
        own.join(all);
        let checked = filter.check(&own);
        Ok((index, checked.map_err(|error| of_index(error, name))?))
    }

    /// The columns of all indexes. If indexes have different types for a column, the first index
    /// decides.
    fn columns(&self, names: &[&str], progress: &dyn Progress) -> Result<Schema, Error> {
        let mut all = Schema::default();
        for name in names {
            all.join(&self.index_observed(name, progress)?.schema());
        }
        Ok(all)
    }

    /// The number of vectors in all indexes. Fails if the indexes differ in dimension, element type
    /// or metric.
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

    /// The result is cached until the manifest of the index changes.
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
    // `tried` has the numbers of the last index.
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

/// Merges two lists, each in order of distance, into one list as long as the first.
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

/// The nearer result comes first, and at equal distance the smaller id.
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
        let b = [(1.0, 3), (2.0, 9), (2.5, 2)];
        assert_eq!(merged(&a, &b), [(1.0, 3), (1.0, 4), (2.0, 9)]);
        assert_eq!(merged(&b, &a), [(1.0, 3), (1.0, 4), (2.0, 9)]);
        assert_eq!(
            merged(&[none, none, none], &[(5.0, 7)]),
            [(5.0, 7), none, none]
        );
        assert_eq!(merged(&a, &[(0.0, 0)]), [(0.0, 0), (1.0, 4), (2.0, 9)]);
        assert_eq!(merged(&a, &[]), a);
        assert_eq!(
            merged(&[(4.0, 1), none, none], &[(5.0, 7), none, none]),
            [(4.0, 1), (5.0, 7), none]
        );
        assert_eq!(merged(&[(0.0, 8), none], &[(-0.0, 5), none])[0].1, 5);
    }
}
