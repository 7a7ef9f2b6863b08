//! One query's estimates of its distances to vectors of which only codes are at hand.
//!
//! ```text
//!   table:  chunk 0: 256 f32 | chunk 1: 256 f32 | ...      filled by ProductQuantizer::table, once a query
//!   code:   byte 0, byte 1, ...                            estimate = sum over j of chunk j [ byte j ]
//! ```

use crate::InstructionSet;
use crate::aligned::AlignedFloats;
use crate::kernel::{Routines, all_below};

/// A table of partial distances, filled by
/// [`ProductQuantizer::table`](crate::ProductQuantizer::table). Refilling it does not allocate.
#[derive(Clone)]
pub struct DistanceTable {
    /// `code_bytes` times 256.
    entries: AlignedFloats,
    code_bytes: usize,
    routines: &'static Routines,
}

impl DistanceTable {
    /// An empty table: every code is refused until it is filled.
    pub fn new() -> DistanceTable {
        DistanceTable::with_isa(InstructionSet::current())
    }

    /// A table that is read with a given instruction set; for tests and comparisons.
    ///
    /// # Panics
    ///
    /// If the processor does not have it.
    pub fn with_isa(isa: InstructionSet) -> DistanceTable {
        DistanceTable {
            entries: AlignedFloats::default(),
            code_bytes: 0,
            routines: Routines::of(isa),
        }
    }

    /// Bytes of the codes that it scores; 0 before it is filled.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// The partial distances: 256 for byte 0, 256 for byte 1, and so on.
    pub fn entries(&self) -> &[f32] {
        &self.entries
    }

    /// Makes room for codes of `code_bytes` bytes; the entries are for the caller to fill.
    pub(crate) fn reshape(&mut self, code_bytes: usize) -> &mut [f32] {
        self.code_bytes = code_bytes;
        self.entries.resize(code_bytes * 256);
        &mut self.entries
    }

    /// Estimates for many vectors: `out[i]` is that for the `ids[i]`-th code of the dense matrix
    /// `codes`. Prefetches codes ahead.
    ///
    /// # Panics
    ///
    /// If the table is not filled, an id is not below the number of codes, or `out` is not as long
    /// as `ids`.
    #[inline]
    pub fn score(&self, codes: &[u8], ids: &[u32], out: &mut [f32]) {
        assert!(self.code_bytes > 0, "the table is not filled");
        assert_eq!(ids.len(), out.len(), "one distance for each id");
        let count = codes.len() / self.code_bytes;
        assert!(
            all_below(ids, count),
            "an id is not below {count}, the number of codes"
        );
        // SAFETY: there are 256 entries for each byte of a code, each id is that of a whole code,
        // `out` is as long as `ids`, and `Routines::of` saw that the processor has the instruction
        // set.
        unsafe {
            (self.routines.score)(
                self.entries.as_ptr(),
                self.code_bytes,
                codes.as_ptr(),
                ids,
                out,
            )
        }
    }

    /// The estimate for one code; the same as [`DistanceTable::score`] has for it.
    ///
    /// # Panics
    ///
    /// If the table is not filled, or the code is not [`DistanceTable::code_bytes`] long.
    #[inline]
    pub fn score_one(&self, code: &[u8]) -> f32 {
        assert_eq!(code.len(), self.code_bytes, "a code of the wrong length");
        let mut out = [0.0];
        self.score(code, &[0], &mut out);
        out[0]
    }
}

impl Default for DistanceTable {
    fn default() -> DistanceTable {
        DistanceTable::new()
    }
}

impl std::fmt::Debug for DistanceTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DistanceTable")
            .field("code_bytes", &self.code_bytes)
            .finish_non_exhaustive()
    }
}
