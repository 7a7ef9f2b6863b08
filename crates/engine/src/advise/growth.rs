//! How the reads of a query grow with a collection, as far as it was measured.

/// How the reads of a query grow with the rows, at the same recall: those of n rows are like `1 + by * ln(n / 20,000)`, and below, where nothing
/// was measured, like the power of n that goes on from there without a bend, and never comes to nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    by: f64,
}

/// Each line goes between what was measured at recall@10 .90 and .95, of queries on photo-sift with 20 and 100 thousand rows, and with a million
/// where it says so (`bench/second-tier.toml`, `second-tier-1m.toml`; those of 20 thousand every fifth of 100 thousand, run by hand). Reads of .95
/// grow faster than those of .90, so a line is up to a sixth off either way. Of other data nothing was measured.
impl Growth {
    /// `bench/growth.py`: R=64, recall .97, 8.7 reads with 20 thousand rows, 10.4 with 100 thousand, 15.2 with a million.
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
    /// Of eight: 107 and 149 reads, 177 and 260; with a million 279 and 443. Of four: 87 and 126, 146 and 222.
    pub(super) const COPIES: Growth = Growth { by: 0.45 };
    /// Rows that the lines begin with: most advice is of samples like that.
    const AT: f64 = 20_000.0;

    /// How many times the reads of a collection of `from` rows one of `to` rows takes; below a thousand rows as at a thousand.
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
        // As they were measured, with 20 thousand rows and with more, at .90 and at .95: a line is between them, or near.
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
