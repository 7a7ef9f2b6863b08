//! The *placeholder* is the one node of an index that was built of no rows. With it, no walk, page
//! or table has to handle an index without nodes.
//!
//! A placeholder is dead from the beginning, like the record of a deleted vector. A walk passes
//! through it, and no search returns it. Reader feature bit 3 in the MANIFEST marks it, and its
//! record has an external id that no vector can have. The first merge of an index with vectors
//! removes the placeholder, as it removes deleted records.
//!
//! | field | value in a placeholder |
//! |---|---|
//! | node | 0, the only node of the build |
//! | external id | 2^64 - 1 |
//! | vector | zeros; the first element is 1 if the metric needs a direction |

use stratann_vector::{Element, Metric, Reduction};

use super::BuildOptions;
use super::facts::check_ids;
use crate::Error;
use crate::codebook::check_dimension;
use crate::data::{DataError, VectorSource, check_range};
use crate::stores::ids::PLACEHOLDER_ID;

/// The one row of a placeholder, as a source of rows.
#[derive(Debug)]
pub(super) struct Placeholder<'a> {
    row: Vec<u8>,
    dim: usize,
    element: Element,
    name: &'a str,
}

impl<'a> Placeholder<'a> {
    /// Makes the row for an index of vectors with the dimension and element type of `none`.
    ///
    /// # Errors
    /// The call fails if no index can have this dimension.
    pub(super) fn of(none: &'a dyn VectorSource, metric: Metric) -> Result<Self, Error> {
        check_dimension(none)?;
        let (element, dim) = (none.element(), none.dim());
        let mut row = vec![0; none.row_bytes()];
        if metric.reduction() == Reduction::Normalised {
            let one = one(element);
            row[..one.len()].copy_from_slice(one);
        }
        Ok(Self {
            row,
            dim,
            element,
            name: none.name(),
        })
    }
}

impl VectorSource for Placeholder<'_> {
    fn rows(&self) -> usize {
        1
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        if check_range(self, first, out.len())? > 0 {
            out.copy_from_slice(&self.row);
        }
        Ok(())
    }

    fn in_memory(&self) -> Option<&[u8]> {
        Some(&self.row)
    }
}

/// The bytes of an element with the value 1.
fn one(element: Element) -> &'static [u8] {
    match element {
        Element::F32 => &[0, 0, 0x80, 0x3f],
        Element::F16 => &[0, 0x3c],
        Element::U8 | Element::I8 => &[1],
    }
}

impl BuildOptions {
    /// Returns the options for a build of no rows, which builds a placeholder.
    ///
    /// The call fails if the options have ids, although there are no rows, or a space budget, from
    /// which no degree follows.
    pub(super) fn of_placeholder(&self) -> Result<Self, Error> {
        check_ids(self.ids.as_deref().unwrap_or_default(), 0)?;
        if let Some(space) = self.space {
            return Err(Error::call(
                "space",
                space,
                "the degree would follow from the number of vectors, and this index has none",
                "Give a degree instead of a space budget",
            ));
        }
        Ok(Self {
            ids: Some(vec![PLACEHOLDER_ID]),
            // A build of one vector needs no savepoint.
            resume: false,
            // An index without vectors has no recall to measure.
            calibrate: false,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::NoRows;
    use stratann_vector::to_f32;

    #[test]
    fn a_placeholder_has_a_direction_where_the_metric_wants_one() {
        for element in [Element::F32, Element::F16, Element::U8, Element::I8] {
            for (metric, first) in [(Metric::Cosine, 1.0), (Metric::L2, 0.0)] {
                let none = NoRows::new(element, 3);
                let placeholder = Placeholder::of(&none, metric).unwrap();
                let mut floats = [9.0; 3];
                to_f32(element, placeholder.in_memory().unwrap(), &mut floats);
                assert_eq!(floats, [first, 0.0, 0.0], "{element} {metric}");
            }
        }
    }
}
