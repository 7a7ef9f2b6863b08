//! Rebuilding an index from its own rows: with the choices in its manifest.

use stratann_layout::{IndexKind, Manifest};
use stratann_vector::LowCodes;

use super::BuildOptions;
use crate::Error;
use crate::stores::codes::low_codes_of;

/// Bytes of a code, or of the high code if there are two.
///
/// # Errors
/// A preset, or low codes, that this version does not know.
pub(crate) fn high_bytes(manifest: &Manifest) -> Result<usize, Error> {
    let stored = manifest.code_bytes as usize;
    let high = |low_codes: LowCodes| low_codes.high_bytes(stored);
    Ok(low_codes_of(manifest)?.map_or(stored, high))
}

impl BuildOptions {
    /// The choices that an index was built with, for the index that replaces it. A codebook for
    /// codes of as many bytes is trained, unless the caller sets one.
    ///
    /// # Errors
    /// A preset, order, layout or compression that this version does not know.
    pub(crate) fn of_manifest(manifest: &Manifest) -> Result<Self, Error> {
        let facts = &manifest.build;
        let defaults = Self::default();
        // The manifest of an earlier version has 0 here.
        let chosen = |value: u64, default: u64| if value == 0 { default } else { value };
        let options = Self {
            preset: manifest.preset.parse()?,
            metric: manifest.metric,
            order: Some(manifest.order.parse()?),
            layout: Some(manifest.layout.parse()?),
            chunk_bytes: chosen(facts.chunk_bytes, defaults.chunk_bytes),
            segment_bytes: chosen(facts.segment_bytes, defaults.segment_bytes),
            seed: manifest.seed,
            overwrite: true,
            ..defaults
        };
        Ok(match &manifest.kind {
            IndexKind::Graph(graph) => Self {
                degree: Some(graph.degree as usize),
                build_list: graph.build_list as usize,
                alpha: graph.alpha,
                code_bytes: Some(high_bytes(manifest)?),
                low_codes: low_codes_of(manifest)?,
                compression: match facts.compression.as_str() {
                    "" => None,
                    named => Some(named.parse()?),
                },
                navigation: match (&graph.navigation, facts.navigation) {
                    // A manifest of an earlier version has no share.
                    (Some(_), 0.0) => options.navigation,
                    // A share that gave no graph over few nodes may give one over more.
                    (_, share) => share,
                },
                ..options
            },
            IndexKind::Cluster(clusters) => Self {
                cluster_size: Some(clusters.size as usize),
                replicas: Some(clusters.replicas as usize),
                ..options
            },
        })
    }
}
