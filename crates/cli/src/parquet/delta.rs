//! Checks the lengths of texts in the encoding DELTA_BINARY_PACKED. The Parquet crate allocates
//! memory for the lengths before it reads a text.
//!
//! ```text
//!   unsigned block size   unsigned mini-blocks a block   unsigned count   signed first
//!   a block:  signed least delta   a byte a mini-block: its width in bits   the mini-blocks
//! ```

use super::thrift::{Malformed, Thrift};

/// The sum of at most `most` lengths, and the bytes that the encoded lengths take.
pub fn lengths(bytes: &[u8], most: u64) -> Result<(u64, usize), Malformed> {
    let mut header = Thrift::new(bytes);
    let block = header.unsigned()?;
    let minis = header.unsigned()?;
    let count = header.unsigned()?;
    let mut value = header.signed()? as i32;
    let each = block.checked_div(minis).ok_or(Malformed::Wrong)?;
    let is_whole = block.is_multiple_of(minis) && each.is_multiple_of(32) && each > 0;
    if count > most || !is_whole || block > u32::MAX.into() {
        return Err(Malformed::Wrong);
    }
    let minis = usize::try_from(minis).map_err(|_| Malformed::Wrong)?;
    let each = usize::try_from(each).map_err(|_| Malformed::Wrong)?;
    let length = |value: i32| u64::try_from(value).unwrap_or(0);
    let mut sum = if count > 0 { length(value) } else { 0 };
    let mut left = count.saturating_sub(1);
    let mut at = header.position();
    while left > 0 {
        let mut block = Thrift::new(bytes.get(at..).ok_or(Malformed::Ended)?);
        let least = block.signed()? as i32;
        at += block.position();
        let widths = bytes.get(at..).and_then(|rest| rest.get(..minis));
        at += minis;
        for &width in widths.ok_or(Malformed::Ended)? {
            if left == 0 {
                break;
            }
            if width > 32 {
                return Err(Malformed::Wrong);
            }
            let width = usize::from(width);
            let packed = bytes.get(at..).ok_or(Malformed::Ended)?;
            let now = left.min(each as u64) as usize;
            if now.saturating_mul(width).div_ceil(8) > packed.len() {
                return Err(Malformed::Ended);
            }
            for nth in 0..now {
                let delta = bits(packed, nth * width, width) as i32;
                value = value.wrapping_add(least).wrapping_add(delta);
                sum += length(value);
            }
            at += each.saturating_mul(width) / 8;
            left -= now as u64;
        }
    }
    Ok((sum, at))
}

/// Returns `width` bits from bit `from` on. `width` is at most 32.
fn bits(bytes: &[u8], from: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(from / 8)) {
        *to = *from;
    }
    u64::from_le_bytes(word) >> (from % 8) & ((1 << width) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encoding of `count` lengths 5, 8, 11 and so on, whose equal deltas take 0 bits.
    fn rising(count: u8) -> Vec<u8> {
        vec![0x80, 0x01, 4, count, 10, 6, 0, 0, 0, 0]
    }

    #[test]
    fn lengths_are_summed_and_no_more_than_there_may_be() {
        assert_eq!(lengths(&rising(4), 4), Ok((5 + 8 + 11 + 14, 10)));
        assert_eq!(lengths(&rising(1), 1), Ok((5, 5)));
        assert_eq!(lengths(&rising(4), 3), Err(Malformed::Wrong));
        for cut in 0..10 {
            assert_eq!(lengths(&rising(4)[..cut], 4), Err(Malformed::Ended));
        }
        // Deltas 1, 2, 3 of two bits each, in the first of four mini-blocks.
        let packed = [
            0x80, 0x01, 4, 4, 0, 0, 2, 0, 0, 0, 0b11_10_01, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(lengths(&packed, 4), Ok((1 + 3 + 6, 18)));
    }
}
