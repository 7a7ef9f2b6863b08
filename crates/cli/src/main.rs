//! stratann-cli
fn main() {}
