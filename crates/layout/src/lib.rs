//! stratann-layout
