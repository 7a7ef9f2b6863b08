//! Rounded queries, which servers send in place of queries of floats.

use stratann_vector::{Element, Rounding};

use crate::Error;

/// Whether walks use [rounded](Rounding) queries. The final ranking uses the exact query.
pub(crate) fn is_rounded(element: Element) -> bool {
    element.size() > 1
}

/// Rounds a query into `sent`. Returns false if the query is too far from all vectors.
pub(crate) fn round(rounding: &Rounding, query: &mut [f32], sent: &mut Vec<u8>) -> bool {
    sent.clear();
    rounding.append(query, sent);
    rounding.read(sent, query)
}

pub(crate) fn far() -> Error {
    Error::call(
        "a query",
        "too far from all vectors",
        "its distances would not be finite",
        "Scale the query as the vectors are scaled",
    )
}
