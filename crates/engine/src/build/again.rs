//! Rebuilds an index from its own rows, with the options that its manifest records.

use stratann_layout::{IndexKind, Manifest};
use stratann_vector::LowCodes;

use super::BuildOptions;
use super::format::CHOSEN;
use crate::stores::codes::low_codes_of;
use crate::{Error, Index};

/// The bytes of a vector's code. If a vector has two codes, the bytes of the high code.
pub(crate) fn high_bytes(manifest: &Manifest) -> Result<usize, Error> {
    let stored = manifest.code_bytes as usize;
    let high = |low_codes: LowCodes| low_codes.high_bytes(stored);
    Ok(low_codes_of(manifest)?.map_or(stored, high))
}

impl BuildOptions {
    /// The options to rebuild the index of this manifest. Unless the caller gives a codebook, the
    /// rebuild trains a new codebook, for codes of the same length.
    pub(crate) fn of_manifest(manifest: &Manifest) -> Result<Self, Error> {
        let facts = &manifest.build;
        let defaults = Self::default();
        // A manifest of an earlier version has 0 for values that it does not record.
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
                    // A manifest of an earlier version does not record the share of nodes in this
                    // graph.
                    (Some(_), 0.0) => options.navigation,
                    // The last build may have had too few nodes for a navigation graph.
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

impl Index {
    /// The options of the index's build, as far as the index records them. If a build may choose
    /// this layout by itself, the options name no layout.
    ///
    /// # Errors
    /// The call fails if this version does not know the preset, order, layout or compression.
    pub fn build_options(&self) -> Result<BuildOptions, Error> {
        let options = BuildOptions::of_manifest(self.manifest())?;
        let is_chosen = options.preset.layout.is_none()
            && (options.layout).is_some_and(|layout| CHOSEN.contains(&layout));
        Ok(BuildOptions {
            layout: options.layout.filter(|_| !is_chosen),
            overwrite: false,
            ..options
        })
    }
}
