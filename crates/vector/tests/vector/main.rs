//! Tests in one binary, because each binary is linked separately.

mod elements;
mod kernels;
mod quantiser;
