//! Build space represents rows so that squared Euclidean distance ranks them as the metric does.
//!
//! | metric | a row in build space | squared distance in build space |
//! |---|---|---|
//! | L2 | the row itself | the metric itself |
//! | cosine | f32, scaled to length 1 | 2 * (1 - cos) |
//! | inner product | f32, one more element sqrt(M² - \|x\|²); M: longest row | const(q) - 2 dot |
//!
//! The last line reduces maximum inner product search to nearest-neighbour search. `q` is a query,
//! and all rows get the same length.
//!
//! Floats in build space may be rounded to a byte each ([`rounding`](super::rounding)).

use super::points::Points;
use super::random::Random;
use super::rounding::{Rounding, Trial};
use crate::data::{DataError, VectorSource};
use stratann_vector::{Element, Metric, Reduction, norm, normalize, to_f32};

#[derive(Clone, Debug)]
pub(crate) struct Space {
    metric: Metric,
    element: Element,
    dim: usize,
    /// The length of the longest row, for the inner product.
    longest: f32,
    rounding: Option<Rounding>,
}

impl Space {
    pub(crate) fn new(metric: Metric, element: Element, dim: usize) -> Space {
        Space {
            metric,
            element,
            dim,
            longest: 0.0,
            rounding: None,
        }
    }

    pub(crate) fn rows(&self) -> (Metric, Element, usize) {
        (self.metric, self.element, self.dim)
    }

    pub(super) fn is_identity(&self) -> bool {
        self.metric.reduction() == Reduction::None && self.rounding.is_none()
    }

    pub(super) fn is_rounded(&self) -> bool {
        self.rounding.is_some()
    }

    /// Whether [`Space::measure`] must see all rows before the first [`Space::append`].
    pub(crate) fn needs_longest(&self) -> bool {
        self.metric.reduction() == Reduction::Lifted
    }

    pub(crate) fn measure(&mut self, rows: &[u8]) {
        let mut floats = vec![0.0; self.dim];
        for row in rows.chunks_exact(self.dim * self.element.size()) {
            to_f32(self.element, row, &mut floats);
            self.longest = self.longest.max(norm(&floats));
        }
    }

    /// The trial must [examine](Space::look) all rows before any row is rounded.
    pub(super) fn trial(
        &self,
        source: &dyn VectorSource,
        seed: u64,
    ) -> Result<Option<Trial>, DataError> {
        let rows = source.rows();
        let count = match self.build_element() {
            Element::F32 => Rounding::sample(rows, self.point_bytes()),
            _ => None,
        };
        let Some(count) = count else {
            return Ok(None);
        };
        let mut sample = Random::derived(seed, 0x726f_756e_6401).sample(rows, count);
        sample.sort_unstable();
        let (mut floats, mut row) = (Vec::new(), vec![0; source.row_bytes()]);
        for at in sample {
            source.read(at, &mut row)?;
            self.each_point(&row, |point| floats.extend_from_slice(point));
        }
        let rounding = Rounding::of(&floats, self.build_dim());
        Ok(rounding.map(|rounding| Trial::new(rounding, &floats, self.build_dim())))
    }

    pub(super) fn look(&self, rows: &[u8], trial: &mut Trial) {
        self.each_point(rows, |point| trial.see(point));
    }

    pub(super) fn round(&mut self, rounding: Option<Rounding>) {
        self.rounding = rounding;
    }

    pub(crate) fn build_element(&self) -> Element {
        match (&self.rounding, self.metric.reduction()) {
            (Some(_), _) => Rounding::ELEMENT,
            (None, Reduction::None) => self.element,
            (None, Reduction::Normalised | Reduction::Lifted) => Element::F32,
        }
    }

    pub(crate) fn build_dim(&self) -> usize {
        self.dim + usize::from(self.needs_longest())
    }

    pub(crate) fn point_bytes(&self) -> usize {
        self.build_dim() * self.build_element().size()
    }

    pub(crate) fn each_point(&self, rows: &[u8], mut each: impl FnMut(&[f32])) {
        let mut point = vec![0.0; self.build_dim()];
        for row in rows.chunks_exact(self.dim * self.element.size()) {
            let (floats, rest) = point.split_at_mut(self.dim);
            to_f32(self.element, row, floats);
            match self.metric.reduction() {
                Reduction::None => {}
                Reduction::Normalised => {
                    normalize(floats);
                }
                Reduction::Lifted => {
                    let length = norm(floats);
                    let lift = self.longest * self.longest - length * length;
                    rest.fill(lift.max(0.0).sqrt());
                }
            }
            each(&point);
        }
    }

    pub(crate) fn append(&self, rows: &[u8], points: &mut Vec<u8>) {
        match &self.rounding {
            None if self.is_identity() => points.extend_from_slice(rows),
            None => self.each_point(rows, |point| {
                points.extend(point.iter().flat_map(|value| value.to_le_bytes()));
            }),
            Some(rounding) => self.each_point(rows, |point| rounding.append(point, points)),
        }
    }

    pub(crate) fn points<'a>(&self, bytes: &'a [u8]) -> Points<'a> {
        match self.rounding {
            Some(_) => Points::measured_by(Rounding::kernel(self.build_dim()), bytes),
            None => Points::new(bytes, self.build_element(), self.build_dim()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Space;
    use stratann_vector::{Element, Metric};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    #[test]
    fn inner_product_points_have_one_length_and_rank_by_product() {
        let rows = bytes(&[3.0, 4.0, 1.0, 0.0, 0.0, 2.0]);
        let mut space = Space::new(Metric::InnerProduct, Element::F32, 2);
        space.measure(&rows);
        let mut points = Vec::new();
        space.append(&rows, &mut points);
        let points = space.points(&points);
        assert_eq!((points.rows(), points.dim()), (3, 3));
        // The squared distance of two points of length 5 is 50 - 2 * dot.
        let origin = bytes(&[0.0, 0.0, 0.0]);
        let mut lengths = [0.0; 3];
        points.distances(&origin, &[0, 1, 2], &mut lengths);
        assert!(
            lengths.iter().all(|length| (length - 25.0).abs() < 1e-3),
            "{lengths:?}"
        );
        let query = bytes(&[1.0, 1.0, 0.0]);
        let mut distances = [0.0; 3];
        points.distances(&query, &[0, 1, 2], &mut distances);
        for (distance, product) in distances.iter().zip([7.0, 1.0, 2.0]) {
            assert!((distance - (25.0 + 2.0 - 2.0 * product)).abs() < 1e-3);
        }
    }

    #[test]
    fn cosine_points_have_length_one() {
        let space = Space::new(Metric::Cosine, Element::U8, 2);
        let mut points = Vec::new();
        space.append(&[3, 4, 6, 8, 1, 0], &mut points);
        let points = space.points(&points);
        assert!(points.distance(0, 1) < 1e-6);
        assert!((points.distance(0, 2) - 2.0 * (1.0 - 0.6)).abs() < 1e-5);
    }
}
