//! XOR of vectors with the base vector of their chunk, which has the most frequent byte of each
//! position (sections 3.2 and 3.3 of the DecoupleVS paper). A chunk gets a base vector if the XOR
//! lowers the entropy of its first tenth. The layout stores the base vector, and passes it to
//! [`SegmentModel::encode`](super::SegmentModel::encode) and `decode`. A segment's Huffman table is
//! trained after the XOR ([`ByteCounts`]).

/// The first tenth of a chunk's vectors decides whether the chunk gets a base vector.
const SAMPLE: usize = 10;

/// The most frequent byte of each position in a chunk; of equally frequent bytes, the smallest.
pub fn base_vector(chunk: &[u8], vector_bytes: usize) -> Vec<u8> {
    (0..vector_bytes)
        .map(|position| {
            let mut counts = [0u32; 256];
            for &byte in chunk.iter().skip(position).step_by(vector_bytes) {
                counts[usize::from(byte)] += 1;
            }
            let most = counts.iter().max().copied().unwrap_or(0);
            counts.iter().position(|&count| count == most).unwrap_or(0) as u8
        })
        .collect()
}

/// The base vector of a chunk, if the XOR with it lowers the entropy of the sample.
///
/// # Panics
/// Panics if `vector_bytes` is zero.
pub fn choose_base(chunk: &[u8], vector_bytes: usize) -> Option<Vec<u8>> {
    let base = base_vector(chunk, vector_bytes);
    let vectors = chunk.len() / vector_bytes;
    let sample = &chunk[..vectors.div_ceil(SAMPLE) * vector_bytes];
    let (mut plain, mut delta) = (ByteCounts::new(), ByteCounts::new());
    plain.add(sample, None);
    delta.add(sample, Some(&base));
    (delta.entropy() < plain.entropy()).then_some(base)
}

/// The number of each byte in vectors, after the XOR with the base vector of their chunk.
#[derive(Debug, Clone)]
pub struct ByteCounts(pub(super) [u64; 256]);

impl Default for ByteCounts {
    fn default() -> ByteCounts {
        ByteCounts::new()
    }
}

impl ByteCounts {
    /// Creates counts that are all zero.
    pub fn new() -> ByteCounts {
        ByteCounts([0; 256])
    }

    /// Counts the bytes of whole vectors of one chunk with the base vector `base`.
    pub fn add(&mut self, vectors: &[u8], base: Option<&[u8]>) {
        match base.filter(|base| !base.is_empty()) {
            None => {
                for &byte in vectors {
                    self.0[usize::from(byte)] += 1;
                }
            }
            Some(base) => {
                for vector in vectors.chunks(base.len()) {
                    for (&byte, &base) in vector.iter().zip(base) {
                        self.0[usize::from(byte ^ base)] += 1;
                    }
                }
            }
        }
    }

    /// The entropy in bits per byte, a lower bound for any code of single bytes; 0 without bytes.
    pub fn entropy(&self) -> f64 {
        let total: u64 = self.0.iter().sum();
        self.0
            .iter()
            .filter(|&&count| count > 0)
            .map(|&count| {
                let share = count as f64 / total as f64;
                -share * share.log2()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_is_the_most_frequent_byte_of_each_position() {
        let chunk = [1, 9, 7, 1, 8, 7, 2, 9, 7, 1, 9, 0];
        assert_eq!(base_vector(&chunk, 3), [1, 9, 7]);
        assert_eq!(base_vector(&[], 2), [0, 0]);
        assert_eq!(base_vector(&[5, 3], 1), [3]);
    }

    #[test]
    fn a_chunk_has_a_base_only_where_it_lowers_the_entropy() {
        // Each of the eight positions has a byte of its own, so the XOR makes all bytes equal.
        let alike: Vec<u8> = (0..8000u32).map(|i| (i % 8) as u8 * 31).collect();
        assert_eq!(
            choose_base(&alike, 8),
            Some((0..8).map(|i| i * 31).collect())
        );
        let random: Vec<u8> = (0..8000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 29) as u8)
            .collect();
        assert_eq!(choose_base(&vec![0; 800], 8), None);
        let chosen = choose_base(&random, 8);
        let (mut plain, mut delta) = (ByteCounts::new(), ByteCounts::new());
        plain.add(&random[..800], None);
        delta.add(&random[..800], Some(&base_vector(&random, 8)));
        assert_eq!(chosen.is_some(), delta.entropy() < plain.entropy());
        assert_eq!(choose_base(&[], 8), None);
    }
}
