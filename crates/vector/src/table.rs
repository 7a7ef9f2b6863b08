//! A table for one query that estimates its distances to product-quantised codes.
//!
//! ```text
//!   table:  chunk 0: 256 f32 | chunk 1: 256 f32 | ..   from ProductQuantizer::table, once a query
//!   code:   byte 0, byte 1, ..                         estimate = sum over j of chunk j [ byte j ]
//! ```

use crate::InstructionSet;
use crate::aligned::AlignedFloats;
use crate::kernel::{Routines, all_below};

/// Partial distances from [`ProductQuantizer::table`](crate::ProductQuantizer::table).
#[derive(Clone)]
pub struct DistanceTable {
    entries: AlignedFloats,
    code_bytes: usize,
    routines: &'static Routines,
}

impl DistanceTable {
    /// An empty table. Until it is filled, [`score`](DistanceTable::score) panics.
    pub fn new() -> DistanceTable {
        DistanceTable::with_isa(InstructionSet::current())
    }

    /// An empty table for a given instruction set; for tests and comparisons.
    ///
    /// # Panics
    /// Panics if the processor does not have the instruction set.
    pub fn with_isa(isa: InstructionSet) -> DistanceTable {
        DistanceTable {
            entries: AlignedFloats::default(),
            code_bytes: 0,
            routines: Routines::of(isa),
        }
    }

    /// The bytes of the codes that this table scores; 0 before it is filled.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// The partial distances: 256 for byte 0, 256 for byte 1, and so on.
    pub fn entries(&self) -> &[f32] {
        &self.entries
    }

    pub(crate) fn reshape(&mut self, code_bytes: usize) -> &mut [f32] {
        self.code_bytes = code_bytes;
        self.entries.resize(code_bytes * 256);
        &mut self.entries
    }

    /// Estimates the distances to the codes in rows `ids` of the dense matrix `codes`.
    ///
    /// # Panics
    /// Panics if the table is not filled, an id has no code, or `out` and `ids` differ in length.
    #[inline]
    pub fn score(&self, codes: &[u8], ids: &[u32], out: &mut [f32]) {
        assert!(self.code_bytes > 0, "the table is not filled");
        assert_eq!(
            ids.len(),
            out.len(),
            "the numbers of ids and distances differ"
        );
        let count = codes.len() / self.code_bytes;
        assert!(
            all_below(ids, count),
            "an id is not below {count}, the number of codes"
        );
        // SAFETY: a code has at least a byte, there are 256 entries for each byte of a code, each
        // id is that of a whole code, `out` is as long as `ids`, and `Routines::of` saw that the
        // processor has the instruction set.
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

    /// The estimate for one code, as [`DistanceTable::score`] gives it.
    ///
    /// # Panics
    /// Panics if the table is not filled, or the code is not [`DistanceTable::code_bytes`] long.
    #[inline]
    pub fn score_one(&self, code: &[u8]) -> f32 {
        assert_eq!(code.len(), self.code_bytes, "the code has the wrong length");
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
