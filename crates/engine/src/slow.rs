//! How thorough a test is: by default as thorough as a few minutes for all of them allow.

/// Whether tests may take minutes each: `make test-slow`, or `STRATANN_SLOW=1`.
pub(crate) fn slow() -> bool {
    std::env::var_os("STRATANN_SLOW").is_some()
}
