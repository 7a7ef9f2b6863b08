//! Tests of elements, kernels and quantisers through their public interface. They share one binary,
//! because each binary is linked separately.

mod elements;
mod kernels;
mod quantiser;
