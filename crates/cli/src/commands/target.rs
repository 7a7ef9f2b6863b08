//! The indexes of a search: one, or several that are searched as one.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use stratann::{
    Backend, CacheSize, Catalog, CatalogOptions, Error, Filter, Index, IndexFacts, LiveRecall,
    OpenOptions, Outline, Preset, Progress, RecallWatch, Rerank, Row, SearchOptions, SearchResults,
    Silent, VectorSource,
};
use stratann_bench::machine::Machine;
use stratann_terminal::failure::Failure;
use stratann_terminal::progress::Shown;
use stratann_terminal::size::CacheEntries;

use crate::args::SearchArguments;
use crate::names::RerankName;

pub enum Target {
    One(Box<Index>),
    /// Opened as the memory budget allows.
    Several {
        catalog: Box<Catalog>,
        facts: Vec<IndexFacts>,
    },
}

/// Returns `None` if the path is an index, or has no indexes.
pub fn indexes_in(path: &Path) -> Option<(Catalog, Vec<String>)> {
    // If the directory is faulty, opening it as an index reports the error.
    let catalog = Catalog::open(path, &CatalogOptions::default()).ok()?;
    let names = catalog.names().ok()?;
    (!names.is_empty()).then_some((catalog, names))
}

impl Target {
    pub fn paths(arguments: &SearchArguments) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for path in arguments.indexes() {
            match indexes_in(path) {
                Some((_, names)) => {
                    log::warn!(
                        "{} is a directory of indexes; {}",
                        path.display(),
                        match names.len() {
                            1 => "its only index is searched".to_owned(),
                            several => format!("its {several} indexes are searched as one index"),
                        }
                    );
                    paths.extend(names.iter().map(|name| path.join(name)));
                }
                None => paths.push(path.clone()),
            }
        }
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        paths
    }

    /// `beside`: the process's bytes outside the indexes. Without `shown`, no index is unpacked.
    pub fn open(
        paths: Vec<PathBuf>,
        arguments: &SearchArguments,
        beside: u64,
        shown: Option<&Shown>,
    ) -> Result<Self, Failure> {
        let mut open = OpenOptions {
            io: arguments.io.into(),
            cache: cache(&paths, arguments)?,
            navigation: arguments
                .navigation()
                .or(arguments.preset.map(|preset| preset.navigation)),
            beside,
            places: arguments.places.all()?,
            unpack: shown.is_some(),
            ..OpenOptions::default()
        };
        if let [path] = &paths[..] {
            open.memory = arguments.memory;
            open.watch_recall = arguments.watch_recall.map(RecallWatch::new).transpose()?;
            let opened = match shown {
                Some(shown) => Index::open_observed(path, &open, shown)?,
                None => Index::open(path, &open)?,
            };
            return Ok(Self::One(Box::new(opened)));
        }
        if arguments.watch_recall.is_some() {
            return Err(Failure::Wrong(format!(
                "--watch-recall applies to one index, and {} indexes are given. Give one index",
                paths.len()
            )));
        }
        let options = CatalogOptions {
            memory: arguments.memory,
            open,
            ..CatalogOptions::default()
        };
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let catalog = Catalog::of_paths(paths, &options)?;
        let facts = names.iter().map(|name| catalog.facts(name));
        let facts = facts.collect::<Result<_, Error>>()?;
        let catalog = Box::new(catalog);
        Ok(Self::Several { catalog, facts })
    }

    pub fn indexes(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several { facts, .. } => facts.len(),
        }
    }

    pub fn vectors(&self) -> usize {
        match self {
            Self::One(index) => index.len(),
            Self::Several { facts, .. } => facts.iter().map(|one| one.vectors as usize).sum(),
        }
    }

    pub fn has_navigation(&self) -> bool {
        match self {
            Self::One(index) => index.has_navigation(),
            Self::Several { facts, .. } => facts.iter().all(|one| one.navigation_nodes > 0),
        }
    }

    pub fn has_clusters(&self) -> bool {
        match self {
            Self::One(index) => index.has_clusters(),
            Self::Several { facts, .. } => facts.iter().all(|one| one.clusters > 0),
        }
    }

    pub fn backend(&self) -> Result<Backend, Error> {
        match self {
            Self::One(index) => index.backend(),
            Self::Several { catalog, .. } => catalog.backend(),
        }
    }

    pub fn longest(&self, options: &SearchOptions) -> Result<usize, Error> {
        match self {
            Self::One(index) => index.longest_list(options),
            Self::Several { .. } => Ok(options.list),
        }
    }

    pub fn live_recall(&self) -> Result<Option<LiveRecall>, Error> {
        match self {
            Self::One(index) if index.options().watch_recall.is_some() => {
                index.measure_recall(&Silent).map(Some)
            }
            _ => Ok(None),
        }
    }

    pub fn columns(&self) -> Result<BTreeSet<String>, Error> {
        let names = |index: &Index| {
            let schema = index.schema();
            schema.iter().map(|(name, _)| name.to_owned()).collect()
        };
        let mut all = BTreeSet::new();
        match self {
            Self::One(index) => all = names(index),
            Self::Several { catalog, facts } => {
                for one in facts {
                    all.append(&mut names(&*catalog.index(&one.name)?));
                }
            }
        }
        Ok(all)
    }

    pub fn attributes(&self, ids: &[u64]) -> Result<Vec<Option<Row>>, Error> {
        let (catalog, facts) = match self {
            Self::One(index) => return index.attributes(ids),
            Self::Several { catalog, facts } => (catalog, facts),
        };
        let mut found: Vec<Option<Row>> = vec![None; ids.len()];
        for one in facts {
            let rows = catalog.index(&one.name)?.attributes(ids)?;
            for ((found, row), id) in found.iter_mut().zip(rows).zip(ids) {
                if found.is_some() && row.is_some() {
                    return Err(Error::Argument {
                        what: "--attributes".to_owned(),
                        found: format!(
                            "given for several indexes, and {id} is an id in two of them"
                        ),
                        reason: "a result does not say which index it is from".to_owned(),
                        remedy: "Search one index, or leave out --attributes".to_owned(),
                    });
                }
                *found = found.take().or(row);
            }
        }
        Ok(found)
    }

    /// Checks queries and a filter. The search checks the columns of several indexes.
    pub fn check(
        &self,
        queries: &Outline,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) -> Result<(), Error> {
        match self {
            Self::One(index) => {
                index.check_queries(queries, options)?;
                filter.map_or(Ok(()), |filter| index.check_filter(filter))
            }
            Self::Several { catalog, facts } => match facts.first() {
                Some(first) => catalog.index(&first.name)?.check_queries(queries, options),
                None => Ok(()),
            },
        }
    }

    /// The k nearest vectors of each query, with a filter if one is given. `shown` shows warnings,
    /// but no progress.
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
        shown: &Shown,
    ) -> Result<SearchResults, Error> {
        match self {
            Self::One(index) => {
                let longest = index.longest_list(options)?;
                if let Some(warning) = index.beyond_measured(options, longest) {
                    shown.warn(&warning);
                }
                match filter {
                    Some(filter) => index.search_filtered(queries, options, filter),
                    None => index.search(queries, options),
                }
            }
            Self::Several { catalog, facts } => {
                let names: Vec<&str> = facts.iter().map(|one| &*one.name).collect();
                let warned = Warned(shown);
                match filter {
                    Some(filter) => {
                        catalog.search_filtered_observed(&names, queries, options, filter, &warned)
                    }
                    None => catalog.search_observed(&names, queries, options, &warned),
                }
            }
        }
    }

    pub fn types_rerank(arguments: &SearchArguments) -> bool {
        arguments.rerank_batch.is_some()
            || arguments.benefit.is_some()
            || arguments.rerank.is_some()
            || arguments.rerank_ratio.is_some()
    }

    /// The re-ranking of the preset, changed by the options that the user gave. `None` means that
    /// each index uses its own preset.
    pub fn rerank(&self, arguments: &SearchArguments) -> Option<Rerank> {
        let typed = Self::types_rerank(arguments);
        let own = match self {
            // If the user gave such an option for clusters, the search refuses it.
            _ if self.has_clusters() && !typed => return None,
            Self::One(index) => index.preset(),
            Self::Several { facts, .. } => {
                if !typed && arguments.preset.is_none() {
                    return None;
                }
                let preset = facts.first().map(|one| one.preset.parse::<Preset>());
                // An unknown preset is refused when the index is opened.
                preset.and_then(Result::ok).unwrap_or_default()
            }
        };
        let Rerank {
            batch,
            benefit,
            estimate,
            ratio,
        } = arguments.preset.unwrap_or(own).rerank;
        Some(Rerank {
            // No batch can exceed the vectors.
            batch: arguments
                .rerank_batch
                .unwrap_or(batch)
                .min(self.vectors().max(1)),
            benefit: arguments.benefit.unwrap_or(benefit),
            estimate: arguments
                .rerank
                .map_or(estimate, |name| name == RerankName::Estimate),
            // With `--rerank`, the preset's share does not apply.
            ratio: match (arguments.rerank_ratio, arguments.rerank) {
                (Some(ratio), _) => ratio,
                (None, Some(_)) => 0.0,
                (None, None) => ratio,
            },
        })
    }
}

fn cache(paths: &[PathBuf], arguments: &SearchArguments) -> Result<CacheSize, Failure> {
    if let Some(bytes) = arguments.cache {
        // The engine allocates the whole cache at once.
        return match Machine::look().memory_bytes {
            Some(memory) if bytes > memory => Err(Failure::Wrong(format!(
                "--cache {bytes} is more than the {memory} bytes of RAM of this machine. Give a smaller cache"
            ))),
            _ => Ok(CacheSize::Bytes(bytes)),
        };
    }
    match (arguments.cache_entries, paths) {
        (None, _) => Ok(CacheSize::None),
        (Some(entries), [path]) => {
            let vectors = stratann::vectors_in(path)?;
            Ok(CacheSize::Entries(entries.of(vectors)))
        }
        (Some(CacheEntries::Count(entries)), _) => Ok(CacheSize::Entries(entries)),
        (Some(CacheEntries::Share(_)), paths) => Err(Failure::Wrong(format!(
            "--cache-entries as a percentage applies to one index, and {} indexes are given. Give a number of entries, which applies to \
             each index",
            paths.len()
        ))),
    }
}

/// Shows the warnings of a search, and ignores its other reports.
struct Warned<'a>(&'a Shown);

impl Progress for Warned<'_> {
    fn begin(&self, _stage: &str, _total: u64) {}
    fn advance(&self, _steps: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, message: &str) {
        self.0.warn(message);
    }
}
