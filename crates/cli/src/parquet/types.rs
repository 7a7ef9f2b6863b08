//! The names of column types, and the reasons why attributes cannot have some of these types.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::schema::types::Type;

pub fn name(field: &Type) -> String {
    let info = field.get_basic_info();
    let annotated = match info.logical_type_ref() {
        Some(LogicalType::Decimal(_)) => "decimal",
        Some(LogicalType::Map) => "map",
        Some(LogicalType::Json) => "JSON",
        Some(LogicalType::Bson) => "BSON",
        Some(LogicalType::Uuid) => "UUID",
        Some(LogicalType::Time(_)) => "time of day",
        Some(LogicalType::Variant(_)) => "variant",
        Some(LogicalType::Geometry(_) | LogicalType::Geography(_)) => "geometry",
        Some(LogicalType::List) => "list",
        Some(LogicalType::String | LogicalType::Enum) => "string",
        Some(LogicalType::Date) => "date",
        Some(LogicalType::Timestamp(_)) => "timestamp",
        Some(LogicalType::Float16) => "float",
        _ => match info.converted_type() {
            ConvertedType::UTF8 | ConvertedType::ENUM => "string",
            ConvertedType::DATE => "date",
            ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS => "timestamp",
            ConvertedType::DECIMAL => "decimal",
            ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => "map",
            ConvertedType::JSON => "JSON",
            ConvertedType::BSON => "BSON",
            ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS => "time of day",
            ConvertedType::INTERVAL => "interval",
            ConvertedType::LIST => "list",
            _ if field.is_group() => "struct",
            _ => match field.get_physical_type() {
                Physical::BOOLEAN => "boolean",
                Physical::INT32 | Physical::INT64 => "integer",
                Physical::INT96 => "timestamp",
                Physical::FLOAT | Physical::DOUBLE => "float",
                Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => "binary",
            },
        },
    };
    let item = || {
        let repeated = field.get_fields().first()?;
        match repeated.is_group() {
            true => repeated.get_fields().first().map(|item| name(item)),
            false => Some(name(repeated)),
        }
    };
    match annotated {
        "list" => match item() {
            Some(item) => format!("list of {item}"),
            None => "list".to_owned(),
        },
        name if info.has_repetition() && info.repetition() == Repetition::REPEATED => {
            format!("list of {name}")
        }
        name => name.to_owned(),
    }
}

pub fn reason(name: &str) -> &'static str {
    match name {
        "decimal" => "a float cannot store its digits exactly",
        "map" | "struct" | "variant" | "geometry" => "an attribute cannot have parts",
        "JSON" => "its values may be objects",
        "time of day" | "interval" => "a time needs a date",
        "binary" | "BSON" | "UUID" => "its bytes are not text",
        name if name.starts_with("list") => "a list may have only strings or integers",
        _ => "no attribute has such values",
    }
}
