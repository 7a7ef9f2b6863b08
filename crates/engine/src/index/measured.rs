//! The measured recall of an index, as the index holds it.

use serde::Serialize;
use stratann_layout::RecallFile;

use crate::Error;

/// A collection with fewer vectors is not measured.
pub(crate) const LEAST_ROWS: usize = 5_000;
/// The least number of queries that a user may give. The mean recall of fewer queries differs much
/// from the mean recall of later queries.
pub(crate) const LEAST_QUERIES: usize = 100;

/// The measured recall of an index's searches, if it is known.
#[derive(Debug)]
pub(crate) enum Recall {
    /// The measurements.
    Measured(RecallFile),
    /// There are no measurements. The text is the reason.
    Unknown(String),
}

impl Recall {
    /// Reads the contents of the recall file, if there is one. If the file cannot be read, searches
    /// with a recall target return the error. Searches with a list size need no such file.
    pub(crate) fn of(file: Result<Option<RecallFile>, Error>) -> Self {
        match file {
            Ok(Some(file)) => Self::Measured(file),
            Ok(None) => Self::Unknown("it was not measured when the index was built".into()),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }

    /// The number and the source of the queries of the measurement, if there is a measurement.
    pub(crate) fn calibrated(&self) -> Option<Calibrated> {
        match self {
            Self::Measured(file) => Some(Calibrated::of(file)),
            Self::Unknown(_) => None,
        }
    }
}

/// The queries with which the recall of an index was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Calibrated {
    /// The number of queries.
    pub queries: u32,
    /// The source of the queries.
    pub source: QuerySource,
}

/// The source of the queries of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuerySource {
    /// The measurement chose the queries: vectors of the index, and vectors made of these.
    Index,
    /// A user gave the queries.
    User,
}

impl Calibrated {
    /// Whether a user gave fewer queries than [`calibrate`](crate::calibrate) accepts. An earlier
    /// version accepted fewer.
    #[must_use]
    pub fn is_of_too_few(&self) -> bool {
        self.source == QuerySource::User && (self.queries as usize) < LEAST_QUERIES
    }

    fn of(file: &RecallFile) -> Self {
        Self {
            queries: file.queries,
            source: match file.by_build {
                true => QuerySource::Index,
                false => QuerySource::User,
            },
        }
    }
}
