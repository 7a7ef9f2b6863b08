//! stratann-tier
