//! Element types, conversion of rows to and from `f32`, and checks for NaN and infinity.
//!
//! | element | bytes | code | read as |
//! |---|---|---|---|
//! | `f32` | 4 | 0 | IEEE 754 binary32, little-endian |
//! | `f16` | 2 | 1 | IEEE 754 binary16, little-endian |
//! | `u8`  | 1 | 2 | 0 to 255 |
//! | `i8`  | 1 | 3 | -128 to 127 |

use std::fmt;
use std::str::FromStr;

/// The type of a vector's components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE 754 binary16, not bfloat16).
    F16,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
}

/// The error for an unknown name or code of an element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("element type is {0:?}; there is no such type. Use one of f32, f16, u8, i8")]
pub struct UnknownElement(pub String);

impl Element {
    /// All element types, in the order of their codes.
    pub const ALL: [Element; 4] = [Element::F32, Element::F16, Element::U8, Element::I8];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 => 2,
            Element::U8 | Element::I8 => 1,
        }
    }

    /// The name that [`FromStr`] reads back.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::U8 => "u8",
            Element::I8 => "i8",
        }
    }

    /// The code of this type in files, never reused.
    pub const fn code(self) -> u8 {
        match self {
            Element::F32 => 0,
            Element::F16 => 1,
            Element::U8 => 2,
            Element::I8 => 3,
        }
    }

    /// The type with this code in a file; `None` for an unknown code.
    pub fn from_code(code: u8) -> Option<Element> {
        Element::ALL.get(usize::from(code)).copied()
    }

    /// Whether the elements are floating-point numbers, which can be NaN or infinite.
    pub const fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Element {
    type Err = UnknownElement;

    /// Reads a name in any case, also numpy's (`float32`, `float16`, `uint8`, `int8`).
    fn from_str(text: &str) -> Result<Element, UnknownElement> {
        match text.to_ascii_lowercase().as_str() {
            "f32" | "float32" | "float" => Ok(Element::F32),
            "f16" | "float16" | "half" => Ok(Element::F16),
            "u8" | "uint8" => Ok(Element::U8),
            "i8" | "int8" => Ok(Element::I8),
            _ => Err(UnknownElement(text.to_owned())),
        }
    }
}

/// The conversion is exact. It has no branches, so that loops that call it vectorise.
#[inline(always)]
pub(crate) fn half_to_f32(half: u16) -> f32 {
    let half = u32::from(half);
    // The shift leaves an exponent bias that is 112 too small. The multiplication corrects it, and
    // normalises subnormal numbers.
    let magnitude = f32::from_bits((half & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let infinite = if half & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | infinite | (half & 0x8000) << 16)
}

/// Converts one or several consecutive rows to `f32`, exactly.
///
/// # Panics
/// Panics if `bytes` does not hold exactly `out.len()` elements.
pub fn to_f32(element: Element, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        bytes.len(),
        out.len() * element.size(),
        "bytes do not hold {} elements of {element}",
        out.len()
    );
    match element {
        Element::F32 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*from);
            }
        }
        Element::F16 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *to = half_to_f32(u16::from_le_bytes(*from));
            }
        }
        Element::U8 => {
            for (to, from) in out.iter_mut().zip(bytes) {
                *to = f32::from(*from);
            }
        }
        Element::I8 => {
            for (to, from) in out.iter_mut().zip(bytes) {
                *to = f32::from(from.cast_signed());
            }
        }
    }
}

/// Converts numbers to elements. Integers are rounded to the nearest and clamped, floats of
/// binary16 are rounded towards 0, and NaN becomes 0.
///
/// # Panics
/// Panics if `out` does not hold exactly `numbers.len()` elements.
pub fn from_f32(element: Element, numbers: &[f32], out: &mut [u8]) {
    assert_eq!(
        out.len(),
        numbers.len() * element.size(),
        "bytes do not hold {} elements of {element}",
        numbers.len()
    );
    for (number, out) in numbers.iter().zip(out.chunks_exact_mut(element.size())) {
        match element {
            Element::F32 => out.copy_from_slice(&number.to_le_bytes()),
            Element::F16 => out.copy_from_slice(&f32_to_half(*number).to_le_bytes()),
            Element::U8 => out[0] = number.round() as u8,
            Element::I8 => out[0] = (number.round() as i8).cast_unsigned(),
        }
    }
}

/// Rounds towards 0.
fn f32_to_half(number: f32) -> u16 {
    // The bits of non-negative numbers sort as the numbers do.
    let (mut at, mut beyond) = (0, 0x7c00);
    while at + 1 < beyond {
        let middle = u16::midpoint(at, beyond);
        match half_to_f32(middle) <= number.abs() {
            true => at = middle,
            false => beyond = middle,
        }
    }
    at | u16::from(number.is_sign_negative()) << 15
}

/// The position of the first NaN, infinity, or magnitude above `most` (finite, not negative).
pub fn first_beyond(element: Element, bytes: &[u8], most: f32) -> Option<usize> {
    match element {
        // 65,504 is the largest finite binary16 number.
        Element::F16 if most >= 65_504.0 => first_invalid(element, bytes),
        Element::F16 => bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|v| half_to_f32(u16::from_le_bytes(*v)).abs())
            .position(|magnitude| magnitude > most || magnitude.is_nan()),
        Element::F32 => {
            // The bits of magnitudes sort as the magnitudes do, and infinity and NaN come last.
            const RUN: usize = 64;
            let most = most.to_bits();
            let beyond = |v: &[u8; 4]| u32::from_le_bytes(*v) & 0x7fff_ffff > most;
            let mut runs = bytes.as_chunks::<4>().0.chunks(RUN);
            let (at, run) = runs
                .by_ref()
                .enumerate()
                .find(|(_, run)| run.iter().fold(false, |any, v| any | beyond(v)))?;
            Some(at * RUN + run.iter().position(beyond)?)
        }
        Element::U8 | Element::I8 => None,
    }
}

/// The position of the first NaN or infinity among the whole elements of `bytes`.
pub fn first_invalid(element: Element, bytes: &[u8]) -> Option<usize> {
    // Each run is tested as a whole, without an early exit, so that the loop vectorises.
    const RUN: usize = 64;
    let invalid32 = |v: &[u8; 4]| u32::from_le_bytes(*v) & 0x7f80_0000 == 0x7f80_0000;
    let invalid16 = |v: &[u8; 2]| u16::from_le_bytes(*v) & 0x7c00 == 0x7c00;
    let (run, within) = match element {
        Element::F32 => {
            let mut runs = bytes.as_chunks::<4>().0.chunks(RUN);
            let (at, run) = runs
                .by_ref()
                .enumerate()
                .find(|(_, run)| run.iter().fold(false, |any, v| any | invalid32(v)))?;
            (at, run.iter().position(invalid32)?)
        }
        Element::F16 => {
            let mut runs = bytes.as_chunks::<2>().0.chunks(RUN);
            let (at, run) = runs
                .by_ref()
                .enumerate()
                .find(|(_, run)| run.iter().fold(false, |any, v| any | invalid16(v)))?;
            (at, run.iter().position(invalid16)?)
        }
        Element::U8 | Element::I8 => return None,
    };
    Some(run * RUN + within)
}
