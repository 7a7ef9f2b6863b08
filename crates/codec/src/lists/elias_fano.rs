//! Elias–Fano codes (section 3.2 of the DecoupleVS paper), with a bound of the length for any
//! numbering of the nodes. Each of n ascending node numbers below N is split after its `l` lowest
//! bits. The high parts do not decrease: an increase by i is i zeros, followed by a one.
//!
//! ```text
//! bit 0       n*l                    n*l + n + (last >> l)
//!   | low parts | 0..0 1 0..0 1 .. 1 |  zeros up to a full byte
//! ```
//!
//! With `l = floor(log2(N / n))` ([`low_bits`]) the code takes at most `2n + n * ceil(log2(N / n))`
//! bits, the bound of the paper's section 3.4 ([`slot_bytes`]). The header of the list has n and
//! `l` ([`ListModel`](super::ListModel)).

use crate::bits::{BitWriter, WINDOW, window};
use crate::error::CodecError;

/// The number of bits of the high parts that the decoder takes from one window, in whole bytes.
const STEP: usize = 56;

/// The number of low bits of a node number, 0 to 31, for `count` neighbours below `nodes`.
pub fn low_bits(count: usize, nodes: u32) -> u32 {
    match (nodes as usize).checked_div(count) {
        None | Some(0) => 0,
        Some(ratio) => ratio.ilog2(),
    }
}

pub(super) fn bits(ids: &[u32], low: u32) -> usize {
    match ids.last() {
        None => 0,
        Some(&last) => ids.len() * (low as usize + 1) + (last >> low) as usize,
    }
}

/// The paper's bound in bits for `degree` (R) neighbours below `nodes` (N): `2R + R * ceil(log2(N /
/// R))`, with R at most N.
pub fn bound_bits(degree: usize, nodes: u32) -> usize {
    let degree = degree.min(nodes as usize);
    if degree == 0 {
        return 0;
    }
    // ceil(log2(N / R)): the smallest c with R * 2^c >= N.
    let mut ceil = 0;
    while ((degree as u64) << ceil) < u64::from(nodes) {
        ceil += 1;
    }
    degree * (2 + ceil)
}

/// The most bytes of a list of at most `degree` neighbours below `nodes`, with its header
/// ([`ListModel::elias_fano`](super::ListModel::elias_fano)). A slot of a cache has this size.
pub fn slot_bytes(degree: usize, nodes: u32) -> usize {
    super::header_bytes(degree) + bound_bits(degree, nodes).div_ceil(8)
}

/// `ids` must ascend.
pub(super) fn encode(ids: &[u32], low: u32, out: &mut Vec<u8>) {
    let mut writer = BitWriter::new(out);
    let mask = (1u32 << low) - 1;
    for &id in ids {
        writer.put(u64::from(id & mask), low);
    }
    let mut high = 0;
    for &id in ids {
        let mut zeros = (id >> low) - high;
        high = id >> low;
        while zeros > 32 {
            writer.put(0, 32);
            zeros -= 32;
        }
        writer.put(1 << zeros, zeros + 1);
    }
    writer.finish();
}

/// Returns the length of the code in bytes. Unless the result is an error, the numbers ascend.
pub(super) fn decode(bytes: &[u8], low: u32, out: &mut [u32]) -> Result<usize, CodecError> {
    const WHAT: &str = "adjacency list, Elias-Fano";
    let count = out.len();
    if count == 0 {
        return Ok(0);
    }
    let end = bytes.len() * 8;
    let truncated = CodecError::Truncated {
        what: WHAT,
        found: bytes.len(),
    };
    let upper = count * low as usize;
    if upper + count > end {
        return Err(truncated);
    }
    let (mut at, mut done) = (upper, 0);
    let taken = 'windows: loop {
        let mut ones = window(bytes, at) & ((1 << STEP) - 1);
        while ones != 0 {
            let place = at - upper + ones.trailing_zeros() as usize;
            ones &= ones - 1;
            out[done] = (place - done) as u32;
            done += 1;
            if done == count {
                break 'windows (upper + place + 1).div_ceil(8);
            }
        }
        at += STEP;
        if at >= end {
            return Err(truncated);
        }
    };
    // The high parts do not decrease. If the last number is in range, all numbers are.
    let last = out[count - 1];
    if u64::from(last) >> (32 - low) != 0 {
        return Err(CodecError::Malformed {
            what: WHAT,
            found: u64::from(last) << low,
            expected: "node numbers of 32 bits",
        });
    }
    if low <= WINDOW / 4 {
        add_low_parts::<4>(bytes, low, out);
    } else {
        add_low_parts::<1>(bytes, low, out);
    }
    let falls = out
        .iter()
        .zip(&out[1..])
        .fold(false, |falls, (before, after)| falls | (before >= after));
    if falls {
        return Err(CodecError::Malformed {
            what: WHAT,
            found: u64::from(last) << low,
            expected: "node numbers that ascend",
        });
    }
    Ok(taken)
}

/// Adds the low parts at the start of `bytes` to `out`, `TOGETHER` of them from one window.
#[inline(always)]
fn add_low_parts<const TOGETHER: usize>(bytes: &[u8], low: u32, out: &mut [u32]) {
    let mask = (1u32 << low) - 1;
    let mut at = 0;
    let (even, rest) = out.as_chunks_mut::<TOGETHER>();
    for ids in even {
        let buffer = window(bytes, at);
        for (i, id) in (0..).zip(ids.iter_mut()) {
            *id = *id << low | (buffer >> (i * low)) as u32 & mask;
        }
        at += TOGETHER * low as usize;
    }
    for id in rest {
        *id = *id << low | window(bytes, at) as u32 & mask;
        at += low as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_papers() {
        assert_eq!(bound_bits(128, 1_000_000_000), 2 * 128 + 128 * 23);
        assert_eq!(bound_bits(64, 1_000_000_000), 1664);
        assert_eq!(bound_bits(64, 64 << 10), 64 * 12);
        assert_eq!(bound_bits(64, 30), 60);
        assert_eq!(bound_bits(0, 1000), 0);
    }

    #[test]
    fn no_list_exceeds_the_bound() {
        for nodes in [1u32, 2, 3, 7, 64, 100, 1000, 65_536, 1_000_000, u32::MAX] {
            for count in (0..200usize).filter(|&c| c <= nodes as usize) {
                let low = low_bits(count, nodes);
                let count32 = count as u32;
                let spread: Vec<u32> = (0..count32)
                    .map(|i| (u64::from(nodes - 1) * u64::from(i + 1) / count as u64) as u32)
                    .collect();
                let last: Vec<u32> = (nodes - count32..nodes).collect();
                for ids in [spread, last] {
                    assert!(
                        bits(&ids, low) <= bound_bits(count, nodes),
                        "{count} of {nodes}"
                    );
                    let mut bytes = Vec::new();
                    encode(&ids, low, &mut bytes);
                    assert_eq!(bytes.len(), bits(&ids, low).div_ceil(8));
                    for larger in count..200 {
                        assert!(bytes.len() <= bound_bits(larger, nodes).div_ceil(8));
                    }
                }
            }
        }
    }

    #[test]
    fn cut_and_unordered_codes_are_refused() {
        let ids = [3, 900, 901, 5000];
        let low = low_bits(4, 6000);
        let mut bytes = Vec::new();
        encode(&ids, low, &mut bytes);
        let mut out = [0; 4];
        assert_eq!(decode(&bytes, low, &mut out), Ok(bytes.len()));
        assert_eq!(out, ids);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut], low, &mut out).is_err());
        }
        let mut swapped = Vec::new();
        encode(&[3, 901, 900, 5000], low, &mut swapped);
        assert!(matches!(
            decode(&swapped, low, &mut out),
            Err(CodecError::Malformed { .. })
        ));
    }
}
