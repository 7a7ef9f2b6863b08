//! Two streams of symbols in one slice: the first half of the symbols is read from the front, the
//! other half from the back.
//!
//! ```text
//! byte 0                                             last byte
//!   | first half, rounded up to bytes --> <-- second half, rounded up |
//! ```
//!
//! With a single stream, the processor must wait for each word. Two streams are decoded in
//! parallel. They start at both ends of the slice, which must end where the code ends, so the code
//! has no field for a start. The decoder checks that the streams fill the slice.

use crate::bits::{BitWriter, window, window_backward};
use crate::error::CodecError;
use crate::prefix::Triples;

pub(super) fn front(symbols: usize) -> usize {
    symbols.div_ceil(2)
}

pub(super) struct Lane<'a, const BACK: bool> {
    bytes: &'a [u8],
    bit: usize,
    buffer: u64,
}

impl<'a, const BACK: bool> Lane<'a, BACK> {
    pub(super) fn new(bytes: &'a [u8], bit: usize) -> Lane<'a, BACK> {
        Lane {
            bytes,
            bit,
            buffer: 0,
        }
    }

    /// Loads the next bits, at least 57.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        self.buffer = window_from::<BACK>(self.bytes, self.bit);
    }

    #[inline(always)]
    pub(super) fn buffer(&self) -> u64 {
        self.buffer
    }

    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.buffer >>= bits & 63;
        self.bit += bits as usize;
    }

    /// Takes the unchanged byte after an escape. The caller has skipped the word of the escape.
    #[inline(always)]
    pub(super) fn escaped(&mut self) -> u8 {
        let (byte, buffer) = behind_escape::<BACK>(self.bytes, self.bit);
        self.bit += 8;
        self.buffer = buffer;
        byte
    }

    pub(super) fn bytes_used(&self) -> usize {
        self.bit.div_ceil(8)
    }

    /// Decodes up to three symbols to `out[at..]`, which must have at least 4 bytes.
    #[inline(always)]
    fn triple<const SIZE: usize>(&mut self, table: &Triples<SIZE>, out: &mut [u8], at: &mut usize) {
        let entry = table.entry(self.buffer);
        self.skip(entry & 63);
        let count = (entry >> 6 & 3) as usize;
        if count == 0 {
            out[*at] = self.escaped();
            *at += 1;
            return;
        }
        if let Some(place) = out
            .get_mut(*at..)
            .and_then(|rest| rest.first_chunk_mut::<4>())
        {
            *place = (entry >> 8).to_le_bytes();
        }
        *at += count;
    }

    #[inline(always)]
    fn rest<const SIZE: usize>(&mut self, table: &Triples<SIZE>, out: &mut [u8], mut at: usize) {
        while at + 4 <= out.len() {
            self.refill();
            self.triple(table, out, &mut at);
        }
        for place in &mut out[at..] {
            self.refill();
            let entry = table.entry(self.buffer);
            if entry >> 6 & 3 == 0 {
                self.skip(entry & 63);
                *place = self.escaped();
            } else {
                *place = (entry >> 8) as u8;
                self.skip(table.length(*place));
            }
        }
    }
}

#[inline(always)]
fn window_from<const BACK: bool>(bytes: &[u8], bit: usize) -> u64 {
    if BACK {
        window_backward(bytes, bit)
    } else {
        window(bytes, bit)
    }
}

/// Takes no [`Lane`] as an argument, because the lane would then be in memory, not in registers.
#[cold]
#[inline(never)]
fn behind_escape<const BACK: bool>(bytes: &[u8], bit: usize) -> (u8, u64) {
    (
        window_from::<BACK>(bytes, bit) as u8,
        window_from::<BACK>(bytes, bit + 8),
    )
}

/// Decodes `out.len()` symbols from all of `bytes`. The first `skip` bits are not in the streams.
#[inline]
pub(super) fn decode<const SIZE: usize>(
    what: &'static str,
    bytes: &[u8],
    skip: usize,
    table: &Triples<SIZE>,
    out: &mut [u8],
) -> Result<(), CodecError> {
    // Four look-ups of 12 bits consume fewer bits than a window has, and return at most 12 symbols.
    const LOOKUPS: usize = 4;
    const ROOM: usize = 3 * LOOKUPS + 1;
    let (first, second) = out.split_at_mut(front(out.len()));
    let mut ahead = Lane::<false>::new(bytes, skip);
    let mut back = Lane::<true>::new(bytes, 0);
    let (mut a, mut b) = (0, 0);
    while a + ROOM <= first.len() && b + ROOM <= second.len() {
        ahead.refill();
        back.refill();
        for _ in 0..LOOKUPS {
            ahead.triple(table, first, &mut a);
            back.triple(table, second, &mut b);
        }
    }
    ahead.rest(table, first, a);
    back.rest(table, second, b);
    check_meet(what, bytes, &ahead, &back)
}

#[inline(always)]
pub(super) fn check_meet(
    what: &'static str,
    bytes: &[u8],
    ahead: &Lane<'_, false>,
    back: &Lane<'_, true>,
) -> Result<(), CodecError> {
    let used = ahead.bytes_used() + back.bytes_used();
    if used == bytes.len() {
        return Ok(());
    }
    Err(CodecError::Length {
        what,
        found: bytes.len(),
        expected: used,
    })
}

/// Appends two streams. The first stream begins with the lowest `lead` bits of `value`.
pub(super) fn encode(
    symbols: usize,
    (value, lead): (u64, u32),
    mut put: impl FnMut(usize, &mut BitWriter<'_>),
    out: &mut Vec<u8>,
) {
    let mut writer = BitWriter::new(out);
    writer.put(value, lead);
    for position in 0..front(symbols) {
        put(position, &mut writer);
    }
    writer.finish();
    let middle = out.len();
    let mut writer = BitWriter::new(out);
    for position in front(symbols)..symbols {
        put(position, &mut writer);
    }
    writer.finish();
    out[middle..].reverse();
}
