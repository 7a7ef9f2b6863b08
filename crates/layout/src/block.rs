//! A 4 KiB block with a checksum, the unit of reads and writes of an SSD.
//!
//! ```text
//! offset  size  contents
//!      0     4  crc32c of (block number as u64, then bytes 4..4096)
//!      4  4092  payload
//! ```
//!
//! A block's number is its offset in the file divided by 4096. The checksum covers the number, so a
//! reader refuses an intact block at a wrong offset.
//!
//! A page may consist of several blocks. The first block has the checksums of all blocks, so the
//! payload is contiguous:
//!
//! ```text
//! offset  size  contents (page of k blocks)
//!      0     4  crc32c of (number of the page's first block as u64, then bytes 4..4096)
//!    4*i     4  crc32c of (number of block i of the page, then its 4096 bytes), i = 1..k
//!    4*k     .  payload, to the page's end
//! ```

use crate::error::LayoutError;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// Bytes of a block without its checksum.
pub const PAYLOAD: usize = BLOCK - 4;

/// The checksum of a number and bytes. It is not inlined, because each crate that inlined it would
/// compile crc-fast again.
#[inline(never)]
pub(crate) fn checksum(number: u64, bytes: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&number.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

#[inline(never)]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

/// Writes the checksum of block `number` over the first four bytes of the block.
///
/// # Panics
/// Panics if `block` is not [`BLOCK`] bytes long.
#[inline]
pub fn seal(block: &mut [u8], number: u64) {
    assert_eq!(block.len(), BLOCK, "a block has {BLOCK} bytes");
    let sum = checksum(number, &block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Refuses a block of a wrong length, or with a wrong checksum.
#[inline]
pub fn check(block: &[u8], number: u64, file: &str) -> Result<(), LayoutError> {
    if block.len() != BLOCK {
        return Err(wrong_size(block.len(), number, file));
    }
    let stored = u32_at(block, 0);
    let computed = checksum(number, &block[4..]);
    if stored == computed {
        Ok(())
    } else {
        Err(mismatch(number, stored, computed, file))
    }
}

/// The number and the checksum of block `at` of a page that begins at block `first`. `at` is not 0.
#[inline]
fn further_checksum(page: &[u8], first: u64, at: usize) -> (u64, u32) {
    let number = first.saturating_add(at as u64);
    (
        number,
        checksum(number, &page[at * BLOCK..(at + 1) * BLOCK]),
    )
}

/// Writes the checksums of all blocks of the page, at least one, that starts at block `first`.
pub(crate) fn seal_page(page: &mut [u8], first: u64) {
    for at in 1..page.len() / BLOCK {
        let (_, sum) = further_checksum(page, first, at);
        page[4 * at..4 * at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    // The first block is sealed last, because its checksum covers the other checksums.
    seal(&mut page[..BLOCK], first);
}

/// `page` must be a positive number of whole blocks.
#[inline]
pub(crate) fn check_page(page: &[u8], first: u64, file: &str) -> Result<(), LayoutError> {
    check(&page[..BLOCK], first, file)?;
    for at in 1..page.len() / BLOCK {
        let stored = u32_at(page, 4 * at);
        let (number, computed) = further_checksum(page, first, at);
        if stored != computed {
            return Err(mismatch(number, stored, computed, file));
        }
    }
    Ok(())
}

#[cold]
fn wrong_size(found: usize, number: u64, file: &str) -> LayoutError {
    LayoutError::Truncated {
        file: file.to_owned(),
        offset: number.saturating_mul(BLOCK as u64),
        expected: BLOCK as u64,
        found: found as u64,
    }
}

#[cold]
pub(crate) fn mismatch(number: u64, stored: u32, computed: u32, file: &str) -> LayoutError {
    LayoutError::Checksum {
        file: file.to_owned(),
        offset: number.saturating_mul(BLOCK as u64),
        stored,
        computed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = (at * 31 % 251) as u8;
        }
        block
    }

    #[test]
    fn sealed_block_passes_in_its_place_only() {
        let mut block = filled();
        seal(&mut block, 7);
        check(&block, 7, "codes").unwrap();
        let error = check(&block, 8, "codes").unwrap_err();
        assert_eq!(error.offset(), Some(8 * 4096));
        assert!(error.to_string().starts_with("codes: checksum mismatch"));
    }

    #[test]
    fn every_bit_flip_is_found() {
        let mut block = filled();
        seal(&mut block, 3);
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&block, 3, "f").is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        check(&block, 3, "f").unwrap();
    }

    #[test]
    fn checksum_is_crc32c() {
        // The published check value of CRC-32C.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let mut bytes = 5u64.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"abc");
        assert_eq!(checksum(5, b"abc"), crc32c::crc32c(&bytes));
    }

    #[test]
    fn every_bit_flip_of_a_page_of_several_blocks_is_found() {
        let mut page = [filled(), filled(), filled()].concat();
        seal_page(&mut page, 7);
        check_page(&page, 7, "f").unwrap();
        check(&page[..BLOCK], 7, "f").unwrap();
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            let error = check_page(&page, 7, "f").unwrap_err();
            let block = 7 + (bit / 8 / BLOCK) as u64;
            assert_eq!(error.offset(), Some(block * BLOCK as u64), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        check_page(&page, 8, "f").unwrap_err();
        let (second, third) = (page[4..8].to_vec(), page[8..12].to_vec());
        assert_ne!(second, third);

        let mut one = filled();
        seal_page(&mut one, 3);
        check(&one, 3, "f").unwrap();
        check_page(&one, 3, "f").unwrap();
        check_page(&one, u64::MAX, "f").unwrap_err();
    }

    #[test]
    fn wrong_size_is_refused() {
        let error = check(&[0; 100], 2, "f").unwrap_err();
        assert_eq!(
            error.to_string().split(". ").next().unwrap(),
            "f: truncated at offset 8192; 4096 bytes expected, 100 found"
        );
        check(&[], u64::MAX, "f").unwrap_err();
    }
}
