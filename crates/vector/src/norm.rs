//! Lengths of vectors, for the cosine metric.

/// The Euclidean length of `v`, computed in `f64`, so that squares neither overflow nor vanish.
pub fn norm(v: &[f32]) -> f32 {
    // Eight sums instead of one: additions of one sum would wait for each other.
    let mut sums = [0f64; 8];
    let (eights, rest) = v.as_chunks::<8>();
    for eight in eights {
        for (sum, x) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*x) * f64::from(*x);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    (((a + b) + (c + d)) + ((e + f) + (g + h))).sqrt() as f32
}

/// Scales `v` to length 1 and returns the length that it had. A zero vector has no direction and stays zero.
pub fn normalize(v: &mut [f32]) -> f32 {
    let norm = norm(v);
    if norm > 0.0 && norm.is_finite() {
        for x in v {
            // Through f64, because 1 / norm in f32 is infinite for the smallest lengths.
            *x = (f64::from(*x) / f64::from(norm)) as f32;
        }
    }
    norm
}
