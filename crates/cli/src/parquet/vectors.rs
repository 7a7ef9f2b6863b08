//! The column of vectors, which are copied to a temporary file for the engine.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::file::reader::RowGroupReader;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};
use stratann::{DataError, Element, NoRows, VectorSource};

use super::column::{Levels, leaf_at};
use super::error::ParquetError;
use super::types;

/// A column of lists of numbers, all of one length.
#[derive(Debug)]
pub struct VectorColumn {
    name: String,
    leaf: usize,
    /// Floats of 64 bits become floats of 32 bits.
    element: Element,
    /// The number of elements in the vector of the first row, once it was read.
    dim: Option<usize>,
}

impl VectorColumn {
    /// Fails if the column is no list of numbers that can be elements of a vector.
    pub fn of(schema: &SchemaDescriptor, at: usize) -> Result<Self, ParquetError> {
        let field = &schema.root_schema().get_fields()[at];
        let leaf = leaf_at(schema, at, field).filter(|&(_, is_list)| is_list);
        let found = leaf.and_then(|(leaf, _)| Some((leaf, element_of(&schema.column(leaf))?)));
        let Some((leaf, element)) = found else {
            return Err(ParquetError::Type {
                column: field.name().to_owned(),
                found: types::name(field),
                expected: EXPECTED.to_owned(),
            });
        };
        Ok(Self {
            name: field.name().to_owned(),
            leaf,
            element,
            dim: None,
        })
    }

    pub fn candidates(schema: &SchemaDescriptor) -> Vec<String> {
        let fields = 0..schema.root_schema().get_fields().len();
        let columns = fields.filter_map(|at| Self::of(schema, at).ok());
        columns.map(|column| column.name).collect()
    }

    pub fn open(&self, group: &dyn RowGroupReader) -> Result<Lists, ParquetError> {
        Ok(Lists {
            reader: group.get_column_reader(self.leaf)?,
            levels: Levels::of(&group.metadata().schema_descr().column(self.leaf)),
        })
    }

    /// Replaces `out` by the elements of `rows` rows, from `first` on.
    pub fn next(
        &mut self,
        lists: &mut Lists,
        rows: usize,
        first: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), ParquetError> {
        out.clear();
        let levels = &mut lists.levels;
        let mut too_wide = None;
        match &mut lists.reader {
            ColumnReader::FloatColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            ColumnReader::DoubleColumnReader(reader) => {
                for (nth, wide) in levels.read(reader, rows)?.into_iter().enumerate() {
                    let value = wide as f32;
                    if wide.is_finite() && !value.is_finite() {
                        too_wide.get_or_insert((nth, format!("a list with {wide:?} in it")));
                    }
                    out.extend(value.to_le_bytes());
                }
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                out.extend(values.iter().flat_map(|value| value.data()));
            }
            ColumnReader::Int32ColumnReader(reader) => {
                for (nth, value) in levels.read(reader, rows)?.into_iter().enumerate() {
                    let byte = match self.element {
                        Element::U8 => u8::try_from(value).ok(),
                        _ => i8::try_from(value).ok().map(i8::cast_unsigned),
                    };
                    if byte.is_none() {
                        too_wide.get_or_insert((nth, format!("a list with {value} in it")));
                    }
                    out.push(byte.unwrap_or(0));
                }
            }
            _ => {}
        }
        self.check_lengths(levels, rows, first)?;
        match (too_wide, self.dim) {
            (Some((nth, found)), Some(dim)) => Err(ParquetError::Value {
                row: first + (nth / dim) as u64,
                column: self.name.clone(),
                found,
                expected: format!("numbers in the range of {}", self.element).into(),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a row without a list, a list with a null, and another length than in row 0.
    fn check_lengths(
        &mut self,
        levels: &Levels,
        rows: usize,
        first: u64,
    ) -> Result<(), ParquetError> {
        let wrong = |row: usize, found: String, expected: String| ParquetError::Value {
            row: first + row as u64,
            column: self.name.clone(),
            found,
            expected: expected.into(),
        };
        let item = levels.item.unwrap_or(0);
        let mut lengths: Vec<usize> = Vec::with_capacity(rows);
        for (&definition, &repetition) in levels.definition.iter().zip(&levels.repetition) {
            if repetition == 0 {
                lengths.push(0);
            }
            let row = lengths.len().saturating_sub(1);
            let found = match definition {
                there if there == levels.there => {
                    if let Some(length) = lengths.last_mut() {
                        *length += 1;
                    }
                    continue;
                }
                null if null >= item => "a list that contains a null",
                empty if empty + 1 == item => "an empty list",
                _ => "null",
            };
            return Err(wrong(row, found.to_owned(), "a list of numbers".to_owned()));
        }
        for (row, &length) in lengths.iter().enumerate() {
            let dim = *self.dim.get_or_insert(length);
            if length != dim {
                return Err(wrong(
                    row,
                    format!("a list of {length} numbers"),
                    format!("{dim}, as in row 0,"),
                ));
            }
        }
        match lengths.len() == rows {
            true => Ok(()),
            false => Err(ParquetError::ended(
                &self.name,
                first + lengths.len() as u64,
            )),
        }
    }

    pub fn shape(&self) -> Option<NoRows> {
        Some(NoRows::new(self.element, self.dim?))
    }

    /// Fails if no row was read, so the dimension is unknown.
    pub fn source(&self, file: File, name: &str, rows: u64) -> Result<Vectors, ParquetError> {
        Ok(Vectors {
            file,
            name: name.to_owned(),
            rows: usize::try_from(rows).map_err(parquet::errors::ParquetError::from)?,
            dim: self.dim.ok_or(ParquetError::NoVectors)?,
            element: self.element,
        })
    }
}

const EXPECTED: &str = "a vector is a list of floats of 16, 32 or 64 bits, or of integers of 8 bits. Name another column \
    with --vectors, or convert it before";

fn element_of(leaf: &ColumnDescriptor) -> Option<Element> {
    let bits = match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(LogicalType::Integer(whole)), _) => Some((whole.bit_width, whole.is_signed)),
        (None, ConvertedType::UINT_8) => Some((8, false)),
        (None, ConvertedType::INT_8) => Some((8, true)),
        _ => None,
    };
    match (leaf.physical_type(), leaf.logical_type_ref()) {
        (Physical::FLOAT | Physical::DOUBLE, None) => Some(Element::F32),
        (Physical::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Float16)) if leaf.type_length() == 2 => {
            Some(Element::F16)
        }
        (Physical::INT32, _) => match bits {
            Some((8, false)) => Some(Element::U8),
            Some((8, true)) => Some(Element::I8),
            _ => None,
        },
        _ => None,
    }
}

pub struct Lists {
    reader: ColumnReader,
    levels: Levels,
}

/// The vectors are in a temporary file without a name, one after the other.
#[derive(Debug)]
pub struct Vectors {
    file: File,
    name: String,
    rows: usize,
    dim: usize,
    element: Element,
}

impl VectorSource for Vectors {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn has_random_access(&self) -> bool {
        true
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        stratann::data::check_range(self, first, out.len())?;
        let offset = first as u64 * self.row_bytes() as u64;
        self.file
            .read_exact_at(out, offset)
            .map_err(|source| DataError::Io {
                file: self.name.clone(),
                action: format!("read its vectors from row {first} on"),
                source,
            })
    }
}
