//! Presets. A preset describes a system as one choice for each of the engine's options.
//!
//! A [`Preset`] is a plain value. A build writes it into the manifest, and a search takes its
//! defaults from it. No other part of the engine knows the name of a system or a paper. Each choice
//! can be overridden alone, so that its gain can be measured.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use stratann_vector::LowCodes;

use crate::search::Strategy;
use crate::{Error, Layout};

/// Declares an enum of named choices: its list of all variants, the name and a line about each, and
/// the conversions between names and variants.
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
            /// All variants.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// The name of the choice in options and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }

            /// One line about the choice, for users.
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
    /// The assignment of internal node ids, and so of pages, to rows.
    pub enum Order, "order" {
        /// The order of the input file, as in DiskANN.
        Input = "input", "As in the input file",
        /// Rows near each other in space are near each other on disk: recursive balanced bisection.
        Locality = "locality", "Near vectors are stored near each other",
    }
}

named! {
    /// The compression of lists and vectors, which is always lossless. The coupled, inline and csr
    /// layouts support only [`Raw`](Compression::Raw).
    pub enum Compression, "compression" {
        /// Vectors are uncompressed. Lists are uncompressed in the coupled and inline layouts. In
        /// csr, each link takes as many bits as the largest node number needs. In other layouts,
        /// lists are Elias–Fano codes.
        Raw = "raw", "Vectors uncompressed; lists uncompressed in the layouts coupled and inline, with links of a few bits in csr, else Elias-Fano codes",
        /// The compression of DecoupleVS §3.2. Lists are Elias–Fano codes. Vectors are XORed with
        /// their chunk's base vector where that helps, and Huffman-coded with one table a segment.
        Paper = "paper", "Lists as Elias-Fano codes; vectors Huffman-coded, after XOR with a base vector where that helps (DecoupleVS)",
        /// Each list has the codec that makes the list shortest. Each segment of vectors has the
        /// codec that makes a sample of its vectors shortest.
        Best = "best", "For each list and each segment of vectors, the codec that makes it shortest",
    }
}

named! {
    /// How a new vector is written to the index on storage.
    pub enum Update, "way to update" {
        /// The vector waits in a graph in memory, which is merged on request (FreshDiskANN;
        /// DecoupleVS §3.5).
        Merge = "merge", "New vectors wait in memory until a merge (FreshDiskANN)",
        /// The vector is written at once, and each list that it joins is rewritten at once in its
        /// place. This is the baseline of OdinANN's Figure 9. If codes are in the pages, this is
        /// the only direct insert, and needs no codes and no placement table in memory.
        InPlace = "in-place", "At once, and each changed page is rewritten in place",
        /// The vector is written at once. The records that its insert changes are written together,
        /// to pages with free slots (OdinANN §3.2).
        Relocate = "relocate", "At once, and changed records are written together to free slots (OdinANN)",
        /// The vector is written at once. Changes of lists by many inserts wait in memory, and are
        /// written together to the pages of their lists.
        Accumulate = "accumulate", "At once, and changes of pages are collected in memory and written together",
        /// The vector waits in memory, then joins clusters on storage together with other new
        /// vectors. Changed clusters are split, merged and rewritten (SPFresh).
        Rebalance = "rebalance", "Some vectors at a time join clusters, which are kept in balance (SPFresh)",
    }
}

/// The rule that ends re-ranking by exact distance, where vectors are apart from lists (DecoupleVS
/// §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rerank {
    /// The number of candidates in a batch (B).
    pub batch: usize,
    /// If a smaller share of a batch than this share entered the results, re-ranking ends. With 0,
    /// re-ranking never ends early.
    pub benefit: f64,
    /// Whether the error of codes ends re-ranking instead of `benefit`. After the first K + B
    /// candidates are ranked, the candidates that may still be results are read all at once, and
    /// re-ranking ends.
    pub estimate: bool,
    /// The re-ranking ratio. If this ratio is not 0, this share of the candidate list, and at least
    /// k candidates, are ranked by exact vectors after the traversal, all at once (DistVS §3.1).
    pub ratio: f64,
}

/// A system as a named row of choices.
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
    /// The assignment of node ids at build.
    pub order: Order,
    /// The layout of lists and vectors as bytes. With `None`, the build chooses by the size of a
    /// vector, a sample of the rows and the memory of searches.
    pub layout: Option<Layout>,
    /// The compression of lists and vectors.
    pub compression: Compression,
    /// The search strategy.
    pub strategy: Strategy,
    /// Beam width W of best-first search, or the largest width of the pipeline.
    pub beam: usize,
    /// Whether a search starts from the navigation graph, if the index has one. Otherwise it starts
    /// from the medoid.
    pub navigation: bool,
    /// Entry points whose codes stay in memory, if all other codes are in the nodes (n_ep, AiSAQ
    /// §3.1).
    pub entry_points: usize,
    /// Whether a page that was read also serves the other candidates in it.
    pub whole_page: bool,
    /// The rule that ends re-ranking, where vectors are apart from lists.
    pub rerank: Rerank,
    /// The way to insert vectors, if layout and metric allow direct inserts. Otherwise vectors wait
    /// for a merge.
    pub update: Update,
    /// The kind of low codes; `None` unless vectors have codes of two precisions, which
    /// [`Strategy::Press`] needs. With low codes, new vectors wait for a merge.
    #[serde(serialize_with = "named_or_none")]
    pub low_codes: Option<LowCodes>,
}

fn named_or_none<S: Serializer>(
    low_codes: &Option<LowCodes>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    low_codes.map(LowCodes::name).serialize(serializer)
}

/// The width of a search by [PRESS](Strategy::Press) (DistVS §3.1): the list of candidates by
/// low-precision codes, and the part of it that is refined. The list by high-precision codes is
/// [`SearchOptions::list`](crate::SearchOptions::list).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Press {
    /// The greatest length of the list by low codes (D_low), as a multiple of the length of the
    /// list by high codes.
    pub low: f64,
    /// The refinement ratio. In each round, high codes score the nearest remaining candidates of
    /// the list by low codes. Their number is this share of the length of that list.
    pub ratio: f64,
    /// Seeds: nodes spread over the collection that are scored by low codes first. A search without
    /// a navigation graph begins near the nearest of them. With 0 seeds a search begins at the
    /// graph's entry node.
    pub seeds: usize,
}

impl Press {
    /// A low list (D_low) twice as long as the high list (D_high), a refinement ratio of 0.3, and
    /// searches that begin at the graph's entry node (DistVS §3.1).
    pub const PAPER: Press = Press {
        low: 2.0,
        ratio: 0.3,
        seeds: 0,
    };
    /// Of the tried parameters, those with the least work on photo-sift and package-text with a
    /// beam of 8 (`docs/results/search.md`). The candidate list by low codes is longer than the
    /// paper's, and the share in each round is smaller. So fewer candidates are sent to high codes,
    /// and no candidate is dropped too soon. Seeds reduce the work as well.
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
    /// DiskANN (Subramanya et al., NeurIPS 2019): the first baseline.
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
    /// PipeANN (Guo and Lu, OSDI 2025): the second baseline.
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
    /// AiSAQ: DiskANN's graph and search, with the codes in the nodes (its §3.1); w = 4 as in its
    /// §4.1.
    pub const AISAQ: Preset = Preset {
        name: "aisaq",
        about: "AiSAQ: as diskann, with the codes of neighbours in each node; a search needs about 10 MB of memory for an index of any size",
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
    /// DecoupleVS with the parameters of its §5.1.
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
    /// OdinANN (Guo and Lu, FAST 2026): PipeANN's search, and records with spare slots beside them.
    pub const ODINANN: Preset = Preset {
        name: "odinann",
        about: "OdinANN: as pipeann, with direct inserts into the graph on storage",
        update: Update::Relocate,
        ..Self::PIPEANN
    };
    /// The graph index for second-tier memory (Cheng et al., its §5): rows without padding, read
    /// one by one. Queries take turns while the memory answers. The graph and all other choices are
    /// DiskANN's.
    pub const TIERED_GRAPH: Preset = Preset {
        name: "tiered-graph",
        about: "Second-tier memory: input order; rows without padding (CSR); best-first search of one node at a time; while a query waits for memory, another one computes",
        layout: Some(Layout::Csr),
        beam: 1,
        ..Self::DISKANN
    };
    /// DistVS (Yin et al., NSDI 2026) with the layout of its §3.1 and the beam of its §5.1. Lists
    /// and vectors are apart, and each vector has codes of two precisions. Its list sizes and
    /// refinement ratio are in [`Press::PAPER`](crate::Press::PAPER). The default of a search is
    /// [`Press::TUNED`](crate::Press::TUNED).
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

    /// SPANN (Chen et al., NeurIPS 2021): the baseline of clusters.
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
    /// The cluster index of the second-tier memory paper (its §6): each vector is stored once, in
    /// the group of one of its clusters.
    pub const TIERED_CLUSTER: Preset = Preset {
        name: "tiered-cluster",
        about: "Second-tier memory: clusters for memory that is slower than DRAM but is read in smaller units than an SSD; each vector is stored once, grouped by cluster",
        order: Order::Locality,
        layout: Some(Layout::Grouped),
        ..Self::SPANN
    };

    /// The default: every choice that helped in measurements.
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
    /// Every preset, baselines first.
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
    /// B = 10 and a benefit ratio of 0.01, as in DecoupleVS §5.1 and §3.4.
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
    /// Ranks the whole candidate list by exact vectors at once, whatever the codes estimate.
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
