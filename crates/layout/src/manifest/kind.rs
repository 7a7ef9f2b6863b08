//! Kinds of indexes, and the facts of the manifest that apply to one kind only. The facts of a
//! graph are top-level keys, as in the first manifests. A manifest of another kind has reader
//! feature bit [`KIND`] and the key `kind`; a cluster index has its facts under the key `cluster`.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LARGEST;
use crate::error::LayoutError;

/// Reader feature bit of an index that is not a graph, whose manifest has the key `kind`.
pub const KIND: u64 = 4;

/// The facts that apply to one kind of index only.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexKind {
    /// A proximity graph over all vectors, which a search traverses.
    Graph(GraphFacts),
    /// Clusters of vectors; a search probes the nearest ones.
    Cluster(ClusterFacts),
}

const CLUSTER: &str = "cluster";

/// Facts about clusters and their build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// The number of clusters, from 1 to the number of vectors.
    pub clusters: u64,
    /// The number of vectors per cluster that the build aimed at.
    pub size: u32,
    /// The most clusters that a vector may belong to.
    pub replicas: u32,
    /// A vector may belong to a cluster if the cluster's head is farther than the nearest head by
    /// at most this share.
    pub closure: f32,
    /// The sum of the members of all clusters. A vector counts once for each of its clusters.
    pub members: u64,
    /// Members of the largest cluster.
    pub largest: u32,
    /// The mean distance of a vector to the nearest head, under the metric of the index.
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
    /// The number of nodes of the navigation graph.
    pub nodes: u64,
    /// The degree bound of the navigation graph.
    pub degree: u32,
}

// Serialization is by hand, because a graph has no key for its kind.
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
            // `IndexKind::check` has refused other kinds than `cluster`.
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
            // The graph over the heads is a part of every cluster index, so it does not count.
            Self::Cluster(_) => 0,
        }
    }

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
