//! Codes floats by their fields. Exponents are Huffman-coded; signs and mantissas are nearly
//! random, and stored unchanged in two planes, which the decoder joins without a branch.
//!
//! ```text
//!                     f32                      f16
//!   high plane        1 sign, 7 mantissa bits  1 sign, 7 mantissa bits  dim bytes
//!   low plane         16 - z mantissa bits     3 - z mantissa bits      dim * bits, in whole bytes
//!   exponents         8 bits                   5 bits                   two streams (lanes)
//!
//! offset  size  contents (vector)
//!      0     1  0: coded; 1: the unchanged vector follows
//!      1   dim  high plane
//!      .     .  low plane: for f32 with z = 0 a u16 for each float, else packed bits
//!      .     .  exponents, to the end
//!
//! offset  size  contents (model)
//!      0     1  z: number of lowest mantissa bits that are zero in the whole sample,
//!               at most 16 (f32) or 3 (f16)
//!      1   129  code of the exponents
//! ```
//!
//! Floats from a shorter type have low mantissa bits that are zero: `z` is 16 for f32 from
//! bfloat16, 13 for f32 from f16, and 15 or more for small integers. A vector with a 1 among these
//! bits is stored unchanged.

use super::{Element, lanes};
use crate::bits::{BitWriter, window};
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{BYTE_SYMBOLS, PrefixCode, Triples};

const LIMIT: u32 = 12;
const WHAT: &str = "vector, split floats";
const BATCH: usize = 64;

/// The code of the exponents, and the number of mantissa bits that are always zero.
#[derive(Debug, Clone)]
pub(super) struct FloatSplit {
    half: bool,
    dim: usize,
    zeros: u32,
    code: PrefixCode,
    triples: Triples<{ 1 << LIMIT }>,
}

fn low_plane_bits(half: bool) -> u32 {
    if half { 3 } else { 16 }
}

/// The bits of each float; an f16 is the lower half of the u32.
fn floats(half: bool, vector: &[u8]) -> impl Iterator<Item = u32> {
    vector
        .chunks_exact(if half { 2 } else { 4 })
        .map(move |bytes| {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(four)
        })
}

fn exponent(half: bool, bits: u32) -> u8 {
    if half {
        (bits >> 10 & 31) as u8
    } else {
        (bits >> 23) as u8
    }
}

impl FloatSplit {
    pub(super) fn train(element: Element, dim: usize, sample: &[u8]) -> Option<FloatSplit> {
        let half = match element {
            Element::F32 => false,
            Element::F16 => true,
            Element::U8 | Element::I8 => return None,
        };
        let mut counts = [0; 256];
        let mut used = 0;
        for bits in floats(half, sample) {
            counts[usize::from(exponent(half, bits))] += 1;
            used |= bits;
        }
        Some(FloatSplit::new(
            half,
            dim,
            used.trailing_zeros().min(low_plane_bits(half)),
            PrefixCode::from_byte_counts(&counts, LIMIT),
        ))
    }

    fn new(half: bool, dim: usize, zeros: u32, code: PrefixCode) -> FloatSplit {
        FloatSplit {
            half,
            dim,
            zeros,
            triples: Triples::new(&code),
            code,
        }
    }

    fn low_bits(&self) -> u32 {
        low_plane_bits(self.half) - self.zeros
    }

    fn low_bytes(&self) -> usize {
        (self.dim * self.low_bits() as usize).div_ceil(8)
    }

    pub(super) fn encode(&self, vector: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let low = low_plane_bits(self.half);
        let sign = if self.half { 15 } else { 31 };
        out.push(0);
        out.extend(
            floats(self.half, vector)
                .map(|bits| (bits >> low & 0x7f) as u8 | (bits >> sign << 7) as u8),
        );
        let mut writer = BitWriter::new(out);
        let mut lost = 0;
        for bits in floats(self.half, vector) {
            let mantissa = bits & ((1 << low) - 1);
            lost |= mantissa & ((1 << self.zeros) - 1);
            writer.put(u64::from(mantissa >> self.zeros), self.low_bits());
        }
        writer.finish();
        let exponents: Vec<u8> = floats(self.half, vector)
            .map(|bits| exponent(self.half, bits))
            .collect();
        lanes::encode(
            exponents.len(),
            (0, 0),
            |i, writer| self.code.put_byte(exponents[i], writer),
            out,
        );
        if lost != 0 || out.len() - start > vector.len() + 1 {
            out.truncate(start);
            out.push(1);
            out.extend_from_slice(vector);
        }
    }

    #[inline]
    pub(super) fn decode(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        let truncated = CodecError::Truncated {
            what: WHAT,
            found: bytes.len(),
        };
        let (&mode, rest) = bytes.split_first().ok_or(truncated)?;
        if mode == 1 {
            return super::copy_stored(WHAT, bytes, 1, out);
        }
        if mode != 0 {
            return Err(CodecError::Malformed {
                what: WHAT,
                found: mode.into(),
                expected: "0 or 1",
            });
        }
        let (high, rest) = rest.split_at_checked(self.dim).ok_or(truncated)?;
        let (low, exponents) = rest.split_at_checked(self.low_bytes()).ok_or(truncated)?;
        // The exponents are decoded into the last bytes of `out`, and the floats then overwrite
        // `out` from the front. Float i, of s bytes, ends at byte s*(i+1) - 1. Its exponent is at
        // byte (s-1)*dim + i, which is no earlier, so no exponent is overwritten before it is read.
        let at = out.len() - self.dim;
        lanes::decode(WHAT, exponents, 0, &self.triples, &mut out[at..])?;
        if self.half {
            self.join_f16(high, rest, out);
        } else if self.zeros == 0 {
            self.join_f32_full(high, low, out);
        } else {
            self.join_f32(high, rest, out);
        }
        Ok(())
    }

    /// Joins floats whose low plane has all 16 bits. In this common case, the compiler vectorises
    /// the loop.
    #[inline(always)]
    fn join_f32_full(&self, high: &[u8], low: &[u8], out: &mut [u8]) {
        let at = out.len() - self.dim;
        let mut exponents = [0; BATCH];
        for (batch, (high, low)) in high.chunks(BATCH).zip(low.chunks(2 * BATCH)).enumerate() {
            let from = batch * BATCH;
            let exponents = &mut exponents[..high.len()];
            exponents.copy_from_slice(&out[at + from..at + from + high.len()]);
            let floats = out[4 * from..4 * (from + high.len())]
                .as_chunks_mut::<4>()
                .0;
            let low = low.as_chunks::<2>().0;
            for (((float, &high), &low), &exponent) in
                floats.iter_mut().zip(high).zip(low).zip(&*exponents)
            {
                *float = f32_bits(high, u16::from_le_bytes(low).into(), exponent).to_le_bytes();
            }
        }
    }

    fn join_f32(&self, high: &[u8], low: &[u8], out: &mut [u8]) {
        let at = out.len() - self.dim;
        for (i, &high) in high.iter().enumerate() {
            let float = f32_bits(high, self.low(low, i), out[at + i]);
            out[4 * i..4 * i + 4].copy_from_slice(&float.to_le_bytes());
        }
    }

    fn join_f16(&self, high: &[u8], low: &[u8], out: &mut [u8]) {
        let at = out.len() - self.dim;
        for (i, &high) in high.iter().enumerate() {
            let high = u32::from(high);
            let float = (high & 0x80) << 8
                | u32::from(out[at + i] & 31) << 10
                | (high & 0x7f) << 3
                | self.low(low, i);
            out[2 * i..2 * i + 2].copy_from_slice(&(float as u16).to_le_bytes());
        }
    }

    #[inline(always)]
    fn low(&self, low: &[u8], i: usize) -> u32 {
        let bits = self.low_bits();
        let packed = window(low, i * bits as usize) as u32 & ((1 << bits) - 1);
        packed << self.zeros
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.zeros as u8);
        self.code.write(out);
    }

    pub(super) fn read(
        element: Element,
        dim: usize,
        reader: &mut Reader<'_>,
    ) -> Result<FloatSplit, CodecError> {
        let half = element == Element::F16;
        if !half && element != Element::F32 {
            return Err(reader.malformed(
                "model of split floats, element",
                element.code(),
                "a float",
            ));
        }
        let zeros = reader.u8()?;
        if u32::from(zeros) > low_plane_bits(half) {
            return Err(reader.malformed(
                "model of split floats, zero bits",
                zeros,
                if half { "at most 3" } else { "at most 16" },
            ));
        }
        let code = PrefixCode::read(reader, BYTE_SYMBOLS, LIMIT)?;
        Ok(FloatSplit::new(half, dim, zeros.into(), code))
    }
}

#[inline(always)]
fn f32_bits(high: u8, low: u32, exponent: u8) -> u32 {
    let high = u32::from(high);
    (high & 0x80) << 24 | u32::from(exponent) << 23 | (high & 0x7f) << 16 | low
}
