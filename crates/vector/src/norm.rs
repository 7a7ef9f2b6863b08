//! Lengths of vectors, as the cosine metric needs them.

/// The Euclidean length of `v`, computed in `f64`; infinite above [`f32::MAX`].
pub fn norm(v: &[f32]) -> f32 {
    length(v) as f32
}

fn length(v: &[f32]) -> f64 {
    // Additions to a single sum would wait for each other, so there are eight sums.
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

/// Scales `v` to length 1 and returns its former length. A zero vector stays zero.
pub fn normalize(v: &mut [f32]) -> f32 {
    let length = length(v);
    let norm = length as f32;
    // A subnormal or infinite `f32` has too few bits, so the length in `f64` is used instead.
    let by = match norm.is_normal() {
        true => f64::from(norm),
        false => length,
    };
    if by > 0.0 && by.is_finite() {
        for x in v {
            // In f64, because 1 / norm in f32 is infinite for the smallest lengths.
            *x = (f64::from(*x) / by) as f32;
        }
    }
    norm
}
