//! Reads the decoding parameters of vectors, as far as they are readable: models in the directory
//! of packed pages, and models and base vectors in the chunks of a segment.
//!
//! The number of a node is on its page, and gives the model and the base. So vectors can be decoded
//! even if other models are damaged.
//!
//! If a merge left a segment unchanged, only the chunks show which records are garbage. After a
//! damaged chunk, the repair takes the garbage too.

use stratann_layout::{DeadSlots, FileKind, Manifest, SegmentFacts};
use stratann_tier::Volume;

use super::files::Payload;
use crate::stores::vectors::model::VectorModel;
use crate::stores::{Composition, VectorsAt};
use crate::{Error, stored};

pub(super) struct Decoders {
    raw: bool,
    first: u32,
    /// The models, each of `model_nodes` nodes. A lost model is `None`.
    models: Vec<Option<VectorModel>>,
    model_nodes: u32,
    /// The bases, each of `base_nodes` nodes. All further bases are unknown.
    bases: Vec<Base>,
    /// The number of nodes that a base covers, or 0 if no vector has a base.
    base_nodes: u32,
    /// The first node after the build. Vectors from this node on have no base.
    based: u64,
    /// The records that belong to no node.
    pub(super) garbage: Garbage,
    /// The reason why some parameters cannot be read.
    pub(super) wrong: Option<String>,
}

#[derive(Clone)]
enum Base {
    Nothing,
    Vector(Vec<u8>),
    Unknown,
}

pub(super) struct Garbage {
    dead: DeadSlots,
    /// From this page on, it is unknown which records are garbage.
    until: u64,
}

impl Garbage {
    fn none() -> Self {
        Self {
            dead: DeadSlots::default(),
            until: u64::MAX,
        }
    }

    fn unknown_in(segment: &SegmentFacts) -> Self {
        match segment.garbage() {
            0 => Self::none(),
            _ => Self {
                dead: DeadSlots::default(),
                until: 0,
            },
        }
    }

    /// `None` if it is unknown whether the record is garbage.
    pub(super) fn has(&self, page: u64, slot: usize) -> Option<bool> {
        let here = || u16::try_from(slot).is_ok_and(|s| self.dead.of_page(page).contains(&s));
        (page < self.until).then(here)
    }

    pub(super) fn is_known(&self) -> bool {
        self.until == u64::MAX
    }
}

pub(super) enum Decoded {
    Vector,
    Orphan,
    Wrong,
}

impl Decoders {
    fn none(wrong: String) -> Self {
        Self {
            raw: false,
            first: 0,
            models: Vec::new(),
            model_nodes: 0,
            bases: Vec::new(),
            base_nodes: 0,
            based: 0,
            garbage: Garbage::none(),
            wrong: Some(wrong),
        }
    }

    pub(super) fn beside_lists(
        volume: &dyn Volume,
        manifest: &Manifest,
        composition: &Composition,
    ) -> Result<Self, Error> {
        if composition.is_encoded() {
            return Self::of_directory(volume, manifest);
        }
        Ok(Self {
            raw: true,
            wrong: None,
            ..Self::none(String::new())
        })
    }

    fn of_directory(volume: &dyn Volume, manifest: &Manifest) -> Result<Self, Error> {
        let kind = FileKind::Directory;
        let Ok(entry) = stored::entry(volume, manifest, kind, None) else {
            return Ok(Self::none("the MANIFEST does not name it".into()));
        };
        let (payload, wrong) = Payload::read(volume, entry, kind)?;
        let missing = || {
            wrong
                .clone()
                .unwrap_or_else(|| "its lengths are damaged".into())
        };
        Ok(packed_models(&payload, manifest)
            .map(|(models, model_nodes)| Self {
                models,
                model_nodes,
                wrong: wrong.clone(),
                ..Self::none(String::new())
            })
            .unwrap_or_else(|| Self::none(missing())))
    }

    pub(super) fn segment(volume: &dyn Volume, manifest: &Manifest, n: u32) -> Result<Self, Error> {
        let composition = stored::layout(volume, manifest)?.composition();
        let kind = FileKind::Chunks;
        let segment = manifest.segments.get(n as usize);
        let entry = stored::entry(volume, manifest, kind, Some(n));
        let (Ok(entry), Some(segment)) = (entry, segment) else {
            return Ok(Self {
                garbage: segment.map_or_else(Garbage::none, Garbage::unknown_in),
                ..Self::none("the MANIFEST does not name it".into())
            });
        };
        let (payload, wrong) = Payload::read(volume, entry, kind)?;
        let (first, records) = segment.stored();
        // If a merge leaves a segment unchanged, it rewrites the boundaries (the last node of each
        // page) with the new node numbers.
        let chunks = Chunks {
            payload: &payload,
            first: segment.first,
            end: u64::from(segment.first) + records,
            vector_bytes: manifest.dimension as usize * manifest.element.size(),
            nodes: payload.u32(4).unwrap_or(0),
        };
        let model = payload.u32(0).and_then(|length| {
            let bytes = payload.get(12, length.into())?;
            let model = VectorModel::of_index(bytes, composition.vectors, manifest);
            Some((12 + u64::from(length), model.ok()))
        });
        let Some((at, model)) = model.filter(|_| chunks.nodes > 0) else {
            let why = wrong.unwrap_or_else(|| "its lengths are damaged".into());
            return Ok(Self {
                garbage: Garbage::unknown_in(segment),
                ..Self::none(why)
            });
        };
        let (bases, garbage) = match segment.garbage() {
            0 => (chunks.bases(at), Garbage::none()),
            _ => chunks.with_garbage(at),
        };
        Ok(Self {
            raw: false,
            first,
            models: vec![model],
            model_nodes: u32::MAX,
            bases,
            base_nodes: chunks.nodes,
            based: u64::from(first) + records,
            garbage,
            wrong,
        })
    }

    pub(super) fn has_model(&self) -> bool {
        self.models.iter().any(Option::is_some)
    }

    pub(super) fn decode(&self, node: u32, bytes: &[u8], out: &mut [u8]) -> Decoded {
        self.decode_with(node, &[], bytes, out)
    }

    /// Decodes the vector of a node whose leading part is stored elsewhere.
    pub(super) fn decode_with(
        &self,
        node: u32,
        leading: &[u8],
        bytes: &[u8],
        out: &mut [u8],
    ) -> Decoded {
        if self.raw {
            if bytes.len() != out.len() {
                return Decoded::Wrong;
            }
            out.copy_from_slice(bytes);
            return Decoded::Vector;
        }
        let at = node.saturating_sub(self.first);
        let model = at.checked_div(self.model_nodes);
        let model = model.and_then(|at| {
            // Nodes inserted after the build use the model of the last segment.
            let last = self.models.len().checked_sub(1)?;
            self.models.get((at as usize).min(last))?.as_ref()
        });
        let Some(model) = model else {
            return Decoded::Orphan;
        };
        let base = match at.checked_div(self.base_nodes) {
            Some(chunk) if model.has_bases() && u64::from(node) < self.based => {
                match self.bases.get(chunk as usize) {
                    Some(Base::Nothing) => None,
                    Some(Base::Vector(base)) => Some(&base[..]),
                    Some(Base::Unknown) | None => return Decoded::Orphan,
                }
            }
            _ => None,
        };
        match model.decode(leading, bytes, base, out) {
            Ok(()) => Decoded::Vector,
            Err(_) => Decoded::Wrong,
        }
    }
}

pub(super) fn packed_models(
    payload: &Payload,
    manifest: &Manifest,
) -> Option<(Vec<Option<VectorModel>>, u32)> {
    let (list_bytes, nodes, models) = (payload.u32(4)?, payload.u32(8)?, payload.u32(12)?);
    let needed = manifest.vectors.checked_div(nodes.into())?;
    let rest = u64::from(!manifest.vectors.is_multiple_of(nodes.into()));
    if needed + rest != u64::from(models) {
        return None;
    }
    let lengths = payload.get(16, 4 * u64::from(models))?;
    let mut at = 16 + lengths.len() as u64 + u64::from(list_bytes);
    let models = lengths.chunks_exact(4).map(|four| {
        let length = u64::from(u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let bytes = payload.get(at, length);
        at += length;
        VectorModel::of_index(bytes?, VectorsAt::Records, manifest).ok()
    });
    Some((models.collect(), nodes))
}

const CHUNK_FIXED: u64 = 12;
const BASE: u32 = 1;
const GARBAGE: u32 = 2;
const RUNS_ON: u32 = 4;

/// The bytes with which a chunk of `pages` pages marks the pages whose last record continues.
fn run_bytes(bits: u32, pages: u64) -> u64 {
    match bits & RUNS_ON {
        0 => 0,
        _ => pages.div_ceil(8),
    }
}

struct Chunks<'a> {
    payload: &'a Payload,
    /// The first node of the segment in the manifest. Boundaries count garbage records as nodes.
    first: u32,
    end: u64,
    vector_bytes: usize,
    /// The number of nodes of each chunk except the last.
    nodes: u32,
}

struct Chunk {
    base: Base,
    first_page: u32,
    next_page: u64,
    next: u64,
}

struct Dead {
    slots: Vec<Vec<u16>>,
    next: u64,
}

impl Chunks<'_> {
    /// The base of each chunk. The first chunk is at offset `at` of the payload.
    fn bases(&self, mut at: u64) -> Vec<Base> {
        let nodes = self.end - u64::from(self.first);
        let count = nodes.div_ceil(u64::from(self.nodes)) as usize;
        let mut bases = vec![Base::Unknown; count];
        let (mut number, mut page) = (0, 0);
        while number < count {
            let chunk = self.chunk(number, at);
            let right = chunk.filter(|chunk| u64::from(chunk.first_page) == page);
            // The end of a chunk follows from its first bytes. If these bytes are lost, the loop
            // searches for the next readable chunk.
            let found = right.map(|chunk| (number, chunk)).or_else(|| {
                let places = at + 1..self.payload.len();
                places
                    .into_iter()
                    .find_map(|at| self.recognise(number + 1, page, at))
            });
            let Some((found, chunk)) = found else {
                break;
            };
            bases[found] = chunk.base;
            (number, page, at) = (found + 1, chunk.next_page, chunk.next);
        }
        bases
    }

    /// The bases and the garbage, up to the first unreadable chunk. Chunks after it cannot be
    /// found.
    fn with_garbage(&self, mut at: u64) -> (Vec<Base>, Garbage) {
        let count = (self.end - u64::from(self.first)).div_ceil(u64::from(self.nodes)) as usize;
        let mut bases = vec![Base::Unknown; count];
        let mut garbage = Garbage {
            dead: DeadSlots::default(),
            until: 0,
        };
        for base in &mut bases {
            let Some((chunk, dead)) = self.chunk_with_garbage(at, garbage.until) else {
                return (bases, garbage);
            };
            for (page, slots) in (chunk.first_page..).zip(&dead.slots) {
                garbage.dead.push(page, slots);
            }
            *base = chunk.base;
            (at, garbage.until) = (dead.next, chunk.next_page);
        }
        garbage.until = u64::MAX;
        (bases, garbage)
    }

    /// The chunk at offset `at`, and its garbage. The chunk must begin with page `page`. Its base
    /// and its boundaries may be lost.
    fn chunk_with_garbage(&self, at: u64, page: u64) -> Option<(Chunk, Dead)> {
        let bits = self.payload.u32(at + 8)?;
        let chunk = self.chunk_of(at, bits)?;
        let right = u64::from(chunk.first_page) == page && bits <= (BASE | GARBAGE | RUNS_ON);
        let pages = chunk.next_page.checked_sub(page).filter(|_| right)?;
        let mut dead = Dead {
            slots: Vec::new(),
            next: chunk.next,
        };
        if bits & GARBAGE != 0 {
            let counts = self.payload.get(chunk.next, 2 * pages)?;
            dead.next += 2 * pages;
            for two in counts.chunks_exact(2) {
                let bytes = 2 * u64::from(u16::from_le_bytes([two[0], two[1]]));
                let slots = self.payload.get(dead.next, bytes)?.chunks_exact(2);
                let slots = slots.map(|two| u16::from_le_bytes([two[0], two[1]]));
                dead.slots.push(slots.collect());
                dead.next += bytes;
            }
        }
        dead.next += run_bytes(bits, pages);
        Some((chunk, dead))
    }

    fn last_of(&self, number: usize) -> u64 {
        let behind = u64::from(self.first) + (number as u64 + 1) * u64::from(self.nodes);
        behind.min(self.end) - 1
    }

    /// `None` if chunk `number` cannot be at offset `at`. If the last boundary is readable, it must
    /// fit the number.
    fn chunk(&self, number: usize, at: u64) -> Option<Chunk> {
        let bits = self.payload.u32(at + 8)?;
        let mut chunk = self.chunk_of(at, bits)?;
        let pages = chunk.next_page - u64::from(chunk.first_page);
        chunk.next += run_bytes(bits, pages);
        let last = self.payload.u32(at + CHUNK_FIXED + 4 * pages - 4);
        let ends = last.is_none_or(|last| u64::from(last) == self.last_of(number));
        (ends && bits & !(BASE | RUNS_ON) == 0).then_some(chunk)
    }

    /// Reads the pages and the base of a chunk. Its garbage and its marks of spanning records may
    /// follow at `next`.
    fn chunk_of(&self, at: u64, bits: u32) -> Option<Chunk> {
        let first_page = self.payload.u32(at)?;
        let pages = self.payload.u32(at + 4)?;
        let base_at = at + CHUNK_FIXED + 4 * u64::from(pages);
        if pages == 0 || base_at > self.payload.len() {
            return None;
        }
        let length = u64::from(bits & BASE) * self.vector_bytes as u64;
        let base = match bits & BASE {
            0 => Base::Nothing,
            _ => match self.payload.get(base_at, length) {
                Some(base) => Base::Vector(base.to_vec()),
                None => Base::Unknown,
            },
        };
        Some(Chunk {
            base,
            first_page,
            next_page: u64::from(first_page) + u64::from(pages),
            next: base_at + length,
        })
    }

    /// The chunk at offset `at`, if its number is certain and at least `least`. Its pages must come
    /// after `page`, its boundaries must ascend, and its last boundary must be the last node of the
    /// chunk with this number.
    fn recognise(&self, least: usize, page: u64, at: u64) -> Option<(usize, Chunk)> {
        let pages = u64::from(self.payload.u32(at + 4)?);
        if pages == 0 || u64::from(self.payload.u32(at)?) <= page {
            return None;
        }
        let boundaries = self.payload.get(at + CHUNK_FIXED, 4 * pages)?;
        let nodes = boundaries
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let last = u64::from(nodes.clone().next_back()?);
        let number = (last.checked_sub(u64::from(self.first))? / u64::from(self.nodes)) as usize;
        if number < least || last >= self.end || last != self.last_of(number) {
            return None;
        }
        let begins = u64::from(self.first) + number as u64 * u64::from(self.nodes);
        let first = u64::from(nodes.clone().next()?);
        // Pages on which no record starts have equal boundaries.
        let run_on = self.payload.u32(at + 8)? & RUNS_ON != 0;
        if first < begins || !nodes.is_sorted_by(|a, b| a < b || run_on && a == b) {
            return None;
        }
        Some((number, self.chunk(number, at)?))
    }
}

#[cfg(test)]
mod tests {
    use stratann_layout::{ChunksFile, RunsOn, block};

    use super::*;

    const V: usize = 24;
    const FIRST: u32 = 1_000;

    /// A file of 40 chunks of 300 nodes, with about 100 pages each. Every third chunk has no base,
    /// and every second chunk has spanning records.
    fn file() -> ChunksFile {
        let (mut chunks, mut page) = (Vec::new(), 0);
        let mut runs = RunsOn::default();
        for number in 0..40u32 {
            let first = FIRST + number * 300;
            let nodes = if number == 39 { 120 } else { 300 };
            let mut boundaries: Vec<u32> = (1..nodes / 3).map(|n| first + 3 * n).collect();
            boundaries.push(first + nodes - 1);
            for at in (3..boundaries.len() - 1)
                .step_by(7)
                .filter(|_| number % 2 > 0)
            {
                runs.set(page + at as u32 - 1);
                if at % 2 > 0 {
                    boundaries[at] = boundaries[at - 1];
                }
            }
            chunks.push(stratann_layout::Chunk {
                first_page: page,
                pages: boundaries.len() as u32,
                base: (number % 3 > 0).then(|| vec![number as u8; V]),
                boundaries,
            });
            page += chunks[number as usize].pages;
        }
        ChunksFile {
            model: vec![9; 50],
            chunk_vectors: 300,
            chunks,
            dead: DeadSlots::default(),
            runs,
        }
    }

    fn bases(lost: &[usize]) -> Vec<Base> {
        let mut bytes = file().encode();
        let blocks = bytes.len().div_ceil(block::PAYLOAD);
        bytes.resize(blocks * block::PAYLOAD, 0);
        let mut whole = vec![true; blocks];
        for &block in lost {
            whole[block] = false;
            bytes[block * block::PAYLOAD..][..block::PAYLOAD].fill(7);
        }
        let payload = Payload { bytes, whole };
        let chunks = Chunks {
            payload: &payload,
            first: FIRST,
            end: u64::from(FIRST) + 39 * 300 + 120,
            vector_bytes: V,
            nodes: 300,
        };
        chunks.bases(12 + 50)
    }

    #[test]
    fn behind_a_damaged_block_chunks_are_found_again() {
        let file = file();
        let blocks = file.encode().len().div_ceil(block::PAYLOAD);
        assert!(blocks >= 4, "{blocks}");
        let lost_of = |lost: &[usize]| {
            let mut unknown = 0;
            for (number, (base, chunk)) in bases(lost).iter().zip(&file.chunks).enumerate() {
                match base {
                    Base::Nothing => assert_eq!(chunk.base, None, "{number}"),
                    Base::Vector(base) => assert_eq!(chunk.base.as_ref(), Some(base), "{number}"),
                    Base::Unknown => unknown += 1,
                }
            }
            unknown
        };
        assert_eq!(lost_of(&[]), 0);
        for block in 1..blocks {
            let lost = lost_of(&[block]);
            assert!((1..=12).contains(&lost), "{block}: {lost}");
        }
        assert!((1..=24).contains(&lost_of(&[1, 3])));
    }
}
