//! Reads columns of a Parquet file as attributes, each value as a JSON text.

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, Int96};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};
use serde_json::value::RawValue;
use stratann::bounds::{MOST_ITEMS, MOST_PAYLOAD, MOST_STRING};

use super::budget::Budget;
use super::error::ParquetError;
use super::types;

#[derive(Debug)]
pub struct Column {
    pub name: String,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Each row has one value, or one list of values.
    Leaf { leaf: usize, kind: Kind, most: Most },
    /// The schema has only this column, and each row becomes JSON.
    Nested(Box<Type>),
}

/// The limits of a value. A value beyond them is refused before it becomes a text.
#[derive(Debug, Clone, Copy)]
struct Most {
    items: usize,
    text: usize,
    remedy: &'static str,
}

impl Most {
    const ATTRIBUTE: Self = Self {
        items: MOST_ITEMS,
        text: MOST_STRING,
        remedy: "Leave the column out with --without, or make it the payload with --payload",
    };
    /// The limit of items is half the limit of bytes, because each item takes at least two bytes of
    /// JSON.
    const PAYLOAD: Self = Self {
        items: MOST_PAYLOAD / 2,
        text: MOST_PAYLOAD,
        remedy: "Leave the column out with --without, or shorten it before",
    };

    fn refuse(self, found: String, most: usize, of: &str) -> Wrong {
        let reason = format!("it may have at most {most} {of}. {}", self.remedy);
        Wrong::Long { found, reason }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Boolean,
    Integer,
    Unsigned,
    Float,
    Half,
    Text,
    Json,
    Date,
    /// A time since 1970, in a unit of this many nanoseconds.
    Time(i64),
    Nothing,
}

impl Column {
    /// The columns that become attributes or the payload. Fails for wrong types and equal names.
    pub fn all(
        schema: &SchemaDescriptor,
        payload: Option<&str>,
        left_out: impl Fn(&str) -> bool,
    ) -> Result<Vec<Column>, ParquetError> {
        let mut columns: Vec<Column> = Vec::new();
        let mut unfit = Vec::new();
        let fields = schema.root_schema().get_fields().iter().enumerate();
        for (at, field) in fields.filter(|(_, field)| !left_out(field.name())) {
            let name = field.name();
            if columns.iter().any(|column| column.name == name) {
                return Err(ParquetError::Twice {
                    column: name.to_owned(),
                });
            }
            let is_payload = payload == Some(name);
            let form = match (leaf_of(schema, at, field), is_payload) {
                (Some((leaf, kind)), _) if kind != Kind::Json || is_payload => {
                    let most = match is_payload {
                        true => Most::PAYLOAD,
                        false => Most::ATTRIBUTE,
                    };
                    Form::Leaf { leaf, kind, most }
                }
                (_, true) => Form::Nested(Box::new(alone(schema, at)?)),
                (_, false) => {
                    unfit.push((name.to_owned(), types::name(field)));
                    continue;
                }
            };
            columns.push(Column {
                name: name.to_owned(),
                form,
            });
        }
        match unfit.is_empty() {
            true => Ok(columns),
            false => Err(ParquetError::Types {
                columns: unfit,
                has_payload: payload.is_some(),
            }),
        }
    }

    pub fn is_time(&self) -> bool {
        let kind = match &self.form {
            Form::Leaf { kind, .. } => *kind,
            Form::Nested(_) => return false,
        };
        matches!(kind, Kind::Date | Kind::Time(_))
    }

    pub fn open<'a>(
        &'a self,
        group: &'a dyn RowGroupReader,
        budget: &'a Budget,
    ) -> Result<Values<'a>, ParquetError> {
        let source = match &self.form {
            Form::Leaf { leaf, kind, most } => Source::Leaf(Box::new(Leaf {
                reader: group.get_column_reader(*leaf)?,
                kind: *kind,
                most: *most,
                levels: Levels::of(&group.metadata().schema_descr().column(*leaf)),
            })),
            Form::Nested(schema) => Source::Nested(RowIter::from_row_group(
                Some(schema.as_ref().clone()),
                group,
            )?),
        };
        Ok(Values {
            column: &self.name,
            source,
            budget,
        })
    }
}

/// The leaf of a column of values, or of lists of strings or integers.
pub fn leaf_of(schema: &SchemaDescriptor, at: usize, field: &Type) -> Option<(usize, Kind)> {
    let (leaf, is_list) = leaf_at(schema, at, field)?;
    let kind = kind_of(&schema.column(leaf))?;
    let is_item = matches!(
        kind,
        Kind::Text | Kind::Integer | Kind::Unsigned | Kind::Nothing
    );
    (!is_list || is_item).then_some((leaf, kind))
}

/// The leaf of a column whose rows have one value or one list, and whether they have lists.
pub fn leaf_at(schema: &SchemaDescriptor, at: usize, field: &Type) -> Option<(usize, bool)> {
    let mut leaves =
        (0..schema.num_columns()).filter(|&leaf| schema.get_column_root_idx(leaf) == at);
    let leaf = leaves.next().filter(|_| leaves.next().is_none())?;
    let described = schema.column(leaf);
    let depth = described.path().parts().len();
    if depth == 1 && described.max_rep_level() == 0 {
        return Some((leaf, false));
    }
    let is_list = |field: &Type| {
        field.get_basic_info().converted_type() == ConvertedType::LIST
            || field.get_basic_info().logical_type_ref() == Some(&LogicalType::List)
    };
    // Lists: `repeated T f`, `f (LIST) { repeated T }` and `f (LIST) { repeated group { T } }`.
    let repeated = |field: &Type| field.get_basic_info().repetition() == Repetition::REPEATED;
    let of_many = described.max_rep_level() == 1
        && (!field.is_group()
            || is_list(field) && depth <= 3 && field.get_fields().iter().all(|f| repeated(f)));
    of_many.then_some((leaf, true))
}

pub fn kind_of(leaf: &ColumnDescriptor) -> Option<Kind> {
    Some(match leaf.logical_type_ref() {
        Some(LogicalType::String | LogicalType::Enum) => Kind::Text,
        Some(LogicalType::Json) => Kind::Json,
        Some(LogicalType::Date) => Kind::Date,
        Some(LogicalType::Timestamp(time)) => Kind::Time(match time.unit {
            TimeUnit::MILLIS => 1_000_000,
            TimeUnit::MICROS => 1_000,
            TimeUnit::NANOS => 1,
        }),
        Some(LogicalType::Integer(whole)) => match whole.is_signed {
            true => Kind::Integer,
            false => Kind::Unsigned,
        },
        Some(LogicalType::Float16) => Kind::Half,
        Some(LogicalType::Unknown) => Kind::Nothing,
        Some(_) => return None,
        None => match (leaf.converted_type(), leaf.physical_type()) {
            (ConvertedType::UTF8 | ConvertedType::ENUM, _) => Kind::Text,
            (ConvertedType::JSON, _) => Kind::Json,
            (ConvertedType::DATE, _) => Kind::Date,
            (ConvertedType::TIMESTAMP_MILLIS, _) => Kind::Time(1_000_000),
            (ConvertedType::TIMESTAMP_MICROS, _) => Kind::Time(1_000),
            (
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64,
                _,
            ) => Kind::Unsigned,
            (
                ConvertedType::INT_8
                | ConvertedType::INT_16
                | ConvertedType::INT_32
                | ConvertedType::INT_64,
                _,
            ) => Kind::Integer,
            (ConvertedType::NONE, Physical::BOOLEAN) => Kind::Boolean,
            (ConvertedType::NONE, Physical::INT32 | Physical::INT64) => Kind::Integer,
            (ConvertedType::NONE, Physical::FLOAT | Physical::DOUBLE) => Kind::Float,
            // Impala, Hive and older versions of Spark write times in this type.
            (ConvertedType::NONE, Physical::INT96) => Kind::Time(1),
            _ => return None,
        },
    })
}

fn alone(schema: &SchemaDescriptor, at: usize) -> Result<Type, ParquetError> {
    let root = schema.root_schema();
    let fields = root.get_fields().iter().skip(at).take(1).cloned();
    let alone = Type::group_type_builder(root.name()).with_fields(fields.collect());
    Ok(alone.build()?)
}

pub struct Values<'a> {
    column: &'a str,
    source: Source<'a>,
    budget: &'a Budget,
}

enum Source<'a> {
    Leaf(Box<Leaf>),
    Nested(RowIter<'a>),
}

impl Values<'_> {
    /// Reads `rows` rows, from `first` on, as JSON texts without line ends.
    pub fn next(&mut self, rows: usize, first: u64) -> Result<Vec<String>, ParquetError> {
        let texts = match &mut self.source {
            Source::Leaf(leaf) => leaf.next(rows, self.budget)?,
            Source::Nested(iter) => {
                let mut texts = Vec::with_capacity(rows);
                for row in iter.by_ref().take(rows) {
                    let row = row?;
                    let value = row.get_column_iter().next().map(|(_, field)| field);
                    let text = value.map_or_else(null, |field| field.to_json_value().to_string());
                    self.budget.take_text(text.len() as u64)?;
                    texts.push(Ok(text));
                }
                texts
            }
        };
        if texts.len() != rows {
            let row = first + texts.len() as u64;
            return Err(ParquetError::ended(self.column, row));
        }
        let checked = (first..).zip(texts).map(|(row, text)| {
            text.map_err(|wrong| {
                let column = self.column.to_owned();
                match wrong {
                    Wrong::Value { found, expected } => ParquetError::Value {
                        row,
                        column,
                        found,
                        expected: expected.into(),
                    },
                    Wrong::Long { found, reason } => ParquetError::Long {
                        row,
                        column,
                        found,
                        reason,
                    },
                }
            })
        });
        checked.collect()
    }
}

enum Wrong {
    Value {
        found: String,
        expected: &'static str,
    },
    /// `reason` has the limit and the remedy.
    Long { found: String, reason: String },
}

type Text = Result<String, Wrong>;

fn null() -> String {
    "null".to_owned()
}

struct Leaf {
    reader: ColumnReader,
    kind: Kind,
    most: Most,
    levels: Levels,
}

/// The memory of a list item: the `Text`, and up to 32 bytes of digits.
const ITEM: u64 = size_of::<Text>() as u64 + 32;

/// The levels of a leaf say which values are present, and where lists begin.
pub struct Levels {
    /// The definition level of a value that is present.
    pub there: i16,
    /// The smallest definition level of a list item, if the leaf has lists.
    pub item: Option<i16>,
    pub definition: Vec<i16>,
    pub repetition: Vec<i16>,
}

impl Leaf {
    fn next(&mut self, rows: usize, budget: &Budget) -> Result<Vec<Text>, ParquetError> {
        let (levels, kind, most) = (&mut self.levels, self.kind, self.most);
        let values: Vec<Text> = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                values.iter().map(|value| Ok(value.to_string())).collect()
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                if let Some(refused) = levels.refused(most, rows) {
                    return Ok(refused);
                }
                budget.take_text(levels.items(values.len()) * ITEM)?;
                let whole = |&value: &i32| match kind {
                    Kind::Unsigned => Ok((value as u32).to_string()),
                    _ => whole(kind, value.into()),
                };
                values.iter().map(whole).collect()
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                if let Some(refused) = levels.refused(most, rows) {
                    return Ok(refused);
                }
                budget.take_text(levels.items(values.len()) * ITEM)?;
                values.iter().map(|&value| whole(kind, value)).collect()
            }
            ColumnReader::Int96ColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                values.iter().map(impala_time).collect()
            }
            ColumnReader::FloatColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                values
                    .iter()
                    .map(|&value| Ok(float(value.into())))
                    .collect()
            }
            ColumnReader::DoubleColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                values.iter().map(|&value| Ok(float(value))).collect()
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                if let Some(refused) = levels.refused(most, rows) {
                    return Ok(refused);
                }
                // A text of the dictionary may be the value of many rows.
                let bytes: u64 = values.iter().map(|value| value.len() as u64).sum();
                budget.take_text(bytes + levels.items(values.len()) * ITEM)?;
                let mut texts = Vec::with_capacity(values.len());
                for value in &values {
                    let text = text(kind, value.data(), most);
                    let more = text.as_ref().map_or(0, String::len);
                    budget.take_text(more.saturating_sub(value.len()) as u64)?;
                    texts.push(text);
                }
                texts
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                let values = levels.read(reader, rows)?;
                values.iter().map(|value| half(value.data())).collect()
            }
        };
        Ok(levels.assembled(values))
    }
}

impl Levels {
    pub fn of(leaf: &ColumnDescriptor) -> Self {
        Self {
            there: leaf.max_def_level(),
            item: (leaf.max_rep_level() > 0).then(|| leaf.repeated_ancestor_def_level()),
            definition: Vec::new(),
            repetition: Vec::new(),
        }
    }

    /// Reads the values of the next `rows` rows. At the end, there may be fewer.
    pub fn read<T: DataType>(
        &mut self,
        reader: &mut ColumnReaderImpl<T>,
        rows: usize,
    ) -> Result<Vec<T::T>, ParquetError> {
        self.definition.clear();
        self.repetition.clear();
        let mut values = Vec::new();
        let (definition, repetition) = (&mut self.definition, &mut self.repetition);
        reader.read_records(rows, Some(definition), Some(repetition), &mut values)?;
        Ok(values)
    }

    fn items(&self, values: usize) -> u64 {
        self.item.map_or(0, |_| values as u64)
    }

    /// If a list of the last read has too many items, returns an error for its row, and null for
    /// other rows.
    fn refused(&self, most: Most, rows: usize) -> Option<Vec<Text>> {
        let item = self.item?;
        let mut lengths: Vec<usize> = Vec::with_capacity(rows);
        for (&definition, &repetition) in self.definition.iter().zip(&self.repetition) {
            if repetition == 0 {
                lengths.push(0);
            }
            if let Some(length) = lengths.last_mut().filter(|_| definition >= item) {
                *length += 1;
            }
        }
        let long = lengths.iter().position(|&length| length > most.items)?;
        let found = format!("a list of {} items", lengths[long]);
        let mut wrong = Some(most.refuse(found, most.items, "items"));
        let text = |row: usize| match wrong.take_if(|_| row == long) {
            Some(wrong) => Err(wrong),
            None => Ok(null()),
        };
        Some((0..lengths.len()).map(text).collect())
    }

    fn assembled(&self, values: Vec<Text>) -> Vec<Text> {
        if self.there == 0 {
            return values;
        }
        let mut values = values.into_iter();
        let mut value = |definition: i16| match definition == self.there {
            true => values.next().unwrap_or_else(|| Ok(null())),
            false => Ok(null()),
        };
        let Some(item) = self.item else {
            let definitions = self.definition.iter();
            return definitions.map(|&definition| value(definition)).collect();
        };
        let mut lists: Vec<Result<Vec<String>, Wrong>> = Vec::new();
        for (&definition, &repetition) in self.definition.iter().zip(&self.repetition) {
            if repetition == 0 {
                lists.push(Ok(Vec::new()));
            }
            if definition < item {
                continue;
            }
            let one = match definition < self.there {
                true => Err(Wrong::Value {
                    found: "a list that contains a null".to_owned(),
                    expected: "a list of only strings or only integers, or a null instead of the list",
                }),
                false => value(definition),
            };
            if let Some(list) = lists.last_mut() {
                match (list.as_mut(), one) {
                    (Ok(items), Ok(item)) => items.push(item),
                    (Ok(_), Err(wrong)) => *list = Err(wrong),
                    (Err(_), _) => {}
                }
            }
        }
        let joined = |items: Vec<String>| format!("[{}]", items.join(","));
        lists.into_iter().map(|list| list.map(joined)).collect()
    }
}

const WHOLE: &str = "a whole number of 64 bits, from -2^63 to 2^63 - 1,";
const MICROSECONDS: &str = "a time whose microseconds since 1970 are a number of 64 bits";

/// A date or a time becomes microseconds since 1970.
fn whole(kind: Kind, value: i64) -> Text {
    const DAY: i64 = 86_400_000_000;
    let (made, unit) = match kind {
        Kind::Unsigned => {
            let value = value as u64;
            return match i64::try_from(value) {
                Ok(value) => Ok(value.to_string()),
                Err(_) => Err(Wrong::Value {
                    found: value.to_string(),
                    expected: WHOLE,
                }),
            };
        }
        Kind::Date => (value.checked_mul(DAY), "days"),
        Kind::Time(1_000_000) => (value.checked_mul(1_000), "milliseconds"),
        Kind::Time(1) => (Some(value.div_euclid(1_000)), "nanoseconds"),
        _ => (Some(value), ""),
    };
    made.map(|made| made.to_string())
        .ok_or_else(|| Wrong::Value {
            found: format!("{value} {unit} since 1970"),
            expected: MICROSECONDS,
        })
}

/// The time is stored as days of the Julian calendar and nanoseconds of the day.
fn impala_time(value: &Int96) -> Text {
    const EPOCH: i128 = 2_440_588;
    let [low, high, days] = value.data() else {
        return Ok(null());
    };
    let nanoseconds = i128::from(u64::from(*high) << 32 | u64::from(*low));
    let made = (i128::from(*days) - EPOCH) * 86_400_000_000 + nanoseconds / 1_000;
    match i64::try_from(made) {
        Ok(made) => Ok(made.to_string()),
        Err(_) => Err(Wrong::Value {
            found: format!("{made} microseconds since 1970"),
            expected: MICROSECONDS,
        }),
    }
}

/// NaN becomes null.
fn float(value: f64) -> String {
    match stratann::data::json_of(&stratann::Value::Float(value)) {
        Ok(text) => text.get().to_owned(),
        Err(_) => null(),
    }
}

fn half(bytes: &[u8]) -> Text {
    let &[low, high] = bytes else {
        return Err(Wrong::Value {
            found: format!("a float of {} bytes", bytes.len()),
            expected: "two",
        });
    };
    let bits = u16::from_le_bytes([low, high]);
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match (exponent, bits & 1023) {
        (31, 0) => f64::INFINITY,
        (31, _) => f64::NAN,
        (0, _) => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    Ok(float(match bits >> 15 {
        0 => magnitude,
        _ => -magnitude,
    }))
}

fn text(kind: Kind, bytes: &[u8], most: Most) -> Text {
    let bytes = match kind {
        Kind::Json => bytes.trim_ascii(),
        _ => bytes,
    };
    if bytes.len() > most.text {
        let found = format!("a text of {} bytes", bytes.len());
        return Err(most.refuse(found, most.text, "bytes"));
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(Wrong::Value {
            found: "bytes that are no text in UTF-8".to_owned(),
            expected: "UTF-8",
        });
    };
    let made = match kind {
        // JSON may have line ends between its tokens, but each row is one line.
        Kind::Json => serde_json::from_str::<&RawValue>(text)
            .map(|json| json.get().replace(['\n', '\r'], " ")),
        _ => serde_json::to_string(text),
    };
    made.map_err(|error| Wrong::Value {
        found: format!("no JSON: {error}"),
        expected: "a text in JSON, as the type of the column says,",
    })
}
