//! Floats that start on a cache line, so that a load of 16 floats touches one line.

use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

#[derive(Clone, Default)]
pub(crate) struct AlignedFloats {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedFloats {
    pub(crate) fn zeros(len: usize) -> AlignedFloats {
        let mut floats = AlignedFloats::default();
        floats.resize(len);
        floats
    }

    /// Floats within the new length keep their values. New floats have an unspecified value.
    pub(crate) fn resize(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(16), Line([0.0; 16]));
        self.len = len;
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: a `Line` is 16 floats without padding, and at least `len / 16` exist, rounded up.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
