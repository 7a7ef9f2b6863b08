//! Codes each vector in two parts. The *leading part* suffices for ranking. Together with the
//! *trailing part*, it restores every bit.
//!
//! The step is a power of two, one for the whole file. The *step number* n of an element is the
//! number of whole steps in the element. A negative float has the step number -1 - n, where n is
//! the step number of its magnitude. The leading part has the differences of the step numbers from
//! the median of their dimension, Huffman-coded. From the leading part alone, an element is decoded
//! as the middle of its step. The trailing part has the remaining bits of each element:
//!
//! ```text
//!   element                       leading                 trailing
//!   float, one step or more       step number, b bits     all but the first b - 1 bits of mantissa
//!   float, below a step           0, or -1 if negative    exponent (Huffman), all bits of mantissa
//!   byte                          its higher bits         its lower bits
//!   too far from the median       -128 or 127 *           nothing *
//!
//!   * element unchanged at the end of the leading part; if that is full, in the trailing part
//!
//! bits   contents (leading part)
//!    1   0: coded; 1: the step numbers less the medians follow from byte 1 on, a byte each
//!    1   1: an element is too far from the median
//!    1   1: such elements are stored at the end; 0: their decoded values may be wrong
//!    .   step numbers less the medians, as bytes, in two streams (see lanes)
//!    .   if stored here: for each such element its dimension u16 and its bytes; then the number of
//!        these elements u16
//!
//! bits   contents (trailing part)
//!    2   0: coded without the bits that are zero in the whole sample; 1: coded with these bits;
//!        2: the unchanged vector follows from byte 1 on
//!    .   the remaining bits of each element
//!
//! offset  size  contents (a model)
//!      0     1  version, 1
//!      1     1  element code
//!      2     1  for floats the biased exponent of a step; for bytes the number of lower bits
//!      3     1  number of lowest mantissa bits that are zero in the whole sample
//!      4     4  dimension
//!      8     .  median step number of each dimension, i16
//!      .   129  code of step numbers
//!      .   129  code of exponents below a step
//! ```
//!
//! For floats, both parts together are about as long as the code of another codec, because mantissa
//! bits are random.

mod division;

use super::{Element, Shape, lanes};
use crate::bits::{BitWriter, WINDOW, window};
use crate::error::CodecError;
use crate::model::Reader;
use crate::prefix::{BYTE_SYMBOLS, ESCAPE, PrefixCode, Triples};
use division::{Divided, Division, Rest, f16_bits, f16_value};

const VERSION: u8 = 1;
const MODEL: &str = "model of nested vectors";
const LEADING: &str = "vector, leading part";
const TRAILING: &str = "vector, trailing part";
const LIMIT: u32 = 12;
/// The number of bits before the step numbers in a leading part. The next three constants are the
/// masks of these bits.
const MODE: u32 = 3;
const STORED: u8 = 1;
const FAR: u8 = 2;
const GIVEN: u8 = 4;
const DIMENSION: usize = 2;
/// The largest absolute value of a median in a model. Larger medians are clamped to it.
const MOST_MEDIAN: i32 = 1 << 14;
const BATCH: usize = 64;

/// The model that divides the vectors of a file into two parts, and codes both parts.
#[derive(Debug, Clone)]
pub struct NestedModel {
    shape: Shape,
    step: u8,
    division: Division,
    zeros: u32,
    medians: Vec<i16>,
    /// For each dimension, the offset in steps from a coded number to the middle of its step.
    middles: Vec<f32>,
    numbers: PrefixCode,
    triples: Triples<{ 1 << LIMIT }>,
    exponents: PrefixCode,
    /// For each value of the next bits, an exponent or the escape, and the length of its code word.
    exponent_words: Vec<(u16, u8)>,
}

fn elements(size: usize, vector: &[u8]) -> impl Iterator<Item = u32> {
    vector.chunks_exact(size).map(|bytes| {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(four)
    })
}

impl NestedModel {
    /// Trains a model on a sample of whole vectors, with one of the [`steps`](Self::steps).
    pub fn train(shape: Shape, step: u8, sample: &[u8]) -> Option<NestedModel> {
        let division = Division::of(shape.element(), step)?;
        let (size, dim) = (shape.element().size(), shape.dim());
        let rows = sample.len() / shape.vector_bytes();
        let sample = &sample[..rows * shape.vector_bytes()];
        let mut columns = vec![Vec::with_capacity(rows); dim];
        let mut used = 0;
        let mut exponents = [0u64; 256];
        for (i, bits) in elements(size, sample).enumerate() {
            used |= bits;
            let Divided { number, rest } = division.divide(bits);
            columns[i % dim].push(number);
            if let Rest::Exponent(exponent, _) = rest {
                exponents[usize::from(exponent)] += 1;
            }
        }
        // The median, because a few outliers would move a mean away from all other elements.
        let median = |numbers: &mut Vec<i32>| match numbers.len() {
            0 => 0,
            count => *numbers.select_nth_unstable(count / 2).1,
        };
        let medians: Vec<i16> = columns
            .iter_mut()
            .map(|numbers| median(numbers).clamp(-MOST_MEDIAN, MOST_MEDIAN) as i16)
            .collect();
        let mut numbers = [0u64; 256];
        for (i, bits) in elements(size, sample).enumerate() {
            let coded = coded(division.divide(bits).number, medians[i % dim]);
            numbers[usize::from(coded as u8)] += 1;
        }
        let zeros = match division {
            Division::Float { mantissa, .. } => used.trailing_zeros().min(mantissa),
            Division::Byte { .. } => 0,
        };
        Some(NestedModel::new(
            shape,
            (step, division),
            zeros,
            medians,
            PrefixCode::from_byte_counts(&numbers, LIMIT),
            PrefixCode::from_byte_counts(&exponents, LIMIT),
        ))
    }

    /// The steps worth a trial, coarsest first. For floats, the first step is about half the median
    /// standard deviation of the dimensions. Each later step is half as large, down to an eighth of
    /// the first.
    pub fn steps(shape: Shape, sample: &[u8]) -> Vec<u8> {
        if let Element::U8 | Element::I8 = shape.element() {
            return (1..=6).rev().collect();
        }
        let half = shape.element() == Element::F16;
        let (size, dim) = (shape.element().size(), shape.dim());
        let (mut sums, mut squares) = (vec![0f64; dim], vec![0f64; dim]);
        let rows = (sample.len() / shape.vector_bytes()).max(1) as f64;
        for (i, bits) in elements(size, sample).enumerate() {
            let value = match half {
                true => f16_value(bits),
                false => f64::from(f32::from_bits(bits)),
            };
            if value.is_finite() {
                sums[i % dim] += value;
                squares[i % dim] += value * value;
            }
        }
        let variance = |(sum, squares): (&f64, &f64)| squares / rows - sum / rows * (sum / rows);
        let mut variances: Vec<f64> = sums.iter().zip(&squares).map(variance).collect();
        // If all values of a dimension are equal, any step represents them.
        variances.retain(|&variance| variance > 0.0);
        variances.sort_by(f64::total_cmp);
        let variance = variances.get(variances.len() / 2).copied().unwrap_or(0.0);
        let (bias, most) = if half { (15, 30) } else { (127, 236) };
        // If all vectors are equal, the logarithm of 0 becomes the least `i32`.
        let coarsest = (variance.sqrt().log2().floor() as i32).saturating_add(bias - 1);
        let mut steps: Vec<u8> = (0..4)
            .map(|finer| coarsest.saturating_sub(finer).clamp(2, most) as u8)
            .collect();
        steps.dedup();
        steps
    }

    fn new(
        shape: Shape,
        (step, division): (u8, Division),
        zeros: u32,
        medians: Vec<i16>,
        numbers: PrefixCode,
        exponents: PrefixCode,
    ) -> NestedModel {
        NestedModel {
            shape,
            step,
            division,
            zeros,
            middles: medians
                .iter()
                .map(|&median| f32::from(median) + 0.5)
                .collect(),
            medians,
            triples: Triples::new(&numbers),
            numbers,
            exponent_words: exponents.singles(LIMIT),
            exponents,
        }
    }

    /// The element type and the dimension.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The step, in the form that [`NestedModel::train`] takes.
    pub fn step(&self) -> u8 {
        self.step
    }

    /// The approximate number of bytes of the model in memory.
    pub fn memory_bytes(&self) -> usize {
        let words = (1 << LIMIT) * (size_of::<u32>() + size_of::<(u16, u8)>());
        words + self.medians.len() * (size_of::<i16>() + size_of::<f32>())
    }

    /// The largest distance of an element from its value in the leading part: half a step.
    pub fn error(&self) -> f32 {
        match self.division {
            Division::Float { mantissa: 23, step } => f32::from_bits((step - 1) << 23),
            Division::Float { step, .. } => f32::from_bits((step - 1 + 127 - 15) << 23),
            Division::Byte { rest, .. } => (1u32 << (rest - 1)) as f32,
        }
    }

    /// The most bytes of a leading part: one for each element, and one more.
    pub fn max_leading_bytes(&self) -> usize {
        self.shape.dim() + 1
    }

    /// The most bytes of a trailing part: one more than the vector has.
    pub fn max_trailing_bytes(&self) -> usize {
        self.shape.vector_bytes() + 1
    }

    /// Appends the leading part of a vector to `leading`, and the trailing part to `trailing`.
    pub fn encode(
        &self,
        vector: &[u8],
        leading: &mut Vec<u8>,
        trailing: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        self.check(vector.len())?;
        let divided: Vec<Divided> = elements(self.shape.element().size(), vector)
            .map(|bits| self.division.divide(bits))
            .collect();
        let coded: Vec<i8> = divided
            .iter()
            .zip(&self.medians)
            .map(|(divided, &median)| coded(divided.number, median))
            .collect();
        let given = self.encode_leading(vector, &coded, leading);
        self.encode_trailing(vector, (&divided, &coded), given, trailing);
        Ok(())
    }

    /// Returns whether the leading part stores the elements that are too far from the median.
    fn encode_leading(&self, vector: &[u8], coded: &[i8], out: &mut Vec<u8>) -> bool {
        let (start, size) = (out.len(), self.shape.element().size());
        let far = |&i: &usize| is_far(coded[i]);
        let far: Vec<usize> = (0..coded.len()).filter(far).collect();
        let encode = |mode: u8, out: &mut Vec<u8>| {
            let put = |i: usize, writer: &mut BitWriter<'_>| {
                self.numbers.put_byte(coded[i] as u8, writer);
            };
            lanes::encode(coded.len(), (mode.into(), MODE), put, out);
        };
        // A vector with an element that is not finite is unfit for ranking, so no elements are
        // stored here.
        let mut all = elements(size, vector);
        if !far.is_empty() && all.all(|bits| self.division.is_finite(bits)) {
            encode(FAR | GIVEN, out);
            for &i in &far {
                out.extend((i as u16).to_le_bytes());
                out.extend(&vector[size * i..size * (i + 1)]);
            }
            out.extend((far.len() as u16).to_le_bytes());
            if out.len() - start <= self.max_leading_bytes() {
                return true;
            }
            out.truncate(start);
        }
        let mode = if far.is_empty() { 0 } else { FAR };
        encode(mode, out);
        if out.len() - start > self.max_leading_bytes() {
            out.truncate(start);
            out.push(STORED | mode);
            out.extend(coded.iter().map(|&number| number as u8));
        }
        false
    }

    fn encode_trailing(
        &self,
        vector: &[u8],
        (divided, coded): (&[Divided], &[i8]),
        given: bool,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let size = self.shape.element().size();
        let used = elements(size, vector).fold(0, |used, bits| used | bits);
        let whole = self.zeros > used.trailing_zeros();
        let zeros = if whole { 0 } else { self.zeros };
        let mut writer = BitWriter::new(out);
        writer.put(whole.into(), 2);
        for ((divided, &number), bits) in divided.iter().zip(coded).zip(elements(size, vector)) {
            match divided.rest {
                _ if is_far(number) && given => {}
                _ if is_far(number) => writer.put(bits.into(), self.division.width()),
                Rest::Bits(rest, count) if count > zeros => {
                    writer.put(u64::from(rest >> zeros), count - zeros);
                }
                Rest::Bits(..) => {}
                Rest::Exponent(exponent, fraction) => {
                    self.exponents.put_byte(exponent, &mut writer);
                    writer.put(u64::from(fraction >> zeros), self.mantissa() - zeros);
                }
            }
        }
        writer.finish();
        if out.len() - start > vector.len() {
            out.truncate(start);
            out.push(2);
            out.extend_from_slice(vector);
        }
    }

    #[inline(always)]
    fn mantissa(&self) -> u32 {
        match self.division {
            Division::Float { mantissa, .. } => mantissa,
            Division::Byte { .. } => 0,
        }
    }

    /// Decodes a whole leading part into `out`, of the vector's length. After an error, `out` is
    /// unspecified. Returns the result of [`is_near`](Self::is_near).
    #[inline]
    pub fn decode_leading(&self, leading: &[u8], out: &mut [u8]) -> Result<bool, CodecError> {
        self.check(out.len())?;
        // `out` first has the step numbers in its last bytes. From the front on, the elements then
        // overwrite them (see `float_split`).
        let given = self.numbers(leading, out)?;
        self.middles(out);
        let size = self.shape.element().size();
        for far in given.chunks_exact(DIMENSION + size) {
            let (i, element) = given_element(far);
            match out.get_mut(size * i..size * (i + 1)) {
                Some(place) => place.copy_from_slice(element),
                None => return Err(damaged("vector, dimension of an outlier", i as u64)),
            }
        }
        Ok(Self::is_near(leading))
    }

    /// Writes to `out` the elements that [`decode_leading`](Self::decode_leading) would decode.
    pub fn round(&self, vector: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.check(vector.len())?;
        self.check(out.len())?;
        let size = self.shape.element().size();
        let at = out.len() - self.shape.dim();
        let mut any_far = false;
        let numbers = elements(size, vector).zip(&self.medians);
        for ((bits, &median), byte) in numbers.zip(&mut out[at..]) {
            let coded = coded(self.division.divide(bits).number, median);
            any_far |= is_far(coded);
            *byte = coded as u8;
        }
        if any_far {
            let (mut leading, mut trailing) = (Vec::new(), Vec::new());
            self.encode(vector, &mut leading, &mut trailing)?;
            self.decode_leading(&leading, out)?;
        } else {
            self.middles(out);
        }
        Ok(())
    }

    #[inline(always)]
    fn middles(&self, out: &mut [u8]) {
        match self.division {
            Division::Float { mantissa: 23, .. } => self.middles_f32(out),
            Division::Float { .. } => self.middles_f16(out),
            Division::Byte { rest, flip } => {
                for (byte, &median) in out.iter_mut().zip(&self.medians) {
                    let number = i32::from(*byte as i8) + i32::from(median);
                    let middle = (number << rest) + (1 << (rest - 1));
                    *byte = middle.clamp(-128, 127) as i8 as u8 ^ flip;
                }
            }
        }
    }

    /// Whether all decoded elements are within [`error`](Self::error) of the vector's. The result
    /// is false if the part has no space for elements far from the median, or an element is not
    /// finite.
    #[inline]
    pub fn is_near(leading: &[u8]) -> bool {
        (leading.first()).is_some_and(|mode| mode & (FAR | GIVEN) != FAR)
    }

    /// Decodes the step numbers into the last bytes of `out`. Returns the elements that are stored
    /// unchanged.
    #[inline(always)]
    fn numbers<'a>(&self, leading: &'a [u8], out: &mut [u8]) -> Result<&'a [u8], CodecError> {
        let &mode = leading.first().ok_or_else(|| truncated(LEADING, leading))?;
        let at = out.len() - self.shape.dim();
        let (codes, given) = match mode & GIVEN {
            0 => (leading, &[][..]),
            _ => self.split_given(leading)?,
        };
        match mode & STORED {
            0 => lanes::decode(LEADING, codes, MODE as usize, &self.triples, &mut out[at..])?,
            _ => super::copy_stored(LEADING, codes, 1, &mut out[at..])?,
        }
        Ok(given)
    }

    #[cold]
    fn split_given<'a>(&self, leading: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), CodecError> {
        let element = DIMENSION + self.shape.element().size();
        let split = leading.split_last_chunk::<2>().and_then(|(rest, &count)| {
            let given = usize::from(u16::from_le_bytes(count)) * element;
            let at = rest.len().checked_sub(given).filter(|&at| at > 0)?;
            Some(rest.split_at(at))
        });
        split.ok_or_else(|| truncated(LEADING, leading))
    }

    #[inline(always)]
    fn middles_f32(&self, out: &mut [u8]) {
        let at = out.len() - self.shape.dim();
        let step = 2.0 * self.error();
        let mut numbers = [0; BATCH];
        for (batch, middles) in self.middles.chunks(BATCH).enumerate() {
            let from = batch * BATCH;
            let numbers = &mut numbers[..middles.len()];
            numbers.copy_from_slice(&out[at + from..at + from + middles.len()]);
            let floats = out[4 * from..4 * (from + middles.len())]
                .as_chunks_mut::<4>()
                .0;
            for ((float, &number), &middle) in floats.iter_mut().zip(&*numbers).zip(middles) {
                // The result is exact: the sum is a whole number of halves, below 2^16, and `step`
                // is a power of two.
                let value = (f32::from(number as i8) + middle) * step;
                *float = value.to_le_bytes();
            }
        }
    }

    fn middles_f16(&self, out: &mut [u8]) {
        let at = out.len() - self.shape.dim();
        let step = 2.0 * self.error();
        for (i, &middle) in self.middles.iter().enumerate() {
            let value = (f32::from(out[at + i] as i8) + middle) * step;
            out[2 * i..2 * i + 2].copy_from_slice(&f16_bits(value).to_le_bytes());
        }
    }

    /// Decodes a vector into `out`, of the vector's length. After an error, `out` is unspecified.
    pub fn decode(
        &self,
        leading: &[u8],
        trailing: &[u8],
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        self.check(out.len())?;
        let &mode = trailing
            .first()
            .ok_or_else(|| truncated(TRAILING, trailing))?;
        let zeros = match mode & 3 {
            0 => self.zeros,
            1 => 0,
            2 => return super::copy_stored(TRAILING, trailing, 1, out),
            other => return Err(damaged("vector, mode of the trailing part", other.into())),
        };
        let given = self.numbers(leading, out)?;
        let (size, at) = (self.shape.element().size(), out.len() - self.shape.dim());
        let mut given = given.chunks_exact(DIMENSION + size).map(given_element);
        let is_given = leading.first().is_some_and(|mode| mode & GIVEN != 0);
        let mut bit = 2;
        for (i, &median) in self.medians.iter().enumerate() {
            let coded = out[at + i] as i8;
            let bits = match is_far(coded) {
                true if is_given => match given.next() {
                    Some((dimension, element)) if dimension == i => {
                        out[size * i..size * (i + 1)].copy_from_slice(element);
                        continue;
                    }
                    Some((dimension, _)) => {
                        let dimension = dimension as u64;
                        return Err(damaged("vector, dimension of an outlier", dimension));
                    }
                    None => {
                        return Err(damaged("vector, dimension of a missing outlier", i as u64));
                    }
                },
                true => take(trailing, &mut bit, self.division.width()),
                false => self
                    .element(coded, median, zeros, trailing, &mut bit)
                    .ok_or_else(|| damaged("vector, step number", u64::from(coded as u8)))?,
            };
            out[size * i..size * (i + 1)].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        if let Some((dimension, _)) = given.next() {
            let dimension = dimension as u64;
            return Err(damaged("vector, dimension of an outlier", dimension));
        }
        if bit.div_ceil(8) != trailing.len() {
            return Err(CodecError::Length {
                what: TRAILING,
                found: trailing.len(),
                expected: bit.div_ceil(8),
            });
        }
        Ok(())
    }

    #[inline(always)]
    fn element(
        &self,
        coded: i8,
        median: i16,
        zeros: u32,
        trailing: &[u8],
        bit: &mut usize,
    ) -> Option<u32> {
        let number = i32::from(coded) + i32::from(median);
        let rest = match self.division.rest_bits(number) {
            Some(count) => {
                let low = take(trailing, bit, count.saturating_sub(zeros));
                Rest::Bits(low << zeros, count)
            }
            None => {
                let (word, length) =
                    self.exponent_words[window(trailing, *bit) as usize % (1 << LIMIT)];
                *bit += usize::from(length);
                let exponent = match usize::from(word) {
                    ESCAPE => take(trailing, bit, 8) as u8,
                    _ => word as u8,
                };
                let fraction = take(trailing, bit, self.mantissa() - zeros) << zeros;
                Rest::Exponent(exponent, fraction)
            }
        };
        self.division.join(number, rest)
    }

    #[inline]
    fn check(&self, found: usize) -> Result<(), CodecError> {
        let expected = self.shape.vector_bytes();
        match found == expected {
            true => Ok(()),
            false => Err(CodecError::Length {
                what: "vector",
                found,
                expected,
            }),
        }
    }

    /// Encodes the model.
    pub fn to_bytes(&self) -> Vec<u8> {
        let element = self.shape.element().code();
        let mut out = vec![VERSION, element, self.step, self.zeros as u8];
        out.extend((self.shape.dim() as u32).to_le_bytes());
        out.extend(self.medians.iter().flat_map(|median| median.to_le_bytes()));
        self.numbers.write(&mut out);
        self.exponents.write(&mut out);
        out
    }

    /// Decodes a model that [`NestedModel::to_bytes`] encoded.
    pub fn from_bytes(bytes: &[u8]) -> Result<NestedModel, CodecError> {
        let mut reader = Reader::new(MODEL, VERSION, bytes)?;
        let element = reader.u8()?;
        let element = Element::from_code(element).ok_or_else(|| {
            reader.malformed("model of nested vectors, element", element, "0 to 3")
        })?;
        let step = reader.u8()?;
        let division = Division::of(element, step).ok_or_else(|| {
            reader.malformed("model of nested vectors, step", step, "one of the element")
        })?;
        let zeros = reader.u8()?;
        let most = match division {
            Division::Float { mantissa, .. } => mantissa,
            Division::Byte { .. } => 0,
        };
        if u32::from(zeros) > most {
            return Err(reader.malformed(
                "model of nested vectors, zero bits",
                zeros,
                "at most the bits of a mantissa",
            ));
        }
        let shape = Shape::new(element, reader.u32()? as usize)?;
        let medians: Vec<i16> = reader
            .take(2 * shape.dim())?
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&two| i16::from_le_bytes(two))
            .collect();
        if let Some(&median) = medians
            .iter()
            .find(|&&median| i32::from(median).abs() > MOST_MEDIAN)
        {
            return Err(reader.malformed(
                "model of nested vectors, median",
                median as u16,
                "-16384 to 16384",
            ));
        }
        let numbers = PrefixCode::read(&mut reader, BYTE_SYMBOLS, LIMIT)?;
        let exponents = PrefixCode::read(&mut reader, BYTE_SYMBOLS, LIMIT)?;
        reader.finish()?;
        Ok(NestedModel::new(
            shape,
            (step, division),
            zeros.into(),
            medians,
            numbers,
            exponents,
        ))
    }
}

/// The results -128 and 127 mean "too far from the median".
fn coded(number: i32, median: i16) -> i8 {
    (number - i32::from(median)).clamp(-128, 127) as i8
}

#[inline(always)]
fn is_far(coded: i8) -> bool {
    coded == i8::MIN || coded == i8::MAX
}

#[inline(always)]
fn given_element(bytes: &[u8]) -> (usize, &[u8]) {
    let (dimension, element) = bytes.split_at(DIMENSION);
    (
        usize::from(u16::from_le_bytes([dimension[0], dimension[1]])),
        element,
    )
}

#[inline(always)]
fn take(bytes: &[u8], bit: &mut usize, count: u32) -> u32 {
    const { assert!(WINDOW >= 32) };
    let bits = window(bytes, *bit) & ((1 << count) - 1);
    *bit += count as usize;
    bits as u32
}

#[cold]
fn truncated(what: &'static str, bytes: &[u8]) -> CodecError {
    CodecError::Truncated {
        what,
        found: bytes.len(),
    }
}

#[cold]
fn damaged(what: &'static str, found: u64) -> CodecError {
    CodecError::Malformed {
        what,
        found,
        expected: "a value that an encoder writes",
    }
}
