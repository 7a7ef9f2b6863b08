//! stratann-python
