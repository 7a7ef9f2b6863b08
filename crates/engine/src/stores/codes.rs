//! The codes that stay in memory: those of all nodes, or where the others stand beside lists, those of the entry points.

use stratann_layout::{EntryPoints, FileKind, Manifest};
use stratann_tier::{GrowingBytes, Volume};

use super::Composition;
use super::composition::CodesAt;
use crate::{Error, stored};

/// Nodes that there is room for beyond those of the checkpoint, at least; as many again if there are more.
const LEAST_ROOM: usize = 1 << 16;

/// The codes of an index that is open.
pub(crate) struct Codes {
    /// Every node's code, with room for those to come; or those of the entry points.
    pub(crate) bytes: GrowingBytes,
    /// The nodes where a search may start without a navigation graph.
    pub(crate) entries: Vec<u32>,
}

impl Codes {
    /// Bytes that they will take, and what says whose they are.
    pub(crate) fn memory_bytes(
        volume: &dyn Volume,
        manifest: &Manifest,
        composition: &Composition,
    ) -> Result<u64, Error> {
        match composition.codes {
            CodesAt::Memory => Ok(Self::of_nodes(manifest)),
            CodesAt::Records => {
                Ok(stored::entry(volume, manifest, FileKind::Entries, None)?.length)
            }
            CodesAt::Nowhere => Ok(0),
        }
    }

    /// Bytes of the codes of all nodes of the build.
    pub(crate) fn of_nodes(manifest: &Manifest) -> u64 {
        let code_bytes = u64::from(manifest.code_bytes);
        manifest.vectors.saturating_mul(code_bytes)
    }

    /// Loads them, and behind them `inserted`, the codes of nodes that came after the build.
    pub(crate) fn load(
        volume: &dyn Volume,
        manifest: &Manifest,
        composition: &Composition,
        inserted: &[u8],
    ) -> Result<Self, Error> {
        match composition.codes {
            CodesAt::Memory => Self::of_all(volume, manifest, inserted),
            CodesAt::Records => Self::of_entries(volume, manifest),
            CodesAt::Nowhere => Ok(Self {
                bytes: GrowingBytes::filled(0, 0, |_| Ok::<_, Error>(()))?,
                entries: Vec::new(),
            }),
        }
    }

    /// Those of the entry points.
    fn of_entries(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let EntryPoints { nodes, codes } = stored::entry_points(volume, manifest)?;
        let bytes = GrowingBytes::filled(codes.len(), 0, |out| {
            out.copy_from_slice(&codes);
            Ok::<_, Error>(())
        })?;
        Ok(Self {
            bytes,
            entries: nodes,
        })
    }

    /// Those of all nodes.
    fn of_all(volume: &dyn Volume, manifest: &Manifest, inserted: &[u8]) -> Result<Self, Error> {
        let code_bytes = manifest.code_bytes as usize;
        let built = manifest.vectors as usize * code_bytes;
        stored::check_room(volume, manifest, FileKind::Codes, built as u64)?;
        let length = built + inserted.len();
        // Memory that is not used is not taken.
        let room = length.max(LEAST_ROOM * code_bytes);
        let bytes = GrowingBytes::filled(length, length + room, |out| {
            stored::read_stream(volume, manifest, FileKind::Codes, &mut out[..built])?;
            out[built..].copy_from_slice(inserted);
            Ok::<_, Error>(())
        })?;
        Ok(Self {
            bytes,
            entries: vec![manifest.graph().entry],
        })
    }
}
