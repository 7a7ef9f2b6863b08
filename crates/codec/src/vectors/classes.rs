//! A codec for bytes. A byte's position and the vector's *group* select one of a few Huffman
//! tables.
//!
//! The bytes of image descriptors are small in some positions, which differ from vector to vector.
//! So a *group* gives each position a *class*, the number of a table. A vector is coded with the
//! group that makes its code shortest.
//!
//! ```text
//! offset  size  contents (vector)
//!      0     1  group; 255: the unchanged vector follows
//!      1     .  bytes in two streams (see lanes), each byte coded with the table of its class
//!
//! offset   size  contents (model)
//!      0      1  groups g, 1 to 128
//!      1      1  tables t, 1 to 8
//!      2  129*t  tables: a nibble for the length of each word, of the bytes and of the escape
//!      .  g*n/2  classes of the n positions in each group, a nibble each, rounded up to bytes
//! ```
//!
//! Training starts with groups by k-means, and classes by the mean bytes of each group. Then each
//! of a few rounds chooses groups, classes and tables that minimise the length of the codes. Words
//! have at most 10 bits, so a table takes 2 KiB, and all tables fit the first-level cache.

use super::{Element, lanes};
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{BYTE_SYMBOLS, ESCAPE, PrefixCode};

pub(super) const MAX_GROUPS: usize = 128;
pub(super) const TABLES: usize = 8;
pub(super) const FEWEST_SAMPLES: usize = 1024;

const LIMIT: u32 = 10;
const SIZE: usize = 1 << LIMIT;
const STORED: u8 = 255;
const WHAT: &str = "vector, classes";

/// The bit that marks the entry of an escape, above the six bits of a word's length.
const ESCAPED: u16 = 0x40;

#[derive(Debug, Clone)]
pub(super) struct Classes {
    vector_bytes: usize,
    codes: Vec<PrefixCode>,
    /// For each class and each value of the next bits: the length of the word, the bit `ESCAPED` if
    /// the word is the escape, and from bit 8 on the byte.
    tables: Box<[[u16; SIZE]; TABLES]>,
    costs: Box<[[u8; 256]; TABLES]>,
    classes: Vec<u8>,
}

impl Classes {
    fn new(vector_bytes: usize, codes: Vec<PrefixCode>, classes: Vec<u8>) -> Classes {
        let mut tables = Box::new([[0; SIZE]; TABLES]);
        let mut costs = Box::new([[0; 256]; TABLES]);
        for ((code, table), costs) in codes.iter().zip(tables.iter_mut()).zip(costs.iter_mut()) {
            for (entry, (symbol, length)) in table.iter_mut().zip(code.singles(LIMIT)) {
                *entry = u16::from(length)
                    | if usize::from(symbol) == ESCAPE {
                        ESCAPED
                    } else {
                        symbol << 8
                    };
            }
            for (byte, cost) in (0..=255).zip(costs.iter_mut()) {
                *cost = code.byte_length(byte) as u8;
            }
        }
        Classes {
            vector_bytes,
            codes,
            tables,
            costs,
            classes,
        }
    }

    fn groups(&self) -> std::slice::ChunksExact<'_, u8> {
        self.classes.chunks_exact(self.vector_bytes)
    }

    fn best_group(&self, vector: &[u8]) -> (usize, u32) {
        (0..)
            .zip(self.groups())
            .map(|(group, classes)| {
                let bits = classes
                    .iter()
                    .zip(vector)
                    .map(|(&class, &byte)| {
                        u32::from(self.costs[usize::from(class) % TABLES][usize::from(byte)])
                    })
                    .sum();
                (group, bits)
            })
            .min_by_key(|&(_, bits): &(usize, u32)| bits)
            .unwrap_or((0, u32::MAX))
    }

    pub(super) fn encode(&self, vector: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let (group, bits) = self.best_group(vector);
        if (bits as usize) < 8 * vector.len() {
            out.push(group as u8);
            let classes = &self.classes[group * self.vector_bytes..][..self.vector_bytes];
            lanes::encode(
                vector.len(),
                (0, 0),
                |i, writer| self.codes[usize::from(classes[i])].put_byte(vector[i], writer),
                out,
            );
            if out.len() - start <= vector.len() + 1 {
                return;
            }
            out.truncate(start);
        }
        out.push(STORED);
        out.extend_from_slice(vector);
    }

    #[inline]
    pub(super) fn decode(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let (&group, words) = bytes.split_first().ok_or(CodecError::Truncated {
            what: WHAT,
            found: 0,
        })?;
        if group == STORED {
            return super::copy_stored(WHAT, bytes, 1, out);
        }
        let at = usize::from(group) * self.vector_bytes;
        let Some(classes) = self.classes.get(at..at + self.vector_bytes) else {
            return Err(CodecError::Malformed {
                what: "vector, number of its group",
                found: group.into(),
                expected: "a group of the model",
            });
        };
        let front = lanes::front(out.len());
        let (first, second) = out.split_at_mut(front);
        let (first_classes, second_classes) = classes.split_at(front);
        let mut ahead = lanes::Lane::<false>::new(words, 0);
        let mut back = lanes::Lane::<true>::new(words, 0);

        // A window has more bits than five words of 10 bits.
        const STEP: usize = 5;
        let both = second.len() / STEP * STEP;
        let (first_even, first_rest) = first.split_at_mut(both);
        let (second_even, second_rest) = second.split_at_mut(both);
        for (((a, b), ca), cb) in first_even
            .as_chunks_mut::<STEP>()
            .0
            .iter_mut()
            .zip(second_even.as_chunks_mut::<STEP>().0)
            .zip(first_classes.as_chunks::<STEP>().0)
            .zip(second_classes.as_chunks::<STEP>().0)
        {
            ahead.refill();
            back.refill();
            for i in 0..STEP {
                a[i] = self.word(ca[i], &mut ahead);
                b[i] = self.word(cb[i], &mut back);
            }
        }
        for (byte, &class) in first_rest.iter_mut().zip(&first_classes[both..]) {
            ahead.refill();
            *byte = self.word(class, &mut ahead);
        }
        for (byte, &class) in second_rest.iter_mut().zip(&second_classes[both..]) {
            back.refill();
            *byte = self.word(class, &mut back);
        }
        lanes::check_meet(WHAT, words, &ahead, &back)
    }

    #[inline(always)]
    fn word<const BACK: bool>(&self, class: u8, lane: &mut lanes::Lane<'_, BACK>) -> u8 {
        let entry = self.tables[usize::from(class) % TABLES][lane.buffer() as usize % SIZE];
        lane.skip(u32::from(entry & 63));
        if entry & ESCAPED != 0 {
            return lane.escaped();
        }
        (entry >> 8) as u8
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.groups().len() as u8);
        out.push(self.codes.len() as u8);
        for code in &self.codes {
            code.write(out);
        }
        for pair in self.classes.chunks(2) {
            out.push(pair[0] | pair.get(1).copied().unwrap_or(0) << 4);
        }
    }

    pub(super) fn read(
        vector_bytes: usize,
        reader: &mut Reader<'_>,
    ) -> Result<Classes, CodecError> {
        let groups = reader.u8()?;
        if !(1..=MAX_GROUPS).contains(&usize::from(groups)) {
            return Err(reader.malformed("model of classes, groups", groups, "1 to 128"));
        }
        let tables = reader.u8()?;
        if !(1..=TABLES).contains(&usize::from(tables)) {
            return Err(reader.malformed("model of classes, tables", tables, "1 to 8"));
        }
        let codes = (0..tables)
            .map(|_| PrefixCode::read(reader, BYTE_SYMBOLS, LIMIT))
            .collect::<Result<_, _>>()?;
        let count = usize::from(groups) * vector_bytes;
        let packed = reader.take(count.div_ceil(2))?;
        let mut classes: Vec<u8> = packed.iter().flat_map(|&b| [b & 15, b >> 4]).collect();
        if classes.len() > count && classes.pop() != Some(0) {
            return Err(reader.malformed("model of classes, last nibble", 1u32, "0"));
        }
        if let Some(&class) = classes.iter().find(|&&class| class >= tables) {
            return Err(reader.malformed(
                "model of classes, class",
                class,
                "the number of a table",
            ));
        }
        Ok(Classes::new(vector_bytes, codes, classes))
    }
}

struct Trainer<'a> {
    vector_bytes: usize,
    sample: &'a [u8],
    groups: Vec<u8>,
}

impl Classes {
    pub(super) fn train(
        element: Element,
        vector_bytes: usize,
        sample: &[u8],
        groups: usize,
    ) -> Option<Classes> {
        const ROUNDS: usize = 6;
        if sample.len() / vector_bytes < FEWEST_SAMPLES {
            return None;
        }
        let groups = groups.clamp(1, MAX_GROUPS);
        let mut trainer = Trainer {
            vector_bytes,
            sample,
            groups: vec![0; sample.len() / vector_bytes],
        };
        let means = trainer.k_means(element, groups);
        let mut model = trainer.tables(by_mean(&means));
        for _ in 0..ROUNDS {
            trainer.regroup(&model);
            model = trainer.tables(trainer.reclass(&model));
        }
        Some(model)
    }
}

/// Assigns classes by the rank of the mean, so that all classes have equally many means.
fn by_mean(means: &[f32]) -> Vec<u8> {
    let mut ranked: Vec<usize> = (0..means.len()).collect();
    ranked.sort_by(|&a, &b| means[a].total_cmp(&means[b]));
    let mut classes = vec![0; means.len()];
    for (rank, &i) in ranked.iter().enumerate() {
        classes[i] = (rank * TABLES / means.len()) as u8;
    }
    classes
}

impl Trainer<'_> {
    fn vectors(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.groups
            .iter()
            .map(|&group| usize::from(group))
            .zip(self.sample.chunks_exact(self.vector_bytes))
    }

    fn k_means(&mut self, element: Element, groups: usize) -> Vec<f32> {
        const ROUNDS: usize = 5;
        // XOR with `flip` maps signed bytes to unsigned bytes in the same order.
        let flip = if element == Element::I8 { 0x80 } else { 0 };
        let n = self.vector_bytes;
        let count = self.groups.len();
        let value = |byte: u8| f32::from(byte ^ flip);
        let mut centroids: Vec<f32> = (0..groups)
            .flat_map(|g| &self.sample[(g * count / groups) * n..][..n])
            .map(|&byte| value(byte))
            .collect();
        for _ in 0..ROUNDS {
            let mut sums = vec![0f32; groups * n];
            let mut sizes = vec![0u32; groups];
            let mut floats = vec![0f32; n];
            for (group, vector) in self.groups.iter_mut().zip(self.sample.chunks_exact(n)) {
                for (float, &byte) in floats.iter_mut().zip(vector) {
                    *float = value(byte);
                }
                let nearest = (0..)
                    .zip(centroids.chunks_exact(n))
                    .map(|(g, centroid)| (g, squared_distance(&floats, centroid)))
                    .min_by(|a: &(usize, f32), b| a.1.total_cmp(&b.1))
                    .map_or(0, |(g, _)| g);
                *group = nearest as u8;
                sizes[nearest] += 1;
                for (sum, &float) in sums[nearest * n..][..n].iter_mut().zip(&floats) {
                    *sum += float;
                }
            }
            for ((centroid, sum), &size) in centroids
                .chunks_exact_mut(n)
                .zip(sums.chunks_exact(n))
                .zip(&sizes)
                .filter(|&(_, &size)| size > 0)
            {
                for (mean, &sum) in centroid.iter_mut().zip(sum) {
                    *mean = sum / size as f32;
                }
            }
        }
        centroids
    }

    fn tables(&self, classes: Vec<u8>) -> Classes {
        let mut counts = [[0u64; 256]; TABLES];
        for (group, vector) in self.vectors() {
            let classes = &classes[group * self.vector_bytes..][..self.vector_bytes];
            for (&class, &byte) in classes.iter().zip(vector) {
                counts[usize::from(class)][usize::from(byte)] += 1;
            }
        }
        let codes = counts
            .iter()
            .map(|counts| PrefixCode::from_byte_counts(counts, LIMIT))
            .collect();
        Classes::new(self.vector_bytes, codes, classes)
    }

    fn reclass(&self, model: &Classes) -> Vec<u8> {
        let mut bits = vec![[0u32; TABLES]; model.classes.len()];
        for (group, vector) in self.vectors() {
            let cells = &mut bits[group * self.vector_bytes..][..self.vector_bytes];
            for (cell, &byte) in cells.iter_mut().zip(vector) {
                for (sum, costs) in cell.iter_mut().zip(model.costs.iter()) {
                    *sum += u32::from(costs[usize::from(byte)]);
                }
            }
        }
        bits.iter()
            .zip(&model.classes)
            .map(|(cell, &before)| {
                (0u8..)
                    .zip(cell)
                    .min_by_key(|&(class, &bits)| (bits, class != before))
                    .map_or(before, |(class, _)| class)
            })
            .collect()
    }

    fn regroup(&mut self, model: &Classes) {
        for (group, vector) in self
            .groups
            .iter_mut()
            .zip(self.sample.chunks_exact(self.vector_bytes))
        {
            *group = model.best_group(vector).0 as u8;
        }
    }
}

/// The sum consists of eight sums, so that the compiler can vectorise the loop.
fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += (a[i] - b[i]) * (a[i] - b[i]);
        }
    }
    let rest: f32 = a_rest
        .iter()
        .zip(b_rest)
        .map(|(a, b)| (a - b) * (a - b))
        .sum();
    sums.iter().sum::<f32>() + rest
}
