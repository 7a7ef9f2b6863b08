//! The codes that stay in memory: all codes, or codes of entry points if other codes are beside
//! lists.
//!
//! Codes of two precisions ([`Codebook::low_codes`]) are split when they are loaded, so that a step
//! of DistVS with low codes reads only half of the bytes. Two more bytes for each node correct the
//! sums from a query's table.
//!
//! ```text
//!   file     node 0: low, rest | node 1: low, rest | …          (rest: the residual code)
//!   memory   node 0: low | node 1: low | … ‖ node 0: rest | node 1: rest | …
//!            and 2 bytes a node: its correction
//! ```

use stratann_layout::{EntryPoints, FileKind, Manifest};
use stratann_tier::{GrowingBytes, Volume};
use stratann_vector::{DistanceTable, LowCodes, Metric, PairedQuantizer};

use super::Composition;
use super::composition::CodesAt;
use crate::codebook::Codebook;
use crate::stores::reading;
use crate::{Error, Preset, stored};

/// Memory is reserved for as many new nodes as the index has, but at least for this many.
const LEAST_ROOM: usize = 1 << 16;

pub(crate) struct Codes {
    /// All codes, with reserved memory for new nodes; or only the codes of the entry points.
    bytes: GrowingBytes,
    parts: Option<Parts>,
    /// The nodes at which a search may start without a navigation graph.
    pub(crate) entries: Vec<u32>,
}

impl Codes {
    pub(crate) fn memory_bytes(
        volume: &dyn Volume,
        manifest: &Manifest,
        composition: &Composition,
    ) -> Result<u64, Error> {
        match composition.codes {
            CodesAt::Memory => {
                let corrections = match low_codes_of(manifest)? == Some(LowCodes::Nested) {
                    true => manifest
                        .vectors
                        .saturating_mul(size_of::<Correction>() as u64),
                    false => 0,
                };
                Ok(Self::of_nodes(manifest) + corrections)
            }
            CodesAt::Records => {
                Ok(stored::entry(volume, manifest, FileKind::Entries, None)?.length)
            }
            CodesAt::Nowhere => Ok(0),
        }
    }

    pub(crate) fn of_nodes(manifest: &Manifest) -> u64 {
        let code_bytes = u64::from(manifest.code_bytes);
        manifest.vectors.saturating_mul(code_bytes)
    }

    /// Loads the codes. `inserted` has the codes of nodes inserted after the build.
    pub(crate) fn load(
        volume: &dyn Volume,
        manifest: &Manifest,
        composition: &Composition,
        codebook: Option<&Codebook>,
        inserted: &[u8],
    ) -> Result<Self, Error> {
        match composition.codes {
            CodesAt::Memory if let Some(paired) = codebook.and_then(Codebook::paired) => {
                Self::in_parts(volume, manifest, paired)
            }
            CodesAt::Memory => Self::of_all(volume, manifest, inserted),
            CodesAt::Records => Self::of_entries(volume, manifest),
            CodesAt::Nowhere => Ok(Self {
                bytes: GrowingBytes::filled(0, 0, |_| Ok::<_, Error>(()))?,
                parts: None,
                entries: Vec::new(),
            }),
        }
    }

    /// The codes in node order, if they are not split. Direct inserts append to them.
    pub(crate) fn whole(&self) -> &GrowingBytes {
        &self.bytes
    }

    pub(crate) fn parts(&self) -> Option<CodeParts<'_>> {
        let parts = self.parts.as_ref()?;
        Some(CodeParts {
            low: &self.bytes[..parts.rests],
            rest: &self.bytes[parts.rests..],
            corrections: parts.corrections.as_deref(),
            low_bytes: parts.low_bytes,
            rest_bytes: parts.rest_bytes,
        })
    }

    fn of_entries(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let EntryPoints { nodes, codes } = reading::entry_points(volume, manifest)?;
        let bytes = GrowingBytes::filled(codes.len(), 0, |out| {
            out.copy_from_slice(&codes);
            Ok::<_, Error>(())
        })?;
        Ok(Self {
            bytes,
            parts: None,
            entries: nodes,
        })
    }

    /// Loads split codes. Only merges add nodes to such an index, so no memory is reserved for new
    /// nodes.
    fn in_parts(
        volume: &dyn Volume,
        manifest: &Manifest,
        quantizer: &PairedQuantizer,
    ) -> Result<Self, Error> {
        let code_bytes = manifest.code_bytes as usize;
        let low = quantizer.low().code_bytes();
        let nodes = manifest.vectors as usize;
        let file = nodes as u64 * code_bytes as u64;
        stored::check_room(volume, manifest, FileKind::Codes, file)?;
        let mut corrections = Correction::none_yet(quantizer, nodes);
        let mut scratch = Vec::new();
        let bytes = GrowingBytes::filled(nodes * code_bytes, 0, |out| {
            let (lows, rests) = out.split_at_mut(nodes * low);
            let mut lows = lows.chunks_exact_mut(low);
            let mut rests = rests.chunks_exact_mut(code_bytes - low);
            each_code(volume, manifest, |code| {
                if let Some(corrections) = &mut corrections {
                    let (metric, scratch) = (manifest.metric, &mut scratch);
                    corrections.push(Correction::of(quantizer, metric, code, scratch));
                }
                if let (Some(first), Some(second)) = (lows.next(), rests.next()) {
                    first.copy_from_slice(&code[..low]);
                    second.copy_from_slice(&code[low..]);
                }
            })
        })?;
        Ok(Self {
            bytes,
            parts: Some(Parts {
                rests: nodes * low,
                corrections,
                low_bytes: low,
                rest_bytes: code_bytes - low,
            }),
            entries: vec![manifest.graph().entry],
        })
    }

    fn of_all(volume: &dyn Volume, manifest: &Manifest, inserted: &[u8]) -> Result<Self, Error> {
        let code_bytes = manifest.code_bytes as usize;
        let built = manifest.vectors as usize * code_bytes;
        stored::check_room(volume, manifest, FileKind::Codes, built as u64)?;
        let length = built + inserted.len();
        // Reserved address space takes no memory until it is used.
        let room = length.max(LEAST_ROOM * code_bytes);
        let bytes = GrowingBytes::filled(length, length + room, |out| {
            stored::read_stream(volume, manifest, FileKind::Codes, &mut out[..built])?;
            out[built..].copy_from_slice(inserted);
            Ok::<_, Error>(())
        })?;
        Ok(Self {
            bytes,
            parts: None,
            entries: vec![manifest.graph().entry],
        })
    }
}

pub(crate) fn each_code(
    volume: &dyn Volume,
    manifest: &Manifest,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let code_bytes = manifest.code_bytes as usize;
    // The first bytes of a code that continues in the next piece.
    let mut begun: Vec<u8> = Vec::with_capacity(code_bytes);
    let mut nodes = 0;
    stored::read_pieces(volume, manifest, FileKind::Codes, None, |reader, piece| {
        reader.push_with(piece, |mut bytes| {
            if !begun.is_empty() {
                let missing = (code_bytes - begun.len()).min(bytes.len());
                begun.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if begun.len() < code_bytes {
                    return;
                }
                each(&begun);
                nodes += 1;
                begun.clear();
            }
            let codes = bytes.chunks_exact(code_bytes);
            begun.extend_from_slice(codes.remainder());
            for code in codes {
                each(code);
                nodes += 1;
            }
        })
    })?;
    if nodes == manifest.vectors && begun.is_empty() {
        return Ok(());
    }
    let entry = stored::entry(volume, manifest, FileKind::Codes, None)?;
    Err(Error::Damaged {
        file: stored::name_of(volume, &entry.name),
        what: format!(
            "it has {nodes} codes of {code_bytes} bytes, but the index has {} vectors",
            manifest.vectors
        ),
    })
}

pub(crate) fn low_codes_of(manifest: &Manifest) -> Result<Option<LowCodes>, Error> {
    match manifest.build.low_codes.as_str() {
        "" => Ok(manifest.preset.parse::<Preset>()?.low_codes),
        named => {
            let unknown = |_| {
                let reason = "this version knows nested and separate";
                let remedy = "Open the index with the version that built it";
                Error::call("low codes", named, reason, remedy)
            };
            named.parse().map(Some).map_err(unknown)
        }
    }
}

struct Parts {
    /// The offset of the first residual code, or of the first high code.
    rests: usize,
    corrections: Option<Vec<Correction>>,
    low_bytes: usize,
    rest_bytes: usize,
}

/// The upper half of the f32 that is added to the sum of a code's table entries
/// ([`PairedQuantizer::correction`]). The error of the rounding is smaller than the error of the
/// code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction(u16);

impl Correction {
    /// Space for the corrections of nested codes. `None` for separate codes.
    pub(crate) fn none_yet(quantizer: &PairedQuantizer, nodes: usize) -> Option<Vec<Self>> {
        match quantizer.low_codes() {
            LowCodes::Nested => Some(Vec::with_capacity(nodes)),
            LowCodes::Separate => None,
        }
    }

    pub(crate) fn of(
        quantizer: &PairedQuantizer,
        metric: Metric,
        code: &[u8],
        scratch: &mut Vec<f32>,
    ) -> Self {
        let exact = quantizer.correction(metric, code, scratch).to_bits();
        // The bits are rounded to the nearest value.
        Self((exact.saturating_add(0x8000) >> 16) as u16)
    }

    #[inline]
    pub(crate) fn value(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// The estimate by the high code. `low` is the sum of the low code, and `rest` is the sum of
    /// the residual code ([`PairedQuantizer::rest_table`]). The order of additions is fixed, so
    /// that one process and several servers get identical results.
    #[inline]
    pub(crate) fn whole(self, low: f32, rest: f32) -> f32 {
        low + rest + self.value()
    }
}

/// The estimate by the high code. `low` is the estimate by the low code, and `sum` is from the
/// table for [residual codes](PairedQuantizer::rest_table). Only nested codes have corrections.
#[inline]
pub(crate) fn complete(corrections: Option<&[Correction]>, node: u32, low: f32, sum: f32) -> f32 {
    match corrections {
        Some(corrections) => corrections[node as usize].whole(low, sum),
        None => sum,
    }
}

/// Codes of two precisions, in node order. `rest` has residual codes with corrections, or high
/// codes.
#[derive(Clone, Copy)]
pub(crate) struct CodeParts<'a> {
    pub(crate) low: &'a [u8],
    /// The residual codes. Without corrections, the high codes.
    pub(crate) rest: &'a [u8],
    corrections: Option<&'a [Correction]>,
    low_bytes: usize,
    rest_bytes: usize,
}

impl CodeParts<'_> {
    pub(crate) fn low_codes(self) -> LowCodes {
        match self.corrections {
            Some(_) => LowCodes::Nested,
            None => LowCodes::Separate,
        }
    }

    pub(crate) fn join(self, nodes: &[u32], out: &mut Vec<u8>) {
        let (low, rest) = (self.low_bytes, self.rest_bytes);
        out.resize(nodes.len() * (low + rest), 0);
        for (&node, code) in nodes.iter().zip(out.chunks_exact_mut(low + rest)) {
            let at = node as usize;
            code[..low].copy_from_slice(&self.low[at * low..][..low]);
            code[low..].copy_from_slice(&self.rest[at * rest..][..rest]);
        }
    }

    /// Replaces the estimates by low codes in `scores` with estimates by high codes. `rest` is the
    /// query's table of residual codes.
    pub(crate) fn go_on(
        self,
        rest: &DistanceTable,
        nodes: &[u32],
        sums: &mut Vec<f32>,
        scores: &mut [f32],
    ) {
        sums.resize(sums.len().max(nodes.len()), 0.0);
        let sums = &mut sums[..nodes.len()];
        rest.score(self.rest, nodes, sums);
        for ((&node, &sum), score) in nodes.iter().zip(&*sums).zip(scores) {
            *score = complete(self.corrections, node, *score, sum);
        }
    }

    pub(crate) fn correct(self, nodes: &[u32], scores: &mut [f32]) {
        let corrections = self.corrections.unwrap_or_default();
        for (&node, score) in nodes.iter().zip(scores) {
            *score += corrections[node as usize].value();
        }
    }
}
