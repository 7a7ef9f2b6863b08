//! Canonical prefix codes (length-limited Huffman codes) and the tables that decode them.
//!
//! The lengths of the words define a code. The words are numbered by length, then by symbol, and
//! written lowest bit first, so a word is its number with reversed bits. Every code is *complete*:
//! any bits can be decoded, so a decoder needs no check for invalid words.
//!
//! ```text
//! bytes of a code over n symbols: for each symbol a nibble, the length of its word or 0;
//!                                 the lower nibble of a byte is first
//! ```
//!
//! In a code over bytes, symbol 256 is the *escape*, followed by an unchanged byte. Bytes that are
//! rare in the sample are escaped, because their words would make the other words longer.

use crate::bits::BitWriter;
use crate::error::CodecError;
use crate::model::Reader;

pub(crate) const MAX_LENGTH: u32 = 12;
pub(crate) const ESCAPE: usize = 256;
pub(crate) const BYTE_SYMBOLS: usize = 257;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrefixCode {
    lengths: Vec<u8>,
    /// The word of each symbol, written lowest bit first.
    words: Vec<u16>,
}

impl PrefixCode {
    /// The shortest code for these counts, with words of at most `limit` bits. It has two words or
    /// more.
    pub(crate) fn from_counts(counts: &[u64], limit: u32) -> PrefixCode {
        let mut present: Vec<(u64, u16)> = (0u16..)
            .zip(counts)
            .filter(|&(_, &count)| count > 0)
            .map(|(symbol, &count)| (count, symbol))
            .collect();
        let mut unused = (0u16..).zip(counts).filter(|&(_, &count)| count == 0);
        while present.len() < 2 {
            let (symbol, _) = unused.next().expect("an alphabet has two symbols or more");
            present.push((0, symbol));
        }
        debug_assert!(limit <= MAX_LENGTH && present.len() <= 1 << limit);
        present.sort_unstable();
        PrefixCode::new(package_merge(&present, counts.len(), limit))
    }

    pub(crate) fn from_byte_counts(counts: &[u64; 256], limit: u32) -> PrefixCode {
        let total: u64 = counts.iter().sum();
        // A byte gets a word if its ideal length is at most `limit + slack` bits.
        (0..4)
            .map(|slack| {
                let mut kept = [0u64; BYTE_SYMBOLS];
                let mut dropped = 0;
                for (byte, &count) in counts.iter().enumerate() {
                    if count > 0 && (count as u128) << (limit + slack) >= u128::from(total) {
                        kept[byte] = count;
                    } else {
                        dropped += count;
                    }
                }
                let all = kept[..256].iter().all(|&count| count > 0);
                kept[ESCAPE] = if all { 0 } else { dropped.max(1) };
                let code = PrefixCode::from_counts(&kept, limit);
                let bits: u64 = kept
                    .iter()
                    .zip(&code.lengths)
                    .map(|(&count, &length)| count * u64::from(length))
                    .sum();
                (bits + 8 * dropped, code)
            })
            .min_by_key(|&(bits, _)| bits)
            .map(|(_, code)| code)
            .expect("four codes were tried")
    }

    /// The lengths must form a complete code.
    fn new(lengths: Vec<u8>) -> PrefixCode {
        let mut words = vec![0u16; lengths.len()];
        let mut next = 0u32;
        for length in 1..=MAX_LENGTH {
            next <<= 1;
            for (word, _) in words
                .iter_mut()
                .zip(&lengths)
                .filter(|&(_, &own)| u32::from(own) == length)
            {
                *word = (next.reverse_bits() >> (32 - length)) as u16;
                next += 1;
            }
        }
        PrefixCode { lengths, words }
    }

    #[inline]
    pub(crate) fn length(&self, symbol: usize) -> u32 {
        u32::from(self.lengths[symbol])
    }

    /// The bits of a byte's code. A byte without a word also needs the escape.
    #[inline]
    pub(crate) fn byte_length(&self, byte: u8) -> u32 {
        match self.length(usize::from(byte)) {
            0 => self.length(ESCAPE) + 8,
            length => length,
        }
    }

    /// The symbol must have a word.
    #[inline]
    pub(crate) fn put(&self, symbol: usize, writer: &mut BitWriter<'_>) {
        writer.put(u64::from(self.words[symbol]), self.length(symbol));
    }

    #[inline]
    pub(crate) fn put_byte(&self, byte: u8, writer: &mut BitWriter<'_>) {
        if self.length(usize::from(byte)) > 0 {
            self.put(usize::from(byte), writer);
        } else {
            self.put(ESCAPE, writer);
            writer.put(u64::from(byte), 8);
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for pair in self.lengths.chunks(2) {
            out.push(pair[0] | pair.get(1).copied().unwrap_or(0) << 4);
        }
    }

    /// Refuses a code that is not complete, and a code over bytes that lacks a byte and the escape.
    pub(crate) fn read(
        reader: &mut Reader<'_>,
        symbols: usize,
        limit: u32,
    ) -> Result<PrefixCode, CodecError> {
        let packed = reader.take(symbols.div_ceil(2))?;
        let mut lengths: Vec<u8> = packed.iter().flat_map(|&b| [b & 15, b >> 4]).collect();
        if lengths.len() > symbols && lengths.pop() != Some(0) {
            return Err(reader.malformed("prefix code: last nibble", 1u32, "0"));
        }
        let mut space = 0u64;
        for &length in &lengths {
            if u32::from(length) > limit {
                return Err(reader.malformed("prefix code: length", length, "at most the limit"));
            }
            if length > 0 {
                space += 1 << (limit - u32::from(length));
            }
        }
        if space != 1 << limit {
            return Err(reader.malformed("prefix code: sum of 2^-length", space, "exactly 1"));
        }
        if symbols == BYTE_SYMBOLS && lengths[ESCAPE] == 0 && lengths[..256].contains(&0) {
            return Err(reader.malformed("prefix code: length of the escape", 0u32, "1 or more"));
        }
        Ok(PrefixCode::new(lengths))
    }

    /// For each value of the next `limit` bits, the first symbol, and the length of its word.
    pub(crate) fn singles(&self, limit: u32) -> Vec<(u16, u8)> {
        let mut singles = vec![(0, 0); 1 << limit];
        for (symbol, (&length, &word)) in self.lengths.iter().zip(&self.words).enumerate() {
            if length > 0 {
                let mut bits = usize::from(word);
                while bits < singles.len() {
                    singles[bits] = (symbol as u16, length);
                    bits += 1 << length;
                }
            }
        }
        singles
    }
}

/// The lengths of the optimal code, by the package-merge algorithm of Larmore and Hirschberg.
/// `present` has at least two pairs of a count and a symbol, ascending.
fn package_merge(present: &[(u64, u16)], symbols: usize, limit: u32) -> Vec<u8> {
    let leaves = || present.iter().map(|&(count, symbol)| (count, vec![symbol]));
    let mut level: Vec<(u64, Vec<u16>)> = Vec::new();
    for _ in 0..limit {
        let mut packages = level
            .chunks_exact(2)
            .map(|pair| {
                (
                    pair[0].0 + pair[1].0,
                    [&pair[0].1[..], &pair[1].1[..]].concat(),
                )
            })
            .peekable();
        let mut merged = Vec::with_capacity(2 * present.len());
        for leaf in leaves() {
            while let Some(package) = packages.next_if(|package| package.0 < leaf.0) {
                merged.push(package);
            }
            merged.push(leaf);
        }
        merged.extend(packages);
        // The next level of package-merge never uses more items than these.
        merged.truncate(2 * present.len() - 2);
        level = merged;
    }
    let mut lengths = vec![0u8; symbols];
    for (_, members) in level {
        for symbol in members {
            lengths[usize::from(symbol)] += 1;
        }
    }
    lengths
}

/// A table that decodes up to three symbols with one look-up of the next bits.
///
/// ```text
/// bits of an entry   0..6   bits to drop        8..16   first symbol
///                    6..8   number of          16..24   second symbol
///                           symbols, 1 to 3;   24..32   third symbol
///                           0: the escape
/// ```
///
/// `SIZE` is 2 to the power of the longest word's length.
#[derive(Debug, Clone)]
pub(crate) struct Triples<const SIZE: usize> {
    entries: Box<[u32; SIZE]>,
    lengths: Box<[u8; 256]>,
}

impl<const SIZE: usize> Triples<SIZE> {
    pub(crate) const LIMIT: u32 = SIZE.trailing_zeros();

    /// The words of `code` must have at most [`Self::LIMIT`] bits.
    pub(crate) fn new(code: &PrefixCode) -> Triples<SIZE> {
        let singles = code.singles(Self::LIMIT);
        let mut entries = Box::new([0; SIZE]);
        for (index, entry) in entries.iter_mut().enumerate() {
            let (mut rest, mut left, mut used, mut count) = (index, Self::LIMIT, 0, 0);
            while count < 3 {
                let (symbol, length) = singles[rest];
                if usize::from(symbol) == ESCAPE {
                    if count == 0 {
                        used = u32::from(length);
                    }
                    break;
                }
                // This word needs bits beyond the index, for which the look-up took zeros.
                if u32::from(length) > left {
                    break;
                }
                *entry |= u32::from(symbol) << (8 + 8 * count);
                count += 1;
                used += u32::from(length);
                left -= u32::from(length);
                rest >>= length;
            }
            *entry |= used | count << 6;
        }
        let mut lengths = Box::new([0; 256]);
        for (to, &from) in lengths.iter_mut().zip(&code.lengths) {
            *to = from;
        }
        Triples { entries, lengths }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, bits: u64) -> u32 {
        self.entries[bits as usize & (SIZE - 1)]
    }

    #[inline(always)]
    pub(crate) fn length(&self, symbol: u8) -> u32 {
        u32::from(self.lengths[usize::from(symbol)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::window;

    fn huffman_bits(counts: &[u64]) -> u64 {
        let mut heap: Vec<u64> = counts.iter().copied().filter(|&c| c > 0).collect();
        let mut bits = 0;
        while heap.len() > 1 {
            heap.sort_unstable_by(|a, b| b.cmp(a));
            let pair = heap.pop().unwrap() + heap.pop().unwrap();
            bits += pair;
            heap.push(pair);
        }
        bits
    }

    fn bits(code: &PrefixCode, counts: &[u64]) -> u64 {
        (0..counts.len())
            .map(|s| counts[s] * u64::from(code.length(s)))
            .sum()
    }

    fn written(code: &PrefixCode) -> Vec<u8> {
        let mut bytes = vec![1];
        code.write(&mut bytes);
        bytes
    }

    #[test]
    fn codes_are_as_short_as_huffmans_where_the_limit_allows() {
        let flat: Vec<u64> = (0..33).map(|i| 1000 + i).collect();
        let steep: Vec<u64> = (0..12).map(|i| 1 << i).collect();
        let sparse = [0, 5, 0, 0, 7, 9, 0];
        for counts in [&flat[..], &steep, &sparse] {
            let code = PrefixCode::from_counts(counts, MAX_LENGTH);
            assert_eq!(bits(&code, counts), huffman_bits(counts));
        }
        // Frequencies that are Fibonacci numbers give words of 29 bits.
        let mut deep = vec![1u64, 1];
        while deep.len() < 30 {
            deep.push(deep[deep.len() - 1] + deep[deep.len() - 2]);
        }
        let code = PrefixCode::from_counts(&deep, 12);
        assert!((0..30).all(|s| (1..=12).contains(&code.length(s))));
        assert!(bits(&code, &deep) < huffman_bits(&deep) * 102 / 100);
    }

    #[test]
    fn no_code_within_the_limit_is_shorter() {
        let counts = [1u64, 1, 2, 3, 5, 8];
        let least = (0..3usize.pow(6))
            .filter_map(|number| {
                let lengths: Vec<u32> = (0..6)
                    .map(|s| (number / 3usize.pow(s) % 3) as u32 + 1)
                    .collect();
                let space: u32 = lengths.iter().map(|length| 8 >> length).sum();
                let bits = counts.iter().zip(&lengths).map(|(c, &l)| c * u64::from(l));
                (space <= 8).then(|| bits.sum::<u64>())
            })
            .min();
        let code = PrefixCode::from_counts(&counts, 3);
        assert_eq!(Some(bits(&code, &counts)), least);
        assert!(bits(&code, &counts) > huffman_bits(&counts));
    }

    #[test]
    fn fewer_than_two_symbols_still_make_a_code() {
        for counts in [[0u64, 0, 0], [0, 9, 0], [3, 0, 0]] {
            let code = PrefixCode::from_counts(&counts, 4);
            assert_eq!((0..3).map(|s| code.length(s)).sum::<u32>(), 2);
        }
    }

    #[test]
    fn a_code_survives_its_bytes_and_damaged_ones_are_refused() {
        let mut counts = [0u64; 256];
        for (i, count) in counts.iter_mut().enumerate().take(100) {
            *count = 1 + (i as u64 * i as u64) % 977;
        }
        let code = PrefixCode::from_byte_counts(&counts, 11);
        let bytes = written(&code);
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new("test", 1, bytes)?;
            PrefixCode::read(&mut reader, BYTE_SYMBOLS, 11)
        };
        assert_eq!(read(&bytes).unwrap(), code);
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
        for at in 1..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_code_without_an_escape_must_know_every_byte() {
        // This code is complete, but cannot code byte 0.
        let mut lengths = [8u8; BYTE_SYMBOLS];
        lengths[0] = 0;
        lengths[1] = 7;
        lengths[ESCAPE] = 0;
        let mut bytes = vec![1];
        for pair in lengths.chunks(2) {
            bytes.push(pair[0] | pair.get(1).copied().unwrap_or(0) << 4);
        }
        let mut reader = Reader::new("test", 1, &bytes).unwrap();
        assert!(PrefixCode::read(&mut reader, BYTE_SYMBOLS, 12).is_err());
    }

    #[test]
    fn triples_decode_what_was_written() {
        let mut counts = [0u64; 256];
        for (i, count) in counts.iter_mut().enumerate() {
            *count = 1_000_000 >> (i / 4);
        }
        let code = PrefixCode::from_byte_counts(&counts, 12);
        let table = Triples::<4096>::new(&code);
        let bytes: Vec<u8> = (0..3000u32)
            .map(|i| (i * i / 7 % 251) as u8 >> (i % 8))
            .collect();
        let mut out = Vec::new();
        let mut writer = BitWriter::new(&mut out);
        for &byte in &bytes {
            code.put_byte(byte, &mut writer);
        }
        writer.finish();
        let (mut bit, mut decoded) = (0, Vec::new());
        while decoded.len() < bytes.len() {
            let buffer = window(&out, bit);
            let entry = table.entry(buffer);
            let used = entry & 63;
            match entry >> 6 & 3 {
                0 => {
                    decoded.push((buffer >> used) as u8);
                    bit += used as usize + 8;
                }
                count => {
                    decoded.extend(&entry.to_le_bytes()[1..1 + count as usize]);
                    bit += used as usize;
                }
            }
        }
        assert_eq!(decoded[..bytes.len()], bytes);
        let sum: u32 = bytes.iter().map(|&b| code.byte_length(b)).sum();
        assert_eq!(out.len(), sum.div_ceil(8) as usize);
    }
}
