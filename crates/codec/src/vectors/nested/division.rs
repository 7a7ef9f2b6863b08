//! Divides the bits of an element into a step number and the remaining bits, and joins them again.

use super::super::Element;

/// Larger step numbers, too far from any median, become this number.
const BEYOND: i32 = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// A float with `mantissa` bits of mantissa; `step` is the biased exponent of a step.
    Float { mantissa: u32, step: u32 },
    /// A byte with `rest` remaining bits. The XOR with `flip` makes an unsigned byte signed.
    Byte { rest: u32, flip: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Divided {
    pub(super) number: i32,
    pub(super) rest: Rest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Value and number of the remaining bits. The lowest bits may be omitted if they are zero.
    Bits(u32, u32),
    /// A float below one step: its exponent and its mantissa.
    Exponent(u8, u32),
}

impl Division {
    pub(super) fn of(element: Element, step: u8) -> Option<Division> {
        let step = u32::from(step);
        let float = |mantissa, most| {
            // These bounds keep the middle of the first step normal, and of the last step finite.
            (2..=most)
                .contains(&step)
                .then_some(Division::Float { mantissa, step })
        };
        match element {
            Element::F32 => float(23, 236),
            Element::F16 => float(10, 30),
            Element::U8 | Element::I8 => (1..=7).contains(&step).then_some(Division::Byte {
                rest: step,
                flip: if element == Element::U8 { 0x80 } else { 0 },
            }),
        }
    }

    pub(super) fn width(self) -> u32 {
        match self {
            Division::Float { mantissa: 23, .. } => 32,
            Division::Float { .. } => 16,
            Division::Byte { .. } => 8,
        }
    }

    pub(super) fn is_finite(self, bits: u32) -> bool {
        match self {
            Division::Byte { .. } => true,
            Division::Float { mantissa, .. } => {
                let infinite = (1 << (self.width() - 1 - mantissa)) - 1;
                bits >> mantissa & infinite != infinite
            }
        }
    }

    pub(super) fn divide(self, bits: u32) -> Divided {
        let (mantissa, step) = match self {
            Division::Byte { rest, flip } => {
                let signed = i32::from((bits as u8 ^ flip) as i8);
                return Divided {
                    number: signed >> rest,
                    rest: Rest::Bits(bits & ((1 << rest) - 1), rest),
                };
            }
            Division::Float { mantissa, step } => (mantissa, step),
        };
        let negative = bits >> (self.width() - 1) == 1;
        let magnitude = bits & ((1 << (self.width() - 1)) - 1);
        let (exponent, fraction) = (magnitude >> mantissa, magnitude & ((1 << mantissa) - 1));
        let (number, rest) = match exponent.checked_sub(step) {
            None => (0, Rest::Exponent(exponent as u8, fraction)),
            Some(above) if above >= BEYOND.ilog2() => (BEYOND, Rest::Bits(0, 0)),
            Some(above) => {
                let whole = fraction | 1 << mantissa;
                let left = mantissa.saturating_sub(above);
                (
                    (whole >> left << above.saturating_sub(mantissa)) as i32,
                    Rest::Bits(whole & ((1 << left) - 1), left),
                )
            }
        };
        Divided {
            // Positive and negative zero get different numbers, so that the sign is not lost.
            number: if negative { !number } else { number },
            rest,
        }
    }

    /// `None` for a float below one step, whose number of bits the step number does not determine.
    #[inline(always)]
    pub(super) fn rest_bits(self, number: i32) -> Option<u32> {
        match self {
            Division::Byte { rest, .. } => Some(rest),
            Division::Float { mantissa, .. } => match above(number) {
                0 => None,
                steps => Some(mantissa.saturating_sub(steps.ilog2())),
            },
        }
    }

    #[inline(always)]
    pub(super) fn join(self, number: i32, rest: Rest) -> Option<u32> {
        let (mantissa, step) = match self {
            Division::Byte { rest: bits, flip } => {
                let Rest::Bits(low, _) = rest else {
                    return None;
                };
                let high = i8::try_from(number << bits).ok()?;
                return Some(u32::from((high as u8 | low as u8) ^ flip));
            }
            Division::Float { mantissa, step } => (mantissa, step),
        };
        let magnitude = match rest {
            Rest::Exponent(exponent, fraction) => u32::from(exponent) << mantissa | fraction,
            Rest::Bits(low, left) => {
                let steps = above(number);
                let exponent = steps.checked_ilog2()?;
                let fraction = steps ^ 1 << exponent;
                let fraction = fraction << left >> exponent.saturating_sub(mantissa);
                ((step + exponent) << mantissa) + (fraction | low)
            }
        };
        let sign = self.width() - 1;
        (magnitude >> sign == 0).then_some(u32::from(number < 0) << sign | magnitude)
    }
}

/// The whole steps between zero and the step with this number, which may be negative.
#[inline(always)]
fn above(number: i32) -> u32 {
    (number ^ number >> 31) as u32
}

/// The bits of `value` as an f16. A value above the largest f16 becomes the largest f16. Other
/// values must be normal numbers of f16.
#[inline(always)]
pub(super) fn f16_bits(value: f32) -> u16 {
    const LARGEST: u32 = 0x7bff;
    let bits = value.to_bits();
    let magnitude = ((bits & 0x7fff_ffff) >> 13).saturating_sub(112 << 10);
    (bits >> 16 & 0x8000 | magnitude.min(LARGEST)) as u16
}

pub(super) fn f16_value(bits: u32) -> f64 {
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * f64::exp2(-24.0),
        31 => f64::INFINITY,
        _ => (fraction + 1024.0) * f64::exp2(f64::from(exponent - 25)),
    };
    if bits >> 15 & 1 == 1 {
        -magnitude
    } else {
        magnitude
    }
}
