//! A byte string as a file: the header block, then checksummed blocks.
//!
//! ```text
//! block 0        header; its fields: payload length u64, then the fields of the kind
//! block 1..      crc32c u32 | 4092 bytes of the payload      (see `block`)
//! last block     the payload's end, then zeros
//! ```
//!
//! Most files without pages are such byte strings. Writer and reader work on pieces, so megabytes
//! of codes are never in memory twice.

use crate::block::{self, BLOCK, PAYLOAD};
use crate::error::{LayoutError, check_zero};
use crate::header::{FieldsWriter, FileHeader, FileKind};

/// Format version of [`FileKind::Codes`]. The engine defines the kind-specific fields. The payload
/// has `nodes * code_bytes` bytes.
pub const CODES_FORMAT_VERSION: u32 = 1;
/// Format version of [`FileKind::Codebook`]. Version 2 added the fields dimension and bytes of a
/// code.
pub const CODEBOOK_FORMAT_VERSION: u32 = 2;

/// The number of blocks that the sink gets at once. The allocator reuses such a buffer of 64 KiB
/// without a system call.
const BATCH: usize = 16;

/// The length in bytes of a file with `payload` bytes of payload.
pub fn file_length(payload: u64) -> u64 {
    (1 + payload.div_ceil(PAYLOAD as u64)).saturating_mul(BLOCK as u64)
}

/// The offset in the file of byte `at` of the payload.
pub fn file_offset(at: u64) -> u64 {
    (1 + at / PAYLOAD as u64)
        .saturating_mul(BLOCK as u64)
        .saturating_add(4 + at % PAYLOAD as u64)
}

/// Divides a payload into blocks with checksums. The sink gets the blocks in order, several at a
/// time.
#[derive(Debug)]
pub struct StreamWriter {
    header: FileHeader,
    payload: u64,
    pushed: u64,
    blocks: Blocks,
}

#[derive(Debug)]
struct Blocks {
    first: u64,
    /// Blocks that the sink has not received yet. The first may be the header block, and the last
    /// may be partly filled.
    batch: Vec<u8>,
}

impl Blocks {
    fn push<E>(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.batch.len().is_multiple_of(BLOCK) {
                if self.batch.len() == BATCH * BLOCK {
                    self.hand_out(sink)?;
                }
                self.batch.extend_from_slice(&[0; 4]);
            }
            let room = BLOCK - self.batch.len() % BLOCK;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.batch.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn finish<E>(mut self, sink: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.batch
            .resize(self.batch.len().next_multiple_of(BLOCK), 0);
        match self.batch.is_empty() {
            true => Ok(()),
            false => self.hand_out(sink),
        }
    }

    fn hand_out<E>(&mut self, sink: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut number = self.first;
        for block in self.batch.chunks_exact_mut(BLOCK) {
            // The header block already has its checksum, at another position.
            if number > 0 {
                block::seal(block, number);
            }
            number += 1;
        }
        sink(&self.batch)?;
        self.first = number;
        self.batch.clear();
        Ok(())
    }
}

impl StreamWriter {
    /// A writer of `payload` bytes, with the kind-specific fields.
    ///
    /// # Panics
    /// Panics if `fields` is longer than a header allows ([`crate::header::MAX_FIELDS`] less 8).
    pub fn new(kind: FileKind, payload: u64, fields: &[u8]) -> StreamWriter {
        let fields = FieldsWriter::new().u64(payload).bytes(fields).finish();
        let header = FileHeader::new(kind, file_length(payload), fields);
        let mut batch = Vec::with_capacity(BATCH * BLOCK);
        batch.extend_from_slice(&header.encode());
        StreamWriter {
            header,
            payload,
            pushed: 0,
            blocks: Blocks { first: 0, batch },
        }
    }

    /// The file's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Appends bytes of the payload, and passes full blocks to `sink`.
    ///
    /// # Panics
    /// Panics if there are more bytes than the writer was created for.
    pub fn push<E>(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(
            bytes.len() as u64 <= self.payload - self.pushed,
            "{} bytes were announced, {} pushed",
            self.payload,
            self.pushed + bytes.len() as u64
        );
        self.pushed += bytes.len() as u64;
        self.blocks.push(bytes, sink)
    }

    /// Passes the remaining blocks to `sink`. Returns the header.
    ///
    /// # Panics
    /// Panics if there were fewer bytes than the writer was created for.
    pub fn finish<E>(self, sink: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<FileHeader, E> {
        assert_eq!(
            self.pushed, self.payload,
            "fewer bytes were pushed than announced"
        );
        self.blocks.finish(sink)?;
        Ok(self.header)
    }
}

/// Divides a payload of unknown length into blocks, from block 1 on. The caller writes the header.
#[derive(Debug)]
pub struct GrowingStream {
    pushed: u64,
    blocks: Blocks,
}

impl Default for GrowingStream {
    fn default() -> Self {
        Self::new()
    }
}

impl GrowingStream {
    /// A stream without payload.
    pub fn new() -> GrowingStream {
        GrowingStream {
            pushed: 0,
            blocks: Blocks {
                first: 1,
                batch: Vec::with_capacity(BATCH * BLOCK),
            },
        }
    }

    /// Bytes of the payload so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Appends bytes of the payload, and passes full blocks to `sink`.
    pub fn push<E>(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pushed += bytes.len() as u64;
        self.blocks.push(bytes, sink)
    }

    /// Appends zeros, so that the next byte begins a block.
    pub fn align<E>(&mut self, sink: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let padding = aligned(self.pushed) - self.pushed;
        self.push(&[0; PAYLOAD][..padding as usize], sink)
    }

    /// Passes the remaining blocks to `sink`. Returns the header.
    ///
    /// # Panics
    /// Panics as [`StreamWriter::new`] does.
    pub fn finish<E>(
        self,
        kind: FileKind,
        fields: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<FileHeader, E> {
        let fields = FieldsWriter::new().u64(self.pushed).bytes(fields).finish();
        self.blocks.finish(sink)?;
        Ok(FileHeader::new(kind, file_length(self.pushed), fields))
    }
}

/// The next position of a payload, at least `at`, at which a block begins.
pub fn aligned(at: u64) -> u64 {
    at.div_ceil(PAYLOAD as u64).saturating_mul(PAYLOAD as u64)
}

/// The blocks, by their numbers in the file, that contain a byte range of the payload.
pub fn blocks_of(bytes: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let first = 1 + bytes.start / PAYLOAD as u64;
    match bytes.is_empty() {
        true => first..first,
        false => first..2 + (bytes.end - 1) / PAYLOAD as u64,
    }
}

/// Verifies the whole blocks in `bytes`, which begin with block `first`, and moves their payloads
/// to the front of `bytes`.
///
/// # Errors
/// Fails if a checksum is wrong.
pub fn unseal(bytes: &mut Vec<u8>, first: u64, file: &str) -> Result<(), LayoutError> {
    let count = bytes.len() / BLOCK;
    for (at, number) in (0..count).zip(first..) {
        block::check(&bytes[at * BLOCK..(at + 1) * BLOCK], number, file)?;
        bytes.copy_within(at * BLOCK + BLOCK - PAYLOAD..(at + 1) * BLOCK, at * PAYLOAD);
    }
    bytes.truncate(count * PAYLOAD);
    Ok(())
}

/// Encodes a whole file with a payload in memory; for small payloads and tests.
pub fn encode(kind: FileKind, payload: &[u8], fields: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = StreamWriter::new(kind, payload.len() as u64, fields);
    let mut sink = |blocks: &[u8]| -> Result<(), std::convert::Infallible> {
        file.extend_from_slice(blocks);
        Ok(())
    };
    let Ok(()) = writer.push(payload, &mut sink);
    let Ok(_) = writer.finish(&mut sink);
    file
}

/// Decodes a whole file into its header and its payload; for small payloads and tests.
pub fn decode(
    kind: FileKind,
    bytes: &[u8],
    file: &str,
) -> Result<(FileHeader, Vec<u8>), LayoutError> {
    let mut reader = StreamReader::open(kind, bytes, file)?;
    reader.header().check_length(bytes.len() as u64, file)?;
    // The length was compared with the file's bytes, so a damaged length causes no huge allocation.
    let mut payload = Vec::with_capacity(reader.payload_length() as usize);
    reader.push_with(&bytes[BLOCK..], |piece| payload.extend_from_slice(piece))?;
    Ok((reader.finish()?, payload))
}

/// Reads a file's bytes in pieces and returns its payload.
#[derive(Debug)]
pub struct StreamReader {
    header: FileHeader,
    file: String,
    payload: u64,
    delivered: u64,
    number: u64,
}

impl StreamReader {
    /// Decodes the header from the first bytes of a file, one block or more. The reader then takes
    /// pieces of the file, from block 1 on.
    pub fn open(kind: FileKind, first: &[u8], file: &str) -> Result<StreamReader, LayoutError> {
        let header = FileHeader::decode_as(kind, first, file)?;
        let payload = header.fields(file).u64("payload length")?;
        if header.length != file_length(payload) {
            return Err(LayoutError::Field {
                file: file.to_owned(),
                offset: 32,
                what: "file length",
                found: header.length.to_string(),
                expected: format!("{}, for a payload of {payload} bytes", file_length(payload)),
            });
        }
        Ok(StreamReader {
            header,
            file: file.to_owned(),
            payload,
            delivered: 0,
            number: 1,
        })
    }

    /// The file's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The length of the payload in bytes. It is not checked: compare it with the file's length
    /// before you allocate.
    pub fn payload_length(&self) -> u64 {
        self.payload
    }

    /// A reader of the kind-specific fields, which follow the payload length.
    pub fn fields(&self) -> crate::header::FieldsReader<'_> {
        let mut fields = self.header.fields(&self.file);
        let _ = fields.u64("payload length");
        fields
    }

    /// Reads the next whole blocks into `out`, which is the slice for the *whole* payload.
    pub fn push_into(&mut self, piece: &[u8], out: &mut [u8]) -> Result<(), LayoutError> {
        if out.len() as u64 != self.payload {
            return Err(LayoutError::Field {
                file: self.file.clone(),
                offset: 48,
                what: "payload length",
                found: self.payload.to_string(),
                expected: out.len().to_string(),
            });
        }
        let mut at = self.delivered as usize;
        self.push_with(piece, |bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// Reads the next whole blocks, and passes the verified payload of each block to `sink`.
    pub fn push_with(
        &mut self,
        piece: &[u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), LayoutError> {
        let mut blocks = piece.chunks_exact(BLOCK);
        for bytes in &mut blocks {
            let left = self.payload - self.delivered;
            if left == 0 {
                return Err(LayoutError::Length {
                    file: self.file.clone(),
                    expected: self.header.length,
                    found: (self.number + 1) * BLOCK as u64,
                    by: "as its header says",
                });
            }
            block::check(bytes, self.number, &self.file)?;
            let used = left.min(PAYLOAD as u64) as usize;
            check_zero(
                &bytes[4 + used..],
                self.number * BLOCK as u64 + 4 + used as u64,
                &self.file,
            )?;
            sink(&bytes[4..4 + used]);
            self.delivered += used as u64;
            self.number += 1;
        }
        if blocks.remainder().is_empty() {
            return Ok(());
        }
        Err(self.truncated(blocks.remainder().len() as u64))
    }

    /// Fails if the end of the file has not been reached. Returns the header.
    pub fn finish(self) -> Result<FileHeader, LayoutError> {
        if self.delivered == self.payload {
            return Ok(self.header);
        }
        Err(self.truncated(0))
    }

    fn truncated(&self, found: u64) -> LayoutError {
        let offset = self.number * BLOCK as u64;
        LayoutError::Truncated {
            file: self.file.clone(),
            offset,
            expected: self.header.length.saturating_sub(offset),
            found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 131 % 253) as u8).collect()
    }

    #[test]
    fn a_payload_that_grows_is_the_same_file_and_is_read_in_parts() {
        for length in [0, 1, 4091, 4092, 4093, 64 * 4092, 70 * 4092 + 5] {
            let payload = bytes(length);
            let mut behind = Vec::new();
            let mut sink = |blocks: &[u8]| -> Result<(), std::convert::Infallible> {
                behind.extend_from_slice(blocks);
                Ok(())
            };
            let mut growing = GrowingStream::new();
            for piece in payload.chunks(1000) {
                let Ok(()) = growing.push(piece, &mut sink);
            }
            assert_eq!(growing.pushed(), length as u64);
            let Ok(header) = growing.finish(FileKind::Codes, b"own", &mut sink);
            let file = [&header.encode()[..], &behind].concat();
            assert_eq!(file, encode(FileKind::Codes, &payload, b"own"));
            for (from, to) in [(0, length), (length / 2, length), (length / 3, length / 2)] {
                let blocks = blocks_of(from as u64..to as u64);
                let at = |block: u64| block as usize * BLOCK;
                let mut part = file[at(blocks.start)..at(blocks.end)].to_vec();
                unseal(&mut part, blocks.start, "codes").unwrap();
                let skip = from - (blocks.start as usize - 1) * PAYLOAD;
                assert_eq!(part[skip..skip + to - from], payload[from..to]);
                if let Some(byte) = part.len().checked_sub(1) {
                    let mut part = file[at(blocks.start)..at(blocks.end)].to_vec();
                    part[byte] ^= 4;
                    unseal(&mut part, blocks.start, "codes").unwrap_err();
                    unseal(
                        &mut file[at(blocks.start)..at(blocks.end)].to_vec(),
                        7_000,
                        "codes",
                    )
                    .unwrap_err();
                }
            }
        }
        let mut growing = GrowingStream::new();
        let mut blocks = 0;
        let mut sink = |bytes: &[u8]| -> Result<(), std::convert::Infallible> {
            blocks += bytes.len() / BLOCK;
            Ok(())
        };
        for (push, pushed) in [(5, PAYLOAD), (PAYLOAD, 2 * PAYLOAD), (0, 2 * PAYLOAD)] {
            let Ok(()) = growing.push(&vec![1; push], &mut sink);
            let Ok(()) = growing.align(&mut sink);
            assert_eq!(growing.pushed(), pushed as u64);
        }
        let Ok(_) = growing.finish(FileKind::Codes, &[], &mut sink);
        assert_eq!(blocks, 2);
    }

    #[test]
    fn round_trip_around_block_edges() {
        for length in [
            0,
            1,
            4091,
            4092,
            4093,
            2 * 4092,
            64 * 4092 - 1,
            64 * 4092,
            130 * 4092 + 5,
        ] {
            let payload = bytes(length);
            let file = encode(FileKind::Codes, &payload, b"own");
            assert_eq!(file.len() as u64, file_length(length as u64));
            let (header, back) = decode(FileKind::Codes, &file, "codes").unwrap();
            assert_eq!(back, payload);
            assert_eq!(header.length, file.len() as u64);
            let mut reader = StreamReader::open(FileKind::Codes, &file[..BLOCK], "codes").unwrap();
            assert_eq!(reader.fields().rest(), b"own");
            let mut out = vec![0; length];
            for piece in file[BLOCK..].chunks(3 * BLOCK) {
                reader.push_into(piece, &mut out).unwrap();
            }
            reader.finish().unwrap();
            assert_eq!(out, payload);
        }
    }

    #[test]
    fn every_bit_flip_is_found() {
        let mut file = encode(FileKind::Codebook, &bytes(5000), &[]);
        assert_eq!(file.len(), 3 * BLOCK);
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(FileKind::Codebook, &file, "f").is_err(), "bit {bit}");
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn swapped_blocks_are_found() {
        let file = encode(FileKind::Codes, &bytes(3 * 4092), &[]);
        let mut swapped = file.clone();
        swapped[BLOCK..2 * BLOCK].copy_from_slice(&file[2 * BLOCK..3 * BLOCK]);
        let error = decode(FileKind::Codes, &swapped, "f").unwrap_err();
        assert!(matches!(error, LayoutError::Checksum { offset: 4096, .. }));
    }

    #[test]
    fn truncated_and_trailing_bytes_are_refused() {
        let file = encode(FileKind::Codes, &bytes(9000), &[]);
        for length in [BLOCK, BLOCK + 1, 2 * BLOCK, file.len() - 1] {
            let mut reader = StreamReader::open(FileKind::Codes, &file, "codes").unwrap();
            let error = reader
                .push_with(&file[BLOCK..length], |_| ())
                .and_then(|()| reader.finish())
                .unwrap_err();
            assert!(matches!(error, LayoutError::Truncated { .. }), "{error}");
            decode(FileKind::Codes, &file[..length], "codes").unwrap_err();
        }
        let mut longer = file.clone();
        longer.extend_from_slice(&[0; BLOCK]);
        let mut reader = StreamReader::open(FileKind::Codes, &longer, "codes").unwrap();
        let error = reader.push_with(&longer[BLOCK..], |_| ()).unwrap_err();
        assert!(
            matches!(
                error,
                LayoutError::Length {
                    found: 20480,
                    expected: 16384,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn padding_must_be_zero() {
        let mut file = encode(FileKind::Codes, b"abc", &[]);
        file[BLOCK + 100] = 1;
        block::seal(&mut file[BLOCK..], 1);
        let error = decode(FileKind::Codes, &file, "f").unwrap_err();
        assert_eq!(
            error,
            LayoutError::Reserved {
                file: "f".into(),
                offset: 4196,
                found: 1
            }
        );
    }

    #[test]
    fn a_wrong_slice_or_length_is_refused() {
        let file = encode(FileKind::Codes, &bytes(100), &[]);
        let mut reader = StreamReader::open(FileKind::Codes, &file, "codes").unwrap();
        reader.push_into(&file[BLOCK..], &mut [0; 99]).unwrap_err();
        // A payload of 2^64 - 1 bytes does not fit the length in the same header.
        let header = FileHeader::new(FileKind::Codes, 8192, u64::MAX.to_le_bytes().to_vec());
        let error = StreamReader::open(FileKind::Codes, &header.encode(), "codes").unwrap_err();
        assert_eq!(error.offset(), Some(32));
        let header = FileHeader::new(FileKind::Codes, 8192, vec![1]);
        StreamReader::open(FileKind::Codes, &header.encode(), "codes").unwrap_err();
    }

    #[test]
    fn the_sink_gets_whole_blocks_and_its_error_comes_back() {
        let payload = bytes(300 * 4092);
        let mut writer = StreamWriter::new(FileKind::Codes, payload.len() as u64, &[]);
        let mut sizes = Vec::new();
        let mut sink = |blocks: &[u8]| -> Result<(), &'static str> {
            sizes.push(blocks.len());
            if sizes.len() == 3 {
                Err("disk full")
            } else {
                Ok(())
            }
        };
        let error = payload
            .chunks(777)
            .try_for_each(|piece| writer.push(piece, &mut sink));
        assert_eq!(error, Err("disk full"));
        assert!(sizes.iter().all(|size| size % BLOCK == 0));
    }

    proptest! {
        #[test]
        fn any_pieces_round_trip(
            payload in prop::collection::vec(any::<u8>(), 0..20_000),
            push in 1usize..6000,
            pull in 1usize..4,
        ) {
            let mut file = Vec::new();
            let mut writer = StreamWriter::new(FileKind::Navigation, payload.len() as u64, &[]);
            let mut sink = |blocks: &[u8]| -> Result<(), ()> { file.extend_from_slice(blocks); Ok(()) };
            for piece in payload.chunks(push) {
                writer.push(piece, &mut sink).unwrap();
            }
            writer.finish(&mut sink).unwrap();
            let mut reader = StreamReader::open(FileKind::Navigation, &file, "n").unwrap();
            let mut out = vec![0; payload.len()];
            for piece in file[BLOCK..].chunks(pull * BLOCK) {
                reader.push_into(piece, &mut out).unwrap();
            }
            reader.finish().unwrap();
            prop_assert_eq!(out, payload);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            payload: u64,
            mut file in prop::collection::vec(any::<u8>(), 0..20_000),
            sealed: bool,
        ) {
            let payload = if sealed { payload % 20_000 } else { payload };
            let header = FileHeader::new(FileKind::Codes, file_length(payload), payload.to_le_bytes().to_vec());
            if sealed {
                for (at, block) in file.chunks_exact_mut(BLOCK).enumerate() {
                    block::seal(block, at as u64 + 1);
                }
            }
            if let Ok(mut reader) = StreamReader::open(FileKind::Codes, &header.encode(), "f") {
                let _ = reader.push_with(&file, |_| ());
                let _ = reader.finish();
            }
        }
    }
}
