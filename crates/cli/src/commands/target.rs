//! What a search is of: an index, or several that are searched as one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use stratann::{
    Backend, CacheSize, Catalog, CatalogOptions, Error, Filter, Index, IndexFacts, OpenOptions,
    Preset, Rerank, SearchOptions, SearchResults, VectorSource,
};
use stratann_bench::machine::Machine;
use stratann_terminal::failure::Failure;
use stratann_terminal::size::CacheEntries;

use crate::args::SearchArguments;
use crate::names::RerankName;

/// See the module.
pub enum Target {
    /// One index.
    One(Box<Index>),
    /// Several, opened as the memory budget allows.
    Several {
        /// Where they are, by their paths.
        catalog: Box<Catalog>,
        /// What each is.
        facts: Vec<IndexFacts>,
    },
}

/// The indexes in a directory that is none itself, by name; none if there are none.
pub fn indexes_in(path: &Path) -> Option<(Catalog, Vec<String>)> {
    // What is wrong with it is said when it is opened as an index.
    let catalog = Catalog::open(path, &CatalogOptions::default()).ok()?;
    let names = catalog.names().ok()?;
    (!names.is_empty()).then_some((catalog, names))
}

impl Target {
    /// The directories of the indexes that are to be searched: those that were given, and those in directories that hold
    /// some.
    pub fn paths(arguments: &SearchArguments) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for path in arguments.indexes() {
            match indexes_in(path) {
                Some((_, names)) => {
                    log::warn!(
                        "{} is no index: the {} indexes in it are searched as one catalog",
                        path.display(),
                        names.len()
                    );
                    paths.extend(names.iter().map(|name| path.join(name)));
                }
                None => paths.push(path.clone()),
            }
        }
        // One that is named twice is one.
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        paths
    }

    /// Opens them.
    ///
    /// The memory budget is that of the process: `beside` bytes of it are taken by what the command holds itself.
    pub fn open(
        paths: Vec<PathBuf>,
        arguments: &SearchArguments,
        beside: u64,
    ) -> Result<Self, Failure> {
        let mut open = OpenOptions {
            io: arguments.io.into(),
            cache: cache(&paths, arguments)?,
            navigation: arguments
                .navigation()
                .or(arguments.preset.map(|preset| preset.navigation)),
            beside,
            places: arguments.places.all()?,
            ..OpenOptions::default()
        };
        if let [path] = &paths[..] {
            open.memory = arguments.memory;
            return Ok(Self::One(Box::new(Index::open(path, &open)?)));
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

    /// How many indexes there are.
    pub fn indexes(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several { facts, .. } => facts.len(),
        }
    }

    /// How many vectors they have together.
    pub fn vectors(&self) -> usize {
        match self {
            Self::One(index) => index.len(),
            Self::Several { facts, .. } => facts.iter().map(|one| one.vectors as usize).sum(),
        }
    }

    /// Whether each can be searched from its navigation graph.
    pub fn has_navigation(&self) -> bool {
        match self {
            Self::One(index) => index.has_navigation(),
            Self::Several { facts, .. } => facts.iter().all(|one| one.navigation_nodes > 0),
        }
    }

    /// Whether all of them are of clusters.
    pub fn has_clusters(&self) -> bool {
        match self {
            Self::One(index) => index.has_clusters(),
            Self::Several { facts, .. } => facts.iter().all(|one| one.clusters > 0),
        }
    }

    /// How pages are read.
    pub fn backend(&self) -> Result<Backend, Error> {
        match self {
            Self::One(index) => index.backend(),
            Self::Several { catalog, .. } => catalog.backend(),
        }
    }

    /// The longest list that a query may take.
    pub fn longest(&self, options: &SearchOptions) -> Result<usize, Error> {
        match self {
            Self::One(index) => index.longest_list(options),
            // Each index has its own.
            Self::Several { .. } => Ok(options.list),
        }
    }

    /// The k nearest of each query, perhaps of those that match a filter.
    pub fn search(
        &self,
        queries: &dyn VectorSource,
        options: &SearchOptions,
        filter: Option<&Filter>,
    ) -> Result<SearchResults, Error> {
        match self {
            Self::One(index) => match filter {
                Some(filter) => index.search_filtered(queries, options, filter),
                None => index.search(queries, options),
            },
            Self::Several { catalog, facts } => {
                let names: Vec<&str> = facts.iter().map(|one| &*one.name).collect();
                match filter {
                    Some(filter) => catalog.search_filtered(&names, queries, options, filter),
                    None => catalog.search(&names, queries, options),
                }
            }
        }
    }

    /// Whether anything of re-ranking was typed.
    pub fn types_rerank(arguments: &SearchArguments) -> bool {
        arguments.rerank_batch.is_some()
            || arguments.benefit.is_some()
            || arguments.rerank.is_some()
            || arguments.rerank_ratio.is_some()
    }

    /// The preset's re-ranking, with what was typed in its place. `None` is each index's own; where something was typed, the
    /// rest of several indexes is that of the first one's preset.
    pub fn rerank(&self, arguments: &SearchArguments) -> Option<Rerank> {
        let typed = Self::types_rerank(arguments);
        let own = match self {
            // What is typed of clusters nevertheless is refused when they are searched.
            _ if self.has_clusters() && !typed => return None,
            Self::One(index) => index.preset(),
            Self::Several { facts, .. } => {
                if !typed && arguments.preset.is_none() {
                    return None;
                }
                let preset = facts.first().map(|one| one.preset.parse::<Preset>());
                // One that this version does not know is refused when it is opened.
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
            // A batch of all there is cannot be exceeded.
            batch: arguments
                .rerank_batch
                .unwrap_or(batch)
                .min(self.vectors().max(1)),
            benefit: arguments.benefit.unwrap_or(benefit),
            estimate: arguments
                .rerank
                .map_or(estimate, |name| name == RerankName::Estimate),
            // Who says what ends it does not mean the preset's share.
            ratio: match (arguments.rerank_ratio, arguments.rerank) {
                (Some(ratio), _) => ratio,
                (None, Some(_)) => 0.0,
                (None, None) => ratio,
            },
        })
    }
}

/// The cache that was asked for.
fn cache(paths: &[PathBuf], arguments: &SearchArguments) -> Result<CacheSize, Failure> {
    if let Some(bytes) = arguments.cache {
        // The engine asks the operating system for all of it at once.
        return match Machine::look().memory_bytes {
            Some(memory) if bytes > memory => Err(Failure::Wrong(format!(
                "--cache {bytes} is more than the {memory} bytes of RAM that this machine has: give less"
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
            "--cache-entries as a percentage is of the vectors of one index, and these are {}: give a number, which is that of \
             each index",
            paths.len()
        ))),
    }
}
