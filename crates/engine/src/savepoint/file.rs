//! The bytes of a savepoint: a header block, and then blocks with checksums that have its content.
//!
//! ```text
//! block 0   offset  size  content
//!                0     4  crc32c of (block number 0 as u64, then bytes 4..4096)
//!                4     8  "STRATSAV"
//!               12     4  format version u32: 2
//!               16     4  kind of the content u32: 1 order, 2 lists, 3 codebook, 4 plan
//!               20     4  number of the part u32, from 1; 0 if the build has no parts
//!               24     8  bytes of the content u64
//!               32    32  the origin: BLAKE3 of rows, options and version
//!               64    32  the input: BLAKE3 of the origin and all other inputs of the content
//!               96     4  bytes of the description u32
//!              100     .  the description of the origin, from which its hash is made: UTF-8,
//!                         a line each of name, tab, value; then zeros
//! block 1.. crc32c of (block number as u64, then the rest) u32 | 4092 bytes of the content;
//!           zeros behind its end
//! ```
//!
//! All integers are little-endian. Only a window of blocks is in memory, and no length in a header
//! decides how much memory is allocated.

use std::fmt;

use stratann_layout::block::{self, BLOCK, PAYLOAD};
use stratann_tier::{TierError, VolumeFile, VolumeReader};

use blake3::Hash;

const MAGIC: &[u8; 8] = b"STRATSAV";
const VERSION: u32 = 2;

/// The offset of the description, and its largest length. A longer description is left out.
const TOLD_AT: usize = 100;
const MOST_TOLD: usize = BLOCK - TOLD_AT;

const WINDOW: usize = 64;

#[derive(Debug)]
pub(crate) struct Unfit(String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Unfit {
    pub(super) fn unread(error: TierError) -> Unfit {
        Unfit(error.to_string())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) what: u32,
    pub(super) part: u32,
    pub(super) bytes: u64,
    pub(super) origin: Hash,
    pub(super) input: Hash,
    /// The description of the origin, for the report of differences from another build.
    pub(super) told: String,
}

impl Head {
    fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[4..12].copy_from_slice(MAGIC);
        block[12..16].copy_from_slice(&VERSION.to_le_bytes());
        block[16..20].copy_from_slice(&self.what.to_le_bytes());
        block[20..24].copy_from_slice(&self.part.to_le_bytes());
        block[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        block[32..64].copy_from_slice(self.origin.as_bytes());
        block[64..96].copy_from_slice(self.input.as_bytes());
        let told = match self.told.len() {
            0..=MOST_TOLD => self.told.as_bytes(),
            _ => &[],
        };
        block[96..TOLD_AT].copy_from_slice(&(told.len() as u32).to_le_bytes());
        block[TOLD_AT..TOLD_AT + told.len()].copy_from_slice(told);
        block::seal(&mut block, 0);
        block
    }

    /// The caller has verified the checksum of the block.
    fn decode(block: &[u8; BLOCK], file: &str) -> Result<Head, Unfit> {
        let refused = |at: usize, why: String| Err(Unfit(format!("{file}: at byte {at}: {why}")));
        if &block[4..12] != MAGIC {
            return refused(4, "this is no savepoint".to_owned());
        }
        let version = u32_at(block, 12);
        if version != VERSION {
            return refused(
                12,
                format!("format version {version}; this program reads {VERSION}"),
            );
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[24..32]);
        let hash = |at: usize| {
            let mut hash = [0; 32];
            hash.copy_from_slice(&block[at..at + 32]);
            Hash::from_bytes(hash)
        };
        Ok(Head {
            what: u32_at(block, 16),
            part: u32_at(block, 20),
            bytes: u64::from_le_bytes(bytes),
            origin: hash(32),
            input: hash(64),
            // The description is only displayed and compared, so invalid UTF-8 does no harm.
            told: block[TOLD_AT..]
                .get(..u32_at(block, 96) as usize)
                .map(|told| String::from_utf8_lossy(told).into_owned())
                .unwrap_or_default(),
        })
    }

    /// The length of the whole file. `None` if no file can be as long.
    fn length(&self) -> Option<u64> {
        let blocks = self.bytes.div_ceil(PAYLOAD as u64).checked_add(1)?;
        blocks.checked_mul(BLOCK as u64)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) struct Sink {
    file: Box<dyn VolumeFile>,
    /// The blocks that wait to be written, and the number of the first block. The last block may be
    /// incomplete.
    window: Vec<u8>,
    first: u64,
    left: u64,
}

impl Sink {
    pub(super) fn begin(file: Box<dyn VolumeFile>, head: &Head) -> Sink {
        let mut window = Vec::with_capacity(WINDOW * BLOCK);
        window.extend_from_slice(&head.encode());
        Sink {
            file,
            window,
            first: 0,
            left: head.bytes,
        }
    }

    /// Appends bytes of the content, at most as many as the header announces.
    pub(crate) fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), TierError> {
        assert!(bytes.len() as u64 <= self.left, "more bytes than announced");
        self.left -= bytes.len() as u64;
        while !bytes.is_empty() {
            if self.window.len().is_multiple_of(BLOCK) {
                if self.window.len() == WINDOW * BLOCK {
                    self.hand_over()?;
                }
                // Space for the checksum.
                self.window.extend_from_slice(&[0; 4]);
            }
            let room = BLOCK - self.window.len() % BLOCK;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.window.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    pub(crate) fn words(&mut self, words: impl IntoIterator<Item = u32>) -> Result<(), TierError> {
        for word in words {
            self.bytes(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Makes the file durable, and returns its length.
    pub(super) fn finish(mut self) -> Result<u64, TierError> {
        assert_eq!(self.left, 0, "fewer bytes than announced");
        self.window
            .resize(self.window.len().next_multiple_of(BLOCK), 0);
        self.hand_over()?;
        self.file.sync()?;
        Ok(self.file.len())
    }

    fn hand_over(&mut self) -> Result<(), TierError> {
        for (block, number) in self.window.chunks_exact_mut(BLOCK).zip(self.first..) {
            block::seal(block, number);
        }
        self.file
            .write_at(self.first * BLOCK as u64, &self.window)?;
        self.first += (self.window.len() / BLOCK) as u64;
        self.window.clear();
        Ok(())
    }
}

pub(crate) struct Content {
    reader: Box<dyn VolumeReader>,
    file: String,
    /// Verified content, and the offset of its first byte that was not returned yet.
    window: Vec<u8>,
    taken: usize,
    block: u64,
    left: u64,
}

pub(super) fn open(reader: Box<dyn VolumeReader>, file: String) -> Result<(Head, Content), Unfit> {
    let size = reader.size().map_err(Unfit::unread)?;
    let mut block = [0; BLOCK];
    reader.read_at(0, &mut block).map_err(Unfit::unread)?;
    block::check(&block, 0, &file).map_err(|error| Unfit(error.to_string()))?;
    let head = Head::decode(&block, &file)?;
    if head.length() != Some(size) {
        return Err(Unfit(format!(
            "{file}: at byte 24: {} bytes of content do not make a file of {size} bytes",
            head.bytes
        )));
    }
    let content = Content {
        reader,
        file,
        window: Vec::new(),
        taken: 0,
        block: 1,
        left: head.bytes,
    };
    Ok((head, content))
}

impl Content {
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The error for a fault at an offset of the file.
    pub(crate) fn unfit(&self, at: u64, why: impl fmt::Display) -> Unfit {
        Unfit(format!("{}: at byte {at}: {why}", self.file))
    }

    /// The error for a fault in the bytes that were just read.
    pub(crate) fn wrong(&self, why: impl fmt::Display) -> Unfit {
        let unread = (self.window.len() - self.taken).div_ceil(PAYLOAD) as u64;
        self.unfit((self.block - unread.min(self.block)) * BLOCK as u64, why)
    }

    pub(crate) fn bytes(&mut self, mut out: &mut [u8]) -> Result<(), Unfit> {
        if out.len() as u64 > self.left {
            return Err(self.wrong(format_args!(
                "{} bytes are left, but {} are needed",
                self.left,
                out.len()
            )));
        }
        while !out.is_empty() {
            if self.taken == self.window.len() {
                self.refill()?;
            }
            let count = out.len().min(self.window.len() - self.taken);
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&self.window[self.taken..self.taken + count]);
            self.taken += count;
            self.left -= count as u64;
            out = later;
        }
        Ok(())
    }

    pub(crate) fn word(&mut self) -> Result<u32, Unfit> {
        let mut bytes = [0; 4];
        self.bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads the next blocks. All content before these blocks must have been returned, and more
    /// content must follow.
    fn refill(&mut self) -> Result<(), Unfit> {
        let blocks = (self.left.div_ceil(PAYLOAD as u64)).min(WINDOW as u64) as usize;
        let mut bytes = vec![0; blocks * BLOCK];
        self.reader
            .read_at(self.block * BLOCK as u64, &mut bytes)
            .map_err(Unfit::unread)?;
        self.window.clear();
        self.taken = 0;
        for block in bytes.chunks_exact(BLOCK) {
            let checked = block::check(block, self.block, &self.file);
            checked.map_err(|error| Unfit(error.to_string()))?;
            let (before, left) = (self.window.len() as u64, self.left);
            let used = (left - before).min(PAYLOAD as u64) as usize;
            self.window.extend_from_slice(&block[4..4 + used]);
            self.block += 1;
        }
        Ok(())
    }

    pub(super) fn end(&self) -> Result<(), Unfit> {
        match self.left {
            0 => Ok(()),
            left => Err(self.wrong(format_args!("{left} bytes too many"))),
        }
    }
}
