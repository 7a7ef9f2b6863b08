//! Elements, kernels and quantisers as others see them: one binary of tests, since each would be
//! linked by itself.

mod elements;
mod kernels;
mod quantiser;
