//! Parsers of values with names, which come from the engine's lists. clap gets all names, so an
//! error suggests the closest name, and `--help` describes each value.

use std::error::Error;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use stratann::{
    ColumnType, Compression, Element, Layout, LowCodes, Metric, Order, Preset, Strategy, Update,
    Way,
};

/// `of` returns the name of a value, and one line about it.
fn by_name<T>(
    all: &[T],
    of: fn(&T) -> (&'static str, &'static str),
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let names = all.iter().map(|value| {
        let (name, about) = of(value);
        PossibleValue::new(name).help(about)
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>().map_err(Box::new))
}

pub fn preset() -> impl TypedValueParser<Value = Preset> {
    by_name(&Preset::ALL, |preset| (preset.name, preset.about))
}

pub fn layout() -> impl TypedValueParser<Value = Layout> {
    by_name(&Layout::ALL, |layout| (layout.name(), layout.about()))
}

pub fn order() -> impl TypedValueParser<Value = Order> {
    by_name(Order::ALL, |order| (order.name(), order.about()))
}

pub fn compression() -> impl TypedValueParser<Value = Compression> {
    by_name(Compression::ALL, |compression| {
        (compression.name(), compression.about())
    })
}

pub fn low_codes() -> impl TypedValueParser<Value = LowCodes> {
    by_name(&LowCodes::ALL, |low_codes| {
        (low_codes.name(), low_codes.about())
    })
}

pub fn update() -> impl TypedValueParser<Value = Update> {
    by_name(Update::ALL, |update| (update.name(), update.about()))
}

pub fn way() -> impl TypedValueParser<Value = Way> {
    by_name(Way::ALL, |way| (way.name(), way.about()))
}

pub fn strategy() -> impl TypedValueParser<Value = Strategy> {
    by_name(Strategy::ALL, |strategy| {
        (strategy.name(), strategy.about())
    })
}

/// The metrics also have the names that other engines use.
pub fn metric() -> impl TypedValueParser<Value = Metric> {
    let names = Metric::ALL.map(|metric| {
        let aliases = metric.aliases().iter();
        PossibleValue::new(metric.name())
            .help(metric.about())
            .aliases(aliases)
    });
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Metric>().map_err(Box::new))
}

/// The types also have the names that numpy uses.
pub fn element() -> impl TypedValueParser<Value = Element> {
    let names = [
        (Element::F32, "float32", "floats of 4 bytes"),
        (Element::F16, "float16", "floats of 2 bytes"),
        (Element::U8, "uint8", "whole numbers from 0 to 255"),
        (Element::I8, "int8", "whole numbers from -128 to 127"),
    ];
    let names = names
        .map(|(element, alias, about)| PossibleValue::new(element.name()).help(about).alias(alias));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Element>().map_err(Box::new))
}

/// Parses a column of attributes and its type, as NAME=TYPE.
pub fn column(text: &str) -> Result<(String, ColumnType), String> {
    let Some((name, kind)) = text.split_once('=') else {
        return Err("a column is NAME=TYPE. Write it as \"year=integer\"".to_owned());
    };
    match stratann::column_type(kind) {
        Ok(kind) => Ok((name.to_owned(), kind)),
        Err(error) => Err(error.to_string()),
    }
}

/// The condition that ends re-ranking, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RerankName {
    /// Ends re-ranking after a batch if too few of its candidates enter the results (DecoupleVS)
    Batches,
    /// Re-ranks candidates while one of them, within the error of its code, may be nearer than a
    /// result
    Estimate,
}

/// Interfaces for reading, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// io_uring if the kernel allows it, else pread
    Auto,
    /// io_uring; an error if the kernel refuses it
    #[value(alias = "io_uring")]
    Uring,
    /// pread on a pool of threads
    Pread,
}

impl From<IoName> for stratann::IoMode {
    fn from(name: IoName) -> Self {
        match name {
            IoName::Auto => Self::Auto,
            IoName::Uring => Self::Uring,
            IoName::Pread => Self::Pread,
        }
    }
}
