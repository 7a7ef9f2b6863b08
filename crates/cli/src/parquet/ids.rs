//! The column of ids, with one whole number in each row.

use parquet::column::reader::ColumnReader;
use parquet::file::reader::RowGroupReader;
use parquet::schema::types::SchemaDescriptor;

use super::column::{Kind, Levels, kind_of, leaf_at};
use super::error::ParquetError;
use super::types;

#[derive(Debug)]
pub struct IdColumn {
    name: String,
    leaf: usize,
    is_signed: bool,
}

impl IdColumn {
    /// The column of field `at`, which `option` names. Fails if the type allows rows that are not
    /// exactly one whole number.
    pub fn of(schema: &SchemaDescriptor, at: usize, option: &str) -> Result<Self, ParquetError> {
        let field = &schema.root_schema().get_fields()[at];
        let leaf = leaf_at(schema, at, field).filter(|&(_, is_list)| !is_list);
        let kind = leaf.and_then(|(leaf, _)| Some((leaf, kind_of(&schema.column(leaf))?)));
        let (leaf, is_signed) = match kind {
            Some((leaf, Kind::Integer)) => (leaf, true),
            Some((leaf, Kind::Unsigned)) => (leaf, false),
            _ => {
                let found = types::name(field);
                let without = match (option, found.as_str()) {
                    ("--ids", "string") => {
                        ", or leave --ids out: then rows are numbered. For strings as ids use \
                         stratann.documents.Documents in Python"
                    }
                    ("--ids", _) => ", or leave --ids out: then rows are numbered",
                    _ => "",
                };
                return Err(ParquetError::Type {
                    column: field.name().to_owned(),
                    found,
                    expected: format!(
                        "ids are whole numbers. Name another column with {option}{without}"
                    ),
                });
            }
        };
        Ok(Self {
            name: field.name().to_owned(),
            leaf,
            is_signed,
        })
    }

    pub fn open(&self, group: &dyn RowGroupReader) -> Result<Ids<'_>, ParquetError> {
        Ok(Ids {
            column: self,
            reader: group.get_column_reader(self.leaf)?,
            levels: Levels::of(&group.metadata().schema_descr().column(self.leaf)),
        })
    }
}

pub struct Ids<'a> {
    column: &'a IdColumn,
    reader: ColumnReader,
    levels: Levels,
}

impl Ids<'_> {
    /// Appends the next `rows` ids. `first` is the number of the first row in the file.
    pub fn next(
        &mut self,
        rows: usize,
        first: u64,
        ids: &mut Vec<u64>,
    ) -> Result<(), ParquetError> {
        let (levels, is_signed) = (&mut self.levels, self.column.is_signed);
        let values: Vec<i128> = match &mut self.reader {
            ColumnReader::Int32ColumnReader(reader) => {
                let values = levels.read(reader, rows)?.into_iter();
                let whole = |value: i32| match is_signed {
                    true => value.into(),
                    false => (value as u32).into(),
                };
                values.map(whole).collect()
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let values = levels.read(reader, rows)?.into_iter();
                let whole = |value: i64| match is_signed {
                    true => value.into(),
                    false => (value as u64).into(),
                };
                values.map(whole).collect()
            }
            _ => Vec::new(),
        };
        let wrong = |nth: usize, found: String| ParquetError::Value {
            row: first + nth as u64,
            column: self.column.name.clone(),
            found,
            expected: "an id, a whole number from 0 to 18446744073709551614,".into(),
        };
        let there = levels.there;
        let is_null = |definition: &i16| *definition < there;
        if let Some(nth) = levels.definition.iter().position(is_null) {
            return Err(wrong(nth, "null".to_owned()));
        }
        if values.len() != rows {
            return Err(ParquetError::ended(
                &self.column.name,
                first + values.len() as u64,
            ));
        }
        for (nth, value) in values.into_iter().enumerate() {
            let id = u64::try_from(value).ok().filter(|&id| id != u64::MAX);
            ids.push(id.ok_or_else(|| wrong(nth, value.to_string()))?);
        }
        Ok(())
    }
}
