//! Kinds of indexes, and what the manifest says of one kind alone.
//!
//! Files, segments, codes, ids, the log and what was inserted directly are of every kind. What is found how is of one: a graph has an entry
//! and edges. A graph's facts stand among the others, where they stood when there was no other kind; a manifest of another
//! one has reader feature bit [`KIND`] and the key `kind`.
//!
//! A new kind is: a variant here with its facts and its name, and an arm wherever [`IndexKind`] is matched.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LARGEST;
use crate::error::LayoutError;

/// Reader feature bit of an index that is no graph: its manifest has the key `kind`, and not the keys of a graph.
pub const KIND: u64 = 4;

/// What only indexes of one kind have.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexKind {
    /// A proximity graph over all vectors, which a search walks.
    Graph(GraphFacts),
}

/// Facts about a proximity graph and its build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphFacts {
    /// The degree bound R of the build.
    pub degree: u32,
    /// The list size L of the build.
    pub build_list: u32,
    /// The pruning factor of the build.
    pub alpha: f32,
    /// The node that a search starts from (the medoid).
    pub entry: u32,
    /// Mean degree of the nodes.
    pub degree_mean: f64,
    /// The largest degree of a node.
    pub degree_max: u32,
    /// Edges in the graph.
    pub edges: u64,
    /// The navigation graph, if there is one.
    pub navigation: Option<NavigationFacts>,
}

/// Facts about the navigation graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NavigationFacts {
    /// Its nodes.
    pub nodes: u64,
    /// Its degree bound.
    pub degree: u32,
}

// By hand, since there is no key that says which kind it is where it is a graph.
impl Serialize for IndexKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Graph(facts) => facts.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for IndexKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        GraphFacts::deserialize(deserializer).map(Self::Graph)
    }
}

impl IndexKind {
    /// Nodes of the navigation graph; 0 if there is none.
    pub fn navigation_nodes(&self) -> u64 {
        match self {
            Self::Graph(facts) => facts.navigation.as_ref().map_or(0, |graph| graph.nodes),
        }
    }

    /// Refuses a manifest of a kind that this version does not know: before anything is asked of its other keys.
    pub(super) fn check(
        kind: Option<&str>,
        reader_features: u64,
        at: u64,
        file: &str,
    ) -> Result<(), LayoutError> {
        match (kind, reader_features & KIND != 0) {
            (None, false) => Ok(()),
            (Some(found), true) => Err(LayoutError::UnknownIndexKind {
                file: file.to_owned(),
                offset: at,
                found: found.to_owned(),
            }),
            (kind, bit) => {
                let found = format!("{kind:?}, with bit 2 of reader_features {}", u8::from(bit));
                let expected = "the bit where there is a kind, and nowhere else";
                Err(super::field(file, at, "kind", found, expected))
            }
        }
    }

    /// Refuses numbers that cannot be.
    pub(super) fn check_numbers(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        match self {
            Self::Graph(GraphFacts { edges, .. }) if *edges > LARGEST => {
                let expected = format!("at most {LARGEST}");
                Err(super::field(file, at, "edges", edges, expected))
            }
            Self::Graph(_) => Ok(()),
        }
    }
}
