//! One Huffman code over all bytes of a segment (section 3.3 of the DecoupleVS paper). If a chunk
//! has a base vector, its vectors are coded after the [XOR](super::xor_delta) with the base vector.
//!
//! ```text
//! bit 0 of byte 0     0: coded   1: byte 0 is 1, then the unchanged vector (if coding makes it
//!                     longer)
//! bits from 1 on      words of the first half of the bytes
//! backward from end   words of the second half
//!
//! model                129 bytes: a nibble for the length of each word, bytes and escape
//! ```

use super::lanes;
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{BYTE_SYMBOLS, PrefixCode, Triples};

const LIMIT: u32 = 12;
const WHAT: &str = "vector, Huffman";

#[derive(Debug, Clone)]
pub(super) struct Huffman {
    code: PrefixCode,
    triples: Triples<{ 1 << LIMIT }>,
}

impl Huffman {
    fn new(code: PrefixCode) -> Huffman {
        Huffman {
            triples: Triples::new(&code),
            code,
        }
    }

    pub(super) fn train(counts: &[u64; 256]) -> Huffman {
        Huffman::new(PrefixCode::from_byte_counts(counts, LIMIT))
    }

    pub(super) fn encode(&self, vector: &[u8], base: Option<&[u8]>, out: &mut Vec<u8>) {
        let byte = |i: usize| vector[i] ^ base.map_or(0, |base| base[i]);
        let start = out.len();
        lanes::encode(
            vector.len(),
            (0, 1),
            |i, writer| self.code.put_byte(byte(i), writer),
            out,
        );
        if out.len() - start > vector.len() + 1 {
            out.truncate(start);
            out.push(1);
            out.extend_from_slice(vector);
        }
    }

    #[inline]
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let &first = bytes.first().ok_or(CodecError::Truncated {
            what: WHAT,
            found: 0,
        })?;
        if first & 1 == 1 {
            return super::copy_stored(WHAT, bytes, 1, out);
        }
        lanes::decode(WHAT, bytes, 1, &self.triples, out)?;
        if let Some(base) = base {
            for (byte, &base) in out.iter_mut().zip(base) {
                *byte ^= base;
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.code.write(out);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Huffman, CodecError> {
        PrefixCode::read(reader, BYTE_SYMBOLS, LIMIT).map(Huffman::new)
    }
}
