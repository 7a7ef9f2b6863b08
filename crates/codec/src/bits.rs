//! Access to single bits of a byte string, from either end.

/// The least number of bits of a window. Bits beyond the end of the bytes are zero.
pub(crate) const WINDOW: u32 = 57;

pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    buffer: u64,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter {
            out,
            buffer: 0,
            filled: 0,
        }
    }

    /// Appends the lowest `bits` bits, at most 57, of `value`, whose other bits must be zero.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(bits <= WINDOW && (value >> bits) == 0);
        self.buffer |= value << self.filled;
        self.filled += bits;
        while self.filled >= 8 {
            self.out.push(self.buffer as u8);
            self.buffer >>= 8;
            self.filled -= 8;
        }
    }

    pub(crate) fn finish(self) {
        if self.filled > 0 {
            self.out.push(self.buffer as u8);
        }
    }
}

/// The bits from bit `bit` on, at least [`WINDOW`] bits. Bits beyond the end are zero.
#[inline(always)]
pub(crate) fn window(bytes: &[u8], bit: usize) -> u64 {
    let at = bit >> 3;
    // `at + 8` cannot overflow, so the check of the range is one comparison.
    let word = match bytes
        .get(at..at + 8)
        .and_then(|rest| rest.first_chunk::<8>())
    {
        Some(eight) => u64::from_le_bytes(*eight),
        None => window_at_end(bytes, at),
    };
    word >> (bit & 7)
}

#[inline(always)]
pub(crate) fn window_backward(bytes: &[u8], bit: usize) -> u64 {
    let at = bit >> 3;
    let rest = bytes.len().saturating_sub(at);
    let word = match bytes[..rest].last_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => backward_at_start(&bytes[..rest]),
    };
    word >> (bit & 7)
}

#[cold]
#[inline(never)]
fn window_at_end(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    if let Some(rest) = bytes.get(at..) {
        eight[..rest.len()].copy_from_slice(rest);
    }
    u64::from_le_bytes(eight)
}

#[cold]
#[inline(never)]
fn backward_at_start(rest: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight[8 - rest.len()..].copy_from_slice(rest);
    u64::from_be_bytes(eight)
}

pub(crate) fn bit_length(value: u32) -> u32 {
    32 - value.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_agree_with_the_writer_from_both_ends() {
        let fields: Vec<(u64, u32)> = (0..200u64)
            .map(|i| {
                let bits = (i * 7 % 58) as u32;
                (
                    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1u64 << bits) - 1),
                    bits,
                )
            })
            .collect();
        let mut bytes = Vec::new();
        let mut writer = BitWriter::new(&mut bytes);
        for &(value, bits) in &fields {
            writer.put(value, bits);
        }
        writer.finish();
        let mut reversed = bytes.clone();
        reversed.reverse();
        let mut bit = 0;
        for &(value, bits) in &fields {
            let mask = (1u64 << bits) - 1;
            assert_eq!(window(&bytes, bit) & mask, value);
            assert_eq!(window_backward(&reversed, bit) & mask, value);
            bit += bits as usize;
        }
        assert_eq!(bit.div_ceil(8), bytes.len());
        for beyond in [0, 1, 8, 9, 1000, usize::MAX - 8 * bytes.len()] {
            assert_eq!(window(&bytes, 8 * bytes.len() + beyond), 0);
            assert_eq!(window_backward(&bytes, 8 * bytes.len() + beyond), 0);
        }
    }
}
