//! Codecs as others see them: one binary of tests, since each would be linked by itself.

mod lists;
mod nested;
mod vectors;
