//! Writes Parquet files, also for the unit tests of the crate.

use std::sync::Arc;

use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

pub type Lists<T> = Vec<Option<Vec<Option<T>>>>;

#[derive(Clone, Debug)]
pub enum Values {
    Booleans(Vec<Option<bool>>),
    Integers(Vec<Option<i32>>),
    Longs(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Floats(Lists<f32>),
    Doubles(Lists<f64>),
    /// Lists of 16-bit floats, given as their bits.
    Halves(Lists<u16>),
    Bytes(Lists<i32>),
}

/// The type of a column, in the language of schemas, and its values.
pub type Column<'a> = (&'a str, Values);

/// The items may be null.
pub fn list(name: &str, item: &str) -> String {
    format!("optional group {name} (LIST) {{ repeated group list {{ optional {item}; }} }}")
}

pub fn whole<T: Copy>(rows: &[Vec<T>]) -> Lists<T> {
    let some = |row: &Vec<T>| Some(row.iter().map(|&value| Some(value)).collect());
    rows.iter().map(some).collect()
}

/// Each row group has `group` rows.
pub fn file(columns: &[Column], group: usize, properties: WriterProperties) -> Vec<u8> {
    let types: Vec<&str> = columns.iter().map(|(kind, _)| *kind).collect();
    let schema = format!("message rows {{ {} }}", types.join(" "));
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let rows = columns.first().map_or(0, |(_, values)| values.rows());
    for first in (0..rows).step_by(group) {
        let rows = first..rows.min(first + group);
        let mut group = writer.next_row_group().unwrap();
        for (_, values) in columns {
            values.write(&mut group, rows.clone());
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

impl Values {
    fn rows(&self) -> usize {
        match self {
            Self::Booleans(rows) => rows.len(),
            Self::Integers(rows) => rows.len(),
            Self::Longs(rows) => rows.len(),
            Self::Texts(rows) => rows.len(),
            Self::Floats(rows) => rows.len(),
            Self::Doubles(rows) => rows.len(),
            Self::Halves(rows) => rows.len(),
            Self::Bytes(rows) => rows.len(),
        }
    }

    fn write(&self, group: &mut SerializedRowGroupWriter<Vec<u8>>, rows: std::ops::Range<usize>) {
        match self {
            Self::Booleans(all) => flat::<BoolType, _>(group, &all[rows], |&value| value),
            Self::Integers(all) => flat::<Int32Type, _>(group, &all[rows], |&value| value),
            Self::Longs(all) => flat::<Int64Type, _>(group, &all[rows], |&value| value),
            Self::Texts(all) => {
                let text = |value: &String| ByteArray::from(value.as_str());
                flat::<ByteArrayType, _>(group, &all[rows], text);
            }
            Self::Floats(all) => lists::<FloatType, _>(group, &all[rows], |&value| value),
            Self::Doubles(all) => lists::<DoubleType, _>(group, &all[rows], |&value| value),
            Self::Halves(all) => {
                let half = |value: &u16| {
                    FixedLenByteArray::from(ByteArray::from(value.to_le_bytes().to_vec()))
                };
                lists::<FixedLenByteArrayType, _>(group, &all[rows], half);
            }
            Self::Bytes(all) => lists::<Int32Type, _>(group, &all[rows], |&value| value),
        }
    }
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<Vec<u8>>,
    values: &[T::T],
    definition: &[i16],
    repetition: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    let typed = column.typed::<T>();
    (typed.write_batch(values, Some(definition), repetition)).unwrap();
    column.close().unwrap();
}

fn flat<T: DataType, V>(
    group: &mut SerializedRowGroupWriter<Vec<u8>>,
    rows: &[Option<V>],
    make: impl Fn(&V) -> T::T,
) {
    let values: Vec<T::T> = rows.iter().flatten().map(make).collect();
    let definition: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
    put::<T>(group, &values, &definition, None);
}

fn lists<T: DataType, V>(
    group: &mut SerializedRowGroupWriter<Vec<u8>>,
    rows: &[Option<Vec<Option<V>>>],
    make: impl Fn(&V) -> T::T,
) {
    let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let items = row.as_deref().unwrap_or_default();
        if items.is_empty() {
            definition.push(i16::from(row.is_some()));
            repetition.push(0);
        }
        for (at, item) in items.iter().enumerate() {
            definition.push(if item.is_some() { 3 } else { 2 });
            repetition.push(i16::from(at > 0));
            values.extend(item.iter().map(&make));
        }
    }
    put::<T>(group, &values, &definition, Some(&repetition));
}
