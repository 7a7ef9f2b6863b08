//! Tests in one binary, because each binary is linked separately.

mod lists;
mod nested;
mod vectors;
