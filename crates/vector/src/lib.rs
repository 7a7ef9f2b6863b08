//! stratann-vector
