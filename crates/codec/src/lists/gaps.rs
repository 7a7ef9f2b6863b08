//! Codes an adjacency list by gaps outward from the node's own number. The code is short if nodes
//! are numbered such that most neighbours have close numbers.
//!
//! The code has the neighbours below the own number in descending order, then those above it in
//! ascending order, each as the distance to the previous one (at first, to the own number). The
//! position of a distance's leading 1 bit, 0 to 31, is its *place* and is Huffman-coded; the lower
//! bits are stored unchanged. The places of 64 distances come before these bits, so one look-up
//! decodes up to three places.
//!
//! ```text
//! own number 50, neighbours 20 47 49 53 90:  below, downwards 49 47 20, above 53 90
//!   distances  1  2  27  3  37        places  0  1  4  1  5
//!
//! bits  below:  number of neighbours below the own number; as many bits as the list's length has
//!       block:  words of the places of up to 64 distances, then the bits below each leading one
//!       block.. until all neighbours are coded, then zeros up to a full byte
//! ```
//!
//! A file has up to [`MAX_TABLES`] Huffman tables, because lists of near neighbours and lists of
//! far neighbours need different tables. A list's header has the number of its table. On a graph
//! over a million SIFT descriptors, codes with four tables take 2 % less space than with one, and
//! with 32 another 0.7 % less (`examples/ratios.rs`).

use crate::bits::{BitWriter, WINDOW, bit_length, window};
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{PrefixCode, Triples};

/// The maximum number of tables of a model.
pub const MAX_TABLES: usize = 32;
/// With words of at most this many bits, a table of triples takes 4 KiB.
const LIMIT: u32 = 10;
const PLACES: usize = 32;
const BLOCK: usize = 64;

const WHAT: &str = "adjacency list, gaps";

#[derive(Debug, Clone)]
pub(super) struct Table {
    code: PrefixCode,
    triples: Triples<{ 1 << LIMIT }>,
}

/// How often each place occurs in a list, and the number of all bits below the leading 1 bits.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    places: [u32; PLACES],
    raw: usize,
}

impl Profile {
    /// `None` if the node is its own neighbour: a distance of 0 has no leading 1 bit.
    pub(super) fn new(own: u32, ids: &[u32]) -> Option<Profile> {
        let mut profile = Profile {
            places: [0; PLACES],
            raw: 0,
        };
        outward(own, ids, |distance| {
            let place = distance.ilog2() as usize;
            profile.places[place] += 1;
            profile.raw += place;
        })?;
        Some(profile)
    }

    /// The bits of the list's code; `None` if `table` has no word for one of the places.
    pub(super) fn bits(&self, table: &Table) -> Option<usize> {
        let count: u32 = self.places.iter().sum();
        let mut bits = bit_length(count) as usize + self.raw;
        for (place, &occurs) in self.places.iter().enumerate() {
            if occurs > 0 {
                match table.code.length(place) {
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
        PrefixCode::read(reader, PLACES, LIMIT).map(Table::new)
    }
}

pub(super) fn train(profiles: &[Profile], nodes: u32, tables: usize) -> Vec<Table> {
    const ROUNDS: usize = 8;
    if profiles.is_empty() {
        return Vec::new();
    }
    let tables = tables.clamp(1, MAX_TABLES);
    // At first, lists are grouped by the number of their unchanged bits.
    let mut ranked: Vec<usize> = (0..profiles.len()).collect();
    ranked.sort_by_key(|&i| profiles[i].raw);
    let mut group = vec![0; profiles.len()];
    for (rank, &i) in ranked.iter().enumerate() {
        group[i] = rank * tables / profiles.len();
    }
    let mut trained = Vec::new();
    for _ in 0..ROUNDS {
        let mut counts = vec![[0u64; PLACES]; tables];
        for (profile, &g) in profiles.iter().zip(&group) {
            for (sum, &occurs) in counts[g].iter_mut().zip(&profile.places) {
                *sum += u64::from(occurs);
            }
        }
        trained = counts
            .iter_mut()
            .map(|counts| {
                // Every possible place gets a word, for lists outside the sample.
                for count in &mut counts[..=nodes.max(1).ilog2() as usize] {
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

/// Calls `each` with the distances. Returns the number of neighbours below `own`; `None` if `own`
/// is a neighbour.
fn outward(own: u32, ids: &[u32], mut each: impl FnMut(u32)) -> Option<usize> {
    let below = ids.partition_point(|&id| id < own);
    if ids.get(below) == Some(&own) {
        return None;
    }
    let mut from = own;
    for &id in ids[..below].iter().rev() {
        each(from - id);
        from = id;
    }
    from = own;
    for &id in &ids[below..] {
        each(id - from);
        from = id;
    }
    Some(below)
}

/// `table` must have words for all places of `ids`.
pub(super) fn encode(own: u32, ids: &[u32], table: &Table, out: &mut Vec<u8>) {
    let mut distances = Vec::with_capacity(ids.len());
    let below = outward(own, ids, |distance| distances.push(distance)).unwrap_or_default();
    let mut writer = BitWriter::new(out);
    writer.put(below as u64, bit_length(ids.len() as u32));
    for block in distances.chunks(BLOCK) {
        for &distance in block {
            table.code.put(distance.ilog2() as usize, &mut writer);
        }
        for &distance in block {
            let place = distance.ilog2();
            writer.put(u64::from(distance ^ (1 << place)), place);
        }
    }
    writer.finish();
}

/// Returns the length of the code in bytes. Unless the result is an error, the numbers ascend.
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
            what: "adjacency list, number of neighbours below the node's own number",
            found: below as u64,
            expected: "at most the length of the list",
        });
    }
    let mut bit = field as usize;
    let (down, up) = out.split_at_mut(below);
    // Distances are positive, so the outermost numbers show, in 64 bits, whether any number
    // overflows.
    let (mut lower, mut upper) = (i64::from(own), u64::from(own));
    let mut done = 0;
    while done < count {
        let block = (count - done).min(BLOCK);
        // A look-up may return two more places than requested.
        let mut places = [0u8; BLOCK + 4];
        bit = read_places(bytes, bit, table, &mut places, block);
        let split = below.saturating_sub(done).min(block);
        let from = below.saturating_sub(done) - split;
        let ids = down[from..from + split].iter_mut().rev();
        read_distances(bytes, &mut bit, &places[..split], ids, |distance| {
            lower -= distance as i64;
            lower as u32
        });
        let from = (done + split).saturating_sub(below);
        let ids = up[from..].iter_mut();
        read_distances(bytes, &mut bit, &places[split..block], ids, |distance| {
            upper += distance;
            upper as u32
        });
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
            expected: "node numbers from 0 to 4294967295",
        });
    }
    Ok(bit.div_ceil(8))
}

/// Returns the position of the next bit.
#[inline(always)]
fn read_places(
    bytes: &[u8],
    mut bit: usize,
    table: &Table,
    places: &mut [u8; BLOCK + 4],
    count: usize,
) -> usize {
    // Five look-ups consume at most 50 bits of a window.
    const LOOKUPS: usize = 5;
    let mut have = 0;
    while have < count {
        let mut buffer = window(bytes, bit);
        for _ in 0..LOOKUPS {
            let entry = table.triples.entry(buffer);
            // `have` is below `count`, so it is at most BLOCK - 1.
            if let Some(to) = places[have & (BLOCK - 1)..].first_chunk_mut::<4>() {
                *to = (entry >> 8).to_le_bytes();
            }
            have += (entry >> 6 & 3) as usize;
            buffer >>= entry & 63;
            bit += (entry & 63) as usize;
            if have >= count {
                break;
            }
        }
    }
    // The last look-up may have decoded places after the first `count`. `bit` goes back over the
    // words of these places.
    for &place in &places[count..have.min(BLOCK + 4)] {
        bit -= table.triples.length(place) as usize;
    }
    bit
}

#[inline(always)]
fn read_distances<'a>(
    bytes: &[u8],
    bit: &mut usize,
    places: &[u8],
    mut ids: impl Iterator<Item = &'a mut u32>,
    mut step: impl FnMut(u64) -> u32,
) {
    let mut one = |buffer: u64, place: u8| {
        let leading = LEADING[usize::from(place) % PLACES];
        let distance = leading | buffer & (leading - 1);
        if let Some(id) = ids.next() {
            *id = step(distance);
        }
    };
    let (fours, rest) = places.as_chunks::<4>();
    for four in fours {
        let ends = u32::from_le_bytes(*four)
            .wrapping_mul(0x0101_0101)
            .to_le_bytes();
        let mut buffer = window(bytes, *bit);
        if u32::from(ends[3]) <= WINDOW {
            one(buffer, four[0]);
            one(buffer >> (ends[0] & 63), four[1]);
            one(buffer >> (ends[1] & 63), four[2]);
            one(buffer >> (ends[2] & 63), four[3]);
            *bit += usize::from(ends[3]);
        } else {
            for &place in four {
                one(buffer, place);
                *bit += usize::from(place);
                buffer = window(bytes, *bit);
            }
        }
    }
    for &place in rest {
        one(window(bytes, *bit), place);
        *bit += usize::from(place);
    }
}

const LEADING: [u64; PLACES] = {
    let mut leading = [0; PLACES];
    let mut place = 0;
    while place < PLACES {
        leading[place] = 1 << place;
        place += 1;
    }
    leading
};
