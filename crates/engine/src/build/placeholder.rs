//! The *placeholder*: the one node of an index that was built of no rows. So no walk, page or table
//! has to handle an index without nodes.
//!
//! A placeholder is dead from the beginning, like the record of a deleted vector: a walk passes
//! through it, and no search returns it. The MANIFEST marks it by reader feature bit 3, and its
//! record has an external id that no vector can have. The first merge of an index with vectors
//! leaves it out, like deleted records.
//!
//! | field | of a placeholder |
//! |---|---|
//! | node | 0, the only one of the build |
//! | external id | 2^64 - 1 |
//! | vector | zeros; the first element 1 where the metric wants a direction |

use stratann_vector::{Element, Metric, Reduction};

use super::BuildOptions;
use super::facts::check_ids;
use crate::Error;
use crate::codebook::check_dimension;
use crate::data::{DataError, VectorSource, check_range};

/// The external id of a placeholder. In results, this number means "no result".
pub(crate) const PLACEHOLDER_ID: u64 = u64::MAX;

/// The one row of a placeholder.
#[derive(Debug)]
pub(super) struct Placeholder<'a> {
    row: Vec<u8>,
    dim: usize,
    element: Element,
    name: &'a str,
}

impl<'a> Placeholder<'a> {
    /// The row for an index of vectors with the dimension and element type of `none`.
    ///
    /// # Errors
    /// No index can have this dimension.
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

/// The bytes of the element 1.
fn one(element: Element) -> &'static [u8] {
    match element {
        Element::F32 => &[0, 0, 0x80, 0x3f],
        Element::F16 => &[0, 0x3c],
        Element::U8 | Element::I8 => &[1],
    }
}

impl BuildOptions {
    /// The options of a build of no rows, for its placeholder.
    ///
    /// # Errors
    /// The options have ids, although there are no rows, or a space budget, which gives no degree.
    pub(super) fn of_placeholder(&self) -> Result<Self, Error> {
        check_ids(self.ids.as_deref().unwrap_or_default(), 0)?;
        if let Some(space) = self.space {
            return Err(Error::call(
                "space",
                space,
                "the degree would follow from the number of vectors, and this index has none",
                "Give a degree in its place",
            ));
        }
        Ok(Self {
            ids: Some(vec![PLACEHOLDER_ID]),
            // A build of one vector is not worth a savepoint.
            resume: false,
            // There is nothing to measure.
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
