//! Presets. A preset describes a system as one choice for each of the engine's options.
//!
//! A build writes the preset into the manifest, and a search uses its choices as defaults. No other
//! part of the engine knows the name of a system. A caller can replace each choice alone, to
//! measure its effect.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use stratann_vector::LowCodes;

use super::{Layout, Strategy};
use crate::Error;

/// Declares an enum of named choices, with conversions between names and variants.
macro_rules! named {
    (
        $(#[$doc:meta])*
        pub enum $type:ident, $what:literal {
            $($(#[$about:meta])* $variant:ident = $name:literal, $line:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$about])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// The list of all variants.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// The name of the choice in options and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }

            /// One line about the choice, for help texts.
            pub const fn about(self) -> &'static str {
                match self {
                    $($type::$variant => $line,)+
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(name: &str) -> Result<Self, $crate::Error> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::Error::call(
                        $what,
                        name,
                        "there is no such choice",
                        concat!("Use one of:" $(, " ", $name)+),
                    )),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use named;

named! {
    /// The assignment of node numbers to rows. The order of nodes determines their pages.
    pub enum Order, "order" {
        /// Nodes have the order of the rows in the input file, as in DiskANN.
        Input = "input", "Vectors have the order of the input file",
        /// Rows that are near in space are near on disk, by recursive balanced bisection.
        Locality = "locality", "Near vectors are stored near each other",
    }
}

named! {
    /// The lossless compression of lists and vectors. The coupled, inline and csr layouts support
    /// only [`Raw`](Compression::Raw).
    pub enum Compression, "compression" {
        /// Vectors are uncompressed. Lists are uncompressed too in the coupled and inline layouts.
        /// In csr, a link has as many bits as the largest node number. In other layouts, lists are
        /// Elias–Fano codes.
        Raw = "raw", "Vectors uncompressed; lists uncompressed in the layouts coupled and inline, with links of a few bits in csr, else Elias-Fano codes",
        /// The compression of DecoupleVS §3.2. Lists are Elias–Fano codes. Vectors are
        /// Huffman-coded with a table for each segment, after an XOR with the base vector of their
        /// chunk if this helps.
        Paper = "paper", "Lists as Elias-Fano codes; vectors Huffman-coded, after XOR with a base vector where that helps (DecoupleVS)",
        /// Each list has the codec that makes it shortest. Each segment of vectors has the codec
        /// that is shortest on a sample.
        Best = "best", "For each list and each segment of vectors, the codec that makes it shortest",
    }
}

named! {
    /// The way in which a new vector is written to the index on storage.
    pub enum Update, "way to update" {
        /// The vector waits in a graph in memory until a caller merges this graph into the index
        /// (FreshDiskANN; DecoupleVS §3.5).
        Merge = "merge", "New vectors wait in memory until a merge (FreshDiskANN)",
        /// The vector is written at once, in place, and so are the lists that get a link to it (the
        /// baseline of OdinANN's Figure 9). If codes are in the pages, this is the only direct
        /// insert. This insert needs neither codes nor a placement table in memory.
        InPlace = "in-place", "New vectors are written at once, and each changed page is rewritten in place",
        /// The vector is written at once. The insert writes all changed records together, to pages
        /// with free slots (OdinANN §3.2).
        Relocate = "relocate", "New vectors are written at once, and changed records are written together to free slots (OdinANN)",
        /// The vector is written at once. Changes of lists wait in memory, and are later written
        /// together to the pages of these lists.
        Accumulate = "accumulate", "New vectors are written at once, and changes of pages are collected in memory and written together",
        /// The vector waits in memory, and later joins clusters on storage with other new vectors.
        /// Changed clusters are split, merged and rewritten (SPFresh).
        Rebalance = "rebalance", "New vectors wait in memory, and batches of them are added to clusters; changed clusters are split and merged (SPFresh)",
    }
}

/// The rule that ends re-ranking by exact distance, if vectors are stored apart from lists
/// (DecoupleVS §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rerank {
    /// The number of candidates in a batch (B).
    pub batch: usize,
    /// The least share of a batch that must enter the results. If the share is smaller, re-ranking
    /// ends. With 0, it never ends early.
    pub benefit: f64,
    /// Whether the errors of codes end re-ranking, in place of `benefit`. After the first K + B
    /// candidates, the search reads all candidates that may still be results.
    pub estimate: bool,
    /// If not 0, this share of the candidate list is ranked by exact vectors after the traversal,
    /// all at once. At least k candidates are ranked (DistVS §3.1).
    pub ratio: f64,
}

/// A system, described by a name and one choice for each option.
///
/// ```
/// use stratann::{Order, Preset, Strategy};
/// let preset: Preset = "pipeann".parse().unwrap();
/// assert_eq!(preset.strategy, Strategy::Pipelined);
/// let relaid = Preset { order: Order::Locality, ..preset };
/// assert_eq!(relaid.name, "pipeann");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Preset {
    /// The name of the preset in options and on the command line.
    pub name: &'static str,
    /// One line about the preset.
    pub about: &'static str,
    /// The assignment of node numbers at a build.
    pub order: Order,
    /// The layout of lists and vectors as bytes. With `None`, a build chooses by the size of a
    /// vector, a sample of the rows, and the memory that searches will have.
    pub layout: Option<Layout>,
    /// The compression of lists and vectors.
    pub compression: Compression,
    /// The search strategy.
    pub strategy: Strategy,
    /// The beam width W of best-first search, or the greatest width of the pipeline.
    pub beam: usize,
    /// Whether a search starts from the navigation graph, if there is one, and not from the medoid.
    pub navigation: bool,
    /// The number of entry points whose codes stay in memory, if all other codes are in the nodes
    /// (n_ep, AiSAQ §3.1).
    pub entry_points: usize,
    /// Whether a search also uses the other candidates on a page that it has read.
    pub whole_page: bool,
    /// The rule that ends re-ranking, if vectors are stored apart from lists.
    pub rerank: Rerank,
    /// The way to insert vectors. If layout or metric do not allow direct inserts, vectors wait for
    /// a merge.
    pub update: Update,
    /// The kind of low codes. `None` if vectors have codes of one precision. With low codes, new
    /// vectors wait for a merge.
    #[serde(serialize_with = "named_or_none")]
    pub low_codes: Option<LowCodes>,
}

fn named_or_none<S: Serializer>(
    low_codes: &Option<LowCodes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    low_codes.map(LowCodes::name).serialize(serializer)
}

/// The width of a search by [PRESS](Strategy::Press) (DistVS §3.1). The length of the high list is
/// [`SearchOptions::list`](crate::SearchOptions::list).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Press {
    /// The greatest length of the low list (D_low), as a multiple of the high list (D_high).
    pub low: f64,
    /// The refinement ratio. In each round, high codes score this share of the low list: the
    /// nearest candidates that they have not scored yet.
    pub ratio: f64,
    /// The number of nodes, spread over the collection, that low codes score first. Without a
    /// navigation graph, a search begins near the nearest of these nodes. With 0 seeds, it begins
    /// at the entry node.
    pub seeds: usize,
}

impl Press {
    /// The parameters of DistVS §3.1: D_low is twice D_high, the refinement ratio is 0.3, and
    /// searches begin at the graph's entry node.
    pub const PAPER: Press = Press {
        low: 2.0,
        ratio: 0.3,
        seeds: 0,
    };
    /// The parameters with the least work of all that were tried on photo-sift and package-text,
    /// with a beam width of 8 (`docs/results/search.md`).
    pub const TUNED: Press = Press {
        low: 3.0,
        ratio: 0.2,
        seeds: 64,
    };
}

impl Default for Press {
    fn default() -> Self {
        Self::TUNED
    }
}

impl Preset {
    /// DiskANN (Subramanya et al., NeurIPS 2019), the first baseline.
    pub const DISKANN: Preset = Preset {
        name: "diskann",
        about: "DiskANN: input order; best-first search, which waits for the whole beam",
        order: Order::Input,
        layout: Some(Layout::Coupled),
        compression: Compression::Raw,
        strategy: Strategy::BestFirst,
        beam: 4,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::PAPER,
        update: Update::Merge,
        low_codes: None,
    };
    /// PipeANN (Guo and Lu, OSDI 2025), the second baseline.
    pub const PIPEANN: Preset = Preset {
        name: "pipeann",
        about: "PipeANN: input order, pipelined search of dynamic width",
        order: Order::Input,
        layout: Some(Layout::Coupled),
        compression: Compression::Raw,
        strategy: Strategy::Pipelined,
        beam: 32,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::PAPER,
        update: Update::Merge,
        low_codes: None,
    };
    /// AiSAQ: DiskANN's graph and search, with the codes in the nodes (AiSAQ §3.1), and a beam
    /// width of 4 (§4.1).
    pub const AISAQ: Preset = Preset {
        name: "aisaq",
        about: "AiSAQ: the graph and search of diskann, with the codes of neighbours in each node; a search needs about 10 MB of memory for an index of any size",
        order: Order::Input,
        layout: Some(Layout::Inline),
        compression: Compression::Raw,
        strategy: Strategy::BestFirst,
        beam: 4,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::PAPER,
        update: Update::InPlace,
        low_codes: None,
    };
    /// DecoupleVS with the parameters of DecoupleVS §5.1.
    pub const DECOUPLEVS: Preset = Preset {
        name: "decouplevs",
        about: "DecoupleVS: input order; lists and vectors compressed and stored apart; candidates re-ranked after the traversal",
        order: Order::Input,
        layout: Some(Layout::Decoupled),
        compression: Compression::Paper,
        strategy: Strategy::Pipelined,
        beam: 4,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::PAPER,
        update: Update::Merge,
        low_codes: None,
    };
    /// OdinANN (Guo and Lu, FAST 2026): the search of PipeANN, and direct inserts that write
    /// changed records to free slots.
    pub const ODINANN: Preset = Preset {
        name: "odinann",
        about: "OdinANN: the search of pipeann, with direct inserts into the graph on storage",
        update: Update::Relocate,
        ..Self::PIPEANN
    };
    /// The graph index for second-tier memory (§5 of the paper by Cheng et al.). The index has
    /// DiskANN's graph, in rows without padding that are read one by one. While a query waits for
    /// the memory, another query computes.
    pub const TIERED_GRAPH: Preset = Preset {
        name: "tiered-graph",
        about: "Second-tier memory: input order; rows without padding (CSR); best-first search of one node at a time; while a query waits for memory, another one computes",
        layout: Some(Layout::Csr),
        beam: 1,
        ..Self::DISKANN
    };
    /// DistVS (Yin et al., NSDI 2026) with the layout of its §3.1 and the beam width of its §5.1.
    /// Searches use [`Press::TUNED`](crate::Press::TUNED) by default, not
    /// [`Press::PAPER`](crate::Press::PAPER).
    pub const DISTVS: Preset = Preset {
        name: "distvs",
        about: "DistVS: lists and vectors stored apart, and codes of two precisions; a search ranks by low codes, then high codes (PRESS), then exact vectors",
        order: Order::Locality,
        layout: Some(Layout::Decoupled),
        compression: Compression::Raw,
        strategy: Strategy::Press,
        beam: 8,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::HALF,
        update: Update::Merge,
        low_codes: Some(LowCodes::Nested),
    };

    /// SPANN (Chen et al., NeurIPS 2021), the baseline for clusters.
    pub const SPANN: Preset = Preset {
        name: "spann",
        about: "SPANN: clusters instead of a graph; each vector is in up to eight clusters, and a probe reads a whole cluster",
        order: Order::Input,
        layout: Some(Layout::Replicated),
        compression: Compression::Raw,
        strategy: Strategy::BestFirst,
        beam: 64,
        navigation: false,
        entry_points: 1,
        whole_page: false,
        rerank: Rerank::PAPER,
        update: Update::Rebalance,
        low_codes: None,
    };
    /// The cluster index of the paper on second-tier memory (its §6): each vector is stored once,
    /// in the group of one of its clusters.
    pub const TIERED_CLUSTER: Preset = Preset {
        name: "tiered-cluster",
        about: "Second-tier memory: clusters for memory that is slower than DRAM but is read in smaller units than an SSD; each vector is stored once, grouped by cluster",
        order: Order::Locality,
        layout: Some(Layout::Grouped),
        ..Self::SPANN
    };

    /// The default preset. It has every choice that helped in measurements.
    pub const STRATANN: Preset = Preset {
        name: "stratann",
        about: "The default: locality order, compression, pipelined search of whole pages, navigation graph",
        order: Order::Locality,
        layout: None,
        compression: Compression::Best,
        strategy: Strategy::Pipelined,
        beam: 32,
        navigation: true,
        entry_points: 1024,
        whole_page: true,
        rerank: Rerank {
            batch: 5,
            benefit: 0.01,
            estimate: true,
            ratio: 0.0,
        },
        update: Update::Accumulate,
        low_codes: None,
    };
    /// All presets, with the baselines first.
    pub const ALL: [Preset; 10] = [
        Self::DISKANN,
        Self::PIPEANN,
        Self::AISAQ,
        Self::DECOUPLEVS,
        Self::ODINANN,
        Self::TIERED_GRAPH,
        Self::DISTVS,
        Self::SPANN,
        Self::TIERED_CLUSTER,
        Self::STRATANN,
    ];
}

impl Rerank {
    /// A batch of 10 candidates (B) and a benefit ratio of 0.01, as in DecoupleVS §5.1 and §3.4.
    pub const PAPER: Rerank = Rerank {
        batch: 10,
        benefit: 0.01,
        estimate: false,
        ratio: 0.0,
    };
    /// Ranks the nearest half of the candidate list by exact vectors, all at once (DistVS §3.1).
    pub const HALF: Rerank = Rerank {
        batch: 10,
        benefit: 0.0,
        estimate: false,
        ratio: 0.5,
    };
    /// Ranks the whole candidate list by exact vectors at once, and ignores the estimates by codes.
    pub(crate) const ALL: Rerank = Rerank {
        ratio: 1.0,
        ..Self::HALF
    };
}

impl Default for Preset {
    fn default() -> Self {
        Self::STRATANN
    }
}

impl FromStr for Preset {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|preset| preset.name == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(|preset| preset.name).join(", ");
                let remedy = format!("Use one of: {names}");
                Error::call("preset", name, "there is no such preset", remedy)
            })
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for preset in Preset::ALL {
            assert_eq!(preset.name.parse::<Preset>().unwrap(), preset);
        }
        assert_eq!("locality".parse::<Order>().unwrap(), Order::Locality);
        assert_eq!(Strategy::BestFirst.to_string(), "best-first");
        let error = "diskan".parse::<Preset>().unwrap_err().to_string();
        assert!(
            error.contains("diskan") && error.contains("pipeann"),
            "{error}"
        );
    }
}
