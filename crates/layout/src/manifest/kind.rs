//! Kinds of indexes, and what the manifest says of one kind alone.
//!
//! Files, segments, codes, ids, the log and what was inserted directly are of every kind. What is
//! found how is of one: a graph has an entry and edges. A graph's facts stand among the others,
//! where they stood when there was no other kind; a manifest of another one has reader feature bit
//! [`KIND`] and the key `kind`.
//!
//! A cluster index says its kind, `cluster`, and its facts under the key of that name.
//!
//! A new kind is: a variant here with its facts and its name, and an arm wherever [`IndexKind`] is
//! matched.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LARGEST;
use crate::error::LayoutError;

/// Reader feature bit of an index that is no graph: its manifest has the key `kind`, and not the
/// keys of a graph.
pub const KIND: u64 = 4;

/// What only indexes of one kind have.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexKind {
    /// A proximity graph over all vectors, which a search walks.
    Graph(GraphFacts),
    /// Clusters of vectors, of which a search probes the nearest.
    Cluster(ClusterFacts),
}

/// The name of the kind with clusters, and of the key with its facts.
const CLUSTER: &str = "cluster";

/// Facts about clusters and their build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// Clusters, each with a head: 1 or more, and no more than vectors.
    pub clusters: u64,
    /// Vectors for each cluster that the build aimed at.
    pub size: u32,
    /// The most clusters that a vector was to be a member of.
    pub replicas: u32,
    /// How much farther than the nearest head another may be for a vector to be a member of its
    /// cluster: as a share of that distance.
    pub closure: f32,
    /// Members of all clusters: a vector counts for each that it is in.
    pub members: u64,
    /// Members of the largest cluster.
    pub largest: u32,
    /// The mean distance of a vector to the nearest head, by the metric of the index.
    pub radius: f32,
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
            Self::Cluster(facts) => {
                let mut keys = serializer.serialize_map(Some(2))?;
                keys.serialize_entry("kind", CLUSTER)?;
                keys.serialize_entry(CLUSTER, facts)?;
                keys.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for IndexKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = serde_json::Map::deserialize(deserializer)?;
        let facts = match keys.get("kind") {
            None => GraphFacts::deserialize(serde_json::Value::Object(keys)).map(Self::Graph),
            // That it is this kind has been checked.
            Some(_) => match keys.remove(CLUSTER) {
                Some(facts) => ClusterFacts::deserialize(facts).map(Self::Cluster),
                None => return Err(D::Error::missing_field(CLUSTER)),
            },
        };
        facts.map_err(D::Error::custom)
    }
}

impl IndexKind {
    /// Nodes of the navigation graph; 0 if there is none.
    pub fn navigation_nodes(&self) -> u64 {
        match self {
            Self::Graph(facts) => facts.navigation.as_ref().map_or(0, |graph| graph.nodes),
            // That over the heads is no part of it that it could do without.
            Self::Cluster(_) => 0,
        }
    }

    /// Refuses a manifest of a kind that this version does not know: before anything is asked of
    /// its other keys.
    pub(super) fn check(
        kind: Option<&str>,
        reader_features: u64,
        at: u64,
        file: &str,
    ) -> Result<(), LayoutError> {
        match (kind, reader_features & KIND != 0) {
            (None, false) => Ok(()),
            (Some(CLUSTER), true) => Ok(()),
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
            Self::Cluster(facts) => facts.check_numbers(at, file),
        }
    }
}

impl ClusterFacts {
    /// Refuses numbers that cannot be, as far as they say so by themselves.
    fn check_numbers(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if self.clusters == 0 || self.clusters >= u64::from(u32::MAX) {
            let expected = "1 to 4294967294";
            return Err(super::field(file, at, "clusters", self.clusters, expected));
        }
        for (what, found) in [
            ("size of a cluster", self.size),
            ("replicas", self.replicas),
        ] {
            if found == 0 {
                return Err(super::field(file, at, what, found, "1 or more"));
            }
        }
        if self.members > LARGEST {
            let expected = format!("at most {LARGEST}");
            return Err(super::field(
                file,
                at,
                "members of all clusters",
                self.members,
                expected,
            ));
        }
        for (what, found) in [("closure", self.closure), ("radius", self.radius)] {
            if !found.is_finite() {
                return Err(super::field(file, at, what, found, "a number"));
            }
        }
        Ok(())
    }
}
