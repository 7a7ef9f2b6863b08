//! stratann
