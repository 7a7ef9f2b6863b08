//! Encodes and decodes adjacency lists. A list is a set of node numbers (`u32`), which ascend.
//!
//! ```text
//! offset  size  contents
//!      0     1  tag: bits 0..5  parameter: low bits (Elias–Fano) or number of the table (gaps)
//!                    bits 5..7  codec: 0 Elias–Fano, 1 gaps
//!                    bit  7     the list has the usual length, which the model records
//!      1   0-5  length of the list, absent if usual: 7 bits a byte, lowest first; bit 7: another
//!               byte follows
//!      .     .  the code of the list; see elias_fano and gaps
//! ```
//!
//! A decoder finds the end of a code without its length. Decoding is faster if at least 8 bytes
//! follow the code in the slice, as on a page.

pub mod elias_fano;
pub mod gaps;

use crate::error::CodecError;
use crate::model::Reader;

const VERSION: u8 = 1;
const MODEL: &str = "model of adjacency lists";
const USUAL: u8 = 0x80;
const MAX_HEADER: usize = 6;

/// The codec of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListCodec {
    /// The codec of the DecoupleVS paper, see [`elias_fano`].
    EliasFano = 0,
    /// Huffman-coded gaps, starting at the node's own number, see [`gaps`].
    Gaps = 1,
}

/// The model of a file's lists: the usual length of a list, and the Huffman tables of [`gaps`].
///
/// ```text
/// offset  size  contents (model)
///      0     1  version, 1
///      1     4  number of nodes; larger node numbers take more bits
///      5     4  usual length of a list
///      9     1  number of tables, at most 32
///     10  16*t  tables: codes over the places 0 to 31, a nibble for each word's length
/// ```
#[derive(Debug, Clone)]
pub struct ListModel {
    nodes: u32,
    usual: u32,
    tables: Vec<gaps::Table>,
}

fn header_bytes(degree: usize) -> usize {
    1 + count_bytes(degree)
}

fn count_bytes(count: usize) -> usize {
    (usize::BITS - (count | 1).leading_zeros()).div_ceil(7) as usize
}

/// Trains a [`ListModel`] on a sample of lists.
#[derive(Debug)]
pub struct ListTrainer {
    nodes: u32,
    usual: u32,
    profiles: Vec<gaps::Profile>,
}

impl ListTrainer {
    /// Creates a trainer. A list of length `usual`, the degree bound R, is stored without its
    /// length.
    pub fn new(nodes: u32, usual: u32) -> ListTrainer {
        ListTrainer {
            nodes,
            usual,
            profiles: Vec::new(),
        }
    }

    /// Adds the ascending neighbours of node `own` to the sample. Ten thousand lists are enough.
    pub fn add(&mut self, own: u32, ids: &[u32]) -> Result<(), CodecError> {
        check_ascending(ids)?;
        self.profiles.extend(gaps::Profile::new(own, ids));
        Ok(())
    }

    /// Makes a model with `tables` tables, at most [`gaps::MAX_TABLES`]; 4 are a good choice.
    pub fn finish(self, tables: usize) -> ListModel {
        ListModel {
            nodes: self.nodes,
            usual: self.usual,
            tables: gaps::train(&self.profiles, self.nodes, tables),
        }
    }
}

impl ListModel {
    /// The model of the DecoupleVS paper: Elias–Fano for every list.
    pub fn elias_fano(nodes: u32, usual: u32) -> ListModel {
        ListModel {
            nodes,
            usual,
            tables: Vec::new(),
        }
    }

    /// The number of nodes of the training; larger node numbers take more bits.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Appends the shortest code of the ascending neighbours of node `own`, and returns its codec.
    /// If all neighbours are below [`nodes`](Self::nodes), the code has at most
    /// [`slot_bytes`](elias_fano::slot_bytes) bytes.
    pub fn encode(
        &self,
        own: u32,
        ids: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<ListCodec, CodecError> {
        check_ascending(ids)?;
        // Larger node numbers would make the high parts long, so a larger number of nodes is used
        // for this list.
        let nodes = self
            .nodes
            .max(ids.last().map_or(0, |&last| last.saturating_add(1)));
        let low = elias_fano::low_bits(ids.len(), nodes);
        let plain = elias_fano::bits(ids, low).div_ceil(8);
        let best = gaps::Profile::new(own, ids)
            .and_then(|profile| {
                (0u8..)
                    .zip(&self.tables)
                    .filter_map(|(t, table)| Some((profile.bits(table)?.div_ceil(8), t, table)))
                    .min_by_key(|&(bytes, t, _)| (bytes, t))
            })
            .filter(|&(bytes, ..)| bytes < plain);
        let (codec, parameter) = match best {
            None => (ListCodec::EliasFano, low as u8),
            Some((_, t, _)) => (ListCodec::Gaps, t),
        };
        let usual = ids.len() == self.usual as usize;
        out.push((codec as u8) << 5 | parameter | if usual { USUAL } else { 0 });
        if !usual {
            let mut count = ids.len();
            while count >= 0x80 {
                out.push(count as u8 | 0x80);
                count >>= 7;
            }
            out.push(count as u8);
        }
        match best {
            None => elias_fano::encode(ids, low, out),
            Some((_, _, table)) => gaps::encode(own, ids, table, out),
        }
        Ok(codec)
    }

    /// Decodes a list into `out`, and returns the length of its code in bytes. Unless the result is
    /// an error, the numbers ascend. So if the last number is a node, all numbers are nodes.
    #[inline]
    pub fn decode(&self, own: u32, bytes: &[u8], out: &mut Vec<u32>) -> Result<usize, CodecError> {
        let header = self.header(bytes)?;
        let body = &bytes[header.bytes..];
        // Each neighbour takes at least one bit, so this check bounds the allocation for damaged
        // bytes.
        if header.count > body.len().saturating_mul(8) {
            return Err(CodecError::Truncated {
                what: "adjacency list",
                found: bytes.len(),
            });
        }
        out.clear();
        out.resize(header.count, 0);
        let taken = match header.codec {
            ListCodec::EliasFano => elias_fano::decode(body, header.parameter.into(), out)?,
            ListCodec::Gaps => {
                let table = self.tables.get(usize::from(header.parameter)).ok_or(
                    CodecError::Malformed {
                        what: "adjacency list, number of the table",
                        found: header.parameter.into(),
                        expected: "a table of the model",
                    },
                )?;
                gaps::decode(own, body, table, out)?
            }
        };
        Ok(header.bytes + taken)
    }

    /// The length and the codec of the list at the start of `bytes`.
    pub fn peek(&self, bytes: &[u8]) -> Result<(usize, ListCodec), CodecError> {
        let header = self.header(bytes)?;
        Ok((header.count, header.codec))
    }

    #[inline]
    fn header(&self, bytes: &[u8]) -> Result<Header, CodecError> {
        let truncated = CodecError::Truncated {
            what: "adjacency list, header",
            found: bytes.len(),
        };
        let &tag = bytes.first().ok_or(truncated)?;
        let codec = match tag >> 5 & 3 {
            0 => ListCodec::EliasFano,
            1 => ListCodec::Gaps,
            other => {
                return Err(CodecError::Malformed {
                    what: "adjacency list, codec",
                    found: other.into(),
                    expected: "0 or 1",
                });
            }
        };
        let mut header = Header {
            codec,
            parameter: tag & 31,
            count: self.usual as usize,
            bytes: 1,
        };
        if tag & USUAL == 0 {
            header.count = 0;
            loop {
                let &byte = bytes.get(header.bytes).ok_or(truncated)?;
                header.count |= usize::from(byte & 0x7f) << (7 * (header.bytes - 1));
                header.bytes += 1;
                if byte & 0x80 == 0 {
                    break;
                }
                if header.bytes == MAX_HEADER {
                    return Err(CodecError::Malformed {
                        what: "adjacency list, count",
                        found: header.count as u64,
                        expected: "at most 5 bytes",
                    });
                }
            }
        }
        Ok(header)
    }

    /// Encodes the model.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.nodes.to_le_bytes());
        out.extend(self.usual.to_le_bytes());
        out.push(self.tables.len() as u8);
        for table in &self.tables {
            table.write(&mut out);
        }
        out
    }

    /// Decodes a model that [`ListModel::to_bytes`] encoded.
    pub fn from_bytes(bytes: &[u8]) -> Result<ListModel, CodecError> {
        let mut reader = Reader::new(MODEL, VERSION, bytes)?;
        let nodes = reader.u32()?;
        let usual = reader.u32()?;
        let count = reader.u8()?;
        if usize::from(count) > gaps::MAX_TABLES {
            return Err(reader.malformed("model of adjacency lists, tables", count, "at most 32"));
        }
        let tables = (0..count)
            .map(|_| gaps::Table::read(&mut reader))
            .collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(ListModel {
            nodes,
            usual,
            tables,
        })
    }
}

struct Header {
    codec: ListCodec,
    parameter: u8,
    count: usize,
    bytes: usize,
}

fn check_ascending(ids: &[u32]) -> Result<(), CodecError> {
    match ids.windows(2).position(|pair| pair[0] >= pair[1]) {
        None => Ok(()),
        Some(before) => Err(CodecError::NotAscending {
            position: before + 1,
        }),
    }
}
