//! The metrics. A smaller distance is nearer.

use std::fmt;
use std::str::FromStr;

/// The formula for the distance between vectors `a` and `b`.
///
/// | metric | distance | range |
/// |---|---|---|
/// | [`L2`](Metric::L2) | sum of `(a_i - b_i)^2`, the *squared* Euclidean distance | 0 and up |
/// | [`InnerProduct`](Metric::InnerProduct) | `-(a . b)` | any |
/// | [`Cosine`](Metric::Cosine) | `1 - (a . b) / (\|a\| \|b\|)`; 1 if either is zero | 0 to 2 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Squared Euclidean distance.
    L2,
    /// The negated inner product.
    InnerProduct,
    /// One minus the cosine of the angle.
    Cosine,
}

/// A change of vectors. After it, the nearest vectors under a metric are also nearest in Euclidean
/// distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// No change.
    None,
    /// Vectors are scaled to length 1; a vector of length 0 is refused.
    Normalised,
    /// Each vector gets one more element, which makes it as long as the longest vector. Queries get
    /// 0.
    Lifted,
}

/// The error for an unknown name of a metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metric is {0:?}; there is no such metric. Use one of l2 (l2sq, euclidean, squared_l2), ip (mips, dot, inner_product), cosine (cos)"
)]
pub struct UnknownMetric(pub String);

impl Metric {
    /// All metrics, in the order of their codes.
    pub const ALL: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

    /// The name that [`FromStr`] reads back: `l2`, `ip` or `cosine`.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::L2 => "l2",
            Metric::InnerProduct => "ip",
            Metric::Cosine => "cosine",
        }
    }

    /// A description of one line, for a user.
    pub const fn about(self) -> &'static str {
        match self {
            Metric::L2 => "Squared Euclidean distance",
            Metric::InnerProduct => "Inner product, negated so that smaller is nearer",
            Metric::Cosine => "1 - cosine of the angle",
        }
    }

    /// The other names that [`FromStr`] reads.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Metric::L2 => &["l2sq", "euclidean", "squared_l2", "squared-l2"],
            Metric::InnerProduct => &["mips", "dot", "inner_product", "inner-product"],
            Metric::Cosine => &["cos"],
        }
    }

    /// The change after which the nearest vectors under this metric are nearest in Euclidean
    /// distance.
    pub const fn reduction(self) -> Reduction {
        match self {
            Metric::L2 => Reduction::None,
            Metric::InnerProduct => Reduction::Lifted,
            Metric::Cosine => Reduction::Normalised,
        }
    }

    /// The largest magnitude of an element for which all distances are finite: a squared distance
    /// is at most `dim * (2 * largest)^2`, a sixteenth of [`f32::MAX`]. Under cosine, any number is
    /// allowed.
    pub fn largest_magnitude(self, dim: usize) -> f32 {
        match self {
            Metric::Cosine => f32::MAX,
            Metric::L2 | Metric::InnerProduct => (f32::MAX / dim.max(1) as f32).sqrt() / 8.0,
        }
    }

    /// The number of this metric in files, never reused.
    pub const fn code(self) -> u8 {
        match self {
            Metric::L2 => 0,
            Metric::InnerProduct => 1,
            Metric::Cosine => 2,
        }
    }

    /// The metric with this code in a file; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<Metric> {
        Metric::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Metric {
    type Err = UnknownMetric;

    /// Reads a name or an alias, in any case.
    fn from_str(text: &str) -> Result<Metric, UnknownMetric> {
        let name = text.to_ascii_lowercase();
        let named =
            |metric: &Metric| metric.name() == name || metric.aliases().contains(&name.as_str());
        let found = Metric::ALL.into_iter().find(named);
        found.ok_or_else(|| UnknownMetric(text.to_owned()))
    }
}
