//! Building an index again from its own rows: with the choices of its manifest.

use stratann_layout::{IndexKind, Manifest};
use stratann_vector::LowCodes;

use super::BuildOptions;
use crate::Error;
use crate::stores::codes::low_codes_of;

/// Bytes of a code, or of the high one where there are two.
///
/// # Errors
/// A preset, or low codes, that this version does not know.
pub(crate) fn high_bytes(manifest: &Manifest) -> Result<usize, Error> {
    let stored = manifest.code_bytes as usize;
    let high = |low_codes: LowCodes| low_codes.high_bytes(stored);
    Ok(low_codes_of(manifest)?.map_or(stored, high))
}

impl BuildOptions {
    /// The choices that an index was built with, for one that takes its place: a codebook with codes of as many bytes is
    /// trained, unless one is put there.
    ///
    /// # Errors
    /// A preset, order, layout or compression that this version does not know.
    pub(crate) fn of_manifest(manifest: &Manifest) -> Result<Self, Error> {
        let facts = &manifest.build;
        let defaults = Self::default();
        // An index of a version that did not say has 0.
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
                    // That of an index of a version that did not say it.
                    (Some(_), 0.0) => options.navigation,
                    // A share may have been none of few nodes, and be some of more.
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
