//! Filled in with the SIMD kernels.
fn main() {}
