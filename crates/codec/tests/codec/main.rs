//! Tests of the public interface of codecs. They share one binary, because each binary is linked
//! separately.

mod lists;
mod nested;
mod vectors;
