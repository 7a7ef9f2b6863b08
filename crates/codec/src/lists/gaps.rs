//! Gaps outward from the node's own id, for graphs whose nodes are numbered in locality order.
//!
//! There, many neighbours of a node have numbers close to its own. From the own id downwards and from there
//! upwards, each neighbour is given by its distance to the one before, less one; a distance is split into its
//! length in bits, 0 to 32, which is Huffman-coded, and the bits below the leading one, which stand as they are.
//! The lengths of 64 distances stand together before their bits, so that a lookup gives up to three lengths,
//! and the bits, whose places are then known, are fetched without waiting for one another.
//!
//! ```text
//! own id 50, neighbours 20 47 49 53 90:  below, downwards 49 47 20, above 53 90
//!   distances - 1      0  1  26  2  36        lengths  0  1  5  2  6
//!
//! bits  below:  ids below the own one, in as many bits as the count of ids has
//!       block:  the lengths' words of up to 64 ids, then for each the length - 1 bits below its leading one
//!       block.. until all ids are there, then zeros up to a full byte
//! ```
//!
//! A file has up to [`MAX_TABLES`] Huffman tables, learned by grouping a sample of lists by the table that codes
//! them best; a list's header says which is its own. Lists near and lists far differ by more than one table
//! can serve: on a graph over SIFT descriptors four tables took 2 % less than one, and 32 only 0.6 % less again.

use crate::bits::{BitWriter, bit_length, window};
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{PrefixCode, Triples};

/// The most tables that a model has.
pub const MAX_TABLES: usize = 32;
/// Bits of the longest word: a table of triples then takes 4 KiB.
const LIMIT: u32 = 10;
/// Lengths that a distance may have: 0 to 32 bits.
const LENGTHS: usize = 33;
/// Ids whose lengths stand together.
const BLOCK: usize = 64;

const WHAT: &str = "adjacency list, gaps";

/// One Huffman code over bit lengths.
#[derive(Debug, Clone)]
pub(super) struct Table {
    code: PrefixCode,
    triples: Triples<{ 1 << LIMIT }>,
}

/// How often each length occurs in a list, and the bits below the leading ones.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    lengths: [u32; LENGTHS],
    raw: usize,
}

impl Profile {
    /// The profile of a list; none if the node is its own neighbour, which distances cannot express.
    pub(super) fn new(own: u32, ids: &[u32]) -> Option<Profile> {
        let mut profile = Profile {
            lengths: [0; LENGTHS],
            raw: 0,
        };
        outward(own, ids, |distance| {
            let length = bit_length(distance);
            profile.lengths[length as usize] += 1;
            profile.raw += length.saturating_sub(1) as usize;
        })?;
        Some(profile)
    }

    /// Bits that `table` takes for the list; none if it has no word for one of the lengths.
    pub(super) fn bits(&self, table: &Table) -> Option<usize> {
        let count: u32 = self.lengths.iter().sum();
        let mut bits = bit_length(count) as usize + self.raw;
        for (length, &occurs) in self.lengths.iter().enumerate() {
            if occurs > 0 {
                match table.code.length(length) {
                    0 => return None,
                    word => bits += occurs as usize * word as usize,
                }
            }
        }
        Some(bits)
    }
}

impl Table {
    fn new(code: PrefixCode) -> Table {
        Table {
            triples: Triples::new(&code),
            code,
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.code.write(out);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Table, CodecError> {
        PrefixCode::read(reader, LENGTHS, LIMIT).map(Table::new)
    }
}

/// Groups the profiles around `tables` tables, for distances below `nodes`.
pub(super) fn train(profiles: &[Profile], nodes: u32, tables: usize) -> Vec<Table> {
    const ROUNDS: usize = 8;
    if profiles.is_empty() {
        return Vec::new();
    }
    let tables = tables.clamp(1, MAX_TABLES);
    // Lists with long distances and lists with short ones make the first groups.
    let mut ranked: Vec<usize> = (0..profiles.len()).collect();
    ranked.sort_by_key(|&i| profiles[i].raw);
    let mut group = vec![0; profiles.len()];
    for (rank, &i) in ranked.iter().enumerate() {
        group[i] = rank * tables / profiles.len();
    }
    let mut trained = Vec::new();
    for _ in 0..ROUNDS {
        let mut counts = vec![[0u64; LENGTHS]; tables];
        for (profile, &g) in profiles.iter().zip(&group) {
            for (sum, &occurs) in counts[g].iter_mut().zip(&profile.lengths) {
                *sum += u64::from(occurs);
            }
        }
        trained = counts
            .iter_mut()
            .map(|counts| {
                // Every distance there can be has a word, so that lists to come may use the table.
                for count in &mut counts[..=bit_length(nodes) as usize] {
                    *count = (*count).max(1);
                }
                Table::new(PrefixCode::from_counts(counts, LIMIT))
            })
            .collect();
        for (profile, g) in profiles.iter().zip(&mut group) {
            *g = (0..tables)
                .min_by_key(|&t| profile.bits(&trained[t]).unwrap_or(usize::MAX))
                .unwrap_or(0);
        }
    }
    trained
}

/// Calls `each` with the distances, less one, first downwards, then upwards. None if `own` is among the ids.
fn outward(own: u32, ids: &[u32], mut each: impl FnMut(u32)) -> Option<usize> {
    let below = ids.partition_point(|&id| id < own);
    if ids.get(below) == Some(&own) {
        return None;
    }
    let mut from = own;
    for &id in ids[..below].iter().rev() {
        each(from - id - 1);
        from = id;
    }
    from = own;
    for &id in &ids[below..] {
        each(id - from - 1);
        from = id;
    }
    Some(below)
}

/// Appends the code of `ids`, whose profile `table` can code.
pub(super) fn encode(own: u32, ids: &[u32], table: &Table, out: &mut Vec<u8>) {
    let mut distances = Vec::with_capacity(ids.len());
    let below = outward(own, ids, |distance| distances.push(distance)).unwrap_or_default();
    let mut writer = BitWriter::new(out);
    writer.put(below as u64, bit_length(ids.len() as u32));
    for block in distances.chunks(BLOCK) {
        for &distance in block {
            table.code.put(bit_length(distance) as usize, &mut writer);
        }
        for &distance in block {
            let length = bit_length(distance);
            if length > 1 {
                let leading = 1 << (length - 1);
                writer.put(u64::from(distance ^ leading), length - 1);
            }
        }
    }
    writer.finish();
}

/// Decodes `out.len()` ids from the start of `bytes`; gives the bytes that they took. The ids ascend, whatever
/// the bytes are.
pub(super) fn decode(
    own: u32,
    bytes: &[u8],
    table: &Table,
    out: &mut [u32],
) -> Result<usize, CodecError> {
    let count = out.len();
    let field = bit_length(count as u32);
    let below = (window(bytes, 0) & ((1 << field) - 1)) as usize;
    if below > count {
        return Err(CodecError::Malformed {
            what: "adjacency list, ids below the node's own",
            found: below as u64,
            expected: "at most the count of ids",
        });
    }
    let mut bit = field as usize;
    let (down, up) = out.split_at_mut(below);
    // Ids are followed in 64 bits, and looked at once: distances are positive, so the last is the extreme.
    let (mut lower, mut upper) = (i64::from(own), u64::from(own));
    let mut done = 0;
    while done < count {
        let block = (count - done).min(BLOCK);
        // A lookup may give two lengths more than are asked for.
        let mut lengths = [0u8; BLOCK + 4];
        bit = read_lengths(bytes, bit, table, &mut lengths, block);
        let split = below.saturating_sub(done).min(block);
        let from = below.saturating_sub(done) - split;
        for (length, id) in lengths[..split]
            .iter()
            .zip(down[from..from + split].iter_mut().rev())
        {
            lower -= 1 + read_distance(bytes, &mut bit, *length) as i64;
            *id = lower as u32;
        }
        let from = (done + split).saturating_sub(below);
        for (length, id) in lengths[split..block].iter().zip(up[from..].iter_mut()) {
            upper += 1 + read_distance(bytes, &mut bit, *length);
            *id = upper as u32;
        }
        done += block;
    }
    if bit > bytes.len() * 8 {
        return Err(CodecError::Truncated {
            what: WHAT,
            found: bytes.len(),
        });
    }
    if lower < 0 || upper > u64::from(u32::MAX) {
        return Err(CodecError::Malformed {
            what: WHAT,
            found: if lower < 0 {
                lower.unsigned_abs()
            } else {
                upper
            },
            expected: "ids from 0 to 4294967295",
        });
    }
    Ok(bit.div_ceil(8))
}

/// Reads `count` lengths, at most [`BLOCK`]; gives the bit behind them.
#[inline(always)]
fn read_lengths(
    bytes: &[u8],
    mut bit: usize,
    table: &Table,
    lengths: &mut [u8; BLOCK + 4],
    count: usize,
) -> usize {
    // Five lookups drop at most 50 bits of a window.
    const LOOKUPS: usize = 5;
    let mut have = 0;
    while have < count {
        let mut buffer = window(bytes, bit);
        for _ in 0..LOOKUPS {
            let entry = table.triples.entry(buffer);
            // `have` is below `count` here, and so at most BLOCK - 1.
            if let Some(place) = lengths[have & (BLOCK - 1)..].first_chunk_mut::<4>() {
                *place = (entry >> 8).to_le_bytes();
            }
            have += (entry >> 6 & 3) as usize;
            buffer >>= entry & 63;
            bit += (entry & 63) as usize;
            if have >= count {
                break;
            }
        }
    }
    // What the last lookup gave too much.
    for &length in &lengths[count..have.min(BLOCK + 4)] {
        bit -= table.triples.length(length) as usize;
    }
    bit
}

/// Reads the bits below the leading one of a distance of `length` bits.
#[inline(always)]
fn read_distance(bytes: &[u8], bit: &mut usize, length: u8) -> u64 {
    let below_leading = u32::from(length).saturating_sub(1);
    let raw = window(bytes, *bit) & ((1 << below_leading) - 1);
    *bit += below_leading as usize;
    raw | (1u64 << length) >> 1
}
