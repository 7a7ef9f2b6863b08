//! The growth of the reads of a query with the collection, as far as it was measured.

/// The growth of the reads of a query with the rows, at the same recall. The reads of n rows are
/// proportional to `1 + by * ln(n / 20,000)`. Below 20,000 rows nothing was measured. There the
/// reads follow a power of n, which continues the line without a bend and stays positive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    by: f64,
}

/// Each line goes between the measurements at recall@10 .90 and .95, of queries on photo-sift with
/// 20 and 100 thousand rows (`bench/second-tier.toml`). Some have a million rows as well
/// (`second-tier-1m.toml`). The 20 thousand rows are every fifth of the 100 thousand, and were run
/// by hand. At .95 reads grow faster than at .90, so a line is up to a sixth off either way. No
/// other data was measured.
impl Growth {
    /// `bench/growth.py`: R=64, recall .97. 8.7 reads with 20 thousand rows, 10.4 with 100
    /// thousand, 15.2 with a million.
    pub(super) const STRATANN: Growth = Growth { by: 0.19 };
    /// R=32, a beam of 4: 29.3 reads at .95 with 20 thousand rows, 37.0 with 100 thousand.
    pub(super) const DISKANN: Growth = Growth { by: 0.16 };
    /// R=16: 19.8 and 24.9 reads with 20 thousand rows, 24.8 and 33.8 with 100 thousand.
    pub(super) const ROWS_OF_16: Growth = Growth { by: 0.19 };
    /// R=32: 17.0 and 20.0 reads, 19.9 and 25.3; with a million 27.7 and 39.5.
    pub(super) const ROWS_OF_32: Growth = Growth { by: 0.18 };
    /// R=64: 15.6 and 17.9 reads, 18.0 and 22.8.
    pub(super) const ROWS_OF_64: Growth = Growth { by: 0.13 };
    /// `spann`: 4.3 and 7.4 reads, 6.1 and 11.5; with a million 7.4 and 14.6.
    pub(super) const SPANN: Growth = Growth { by: 0.25 };
    /// `tiered-cluster` of one copy: 11.9 reads at .90, 18.1.
    pub(super) const ONE_COPY: Growth = Growth { by: 0.32 };
    /// Of eight copies: 107 and 149 reads, 177 and 260; with a million 279 and 443. Of four copies:
    /// 87 and 126, 146 and 222.
    pub(super) const COPIES: Growth = Growth { by: 0.45 };
    /// The rows at which the lines begin. Most advice is of samples of about this size.
    const AT: f64 = 20_000.0;

    /// The reads of a collection of `to` rows, as a multiple of the reads of `from` rows. Fewer
    /// rows than a thousand count as a thousand.
    pub(super) fn factor(self, from: u64, to: u64) -> f64 {
        let reads = |rows: u64| match rows.max(1000) as f64 / Self::AT {
            more if more >= 1.0 => 1.0 + self.by * more.ln(),
            less => less.powf(self.by),
        };
        reads(to) / reads(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_between_what_was_measured() {
        // The measurements with 20 thousand rows and with more, at .90 and at .95. A line is
        // between them, or near.
        for (growth, to, factors) in [
            (Growth::STRATANN, 100_000, [10.37 / 8.72; 2]),
            (Growth::STRATANN, 1_000_000, [15.19 / 8.72; 2]),
            (Growth::DISKANN, 100_000, [36.99 / 29.32; 2]),
            (Growth::ROWS_OF_16, 100_000, [24.8 / 19.8, 33.8 / 24.9]),
            (Growth::ROWS_OF_32, 100_000, [19.9 / 17.0, 25.3 / 20.0]),
            (Growth::ROWS_OF_32, 1_000_000, [27.7 / 17.0, 39.5 / 20.0]),
            (Growth::ROWS_OF_64, 100_000, [18.0 / 15.6, 22.8 / 17.9]),
            (Growth::SPANN, 100_000, [6.1 / 4.3, 11.5 / 7.4]),
            (Growth::SPANN, 1_000_000, [7.4 / 4.3, 14.6 / 7.4]),
            (Growth::ONE_COPY, 100_000, [18.1 / 11.9; 2]),
            (Growth::COPIES, 100_000, [176.5 / 107.3, 259.7 / 149.2]),
            (Growth::COPIES, 1_000_000, [278.6 / 107.3, 443.0 / 149.2]),
        ] {
            let factor = growth.factor(20_000, to);
            let [least, most] = factors;
            let near = 0.9 * least..1.1 * most;
            assert!(near.contains(&factor), "{growth:?}, {to}: {factor}");
        }
    }
}
