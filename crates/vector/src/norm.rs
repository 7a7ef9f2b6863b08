//! Lengths of vectors, for the cosine metric.

/// The Euclidean length of `v`, computed in `f64`, so that squares neither overflow nor vanish. It
/// is 0 only if all elements are; and infinite if no `f32` can hold it, which takes elements near
/// the largest.
pub fn norm(v: &[f32]) -> f32 {
    length(v) as f32
}

fn length(v: &[f32]) -> f64 {
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
    (((a + b) + (c + d)) + ((e + f) + (g + h))).sqrt()
}

/// Scales `v` to length 1 and returns the length that it had. A zero vector has no direction and
/// stays zero.
pub fn normalize(v: &mut [f32]) -> f32 {
    let length = length(v);
    let norm = length as f32;
    // A length that f32 rounds well is taken as f32 has it; of others it has few bits, or none.
    let by = match norm.is_normal() {
        true => f64::from(norm),
        false => length,
    };
    if by > 0.0 && by.is_finite() {
        for x in v {
            // Through f64, because 1 / norm in f32 is infinite for the smallest lengths.
            *x = (f64::from(*x) / by) as f32;
        }
    }
    norm
}
