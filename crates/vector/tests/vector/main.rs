//! Tests of elements, kernels and quantisers through their public interface, in one binary, since
//! each binary would be linked separately.

mod elements;
mod kernels;
mod quantiser;
