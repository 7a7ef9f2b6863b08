//! The *placeholder* is the one node of an index that was built of no rows. So walks, pages and
//! tables always have a node.
//!
//! A placeholder is dead from the beginning. A walk passes through it, no search returns it, and
//! the first merge removes it. Reader feature bit 3 in the MANIFEST marks it.
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

#[derive(Debug)]
pub(super) struct Placeholder<'a> {
    row: Vec<u8>,
    dim: usize,
    element: Element,
    name: &'a str,
}

impl<'a> Placeholder<'a> {
    /// `none` is a source without rows, and has the dimension and the element type of the vectors.
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

fn one(element: Element) -> &'static [u8] {
    match element {
        Element::F32 => &[0, 0, 0x80, 0x3f],
        Element::F16 => &[0, 0x3c],
        Element::U8 | Element::I8 => &[1],
    }
}

impl BuildOptions {
    /// The call fails if the options have ids or a space budget. No degree follows from a space
    /// budget without vectors.
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
            resume: false,
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
