//! The size of a chunk of vectors, derived from a limit on the memory for chunks.

use stratann_layout::{BLOCK, chunks};

use crate::Error;

/// C, the bytes of the smallest chunk of vectors for which β is at most `overhead`. β is the memory
/// that a search keeps for the chunks, as a share of the uncompressed vectors (DecoupleVS §3.3).
///
/// # Errors
/// The call fails if the share is more than 1, or less than the four bytes that each block of
/// vectors needs (1/1024).
pub fn chunk_bytes_for_overhead(overhead: f64, vector_bytes: u64) -> Result<u64, Error> {
    // The paper's alpha: the compressed bytes divided by the uncompressed bytes.
    const INCOMPRESSIBLE: f64 = 1.0;
    let bytes = usize::try_from(vector_bytes)
        .ok()
        .and_then(|vector_bytes| chunks::chunk_bytes_for(overhead, INCOMPRESSIBLE, vector_bytes))
        .filter(|_| overhead <= 1.0);
    match bytes {
        // A build refuses chunks that are smaller than a vector or a block.
        Some(bytes) => Ok(bytes.max(vector_bytes).max(BLOCK as u64)),
        None => Err(Error::call(
            "chunk overhead",
            overhead,
            "it is a share, and each block needs more than 1/1024 = 0.0009766",
            "Pass a number above 0.0009766, up to 1 (0.001 is usual)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_chunk_within_the_overhead() {
        for (overhead, vector_bytes) in [(0.001, 128), (0.001, 1536), (0.01, 128), (0.00098, 100)] {
            let bytes = chunk_bytes_for_overhead(overhead, vector_bytes).unwrap();
            let of = |bytes| chunks::chunk_overhead(bytes, 1.0, vector_bytes as usize);
            assert!(of(bytes) <= overhead * 1.000_001, "{overhead}: {bytes}");
            assert!(of(bytes - 1) > overhead * 0.999_999, "{overhead}: {bytes}");
        }
        assert_eq!(chunk_bytes_for_overhead(1.0, 128).unwrap(), 4096);
        assert_eq!(chunk_bytes_for_overhead(1.0, 8000).unwrap(), 8020);
    }

    #[test]
    fn what_no_chunk_stays_within_is_refused() {
        for overhead in [
            0.0,
            -1.0,
            1.0 / 1024.0,
            1.01,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ] {
            let error = chunk_bytes_for_overhead(overhead, 128).unwrap_err();
            assert!(error.is_call_wrong());
            let text = error.to_string();
            assert!(
                text.contains("chunk overhead") && text.contains("1/1024"),
                "{text}"
            );
        }
    }
}
